"""The settings of the bridge and of the commands that talk to it."""

from __future__ import annotations

import logging
import os
import pathlib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from queuebell.bridge.access.issuer import IssuerSettings
from queuebell.bridge.access.limits import BYTES_MIN
from queuebell.bridge.access.put_gate import BYTES_MAX, WAIT_MS
from queuebell.bridge.brokers.credential import open_to_all
from queuebell.bridge.contract.address import EMBEDDED, http_addresses, is_http
from queuebell.bridge.contract.bounds import HEARTBEAT_S, SLACK_S
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.names import DEFAULT_PREFIX
from queuebell.bridge.contract.settings import LISTENER_TABLE, SCALE_TABLE, doubtful, parse_toml, resolve
from queuebell.bridge.core.settings import (
    SLACK_BEATS,
    AckSeconds,
    CallSeconds,
    Periods,
    QueueRule,
    SlackSeconds,
    SpreadSeconds,
    SweepSeconds,
    Wake,
    check_rules,
    check_slack,
    check_sweep,
)
from queuebell.bridge.http.azure.accounts import AccountSettings
from queuebell.bridge.http.server.settings import WILDCARDS
from queuebell.bridge.http.webhooks.settings import WebhookSettings
from queuebell.bridge.keda.scaled_object import KedaStore
from queuebell.bridge.queues.base import PUT_WINDOW_S

log = logging.getLogger("queuebell.config")

