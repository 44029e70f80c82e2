"""Timers as data: what is due when, and when to come back."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Agenda(Generic[K]):
    """One deadline per key, over a heap whose stale entries are dropped when they surface.

    Setting and clearing cost O(log n); a session that moves its deadline with every frame should not do so here but
    let the deadline pass and set it anew from what it then knows.
    """

    __slots__ = ("_heap", "_serial", "_when")

    def __init__(self) -> None:
        self._when: dict[K, tuple[float, int, K]] = {}
        # The serial makes entries comparable without comparing keys, and equal times first come, first served.
        self._heap: list[tuple[float, int, K]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._when)

    def __contains__(self, key: K) -> bool:
        return key in self._when

    def when(self, key: K) -> float | None:
        """Return the deadline of ``key``, if it has one."""
        entry = self._when.get(key)
        return None if entry is None else entry[0]

    def set(self, key: K, when: float) -> None:
        """Give ``key`` the deadline ``when``, in place of any other."""
        self._serial += 1
        entry = self._when[key] = (when, self._serial, key)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._when):
            self._heap = list(self._when.values())
            heapq.heapify(self._heap)

    def set_earlier(self, key: K, when: float) -> None:
        """Give ``key`` the deadline ``when`` unless it has an earlier one."""
        held = self._when.get(key)
        if held is None or when < held[0]:
            self.set(key, when)

    def clear(self, key: K) -> None:
        """Forget the deadline of ``key``."""
        self._when.pop(key, None)

    def next(self) -> float | None:
        """Return the earliest deadline."""
        while self._heap:
            entry = self._heap[0]
            if self._when.get(entry[2]) is entry:
                return entry[0]
            heapq.heappop(self._heap)
        return None

    def pop_due(self, now: float, most: float = math.inf) -> list[K]:
        """Take out the keys whose deadline is not after ``now``, in the order of the deadlines, ``most`` of them."""
        due: list[K] = []
        while len(due) < most and (when := self.next()) is not None and when <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._when[key]
            due.append(key)
        return due


TURN_MAX = 100
"""How many keys are dealt with before others run: some milliseconds of work."""
RESOLUTION_S = 0.010
DRIFT = 1e-4
BUCKETS_PER_DOUBLING = 4096


class DueTimes:
    """The due times of one queue: every one is kept, merged only into buckets that end later (B2).

    A time is rounded up by the store's resolution plus 1e-4 of the delay, since one tick early would be a receive
    that finds nothing and a message that nobody announces again. Buckets grow coarser as they grow many, so that a
    million different delays cost bounded memory. To add one and to take one out costs O(log n), to ask for the earliest
    nothing: a flood of delayed triggers must not hold up the loop.
    """

    __slots__ = ("_buckets", "_heap")

    def __init__(self) -> None:
        self._buckets: dict[float, int] = {}
        # Each bucket's end once: a bucket leaves both together, and only when its time comes.
        self._heap: list[float] = []

    def __len__(self) -> int:
        return len(self._buckets)

    def add(self, now: float, delay_s: float, *, resolution_s: float = 0.0, size: int = 1) -> float:
        """Keep a due time ``delay_s`` from now for ``size`` messages; return when its bucket ends."""
        exact = now + delay_s * (1 + DRIFT) + resolution_s
        # Finer than the drift it is rounded by anyway, a bucket would buy nothing.
        width = max(RESOLUTION_S, math.ldexp(1.0, math.floor(math.log2(max(delay_s, RESOLUTION_S) * DRIFT))))
        width = math.ldexp(width, len(self._buckets) // BUCKETS_PER_DOUBLING)
        bucket = math.ceil(exact / width) * width
        # The product may round below the quotient's ceiling: never early.
        if bucket < exact:
            bucket += width
        held = self._buckets.get(bucket)
        if held is None:
            heapq.heappush(self._heap, bucket)
        self._buckets[bucket] = min((held or 0) + size, 1_000_000)
        return bucket

    def nearer(self, seconds: float) -> None:
        """Bring all due times nearer: time passed that the clock did not count (B15)."""
        moved: dict[float, int] = {}
        for when, size in self._buckets.items():
            # Two that lie closer than a float can tell may meet.
            moved[when - seconds] = moved.get(when - seconds, 0) + size
        self._buckets = moved
        self._heap = sorted(moved)

    def next(self) -> float | None:
        """Return when the earliest bucket ends."""
        return self._heap[0] if self._heap else None

    def all(self) -> list[tuple[float, int]]:
        """Return when each bucket ends, and its size."""
        return sorted(self._buckets.items())

    def pop_due(self, now: float) -> int:
        """Take out what is due; return how many messages were announced for it."""
        size = 0
        while self._heap and self._heap[0] <= now:
            size += self._buckets.pop(heapq.heappop(self._heap))
        return size
