"""Many latencies in little memory. Pure."""

from __future__ import annotations

import math
from typing import Final

import msgspec

STEPS: Final = 256
"""Buckets for each doubling: none is wider than 0.4 % of what it holds."""


class Percentiles(msgspec.Struct, frozen=True):
    """Seconds; all 0.0 of nothing."""

    count: int = 0
    p50_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0


class Spread:
    """A histogram with buckets of equal relative width; its maximum is exact."""

    __slots__ = ("_counts", "count", "maximum")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.maximum = 0.0

    def add(self, seconds: float) -> None:
        """Count one value, >= 0."""
        mantissa, exponent = math.frexp(seconds)
        bucket = exponent * STEPS + int((mantissa * 2 - 1) * STEPS) if seconds else -(1 << 20)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1
        self.maximum = max(self.maximum, seconds)

    def percentile(self, share: float) -> float:
        """Return the upper end of the bucket of the nearest rank, ``share`` from 0 to 1; 0.0 of nothing."""
        rank = max(1, math.ceil(share * self.count))
        seen = 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= rank:
                exponent, step = divmod(bucket, STEPS)
                return min(self.maximum, math.ldexp((1 + (step + 1) / STEPS) / 2, exponent))
        return 0.0

    def percentiles(self) -> Percentiles:
        """Sum up."""
        return Percentiles(self.count, self.percentile(0.5), self.percentile(0.99), self.maximum)
