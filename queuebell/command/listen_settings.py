"""The settings of ``queuebell listen``."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from queuebell.bridge.contract.errors import BadInput, ConfigurationError
from queuebell.bridge.contract.names import DEFAULT_PREFIX
from queuebell.bridge.contract.partitioning import Partitions
from queuebell.bridge.contract.settings import LISTENER_TABLE, doubtful, resolve
from queuebell.listeners.pool import Pool
from queuebell.listeners.wake.pool import Share
from queuebell.listeners.work.retry import ATTEMPTS_MAX, FACTOR_MAX, PAUSE_S_MAX, PAUSE_S_MIN, RetryPolicy
from queuebell.settings import read_tables

log = logging.getLogger("queuebell.listener")

Seconds = Annotated[float, Meta(gt=0, le=604_800)]
Pause = Annotated[float, Meta(ge=PAUSE_S_MIN, le=PAUSE_S_MAX)]
_RETRY = RetryPolicy()
SHARES: Final = ("pool_weight", "pool_priority", "pool_reserved", "pool_limit")
"""The settings that give a queue its share of the pool, as ACCOUNT/QUEUE=NUMBER."""


class ListenSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of the file's table ``[listener]``; in the environment ``QUEUEBELL_`` and the key in capitals."""

    bridge: str | None = None
    """The bridge that sends the wakes; default the one at the store, if there is one."""
    prefix: str = DEFAULT_PREFIX
    """The first token of a broker's subjects and topics, unless the address names its own."""
    name: str | None = None
    batch: Annotated[int, Meta(ge=1)] = 32
    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    pool: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    pool_weight: tuple[str, ...] = ()
    pool_priority: tuple[str, ...] = ()
    pool_reserved: tuple[str, ...] = ()
    pool_limit: tuple[str, ...] = ()
    visibility_timeout: Seconds = 30.0
    max_attempts: Annotated[int, Meta(ge=0, le=ATTEMPTS_MAX)] = _RETRY.attempts
    retry_first: Pause = _RETRY.first_s
    retry_ceiling: Pause = _RETRY.ceiling_s
    retry_factor: Annotated[float, Meta(ge=1, le=FACTOR_MAX)] = _RETRY.factor
    retry_jitter: Annotated[float, Meta(ge=0, le=1)] = _RETRY.jitter
    retry_transient: tuple[str, ...] = ()
    """``NAME=NUMBER`` of the five above, without ``retry_`` or ``max_``: other values for transient failures."""
    poison_queue: str | None = None
    handler_timeout: Seconds | None = None
    end_when_stuck: bool = False
    """Exit once timed-out handlers hold every slot."""
    claim_check: str | None = None
    ledger: str | None = None
    grace: Annotated[float, Meta(ge=0, le=604_800)] = 20.0
    metrics: str | None = None
    """HOST:PORT of ``/metrics`` for Prometheus; port 0 takes a free one."""
    insecure_public: bool = False
    """Serve metrics on a public address."""
    log_format: Literal["plain", "json"] = "plain"
    log_level: Literal["debug", "info", "warning", "error"] = "info"


def pool_of(settings: ListenSettings, queues: Mapping[str, Partitions | None]) -> Pool | None:
    """Return the pool of the settings, with shares for these queues or the queues they are partitions of.

    Raises `ConfigurationError` that names the key, and `BadInput`.
    """
    known = {*queues, *(whole.queue for whole in queues.values() if whole is not None)}
    shares: dict[str, dict[str, int]] = {}
    for key in SHARES:
        name = key.removeprefix("pool_")
        for text in getattr(settings, key):
            if settings.pool is None:
                raise ConfigurationError(f"{key}: needs pool, the number of handler slots that the queues share")
            queue, equals, number = text.partition("=")
            queue, number = queue.strip(), number.strip()
            if not equals or not number.isascii() or not number.isdigit() or len(number) > len("1000000"):
                raise ConfigurationError(f"{key}: is ACCOUNT/QUEUE=NUMBER for each queue, for example billing/urgent=4")
            if queue not in known:
                raise ConfigurationError(f"{key}: this listener has no queue {queue}; it has {', '.join(queues)}")
            if name in shares.setdefault(queue, {}):
                raise ConfigurationError(f"{key}: {queue} is named twice")
            shares[queue][name] = int(number)
    if settings.pool is None:
        return None
    if settings.concurrency is not None:
        raise ConfigurationError(
            "concurrency: with a pool, use pool for the number of handlers and pool_limit for those of a queue"
        )
    return Pool(settings.pool, {queue: Share(**share) for queue, share in shares.items()})


def retry_of(settings: ListenSettings) -> RetryPolicy:
    """Return the retry policy of the settings; raises `ConfigurationError` that names the key."""
    names = {name.removesuffix("_s"): name for name in RetryPolicy.__struct_fields__ if name != "transient"}
    words = ", ".join(names)
    transient: dict[str, Any] = {}
    for text in settings.retry_transient:
        name, _, number = (part.strip() for part in text.partition("="))
        try:
            transient[names.pop(name)] = int(number) if name == "attempts" else float(number)
        except (KeyError, ValueError):
            raise ConfigurationError(f"retry_transient: is NAME=NUMBER, of {words} each once") from None
    key = "retry_first"
    try:
        policy = RetryPolicy(
            attempts=settings.max_attempts,
            first_s=settings.retry_first,
            ceiling_s=settings.retry_ceiling,
            factor=settings.retry_factor,
            jitter=settings.retry_jitter,
        )
        key = "retry_transient"
        return replace(policy, transient=replace(policy, **transient)) if transient else policy
    except BadInput as error:
        raise ConfigurationError(f"{key}: {error}") from None


# Keys of the file's top level that also hold for listeners.
_SHARED = frozenset({"bridge", "prefix", "log_format", "log_level"})


def load(
    file: str | None,
    *,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> ListenSettings:
    """Read ``file`` (or what ``QUEUEBELL_CONFIG`` names), the environment and the options into settings.

    ``bridge``, ``prefix``, ``log_format`` and ``log_level`` also count from the file's top level; ``[listener]`` wins.
    Raises `ConfigurationError`.
    """
    environment = os.environ if environment is None else environment
    file = file or environment.get("QUEUEBELL_CONFIG") or None
    table: dict[str, Any] = {}
    if file is not None:
        tables = read_tables(file)
        own = tables.get(LISTENER_TABLE, {})
        if not isinstance(own, dict):
            raise ConfigurationError(f"{file}: {LISTENER_TABLE} is a table")
        table = {key: value for key, value in tables.items() if key in _SHARED} | own
    variables = {name: text for name, text in environment.items() if name != "QUEUEBELL_CONFIG"}
    for line in doubtful(ListenSettings, variables):
        log.warning(line)
    return resolve(ListenSettings, table=table, source=file or "configuration", environment=variables, options=options)
