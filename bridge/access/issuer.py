"""Settings of trusted token issuers, when to fetch their public keys, and whether a token is valid now; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from queuebell.bridge.contract.address import is_loopback

LEEWAY_S: Final = 60.0
"""Tolerated difference between the issuer's clock and the bridge's."""
COOLDOWN_S: Final = 30.0
"""Minimum time between two fetches, however many unknown keys are requested."""
FRESH_S: Final = 3600.0
"""Age after which known keys are fetched again, so that withdrawn ones are removed."""
Key = TypeVar("Key")
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


class Mistimed(Exception):
    """A token of a trusted issuer is outside its time; the text says by how much.

    Only holders of such a token get this detail.
    """


class KeySet(Generic[Key]):
    """Holds an issuer's keys by ``kid``, and keeps the last good ones if a fetch fails."""

    def __init__(self) -> None:
        self._keys: dict[str | None, Key] = {}
        self._fetched_at: float | None = None
        self._tried_at: float | None = None

    def find(self, kid: str | None) -> Key | None:
        """Return the key with a ``kid``; for None the key, if there is only one."""
        if kid is None:
            return next(iter(self._keys.values())) if len(self._keys) == 1 else None
        return self._keys.get(kid)

    def serves(self, kid: str | None, now: float) -> bool:
        """Return whether the key of a ``kid`` is known and fresh, so that no fetch is needed."""
        fresh = self._fetched_at is not None and 0 <= now - self._fetched_at < FRESH_S
        return fresh and self.find(kid) is not None

    def wants(self, kid: str | None, now: float) -> bool:
        """Return whether to fetch now because of this ``kid``, and record the attempt."""
        if self.serves(kid, now):
            return False
        if self._tried_at is not None and 0 <= now - self._tried_at < COOLDOWN_S:
            return False
        self._tried_at = now
        return True

    def got(self, keys: Mapping[str | None, Key], now: float) -> None:
        """Replace the keys with fetched ones."""
        self._keys = dict(keys)
        self._fetched_at = now


def expires(claims: Mapping[str, Any], now: float, leeway_s: float = LEEWAY_S) -> float | None:
    """Return the end of a token's validity; None if it is not valid at ``now``.

    ``exp`` is required, as a token without end could not be revoked.
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
    """Describe by how much a token is outside its time at ``now``; "" if it is not."""
    ends = _time(claims.get("exp"))
    if ends is not None and now >= ends + leeway_s:
        return _off(f"expired {now - ends:.0f} s ago", leeway_s)
    for name in ("nbf", "iat"):
        begins = _time(claims.get(name))
        if begins is not None and now < begins - leeway_s:
            return _off(f"is not valid for another {begins - now:.0f} s ({name})", leeway_s)
    return ""


def _off(what: str, leeway_s: float) -> str:
    return (
        f"the token {what} by this bridge's clock, with a tolerance of {leeway_s:.0f} s: get a new token from its "
        "issuer, or correct the clock of the issuer or the bridge"
    )


def _time(value: Any) -> float | None:
    # A bool is an int, and some decoders accept NaN and infinities although JSON has none.
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e15 < value < 1e15:
        return None
    return float(value)
