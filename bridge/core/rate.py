"""Token buckets, one for each address or principal (S13); pure."""

from __future__ import annotations

import math

ADDRESSES_MAX = 10_000
RATE_MIN = 0.001
RATE_MAX = 1_000_000.0
BURST_MAX = 1_000_000_000
WAIT_S_MAX = 3600
"""No client is told to stay away for longer."""


class TokenBuckets:
    """Allows ``rate`` requests a second per key, after a burst of ``burst``; time comes in as an argument."""

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._buckets: dict[str, tuple[float, float]] = {}

    def take(self, key: str, now: float) -> int:
        """Take one token: 0 if there was one, else the whole seconds (1 to an hour) until there is."""
        tokens = self._tokens(key, now)
        wait = self._whole(tokens)
        self._keep(key, tokens if wait else tokens - 1.0, now)
        return wait

    def wait(self, key: str, now: float) -> int:
        """Return what `take` would, and take nothing."""
        return self._whole(self._tokens(key, now))

    def charge(self, key: str, now: float, tokens: int) -> float:
        """Take so many tokens, there or not, for what was let in: the next ones wait for them.

        Returns the seconds, an hour at most, until there is one again.
        """
        left = self._tokens(key, now) - tokens
        self._keep(key, left, now)
        return min(max(0.0, 1.0 - left) / self._rate, WAIT_S_MAX)

    def _tokens(self, key: str, now: float) -> float:
        tokens, since = self._buckets.get(key, (self._burst, now))
        return min(self._burst, tokens + (now - since) * self._rate)

    def _whole(self, tokens: float) -> int:
        # Bounded before it is made whole: of a small rate the seconds may be infinite.
        return 0 if tokens >= 1.0 else max(1, math.ceil(min((1.0 - tokens) / self._rate, WAIT_S_MAX)))

    def _keep(self, key: str, tokens: float, now: float) -> None:
        # Popped and put again, so that the first key is the one longest unheard of: it is the one to forget.
        self._buckets.pop(key, None)
        if len(self._buckets) >= ADDRESSES_MAX:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[key] = (tokens, now)