DEFAULT_BRIDGE = "http://127.0.0.1:8470"


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of the configuration file's top level; in the environment ``QUEUEBELL_`` and the key in capitals."""

    listen: str = "127.0.0.1:8470"
    """HOST:PORT; port 0 takes a free one."""
    data: str = "./queuebell-data"
    """The directory of the queue service's file."""
    bridge: str = DEFAULT_BRIDGE
    """Where client commands reach the bridge; ``http://a:8470,b:8470`` names several, of which any will do."""
    store: str = DEFAULT_BRIDGE
    """Where the queues are. With the address of a bridge, `serve` keeps them in ``data``; with any other address
    (``postgres://``, ``redis://``, ``nats://``) in that store, which several bridges may share."""
    nats: tuple[str, ...] = ()
    """Brokers for triggers and sessions; in the environment separated by commas. ``nats://a:4222,b:4222`` is one
    broker with several servers. ``embedded`` or ``embedded:PORT`` starts the bridge's own server."""
    mqtt: tuple[str, ...] = ()
    postgres: tuple[str, ...] = ()
    """Databases to take triggers from (NOTIFY), in the environment separated by commas."""
    azure_queue: str | None = None
    """HOST:PORT of the Azure Queue Storage REST API; the emulator uses 127.0.0.1:10001."""
    azure_cert: str | None = None
    """A PEM file of certificates, own one first, for HTTPS at the Azure endpoint."""
    azure_key: str | None = None
    """The PEM file of its private key."""
    keda: str | None = None
    """HOST:PORT of KEDA's external scaler (gRPC)."""
    keda_cert: str | None = None
    """A PEM file of certificates for it, own one first; default ``tls_cert``."""
    keda_key: str | None = None
    """The PEM file of its private key; default ``tls_key``."""
    keda_client_ca: str | None = None
    """A PEM file of the authorities that sign KEDA's certificate, which is then required; default ``tls_client_ca``
    if ``tls_client`` is ``required``."""
    keda_store: tuple[KedaStore, ...] = ()
    """``[[keda_store]]`` tables, in the file only: other stores whose queues are counted for KEDA."""
    prefix: str = DEFAULT_PREFIX
    """The first token of all subjects and topics."""
    cluster: str | None = None
    """The name of this bridge's cluster; its members share the work over the one NATS in ``nats``."""
    republish: bool = True
    """Tell other bridges on these brokers of triggers that came by HTTP (B16)."""
    ready_requires: tuple[str, ...] | None = None
    """The buses that must be connected for `/readyz` to be 200; default all."""
    allowed_hosts: tuple[str, ...] = ()
    insecure_public: bool = False
    auth: bool = False
    """Require a key (`queuebell key`) for each request, and allow what the access file grants."""
    access: str | None = None
    """The access file; default ``access.json`` in the data directory."""
    trust_brokers: bool = False
    """With auth: each broker's own access list decides who may publish triggers and receive wakes there."""
    issuer: tuple[IssuerSettings, ...] = ()
    """``[[issuer]]`` tables, in the file only: issuers whose tokens (JWT) are accepted like keys."""
    tls_cert: str | None = None
    """A PEM file of certificates, own one first, for HTTPS."""
    tls_key: str | None = None
    """The PEM file of its private key."""
    tls_client_ca: str | None = None
    """A PEM file of the authorities that sign client certificates, which then authenticate clients."""
    tls_client: Literal["optional", "required"] | None = None
    """Whether a client needs a certificate; default ``optional``."""
    synchronous: Literal["FULL", "NORMAL"] = "FULL"
    put_window_s: Annotated[float, Meta(ge=1, le=604_800)] = PUT_WINDOW_S
    """How many seconds at least the id of a ``PUT .../messages/{id}`` is remembered."""
    put_waiting_bytes: Annotated[int, Meta(ge=BYTES_MIN)] = BYTES_MAX
    """The bytes that puts waiting for their commit may hold; above it puts get 429."""
    put_wait_ms: Annotated[int, Meta(ge=1, le=60_000)] = WAIT_MS
    """The milliseconds that a put may have to wait; a longer wait gets 429."""
    log_format: Literal["plain", "json"] = "plain"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    connections: Annotated[int, Meta(ge=1)] | None = None
    connections_per_address: Annotated[int, Meta(ge=0)] = 64
    requests_per_second: Annotated[float, Meta(ge=0.001, le=1_000_000)] | None = None
    request_burst: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 100
    heartbeat_s: Annotated[float, Meta(ge=0.1, le=3600)] = HEARTBEAT_S
    start_ack_s: AckSeconds = 2.0
    store_call_s: CallSeconds = 10.0
    sweep_s: SweepSeconds = 60.0
    """Seconds between checks of a quiet queue in another store; 0 leaves them to the workers' dead-man timers."""
    slack_s: SlackSeconds | None = None
    """Seconds from the latest sweep until a dead-man timer fires; default 30, or two heartbeats if that is longer."""
    spread_s: SpreadSeconds = 10.0
    """Seconds at least over which the dead-man timers of one queue are spread."""
    wake: Wake = "enough"
    """Which sessions get a wake: enough for the work, or all."""
    queue: tuple[QueueRule, ...] = ()
    """``[[queue]]`` tables, in the file only: other values for the queues that ``match`` selects; the first match
    applies."""
    azure_account: tuple[AccountSettings, ...] = ()
    """``[[azure_account]]`` tables, in the file only: accounts of the Azure endpoint and their keys."""
    azure_relay: tuple[str, ...] = ()
    """``HOST:PORT=URL``: forward requests from this port to that Azure Queue endpoint, and treat puts as triggers."""
    azure_relay_keep_host: bool = False
    """Forward the client's Host header; default is the endpoint's own name."""
    webhook: tuple[WebhookSettings, ...] = ()
    """``[[webhook]]`` tables, in the file only: they hold secrets."""

    def access_file(self) -> pathlib.Path:
        """Return the path of the access file."""
        return pathlib.Path(self.data) / "access.json" if self.access is None else pathlib.Path(self.access)

    def periods(self) -> Periods:
        """Return the periods of the wake protocol, with the rules for single queues."""
        return Periods(
            heartbeat_s=self.heartbeat_s,
            start_ack_s=self.start_ack_s,
            store_call_s=self.store_call_s,
            sweep_s=self.sweep_s,
            slack_s=max(SLACK_S, SLACK_BEATS * self.heartbeat_s) if self.slack_s is None else self.slack_s,
            spread_s=self.spread_s,
            wake=self.wake,
            rules=self.queue,
        )


