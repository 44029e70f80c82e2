"""Limit how often the same line is logged; pure."""

from __future__ import annotations

import math


class Throttle:
    """Passes one event in ``period_s`` and counts the others, so that floods do not fill a log.

    Times are seconds of any monotonic clock.
    """

    __slots__ = ("_kept_back", "_next", "_period_s")

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._next = -math.inf
        self._kept_back = 0

    def passes(self, now: float) -> int | None:
        """Return the number of suppressed events since the last one passed; None if this one is suppressed."""
        if now < self._next:
            self._kept_back += 1
            return None
        self._next = now + self._period_s
        kept_back, self._kept_back = self._kept_back, 0
        return kept_back
