"""Which headers a relay passes on: all but those that speak of one connection only (RFC 9110 7.6.1)."""

from __future__ import annotations

from collections.abc import Iterable

Raw = tuple[bytes, bytes]

_OF_ONE_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# A relay that has said "100 Continue" itself asks nobody for another one.
_ANSWERED_HERE = frozenset({b"expect"})


def passed_on(headers: Iterable[Raw], *, without: Iterable[bytes] = ()) -> list[Raw]:
    """Return the headers of a message that travel on, as they came and in their order.

    Those that ``Connection`` names stay here too, except ``Content-Length``, without which the next would read a body
    where none is; ``without`` (lower case) are left out as well.
    """
    pairs = list(headers)
    named = {
        name.strip().lower()
        for key, value in pairs
        if key.lower() == b"connection"
        for name in value.split(b",")
        if name.strip()
    } - {b"content-length", b"authorization", b"host"}
    left_out = _OF_ONE_HOP | _ANSWERED_HERE | named | set(without)
    return [(key, value) for key, value in pairs if key.lower() not in left_out]
