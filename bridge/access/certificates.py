"""The names that a client's certificate bears (subject alternative names, RFC 5280 4.2.1.6), matched exactly; pure.

No wildcard, no common name, no folding of letters: two spellings of a name are two names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from bridge.contract.errors import ConfigurationError

KINDS: Final = ("DNS", "URI", "email")
"""As OpenSSL writes them."""
FORM: Final = "a certificate is named DNS:worker-1.internal, URI:spiffe://example/worker or email:me@example"
_NAME_MAX: Final = 2048
# Printable ASCII without blanks, and without what a wildcard would be made of.
_plain = re.compile(r"[!-)+-~]+").fullmatch


class Certificate(msgspec.Struct, frozen=True):
    """A certificate whose chain was verified: its names, each as ``KIND:NAME``, and when it ends, since 1970."""

    names: frozenset[str]
    until: float


def san(text: str) -> str:
    """Return a name of a certificate as it is compared; a URI may stand without ``URI:``.

    Raises `ConfigurationError` for what is no name, or one with a wildcard.
    """
    kind, _, name = text.partition(":")
    if kind not in KINDS and "://" in text:
        kind, name = "URI", text
    if kind not in KINDS or len(name) > _NAME_MAX or _plain(name) is None:
        raise ConfigurationError(f"{FORM}; names match exactly, without wildcards: {text[:80]!r}")
    return f"{kind}:{name}"


def names_in(peer: Mapping[str, object]) -> frozenset[str]:
    """Return the names in what `ssl.SSLObject.getpeercert` returns; those of other kinds or forms are left out."""
    found = peer.get("subjectAltName")
    names: set[str] = set()
    for each in found if isinstance(found, tuple) else ():
        match each:
            case (str(kind), str(name)) if kind in KINDS and len(name) <= _NAME_MAX and _plain(name) is not None:
                names.add(f"{kind}:{name}")
    return frozenset(names)
