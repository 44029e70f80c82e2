"""Token buckets, one per address (S13)."""

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
        tokens, since = self._buckets.pop(key, (self._burst, now))
        tokens = min(self._burst, tokens + (now - since) * self._rate)
        wait = 0
        if tokens >= 1.0:
            tokens -= 1.0
        else:
            # Bounded before it is made whole: of a small rate the seconds may be infinite.
            wait = max(1, math.ceil(min((1.0 - tokens) / self._rate, WAIT_S_MAX)))
        # Popped and put again, so that the first key is the one longest unheard of: it is the one to forget.
        if len(self._buckets) >= ADDRESSES_MAX:
            del self._buckets[next(iter(self._buckets))]
        self._buckets[key] = (tokens, now)
        return wait
