"""The settings of a web server."""

from __future__ import annotations

import msgspec

from queuebell.bridge.access.limits import BURST_MAX, RATE_MAX, RATE_MIN
from queuebell.bridge.contract.address import is_loopback
from queuebell.bridge.contract.errors import ConfigurationError

WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - named here to be refused


class WebSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses, time-outs (seconds) and limits (bytes)."""

    host: str = "127.0.0.1"
    port: int = 8470
    """0 takes a free port."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, besides loopback names and ``host``, that a Host header may contain (without a port)."""
    origins: tuple[str, ...] = ()
    """Further origins of the server's own pages, for example of a TLS proxy in front of it."""
    insecure_public: bool = False
    """Listen on an address that other machines can reach, although not ``guarded``."""
    guarded: bool = False
    """Whether authentication and TLS are on."""

    header_timeout: float = 8.0
    """From the first byte of a request (or the connection) to the end of its headers; then 408 and close (S11)."""
    body_timeout: float = 14.0
    write_timeout: float = 10.0
    """How long a peer may read nothing before the connection is aborted (S11)."""
    keepalive_timeout: float = 75.0
    linger: float = 2.0
    """How long the rest of a refused request is read and discarded, so that its sender receives the refusal."""
    shutdown_timeout: float = 1.0
    """How long ``stop`` waits for open requests and for sessions that the bridge is closing."""

    uri_bytes: int = 2048
    header_bytes: int = 8192
    """All headers of one request together."""
    headers: int = 64

    streams: int = 10_000
    """Concurrent event streams; further clients are asked to retry later."""
    stream_comment: float = 15.0
    """The longest silence of an event stream; then a comment keeps proxies from closing it."""

    connections: int | None = None
    """Concurrent connections; None is 80 % of the process's file descriptors (S12)."""
    connections_per_address: int = 64
    """For addresses that are not loopback; 0 sets no limit."""
    requests_per_second: float | None = None
    """Per address, loopback too; None sets no limit. A trigger past it is answered 429; known queues are marked."""
    request_burst: int = 100


def check_settings(settings: WebSettings) -> None:
    """Raise `ConfigurationError` naming the first invalid setting."""
    if not 0 <= settings.port <= 65535:
        raise ConfigurationError("listen: a port must be from 0 to 65535")
    if not (settings.insecure_public or settings.guarded or is_loopback(settings.host)):
        raise ConfigurationError(
            "listen: an address that other machines can reach is safe only with authentication and TLS "
            "(--auth, --tls-cert, --tls-key); --insecure-public (insecure_public = true) listens there "
            "anyway"
        )
    for key in ("header_timeout", "body_timeout", "write_timeout", "keepalive_timeout", "stream_comment"):
        if not getattr(settings, key) > 0:
            raise ConfigurationError(f"{key}: must be more than 0 seconds")
    if settings.connections is not None and settings.connections < 1:
        raise ConfigurationError("connections: must be at least 1")
    rate = settings.requests_per_second
    # Written as what is accepted: a NaN is neither too small nor too large.
    if rate is not None and not (RATE_MIN <= rate <= RATE_MAX and 1 <= settings.request_burst <= BURST_MAX):
        raise ConfigurationError(
            f"requests_per_second: must be from {RATE_MIN} to {RATE_MAX:.0f}, with a request_burst from 1 "
            f"to {BURST_MAX}"
        )
