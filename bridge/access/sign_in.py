"""Sign users in to the page at an issuer (OpenID Connect); the bridge stores nothing of a sign-in.

All addresses come from the configuration and from the issuer's own metadata, never from a token.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import os
import pathlib
import re
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import quote_plus, urlencode, urlsplit

import jwt
import msgspec

from queuebell.bridge.access.issuer import IssuerSettings, KeySet, Mistimed, is_private
from queuebell.bridge.access.tokens import FETCH_BYTES_MAX, FETCH_S, Tokens, Verified, asked
from queuebell.bridge.brokers.credential import open_to_all
from queuebell.bridge.contract.address import sender_of
from queuebell.bridge.contract.errors import ConfigurationError

log = logging.getLogger("queuebell.access")

AT_ONCE: Final = 64
"""Concurrent exchanges, so that a flood of codes does not become a flood of requests to the issuer."""
PER_SENDER: Final = 4
"""Concurrent exchanges of one address, so that one sender cannot take all of them."""
_AGAIN: Final = "sign in again"
_error = re.compile("[a-z_]{1,40}").fullmatch


class NotSignedIn(Exception):
    """A sign-in failed; ``code`` is the error code of the answer."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


class _TokenAnswer(msgspec.Struct):
    id_token: str | None = None
    error: str | None = None


class Login:
    """Signs users in at one issuer. Raises `ConfigurationError` for invalid settings."""

    def __init__(self, settings: IssuerSettings, tokens: Tokens, wall: Callable[[], float]) -> None:
        self._settings = settings
        self._tokens = tokens
        self._wall = wall
        self._secret = _secret(settings, os.environ)
        self._known: KeySet[Provider] = KeySet()
        self._discovery: asyncio.Task[None] | None = None
        self._exchanges: Counter[str] = Counter()

    @property
    def origin(self) -> str:
        """The page's origin in browsers."""
        return self._settings.redirect_uri.removesuffix("/")

    async def begin(self) -> Begun:
        """Begin a sign-in; raises `NotSignedIn` if the issuer's metadata is not available."""
        return begin(self._settings, await self._provider(), secrets.token_bytes(CHANCE_BYTES))

    async def finish(self, code: str, verifier: str, sender: str | None, address: str) -> tuple[str, Verified]:
        """Exchange a code for its token, and return both the token and its principal; raises `NotSignedIn`.

        ``sender`` is the issuer named in the redirect, or None; ``address`` is the browser's.
        """
        provider = await self._provider()
        if wrong_sender(self._settings, provider, sender):
            raise NotSignedIn("forbidden", f"the redirect did not come from this sign-in's issuer: {_AGAIN}")
        client = sender_of(address)
        if self._exchanges.total() >= AT_ONCE or self._exchanges[client] >= PER_SENDER:
            raise NotSignedIn("too_many_requests", "too many concurrent sign-ins: try again in a moment")
        self._exchanges[client] += 1
        try:
            token = await self._exchange(provider, code, verifier)
        finally:
            self._exchanges[client] -= 1
            if not self._exchanges[client]:
                del self._exchanges[client]
        try:
            verified = await self._tokens.verify(token)
        except Mistimed as error:
            raise NotSignedIn("forbidden", str(error)) from None
        # Already verified: only read it.
        claim = "" if verified is None else wrong(_claims(token), self._settings, verifier)
        if verified is None or claim:
            log.error(
                "sign-in failed: the issuer's ID token is invalid: %s",
                f"its {claim} does not match this sign-in" if claim else "its signature, algorithm or a required claim",
                extra={"issuer": self._settings.issuer},
            )
            raise NotSignedIn("forbidden", f"the issuer's token is not valid for this sign-in: {_AGAIN}")
        return token, verified

    async def stop(self) -> None:
        """Cancel a request in progress; may be called twice."""
        if self._discovery is not None and not self._discovery.done():
            self._discovery.cancel()
            await asyncio.wait([self._discovery])

    async def _provider(self) -> Provider:
        if self._known.wants(None, self._wall()):
            # All callers share one request; a cancelled caller does not cancel it.
            self._discovery = asyncio.create_task(self._discover(), name=f"description of {self._settings.issuer}")
        if self._discovery is not None and not self._discovery.done():
            await asyncio.wait([self._discovery])
        found = self._known.find(None)
        if found is None:
            raise NotSignedIn(
                "issuer_unavailable",
                "the issuer's metadata is not available: try again in half a minute, or use a key; the bridge's log has"
                " the cause",
            )
        return found

    async def _discover(self) -> None:
        url = self._settings.issuer.removesuffix("/") + DISCOVERY
        try:
            async with asyncio.timeout(FETCH_S):
                status, raw = await asked(url, FETCH_BYTES_MAX)
            if status != 200:
                raise ConfigurationError(f"it returned status {status}")
            self._known.got({None: provider_of(raw, self._settings)}, self._wall())
        except Exception as error:  # noqa: BLE001 - the known metadata stays valid
            log.error(
                "fetching the issuer's metadata failed; sign-in works only if it was fetched before: %s: %s",
                url,
                str(error) or type(error).__name__,
                extra={"issuer": self._settings.issuer},
            )

    async def _exchange(self, provider: Provider, code: str, verifier: str) -> str:
        form, headers = exchange(self._settings, provider, self._secret, code, verifier)
        try:
            async with asyncio.timeout(FETCH_S):
                status, raw = await asked(provider.token_endpoint, FETCH_BYTES_MAX, form, headers)
            answer = msgspec.json.decode(raw, type=_TokenAnswer)
        except Exception as error:  # noqa: BLE001 - any error fails this sign-in
            raise self._unavailable(str(error) or type(error).__name__) from None
        if status == 200 and answer.id_token:
            return answer.id_token
        if answer.error == "invalid_grant":
            raise NotSignedIn(
                "forbidden", f"the issuer rejected this sign-in: its code was used before or has expired; {_AGAIN}"
            )
        why = answer.error if answer.error and _error(answer.error) else "no id_token"
        raise self._unavailable(f"it returned status {status}, {why}")

    def _unavailable(self, why: str) -> NotSignedIn:
        log.error(
            "sign-in failed: the issuer did not exchange the code: %s (invalid_client: check client_id and the secret)",
            why,
            extra={"issuer": self._settings.issuer},
        )
        return NotSignedIn(
            "issuer_unavailable",
            "the issuer returned no token for this sign-in: sign in again, or use a key; the bridge's log has"
            " the cause",
        )