def load(
    file: str | None,
    *,
    environment: Mapping[str, str] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Settings:
    """Read ``file`` (or what ``QUEUEBELL_CONFIG`` names), the environment and the options into settings.

    Raises `ConfigurationError` that names the key, its source and what is valid.
    """
    environment = os.environ if environment is None else environment
    file = file or environment.get("QUEUEBELL_CONFIG") or None
    source, tables = file or "configuration", {} if file is None else read_tables(file)
    # These tables belong to `queuebell listen` and `queuebell scale`, which check them.
    tables.pop(LISTENER_TABLE, None)
    tables.pop(SCALE_TABLE, None)
    variables: dict[str, Any] = {name: text for name, text in environment.items() if name != "QUEUEBELL_CONFIG"}
    if "QUEUEBELL_NATS" in variables:
        variables["QUEUEBELL_NATS"] = _buses(variables["QUEUEBELL_NATS"])
    for line in doubtful(Settings, variables):
        log.warning(line)
    settings = resolve(Settings, table=tables, source=source, environment=variables, options=options)
    if _holds_secrets(tables) and (exposed := open_to_all(source)):
        log.warning("%s holds secrets, and %s", source, exposed)
    if not settings.data or "\0" in settings.data:
        raise ConfigurationError("data: a directory for the queue service's file; it is empty or holds a NUL")
    for key, address in (("bridge", settings.bridge), ("store", settings.store)):
        if is_http(address):
            http_addresses(address, key)
    check_sweep(settings.sweep_s, "sweep_s")
    check_rules(settings.queue)
    check_slack(settings.periods())
    return settings


_PASSWORD: Final = re.compile(r"//[^/@\s]*:[^/@\s]+@|(?:nats|tls)://[^/@:\s]+@")
"""A password in an address; for NATS a user alone is a token."""


def _holds_secrets(tables: Mapping[str, Any]) -> bool:
    """Return whether a file holds an account's key, a webhook's secret, or an address with a password."""
    addresses = str([tables.get(name) for name in ("nats", "mqtt", "postgres", "store", "bridge", "keda_store")])
    return (
        bool(tables.get("webhook"))
        or _PASSWORD.search(addresses) is not None
        or any("key" in each for each in tables.get("azure_account", ()))
    )


def read_tables(file: str) -> dict[str, Any]:
    """Return the tables of a configuration file; raises `ConfigurationError` if it cannot be read."""
    try:
        text = pathlib.Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"config: cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"{file}: invalid TOML: it is not UTF-8") from None
    return parse_toml(text, file)


def _buses(text: str) -> list[str]:
    """Split a variable into buses; a comma between hosts of one bus does not split."""
    buses: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        alone = "://" in part or part.partition(":")[0] == EMBEDDED
        if buses and part and not alone and "://" in buses[-1]:
            buses[-1] += f",{part}"
        elif part:
            buses.append(part)
    return buses


def reached_at(settings: Settings, port: int) -> str:
    """Return the URL of a bridge with these settings and this port, for clients on its own machine."""
    host, _ = parse_listen(settings.listen)
    if host in WILDCARDS:
        host = "::1" if host == "::" else "127.0.0.1"
    scheme = "http"
    if settings.tls_cert is not None:
        # Its certificate is for the names of the bridge, seldom for its address.
        scheme, host = "https", next(iter(settings.allowed_hosts), host)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def parse_listen(text: str, key: str = "listen") -> tuple[str, int]:
    """Split ``HOST:PORT``, also ``[::1]:8470``; raises `ConfigurationError` that names ``key``."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        colon = ""
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigurationError(f"{key}: an address is HOST:PORT, with a port from 0 to 65535")
    return host, int(port)
