"""Read the subject alternative names of client certificates (RFC 5280 4.2.1.6); pure.

Names match exactly: wildcards and common names are not supported, and case matters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from queuebell.bridge.contract.errors import ConfigurationError

KINDS: Final = ("DNS", "URI", "email")
"""As OpenSSL spells them."""
FORM: Final = "a certificate's name has the form DNS:worker-1.internal, URI:spiffe://example/worker or email:me@example"
_NAME_MAX: Final = 2048
# Printable ASCII without blanks and "*".
_plain = re.compile(r"[!-)+-~]+").fullmatch


class Certificate(msgspec.Struct, frozen=True):
    """A verified certificate: its names, each ``KIND:NAME``, and its end in seconds since 1970."""

    names: frozenset[str]
    until: float


def san(text: str) -> str:
    """Return a certificate's name in the form that is compared; ``URI:`` is optional for a URI.

    Raises `ConfigurationError` for an invalid name or a wildcard.
    """
    kind, _, name = text.partition(":")
    if kind not in KINDS and "://" in text:
        kind, name = "URI", text
    if kind not in KINDS or len(name) > _NAME_MAX or _plain(name) is None:
        raise ConfigurationError(f"{FORM}; names match exactly, without wildcards: {text[:80]!r}")
    return f"{kind}:{name}"


def names_in(peer: Mapping[str, object]) -> frozenset[str]:
    """Return the names in the result of `ssl.SSLObject.getpeercert`, without those of other kinds or forms."""
    found = peer.get("subjectAltName")
    names: set[str] = set()
    for each in found if isinstance(found, tuple) else ():
        match each:
            case (str(kind), str(name)) if kind in KINDS and len(name) <= _NAME_MAX and _plain(name) is not None:
                names.add(f"{kind}:{name}")
    return frozenset(names)
