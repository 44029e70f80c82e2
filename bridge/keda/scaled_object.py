"""Parse and check the ``scalerMetadata`` of a ScaledObject.

KEDA shows errors to the author of the ScaledObject, so they name the key and its valid values.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from queuebell.bridge.contract.errors import BadInput, ConfigurationError
from queuebell.bridge.contract.names import TOKEN, parse_reference, split_reference

KEY: Final = "apiKeyFromEnv"
"""The credential: KEDA replaces it with the value of that environment variable in the worker's container."""
KEYS: Final = ("queue", "perProcess", "startSeconds", "store", KEY)
THEIRS: Final = frozenset({"scalerAddress", "enableTLS", "unsafeSsl", "tlsCertFile"})
"""Keys that KEDA uses itself and sends too."""
KEYS_MAX: Final = 32
VALUE_MAX: Final = 8192
"""Characters of a value: a token (JWT) is the longest."""
PER_PROCESS: Final = 32
PER_PROCESS_MAX: Final = 1_000_000
START_S: Final = 10
START_S_MAX: Final = 600

_name = re.compile(TOKEN).fullmatch
_shown = re.compile("[A-Za-z0-9_.-]{1,40}").fullmatch
_number = re.compile("[0-9]{1,9}").fullmatch


class KedaStore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A ``[[keda_store]]`` table: an external store that ScaledObjects may name, to be counted."""

    name: str
    url: str

    def __post_init__(self) -> None:
        if _name(self.name) is None:
            raise ConfigurationError(
                "keda_store: name: must be 1 to 80 letters, digits, '_' and '-', starting with a letter or digit"
            )


class Target(msgspec.Struct, frozen=True):
    """The queue and parameters of a ScaledObject; equal ones share a target."""

    queue: str
    store: str | None = None
    """The name of an external store to count; None uses the bridge's own state."""
    per_process: int = PER_PROCESS
    """Messages per worker."""
    start_s: int = START_S
    """Messages due within this many seconds count as work."""

    @property
    def metric(self) -> str:
        """The name of its metric, which has to be a single path segment."""
        return "queuebell-" + "-".join(split_reference(self.queue))


def asked(metadata: Mapping[str, str], stores: Collection[str]) -> Target:
    """Return the target of a ScaledObject; ``stores`` are the configured names.

    Raises `BadInput` (``bad_parameter``) that names the key.
    """
    if len(metadata) > KEYS_MAX or any(len(value) > VALUE_MAX for value in metadata.values()):
        raise _bad(f"at most {KEYS_MAX} keys, each of at most {VALUE_MAX} characters")
    for key in metadata:
        if key not in KEYS and key not in THEIRS:
            what = f"unknown key '{key}'" if _shown(key) else "unknown key"
            raise _bad(f"{what}; the keys are {', '.join(KEYS)}")
    store = metadata.get("store")
    if store is not None and store not in stores:
        known = f"one of {', '.join(sorted(stores))}" if stores else "none is configured"
        raise _bad(f"store: must be the name of a [[keda_store]] of this bridge: {known}")
    return Target(
        _queue(metadata),
        store,
        _whole(metadata, "perProcess", PER_PROCESS, 1, PER_PROCESS_MAX),
        _whole(metadata, "startSeconds", START_S, 0, START_S_MAX),
    )


def _queue(metadata: Mapping[str, str]) -> str:
    text = metadata.get("queue")
    if text is None:
        raise _bad("queue: is missing: name the queue to scale on, such as billing/orders")
    try:
        parse_reference(text)
    except BadInput as error:
        raise _bad(
            f"queue: must be one queue; for a partitioned queue, use one trigger per partition: {error}"
        ) from None
    return text


def _whole(metadata: Mapping[str, str], key: str, default: int, least: int, most: int) -> int:
    text = metadata.get(key)
    if text is None:
        return default
    if _number(text) is None or not least <= int(text) <= most:
        raise _bad(f"{key}: must be a whole number from {least} to {most}, in quotes")
    return int(text)


def _bad(why: str) -> BadInput:
    return BadInput("bad_parameter", f"trigger metadata: {why}")