def _claims(token: str) -> Mapping[str, Any]:
    return jwt.decode(token, options={"verify_signature": False})


def _secret(settings: IssuerSettings, environment: Mapping[str, str]) -> str | None:
    where, file, variable = f"issuer: {settings.issuer}", settings.client_secret_file, settings.client_secret_env
    if variable is not None:
        if not environment.get(variable):
            raise ConfigurationError(f"{where}: client_secret_env: {variable} is not set in the environment")
        return environment[variable]
    if file is None:
        return None
    try:
        text = pathlib.Path(file).read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:  # ValueError: not text, or not a valid path
        reason = getattr(error, "strerror", None) or "it is not text"
        raise ConfigurationError(f"{where}: client_secret_file: cannot read {file!r}: {reason}") from None
    if not text:
        raise ConfigurationError(f"{where}: client_secret_file: {file} is empty")
    if exposed := open_to_all(file):
        log.warning("%s: client_secret_file: %s", where, exposed)
    return text


CHANCE_BYTES: Final = 64
DISCOVERY: Final = "/.well-known/openid-configuration"
_BASIC, _POST = "client_secret_basic", "client_secret_post"


class Provider(msgspec.Struct, frozen=True):
    """The fields used from an issuer's metadata."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = (_BASIC,)
    authorization_response_iss_parameter_supported: bool = False


class Begun(msgspec.Struct, frozen=True):
    """A begun sign-in, for the browser tab that continues it."""

    issuer: str
    page: str
    """The address that the issuer redirects to."""
    address: str
    """The issuer's address to open."""
    state: str
    """The issuer returns it in the redirect; another value belongs to a different sign-in."""
    verifier: str
    """Proves that the holder of the code began this sign-in; only the tab, the bridge and the issuer see it."""


def check(settings: IssuerSettings) -> None:
    """Raise `ConfigurationError` for settings that are invalid for sign-in."""
    where = f"issuer: {settings.issuer}"
    if not settings.client_id:
        for name in ("redirect_uri", "client_secret_file", "client_secret_env"):
            if getattr(settings, name):
                raise ConfigurationError(f"{where}: {name} is for sign-in at the page, which needs client_id")
        return
    if not is_private(settings.issuer):
        raise ConfigurationError(f"{where}: for sign-in, the issuer must be an https:// address")
    if not _is_page(settings.redirect_uri):
        raise ConfigurationError(
            f"{where}: redirect_uri must be the page's address in browsers, such as https://bridge.internal/, as"
            " registered at the issuer: https:// or this machine, and nothing after the path /"
        )
    if "openid" not in settings.scopes:
        raise ConfigurationError(f"{where}: scopes: must include openid, or the issuer does not identify the user")
    if settings.client_secret_file is not None and settings.client_secret_env is not None:
        raise ConfigurationError(f"{where}: set only one of client_secret_file and client_secret_env")


def _is_page(url: str) -> bool:
    return is_private(url) and (parts := urlsplit(url)).path == "/" and url == f"{parts.scheme}://{parts.netloc}/"


def provider_of(raw: bytes, settings: IssuerSettings) -> Provider:
    """Parse an issuer's metadata; raises `ConfigurationError` if it cannot be used."""
    try:
        found = msgspec.json.decode(raw, type=Provider)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigurationError(f"it is not an issuer's metadata: {error}") from None
    if found.issuer != settings.issuer:
        raise ConfigurationError("its issuer is not exactly the configured one")
    for name in ("authorization_endpoint", "token_endpoint"):
        if not is_private(getattr(found, name)):
            raise ConfigurationError(f"its {name} is not an https:// address")
    return found


def begin(settings: IssuerSettings, provider: Provider, chance: bytes) -> Begun:
    """Return the data of a new sign-in; ``chance`` is `CHANCE_BYTES` random bytes."""
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
    endpoint = provider.authorization_endpoint
    address = f"{endpoint}{'&' if '?' in endpoint else '?'}{query}"
    return Begun(settings.issuer, settings.redirect_uri, address, state, verifier)


def nonce_of(verifier: str) -> str:
    """Return the nonce required in a sign-in's token; it is derived from the verifier to tie the two."""
    return _text(hashlib.sha256(b"nonce of " + verifier.encode()).digest())


def exchange(
    settings: IssuerSettings, provider: Provider, secret: str | None, code: str, verifier: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the form and headers that exchange a code for a token (RFC 6749 4.1.3)."""
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
    """Return whether a redirect names another issuer than that of the sign-in (mix-up attack, RFC 9207)."""
    return said != settings.issuer and (said is not None or provider.authorization_response_iss_parameter_supported)


def wrong(claims: Mapping[str, Any], settings: IssuerSettings, verifier: str) -> str:
    """Return the claim of a verified ID token that does not match this sign-in; "" if all match."""
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
