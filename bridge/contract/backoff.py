"""Back-off policies: pure functions of outcomes and chance to seconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

Draw = Callable[[], float]
"""A random source: each call returns a float in [0, 1)."""


class Backoff(Protocol):
    """A policy of waits after misses, reset by hits."""

    def miss(self, draw: Draw) -> float:
        """Count one empty or failed attempt and return the seconds to wait before the next."""
        ...

    def hit(self) -> None:
        """Count one successful attempt."""
        ...


class RandomExponential:
    """``min + (2^k - 1) x delta x U(0.8, 1.2)``, capped; k is the number of misses since the last hit.

    The white paper's policy: the spread keeps a fleet from polling in step. ``minimum``, ``maximum`` and ``delta`` are
    seconds, each >= 0.
    """

    __slots__ = ("_misses", "delta", "maximum", "minimum")

    def __init__(self, minimum: float = 0.1, maximum: float = 30.0, delta: float = 0.1) -> None:
        if not (0 <= minimum <= maximum and delta >= 0):
            raise ValueError("a back-off needs 0 <= minimum <= maximum and delta >= 0")
        self.minimum = minimum
        self.maximum = maximum
        self.delta = delta
        self._misses = 0

    def miss(self, draw: Draw) -> float:
        """Count a miss and return the wait; the first wait is ``minimum`` exactly."""
        # 2**64 x any delta exceeds every cap; without this limit the power would grow for ever.
        increment = (2.0 ** min(self._misses, 64) - 1) * self.delta * (0.8 + 0.4 * draw())
        self._misses += 1
        return min(self.minimum + increment, self.maximum)

    def hit(self) -> None:
        """Start again from ``minimum``."""
        self._misses = 0


class CappedExponential:
    """The simple capped exponential: each miss multiplies the interval up to a ceiling.

    ``floor`` and ``ceiling`` are seconds, ``exponent`` is the factor (> 1). A hit resets the interval to the floor, or
    with ``halve`` divides it by the exponent, so that a queue with few hits keeps most of its interval.
    """

    __slots__ = ("_interval", "ceiling", "exponent", "floor", "halve")

    def __init__(
        self, floor: float = 1.0, ceiling: float = 60.0, exponent: float = 2.0, *, halve: bool = False
    ) -> None:
        if not (0 < floor <= ceiling and exponent > 1):
            raise ValueError("a capped exponential needs 0 < floor <= ceiling and exponent > 1")
        self.floor = floor
        self.ceiling = ceiling
        self.exponent = exponent
        self.halve = halve
        self._interval = floor

    def miss(self, draw: Draw) -> float:
        """Return the current interval and extend the next."""
        wait = self._interval
        self._interval = min(self.ceiling, self._interval * self.exponent)
        return wait

    def hit(self) -> None:
        """Reset the interval to the floor, or halve it."""
        self._interval = max(self.floor, self._interval / self.exponent) if self.halve else self.floor


class FullJitter:
    """``U(0, min(cap, first x 2^k))`` seconds, which spreads reconnects."""

    __slots__ = ("_misses", "cap", "first")

    def __init__(self, first: float = 0.1, cap: float = 5.0) -> None:
        if not 0 < first <= cap:
            raise ValueError("full jitter needs 0 < first <= cap")
        self.first = first
        self.cap = cap
        self._misses = 0

    def miss(self, draw: Draw) -> float:
        """Count a miss and return the wait."""
        bound = min(self.cap, self.first * 2.0 ** min(self._misses, 64))
        self._misses += 1
        return bound * draw()

    def hit(self) -> None:
        """Start again from ``first``."""
        self._misses = 0
