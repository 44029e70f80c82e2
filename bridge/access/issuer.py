"""Whose tokens are believed: what a site says of them."""

from __future__ import annotations

from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from bridge.contract.address import is_loopback

LEEWAY_S: Final = 60.0
"""How far an issuer's clock and ours may be apart."""
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
    client_id: str = ""
    """What the issuer calls this bridge, and nothing else: people sign in there for the page. "" is for none."""
    client_secret_file: str | None = None
    """A file that holds what the bridge proves itself to the issuer by; with neither it is a public client."""
    client_secret_env: str | None = None
    """A variable of the environment that holds it."""
    redirect_uri: str = ""
    """The page's address as people's browsers have it, to which the issuer sends them back."""
    scopes: tuple[str, ...] = ("openid",)
    """What is asked for at a sign-in."""


def is_private(url: str) -> bool:
    """Say whether nobody on the way to an address can read or change what passes."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return (parts.scheme == "https" and host != "") or (parts.scheme == "http" and is_loopback(host))
