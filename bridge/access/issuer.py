"""Define the settings of trusted token issuers."""

from __future__ import annotations

from typing import Final, Literal
from urllib.parse import urlsplit

import msgspec

from bridge.contract.address import is_loopback

LEEWAY_S: Final = 60.0
"""Tolerated difference between the issuer's clock and the bridge's."""
Algorithm = Literal["RS256", "ES256", "EdDSA"]


class IssuerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An ``[[issuer]]`` table: a trusted issuer, and the claim that names the principal."""

    issuer: str
    """The exact value required of ``iss``."""
    audience: str
    """The value that ``aud`` has to equal or contain."""
    jwks: str
    """File or https:// address of its public keys."""
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256", "EdDSA")
    claim: str = "sub"
    """The claim with the principal's name in the access file."""
    client_id: str = ""
    """The bridge's own client id at the issuer, for signing in to the page; "" disables sign-in."""
    client_secret_file: str | None = None
    """File with the client secret; without file and environment variable the bridge is a public client."""
    client_secret_env: str | None = None
    """Environment variable with the client secret."""
    redirect_uri: str = ""
    """The page's address in browsers, to which the issuer redirects."""
    scopes: tuple[str, ...] = ("openid",)
    """Scopes requested at a sign-in."""


def is_private(url: str) -> bool:
    """Return whether a URL is https://, or http:// to this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    return (parts.scheme == "https" and host != "") or (parts.scheme == "http" and is_loopback(host))
