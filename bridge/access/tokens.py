"""Tokens of issuers that are trusted (RFC 7519): the signature is PyJWT's, where keys come from and how long is ours.

`jwt.PyJWKClient` is not used: it asks again for each unknown ``kid`` (CVE-2026-48524), blocks, and forgets good keys
when a fetch fails.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import jwt
import msgspec
from jwt.algorithms import get_default_algorithms

from bridge.access.issuer import LEEWAY_S, IssuerSettings, is_private
from bridge.contract.errors import ConfigurationError

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

# The times are judged by our clock.
_OPTIONS: Final[Any] = {
    "require": ["exp", "iss", "aud"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}
_NO_TOKEN: Final = (jwt.PyJWTError, ValueError, TypeError, RecursionError)
"""What PyJWT raises for texts that are no tokens; which of it, differs between its versions."""
_NO_KEYS: Final = (ConfigurationError, OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Verified(msgspec.Struct, frozen=True):
    """Whom a token names, and until when."""

    principal: str
    until: float


class Tokens:
    """Checks tokens of some issuers. Raises `ConfigurationError` where one of them cannot be meant."""

    def __init__(self, issuers: Sequence[IssuerSettings], wall: Callable[[], float]) -> None:
        self._wall = wall
        self._issuers = {each.issuer: _Issuer(each) for each in issuers}
        if len(self._issuers) < len(issuers):
            raise ConfigurationError("issuer: two of them have one name")
        self._known: dict[bytes, tuple[Verified, _Issuer, int]] = {}

    async def verify(self, token: str) -> Verified | None:
        """Return whom a token names; None for one that proves nothing, whatever the reason.

        Raises `Mistimed` for one that would, at another time. Waits for a fetch of keys where they are not known yet,
        a few seconds at most.
        """
        # A token is ASCII; what is not could not even be hashed where it came as bytes that are no text.
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
            said = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except _NO_TOKEN:
            return None
        found = self._issuers.get(said) if isinstance(said, str) else None
        if found is None:
            return None
        verified_now = await found.verify(token, header, self._wall)
        if verified_now is not None:
            if len(self._known) >= _CACHE_MAX:
                self._known.clear()
            self._known[digest] = (verified_now, found, found.edition)
        return verified_now

    def start(self) -> None:
        """Fetch at once what comes from addresses; what cannot be had is told in the log."""
        for each in self._issuers.values():
            each.start(self._wall)

    async def stop(self) -> None:
        """Let go of fetches under way; may be called twice."""
        for each in self._issuers.values():
            await each.stop()

    async def missing(self) -> dict[str, str]:
        """Return of which issuers no keys can be had now, and why not, address or file first; 5 s for each at most."""
        asked = {name: await each.missing() for name, each in self._issuers.items()}
        return {name: why for name, why in asked.items() if why is not None}


class _Issuer:
    def __init__(self, settings: IssuerSettings) -> None:
        for name, value in (("issuer", settings.issuer), ("audience", settings.audience), ("claim", settings.claim)):
            if not value:
                raise ConfigurationError(f"issuer: {name} is missing or empty")
        if not settings.algorithms:
            raise ConfigurationError(f"issuer: {settings.issuer}: algorithms are some of {', '.join(_FORMS)}")
        self._settings = settings
        # Who signs in at the page shows what the issuer made for it: the ID token (OpenID Connect Core 2).
        self._audiences = [settings.audience, *([settings.client_id] if settings.client_id else [])]
        self._keys: KeySet[tuple[str, Any]] = KeySet()
        self._fetching: asyncio.Task[None] | None = None
        self.edition = 0
        """How often its keys were fetched: what was verified by others before does not hold any more."""
        self._url = settings.jwks if "://" in settings.jwks else None
        if self._url is not None and not is_private(self._url):
            raise ConfigurationError(f"issuer: {settings.issuer}: jwks is a file or an https:// address")
        if self._url is None:
            self._check_file()

    def _check_file(self) -> None:
        """Refuse a file without keys: the first token, refused as any bad one is, would be a late place to hear it."""
        file, issuer = pathlib.Path(self._settings.jwks), self._settings.issuer
        try:
            if not file.exists():
                # It may come later.
                log.warning(
                    "keys of an issuer cannot be had yet, and no token of it is good: there is no file %s",
                    file,
                    extra={"issuer": issuer},
                )
                return
            # To open what is none could wait for ever.
            why = "" if file.is_file() else "it is no file"
            if not why:
                _keys_in(self._read())
        except _NO_KEYS as error:
            why = str(error)
        if why:
            raise ConfigurationError(
                f"issuer: {issuer}: jwks: {file} cannot be used as its public keys (a JWKS, RFC 7517): {why};"
                " save there what the issuer publishes, or give its https:// address"
            )

    async def missing(self) -> str | None:
        """Return why no keys can be had now, None where they can."""
        try:
            _keys_in(await self._got())
        except Exception as error:  # noqa: BLE001 - as in `_fetch`
            return f"{self._settings.jwks}: {str(error) or type(error).__name__}"
        return None

    def start(self, wall: Callable[[], float]) -> None:
        """Fetch the keys of an address now, so that what is wrong with it is told before the first token."""
        if self._url is not None:
            self._fetching = asyncio.create_task(self._fetch(wall), name=f"keys of {self._settings.issuer}")

    async def stop(self) -> None:
        if self._fetching is not None and not self._fetching.done():
            self._fetching.cancel()
            await asyncio.wait([self._fetching])

    async def verify(self, token: str, header: dict[str, Any], wall: Callable[[], float]) -> Verified | None:
        algorithm, kid = header.get("alg"), header.get("kid")
        # `crit` names what must be understood, and nothing is; none and HS are no algorithm of the settings' type.
        if algorithm not in self._settings.algorithms or "crit" in header or not isinstance(kid, str | None):
            return None
        if self._keys.wants(kid, wall()):
            # One for all who wait for it; whoever is cancelled leaves it to the others.
            self._fetching = asyncio.create_task(self._fetch(wall), name=f"keys of {self._settings.issuer}")
        # A stranger's unknown `kid` begins a fetch: those whose key is known do not wait for it.
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
        if until is None and (words := mistimed(claims, now)):
            raise Mistimed(words)
        return Verified(name, until) if until is not None and isinstance(name, str) else None

    async def _fetch(self, wall: Callable[[], float]) -> None:
        try:
            keys = _keys_in(await self._got())
        except Exception as error:  # noqa: BLE001 - whatever it is, the keys that are known hold
            log.error(
                "keys of an issuer cannot be had; %s: %s",
                "those known before hold" if self.edition else "no token of it is good until they can",
                str(error) or type(error).__name__,
                extra={"issuer": self._settings.issuer},
            )
            return
        self._keys.got(keys, wall())
        self.edition += 1

    async def _got(self) -> bytes:
        async with asyncio.timeout(FETCH_S):
            if self._url is None:
                return await asyncio.to_thread(self._read)
            status, raw = await asked(self._url, FETCH_BYTES_MAX)
        if status != 200:
            raise ConfigurationError(f"its address answers {status}")
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
    """Return algorithm and public key by ``kid``, of those that can sign what is taken; raises for what is no JWKS."""
    if len(raw) > FETCH_BYTES_MAX:
        raise ConfigurationError(f"more than {FETCH_BYTES_MAX} bytes are no set of keys")
    listed = msgspec.json.decode(raw, type=_Jwks).keys
    if len(listed) > KEYS_MAX:
        raise ConfigurationError(f"more than {KEYS_MAX} keys")
    found: dict[str | None, tuple[str, Any]] = {}
    for each in listed:
        try:
            jwk = msgspec.json.decode(each, type=_Jwk)
            for algorithm, form in _FORMS.items():
                # A key is for one algorithm: that of its kind, and of no other that it may be said to be for.
                if (
                    (jwk.kty, None if jwk.kty == "RSA" else jwk.crv) == form
                    and jwk.use == "sig"
                    and jwk.alg in (None, algorithm)
                ):
                    key = get_default_algorithms()[algorithm].from_jwk(bytes(each).decode())
                    if getattr(key, "key_size", _RSA_BITS_MIN) >= _RSA_BITS_MIN or jwk.kty != "RSA":
                        found[jwk.kid] = (algorithm, key)
        except _NO_TOKEN:
            # RFC 7517 5: one that is spoilt, or of a kind to come, does not take the others away.
            continue
    if not found:
        raise ConfigurationError("it holds no key that signs RS256, ES256 or EdDSA")
    return found


COOLDOWN_S: Final = 30.0
"""The least time between two fetches, however many unknown keys are asked for."""
FRESH_S: Final = 3600.0
"""After so long keys are fetched anew although all are known: one that was withdrawn has to go."""

Key = TypeVar("Key")


class Mistimed(Exception):
    """A trusted issuer made a token, and it proves nothing now: its times or a clock are off, and its words say so.

    Only whoever holds such a token hears of it: nothing is told to strangers.
    """


class KeySet(Generic[Key]):
    """The keys of one issuer by ``kid``. The last good ones hold while a fetch fails."""

    def __init__(self) -> None:
        self._keys: dict[str | None, Key] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None

    def find(self, kid: str | None) -> Key | None:
        """Return the key of a ``kid``; without one the only key, where there is no other."""
        if kid is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(kid)

    def serves(self, kid: str | None, now: float) -> bool:
        """Say whether the key of a ``kid`` is known and fresh: whoever shows it waits for no fetch."""
        fresh = self._fetched_at is not None and 0 <= now - self._fetched_at < FRESH_S
        return fresh and self.find(kid) is not None

    def wants(self, kid: str | None, now: float) -> bool:
        """Say whether to fetch now because of this ``kid``, and take it that this is done."""
        if self.serves(kid, now):
            return False
        if self._tried_at is not None and 0 <= now - self._tried_at < COOLDOWN_S:
            return False
        self._tried_at = now
        return True

    def got(self, keys: Mapping[str | None, Key], now: float) -> None:
        """Take what was fetched instead of what was known."""
        self._keys = dict(keys)
        self._fetched_at = now


def expires(claims: Mapping[str, Any], now: float, leeway_s: float = LEEWAY_S) -> float | None:
    """Return until when a token with these claims proves something, None where it does not at ``now``.

    ``exp`` has to be there: a token that never ends could not be taken back.
    """
    ends = _time(claims.get("exp"))
    if ends is None or now >= ends + leeway_s:
        return None
    for name in ("nbf", "iat"):
        if claims.get(name) is not None:
            begins = _time(claims[name])
            if begins is None or now < begins - leeway_s:
                return None
    return ends + leeway_s


def mistimed(claims: Mapping[str, Any], now: float, leeway_s: float = LEEWAY_S) -> str:
    """Say by how much the times of a token miss ``now``, and whose clock that may be; "" where it is not the times."""
    ends = _time(claims.get("exp"))
    if ends is not None and now >= ends + leeway_s:
        return _off(f"ended {now - ends:.0f} s ago", leeway_s)
    for name in ("nbf", "iat"):
        begins = _time(claims.get(name))
        if begins is not None and now < begins - leeway_s:
            return _off(f"begins ({name}) in {begins - now:.0f} s only", leeway_s)
    return ""


def _off(what: str, leeway_s: float) -> str:
    return (
        f"the token {what} by the clock of this bridge, and clocks may be {leeway_s:.0f} s apart: ask its issuer for a "
        "new one, or set the clock that is wrong, the issuer's or the bridge's"
    )


def _time(value: Any) -> float | None:
    # A bool is an int; NaN and infinities are no JSON, and some decoders take them all the same.
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e15 < value < 1e15:
        return None
    return float(value)


async def asked(
    url: str, most: int, form: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """GET an address, or POST a ``form`` to it; return the status and the body, cut one byte past ``most``.

    No redirect is followed: the answer would be another's. Raises what aiohttp raises; for how long is the caller's.
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
