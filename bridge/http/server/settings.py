"""What can be set about the web server."""

from __future__ import annotations

import msgspec

from bridge.access.limits import BURST_MAX, RATE_MAX, RATE_MIN
from bridge.contract.address import is_loopback
from bridge.contract.errors import ConfigurationError

WILDCARDS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - named here to be refused


class WebSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where to listen, whom to believe, and how long and how much to bear; times are seconds, sizes bytes."""

    host: str = "127.0.0.1"
    port: int = 8470
    """0 takes a free port."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, beside loopback names and ``host``, that a Host header may carry (without a port)."""
    origins: tuple[str, ...] = ()
    """Origins of the server's own pages beside that of its port, where a proxy speaks TLS before it, say."""
    insecure_public: bool = False
    """Listen on an address that others can reach, although not ``guarded``."""
    guarded: bool = False
    """Whether everybody is asked who they are, and nobody else can read or change what is said (TLS)."""

    header_timeout: float = 8.0
    """From the first byte of a request (or the connection) to the end of its headers; then 408 and close (S11)."""
    body_timeout: float = 14.0
    write_timeout: float = 10.0
    """How long a peer may leave unread what was written, before the connection is aborted (S11)."""
    keepalive_timeout: float = 75.0
    linger: float = 2.0
    """How long the rest of a refused request is read and thrown away, so that its sender hears the refusal."""
    shutdown_timeout: float = 1.0
    """How long ``stop`` waits for requests under way and for sessions that the bridge is closing."""

    uri_bytes: int = 2048
    header_bytes: int = 8192
    """All headers of one request together."""
    headers: int = 64

    streams: int = 10_000
    """Event streams at once; past it a client is told to come again in a while."""
    stream_comment: float = 15.0
    """The longest that an event stream is silent; a comment then keeps proxies from closing it."""

    connections: int | None = None
    """At most so many at once; None is 80 % of the process's file descriptors (S12)."""
    connections_per_address: int = 64
    """For addresses that are not loopback; 0 sets no limit."""
    requests_per_second: float | None = None
    """Per address, loopback too; None sets no limit. A trigger past it is answered 429; known queues are marked."""
    request_burst: int = 100


def check_settings(settings: WebSettings) -> None:
    """Raise `ConfigurationError` that names the key for a setting that is not acceptable."""
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
    # Said by what is accepted: a NaN is neither too small nor too large.
    if rate is not None and not (RATE_MIN <= rate <= RATE_MAX and 1 <= settings.request_burst <= BURST_MAX):
        raise ConfigurationError(
            f"requests_per_second: must be from {RATE_MIN} to {RATE_MAX:.0f}, with a request_burst from 1 "
            f"to {BURST_MAX}"
        )
