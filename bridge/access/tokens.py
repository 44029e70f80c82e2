"""Verify tokens of trusted issuers (RFC 7519): PyJWT checks signatures; fetching and caching of keys is done here.

`jwt.PyJWKClient` is not used: it fetches again for each unknown ``kid`` (CVE-2026-48524), blocks, and drops valid keys
when a fetch fails.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jwt
import msgspec
from jwt.algorithms import get_default_algorithms

from queuebell.bridge.access.issuer import IssuerSettings, KeySet, Mistimed, expires, is_private, mistimed
from queuebell.bridge.contract.errors import ConfigurationError

log = logging.getLogger("queuebell.access")

TOKEN_BYTES_MAX: Final = 8192
FETCH_S: Final = 5.0
FETCH_BYTES_MAX: Final = 512 * 1024
KEYS_MAX: Final = 100
_CACHE_MAX: Final = 10_000
_RSA_BITS_MIN: Final = 2048

_FORMS: Final[dict[str, tuple[str, str | None]]] = {
    "RS256": ("RSA", None),
    "ES256": ("EC", "P-256"),
    "EdDSA": ("OKP", "Ed25519"),
}

# The times are checked here, by the injected clock.
_OPTIONS: Final[Any] = {
    "require": ["exp", "iss", "aud"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}
_NO_TOKEN: Final = (jwt.PyJWTError, ValueError, TypeError, RecursionError)
"""Errors of PyJWT for invalid tokens, over all its versions."""
_NO_KEYS: Final = (ConfigurationError, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Verified(msgspec.Struct, frozen=True):
    """The principal that a token names, and the end of its validity."""

    principal: str
    until: float


class Tokens:
    """Checks tokens of trusted issuers. Raises `ConfigurationError` for invalid settings."""

    def __init__(self, issuers: Sequence[IssuerSettings], wall: Callable[[], float]) -> None:
        self._wall = wall
        self._issuers = {each.issuer: _Issuer(each) for each in issuers}
        if len(self._issuers) < len(issuers):
            raise ConfigurationError("issuer: two tables have the same issuer")
        self._known: dict[bytes, tuple[Verified, _Issuer, int]] = {}

    async def verify(self, token: str) -> Verified | None:
        """Return the principal that a token names, or None for an invalid token.

        Raises `Mistimed` for one that is only outside its time. Waits up to 5 s if keys must be fetched.
        """
        # Tokens are ASCII. Other text may contain surrogates, which cannot be hashed.
        if len(token) > TOKEN_BYTES_MAX or not token.isascii():
            return None
        now = self._wall()
        digest = hashlib.sha256(token.encode()).digest()
        known = self._known.get(digest)
        if known is not None:
            verified, issuer, edition = known
            if now < verified.until and edition == issuer.edition:
                return verified
            del self._known[digest]
        try:
            header = jwt.get_unverified_header(token)
            issuer_name = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except _NO_TOKEN:
            return None
        found = self._issuers.get(issuer_name) if isinstance(issuer_name, str) else None
        if found is None:
            return None
        verified_now = await found.verify(token, header, self._wall)
        if verified_now is not None:
            if len(self._known) >= _CACHE_MAX:
                self._known.clear()
            self._known[digest] = (verified_now, found, found.edition)
        return verified_now

    def start(self) -> None:
        """Fetch the keys of issuers with an address; failures are logged."""
        for each in self._issuers.values():
            each.start(self._wall)

    async def stop(self) -> None:
        """Cancel fetches in progress; may be called twice."""
        for each in self._issuers.values():
            await each.stop()

    async def missing(self) -> dict[str, str]:
        """Return the issuers whose keys are not available now, with address or file and reason; up to 5 s for each."""
        found = {name: await each.missing() for name, each in self._issuers.items()}
        return {name: why for name, why in found.items() if why is not None}


class _Issuer:
    def __init__(self, settings: IssuerSettings) -> None:
        for name, value in (("issuer", settings.issuer), ("audience", settings.audience), ("claim", settings.claim)):
            if not value:
                raise ConfigurationError(f"issuer: {name} is missing or empty")
        if not settings.algorithms:
            raise ConfigurationError(f"issuer: {settings.issuer}: algorithms must be some of {', '.join(_FORMS)}")
        self._settings = settings
        # The page's users present an ID token, whose audience is the client id (OpenID Connect Core 2).
        self._audiences = [settings.audience, *([settings.client_id] if settings.client_id else [])]
        self._keys: KeySet[tuple[str, Any]] = KeySet()
        self._fetching: asyncio.Task[None] | None = None
        self.edition = 0
        """Number of successful key fetches; each invalidates cached verifications."""
        self._url = settings.jwks if "://" in settings.jwks else None
        if self._url is not None and not is_private(self._url):
            raise ConfigurationError(f"issuer: {settings.issuer}: jwks must be a file or an https:// address")
        if self._url is None:
            self._check_file()

    def _check_file(self) -> None:
        """Raise `ConfigurationError` for a file without keys, rather than reject every token later."""
        file, issuer = pathlib.Path(self._settings.jwks), self._settings.issuer
        try:
            if not file.exists():
                # It may appear later.
                log.warning(
                    "the issuer's keys are not available yet, so its tokens are rejected: file %s does not exist",
                    file,
                    extra={"issuer": issuer},
                )
                return
            # Opening a pipe, for example, could block forever.
            why = "" if file.is_file() else "it is not a regular file"
            if not why:
                _keys_in(self._read())
        except _NO_KEYS as error:
            why = str(error)
        if why:
            raise ConfigurationError(
                f"issuer: {issuer}: jwks: {file} cannot be used as public keys (JWKS, RFC 7517): {why};"
                " save the issuer's published keys there, or set their https:// address"
            )

    async def missing(self) -> str | None:
        """Return why keys are not available now; None if they are."""
        try:
            _keys_in(await self._read_keys())
        except Exception as error:  # noqa: BLE001 - as in `_fetch`
            return f"{self._settings.jwks}: {str(error) or type(error).__name__}"
        return None

    def start(self, wall: Callable[[], float]) -> None:
        """Fetch the keys of an address now, so that errors are logged before the first token."""
        if self._url is not None:
            self._fetching = asyncio.create_task(self._fetch(wall), name=f"keys of {self._settings.issuer}")

    async def stop(self) -> None:
        if self._fetching is not None and not self._fetching.done():
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    async def verify(self, token: str, header: dict[str, Any], wall: Callable[[], float]) -> Verified | None:
        algorithm, kid = header.get("alg"), header.get("kid")
        # No `crit` extension is supported. The settings' type excludes the algorithms none and HS*.
        if algorithm not in self._settings.algorithms or "crit" in header or not isinstance(kid, str | None):
            return None
        if self._keys.wants(kid, wall()):
            # All callers share one fetch; a cancelled caller does not cancel it.
            self._fetching = asyncio.create_task(self._fetch(wall), name=f"keys of {self._settings.issuer}")
        # Tokens with a known key do not wait: anyone can cause a fetch with an unknown `kid`.
        if self._fetching is not None and not self._fetching.done() and not self._keys.serves(kid, wall()):
            await asyncio.wait([self._fetching])
        found = self._keys.find(kid)
        if found is None or found[0] != algorithm:
            return None
        try:
            claims = jwt.decode(
                token,
                found[1],
                algorithms=[algorithm],
                audience=self._audiences,
                issuer=self._settings.issuer,
                options=_OPTIONS,
            )
        except _NO_TOKEN:
            return None
        now, name = wall(), claims.get(self._settings.claim)
        until = expires(claims, now)
        if until is None and (detail := mistimed(claims, now)):
            raise Mistimed(detail)
        return Verified(name, until) if until is not None and isinstance(name, str) else None

    async def _fetch(self, wall: Callable[[], float]) -> None:
        try:
            keys = _keys_in(await self._read_keys())
        except Exception as error:  # noqa: BLE001 - the known keys stay valid
            log.error(
                "the issuer's keys are not available; %s: %s",
                "known keys stay valid" if self.edition else "its tokens are rejected until they are",
                str(error) or type(error).__name__,
                extra={"issuer": self._settings.issuer},
            )
            return
        self._keys.got(keys, wall())
        self.edition += 1

    async def _read_keys(self) -> bytes:
        async with asyncio.timeout(FETCH_S):
            if self._url is None:
                return await asyncio.to_thread(self._read)
            status, raw = await asked(self._url, FETCH_BYTES_MAX)
        if status != 200:
            raise ConfigurationError(f"its address returned status {status}")
        return raw

    def _read(self) -> bytes:
        with pathlib.Path(self._settings.jwks).open("rb") as file:
            return file.read(FETCH_BYTES_MAX + 1)


class _Jwk(msgspec.Struct):
    kty: str
    kid: str | None = None
    use: str = "sig"
    alg: str | None = None
    crv: str | None = None


class _Jwks(msgspec.Struct):
    keys: list[msgspec.Raw]


def _keys_in(raw: bytes) -> dict[str | None, tuple[str, Any]]:
    """Return algorithm and public key by ``kid``, for supported keys; raises for an invalid JWKS."""
    if len(raw) > FETCH_BYTES_MAX:
        raise ConfigurationError(f"more than {FETCH_BYTES_MAX} bytes")
    listed = msgspec.json.decode(raw, type=_Jwks).keys
    if len(listed) > KEYS_MAX:
        raise ConfigurationError(f"more than {KEYS_MAX} keys")
    found: dict[str | None, tuple[str, Any]] = {}
    for each in listed:
        try:
            jwk = msgspec.json.decode(each, type=_Jwk)
            for algorithm, form in _FORMS.items():
                # Use a key only for the algorithm of its type, whatever its `alg` claims.
                if (
                    (jwk.kty, None if jwk.kty == "RSA" else jwk.crv) == form
                    and jwk.use == "sig"
                    and jwk.alg in (None, algorithm)
                ):
                    key = get_default_algorithms()[algorithm].from_jwk(bytes(each).decode())
                    if getattr(key, "key_size", _RSA_BITS_MIN) >= _RSA_BITS_MIN or jwk.kty != "RSA":
                        found[jwk.kid] = (algorithm, key)
        except _NO_TOKEN:
            # RFC 7517 5: ignore invalid keys and unknown types.
            continue
    if not found:
        raise ConfigurationError("it contains no usable key for RS256, ES256 or EdDSA")
    return found


async def asked(
    url: str, most: int, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """GET an address, or POST a ``form`` to it; return the status and at most ``most`` + 1 bytes of the body.

    Does not follow redirects. Raises aiohttp's errors; the caller sets the timeout.
    """
    import aiohttp

    async with (
        aiohttp.ClientSession() as client,
        client.request(
            "GET" if form is None else "POST",
            url,
            data=form,
            allow_redirects=False,
            headers={"Accept": "application/json", **(headers or {})},
        ) as answer,
    ):
        raw = b""
        while len(raw) <= most and (part := await answer.content.read(most + 1 - len(raw))):
            raw += part
        return answer.status, raw
