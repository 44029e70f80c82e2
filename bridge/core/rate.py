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
        return self._take(key, now, 1.0)

    def has(self, key: str, now: float) -> bool:
        """Say whether `take` would find a token, and take none."""
        tokens, since = self._buckets.get(key, (self._burst, now))
        return tokens + (now - since) * self._rate >= 1.0

    def charge(self, key: str, now: float, tokens: int) -> None:
        """Take so many tokens more, for what was let in and turned out larger; the next ones wait for them."""
        self._take(key, now, tokens, owing=True)

    def _take(self, key: str, now: float, count: float, *, owing: bool = False) -> int:
        tokens, since = self._buckets.pop(key, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        wait = 0
        if owing or tokens >= 1.0:
            tokens -= count
        else:
            # Bounded before it is made whole: of a small rate the seconds may be infinite.
            wait = max(1, math.ceil(min((1.0 - tokens) / self._rate, WAIT_S_MAX)))
        # Popped and put again, so that the first key is the one longest unheard of: it is the one to forget.
        if len(self._buckets) >= ADDRESSES_MAX:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[key] = (tokens, now)
        return wait
