"""When to fetch an issuer's public keys, and which claims of its tokens hold; pure.

RFC 7517 (keys), RFC 7519 (claims). Times are seconds since 1970. A token never says where its keys are: they come from
where the settings say, so that no stranger has the bridge ask an address of their choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

COOLDOWN_S: Final = 30.0
"""The least time between two fetches, however many unknown keys are asked for."""
FRESH_S: Final = 3600.0
"""After so long keys are fetched anew although all are known: one that was withdrawn has to go."""
LEEWAY_S: Final = 60.0
"""How far an issuer's clock and ours may be apart."""

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
