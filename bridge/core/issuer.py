"""Whose tokens are believed: what a site says of them."""

from __future__ import annotations

from typing import Literal

import msgspec

Algorithm = Literal["RS256", "ES256", "EdDSA"]


class IssuerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One ``[[issuer]]`` table: whose tokens are believed, and what in them names the principal."""

    issuer: str
    """What ``iss`` has to be, to the letter."""
    audience: str
    """What ``aud`` has to be or hold."""
    jwks: str
    """The file or the https:// address of its public keys."""
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
    claim: str = "sub"
    """The claim that is a principal's name in the access file."""
