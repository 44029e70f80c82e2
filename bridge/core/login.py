"""Signing in at an issuer for the page: OpenID Connect's authorization code flow with PKCE; pure.

OpenID Connect Core 1.0 (3.1), Discovery 1.0 (3), RFC 7636 (PKCE), RFC 9207 (``iss``), RFC 9700. Chance is an argument.
What was begun is kept by nobody but the tab that began it, so that any bridge of several can end it.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

import msgspec

from bridge.contract.errors import ConfigurationError
from bridge.core.issuer import IssuerSettings, is_private

CHANCE_BYTES: Final = 64
DISCOVERY: Final = "/.well-known/openid-configuration"
_BASIC, _POST = "client_secret_basic", "client_secret_post"


class Provider(msgspec.Struct, frozen=True):
    """What an issuer publishes of itself, as far as it is used here."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = (_BASIC,)
    authorization_response_iss_parameter_supported: bool = False


class Begun(msgspec.Struct, frozen=True):
    """A sign-in that was begun, for the tab that goes on with it."""

    issuer: str
    page: str
    """The address that the issuer sends its browser back to."""
    address: str
    """Where to go."""
    state: str
    """What the issuer sends back with the browser: another one belongs to a sign-in that somebody else began."""
    verifier: str
    """What proves that whoever has the code began this; it never leaves tab and bridge but for the issuer."""


def check(settings: IssuerSettings) -> None:
    """Raise `ConfigurationError` where a table cannot be meant for signing in."""
    where = f"issuer: {settings.issuer}"
    if not settings.client_id:
        for name in ("redirect_uri", "client_secret_file", "client_secret_env"):
            if getattr(settings, name):
                raise ConfigurationError(f"{where}: {name} is for signing in at the page, which client_id asks for")
        return
    if not is_private(settings.issuer):
        raise ConfigurationError(f"{where}: to sign in there it has to be an https:// address")
    if not _is_page(settings.redirect_uri):
        raise ConfigurationError(
            f"{where}: redirect_uri is the page's address in browsers, as https://bridge.internal/, registered so at"
            " the issuer: https:// or this machine, with the path / and nothing after it"
        )
    if "openid" not in settings.scopes:
        raise ConfigurationError(f"{where}: scopes: openid has to be among them, else the issuer tells nobody's name")
    if settings.client_secret_file is not None and settings.client_secret_env is not None:
        raise ConfigurationError(f"{where}: one of client_secret_file and client_secret_env is enough")


def _is_page(url: str) -> bool:
    return is_private(url) and (parts := urlsplit(url)).path == "/" and url == f"{parts.scheme}://{parts.netloc}/"


def provider_of(raw: bytes, settings: IssuerSettings) -> Provider:
    """Read what an issuer publishes of itself; raises `ConfigurationError` where it cannot be used."""
    try:
        found = msgspec.json.decode(raw, type=Provider)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"it is no description of an issuer: {error}") from None
    if found.issuer != settings.issuer:
        raise ConfigurationError("it describes another issuer than the one of the configuration, to the letter")
    for name in ("authorization_endpoint", "token_endpoint"):
        if not is_private(getattr(found, name)):
            raise ConfigurationError(f"its {name} is no https:// address")
    return found


def begin(settings: IssuerSettings, provider: Provider, chance: bytes) -> Begun:
    """Begin a sign-in; ``chance`` is `CHANCE_BYTES` random bytes."""
    assert len(chance) == CHANCE_BYTES
    state, verifier = _text(chance[:32]), _text(chance[32:])
    query = urlencode(
        {
            "response_type": "code",
            "client_id": settings.client_id,
            "redirect_uri": settings.redirect_uri,
            "scope": " ".join(settings.scopes),
            "state": state,
            "nonce": nonce_of(verifier),
            "code_challenge": _text(hashlib.sha256(verifier.encode()).digest()),
            "code_challenge_method": "S256",
        }
    )
    there = provider.authorization_endpoint
    address = f"{there}{'&' if '?' in there else '?'}{query}"
    return Begun(settings.issuer, settings.redirect_uri, address, state, verifier)


def nonce_of(verifier: str) -> str:
    """Return what a sign-in's token has to say: made from its verifier, so that the two cannot be of different ones."""
    return _text(hashlib.sha256(b"nonce of " + verifier.encode()).digest())


def exchange(
    settings: IssuerSettings, provider: Provider, secret: str | None, code: str, verifier: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the form and the headers by which a code is exchanged for a token (RFC 6749 4.1.3)."""
    form = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": settings.redirect_uri,
        "code_verifier": verifier,
    }
    methods = provider.token_endpoint_auth_methods_supported
    if secret is None:
        return {**form, "client_id": settings.client_id}, {}
    if _POST in methods and _BASIC not in methods:
        return {**form, "client_id": settings.client_id, "client_secret": secret}, {}
    proof = base64.b64encode(f"{quote_plus(settings.client_id)}:{quote_plus(secret)}".encode()).decode()
    return form, {"Authorization": f"Basic {proof}"}


def wrong_sender(settings: IssuerSettings, provider: Provider, said: str | None) -> bool:
    """Say whether what came back with a browser names another issuer than that of the sign-in (mix-up, RFC 9207)."""
    return said != settings.issuer and (said is not None or provider.authorization_response_iss_parameter_supported)


def wrong(claims: Mapping[str, Any], settings: IssuerSettings, verifier: str) -> str:
    """Return which claim of an ID token, whose signature and times are good, is not of this sign-in; "" for none."""
    audience = claims.get("aud")
    if claims.get("iss") != settings.issuer:
        return "iss"
    if settings.client_id not in (audience if isinstance(audience, list) else [audience]):
        return "aud"
    if claims.get("azp") not in (None, settings.client_id):
        return "azp"
    return "" if claims.get("nonce") == nonce_of(verifier) else "nonce"


def _text(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
