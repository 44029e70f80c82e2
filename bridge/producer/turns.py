"""Which partition a put without a key goes to: in turn, past those that lately failed. Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from bridge.contract.backoff import Draw, RandomExponential

TRIES: Final = 3
"""Partitions that one batch is tried on at most: where three fail, it is the store that is away."""
REST_MIN_S: Final = 1.0
REST_MAX_S: Final = 30.0


class Turns:
    """Gives partitions 0 to ``count`` - 1 in turn, beginning anywhere, so that short-lived producers spread evenly.

    A partition that failed rests for 1 s, doubling up to 30 s, +-20 %, until a put works there; otherwise every n-th
    put would wait for a time-out. Where all rest, the one whose rest ends first is asked.
    """

    __slots__ = ("_backoffs", "_count", "_draw", "_place", "_rests")

    def __init__(self, count: int, draw: Draw) -> None:
        self._count = count
        self._draw = draw
        self._place = int(draw() * count)
        self._rests: dict[int, float] = {}
        self._backoffs: dict[int, RandomExponential] = {}

    def take(self, now: float, tried: Collection[int] = ()) -> int | None:
        """Return whose turn it is, none of ``tried``; None once a batch was tried often enough."""
        if len(tried) >= min(TRIES, self._count):
            return None
        resting: list[int] = []
        for step in range(self._count):
            number = (self._place + step) % self._count
            if number in tried:
                continue
            if self._rests.get(number, now) > now:
                resting.append(number)
                continue
            self._place = (number + 1) % self._count
            return number
        return min(resting, key=self._rests.__getitem__)

    def failed(self, now: float, number: int) -> None:
        """Hear that a partition did not take a put."""
        backoff = self._backoffs.setdefault(number, RandomExponential(REST_MIN_S, REST_MAX_S, REST_MIN_S))
        self._rests[number] = now + backoff.miss(self._draw)

    def worked(self, number: int) -> None:
        """Hear that a partition took a put."""
        self._rests.pop(number, None)
        self._backoffs.pop(number, None)
