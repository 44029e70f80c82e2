"""How often a line about the same thing is written; pure."""

from __future__ import annotations

import math


class Throttle:
    """Lets one pass in ``period_s`` and counts those that it keeps back: what floods in must not flood a log.

    Times are seconds of any clock that does not go back.
    """

    __slots__ = ("_kept_back", "_next", "_period_s")

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._next = -math.inf
        self._kept_back = 0

    def passes(self, now: float) -> int | None:
        """Return how many were kept back since the last that passed; None where this one is kept back too."""
        if now < self._next:
            self._kept_back += 1
            return None
        self._next = now + self._period_s
        kept_back, self._kept_back = self._kept_back, 0
        return kept_back
