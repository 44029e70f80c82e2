"""Keep timers as data: keys with deadlines, and the next one due."""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class Agenda(Generic[K]):
    """Keep one deadline per key in a heap; stale entries are dropped when they surface.

    Setting and clearing cost O(log n). A session that moves its deadline with every frame should let it pass and set it
    again from the current state.
    """

    __slots__ = ("_heap", "_serial", "_when")

    def __init__(self) -> None:
        self._when: dict[K, tuple[float, int, K]] = {}
        # The serial avoids comparing keys, and keeps equal times first come, first served.
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
        """Set the deadline of ``key``, replacing any other."""
        self._serial += 1
        entry = self._when[key] = (when, self._serial, key)
        heapq.heappush(self._heap, entry)
        if len(self._heap) > 64 and len(self._heap) > 4 * len(self._when):
            self._heap = list(self._when.values())
            heapq.heapify(self._heap)

    def set_earlier(self, key: K, when: float) -> None:
        """Set the deadline of ``key`` unless it has an earlier one."""
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
        """Remove and return up to ``most`` keys due by ``now``, in the order of their deadlines."""
        due: list[K] = []
        while len(due) < most and (when := self.next()) is not None and when <= now:
            _, _, key = heapq.heappop(self._heap)
            del self._when[key]
            due.append(key)
        return due


TURN_MAX = 100
"""How many keys are handled before other tasks run: some milliseconds of work."""
RESOLUTION_S = 0.010
DRIFT = 1e-4
BUCKETS_PER_DOUBLING = 4096


class DueTimes:
    """Keep all due times of one queue; they are merged only into buckets that end later (B2).

    A time is rounded up by the store's resolution plus 1e-4 of the delay: one tick early, a receive finds nothing and
    the message is not announced again. Buckets grow coarser as their number grows, so a million different delays use
    bounded memory. Adding and removing cost O(log n), reading the earliest O(1): a flood of delayed triggers must not
    block the loop.
    """

    __slots__ = ("_buckets", "_heap")

    def __init__(self) -> None:
        self._buckets: dict[float, int] = {}
        # Each bucket's end once: both are removed together, and only when due.
        self._heap: list[float] = []

    def __len__(self) -> int:
        return len(self._buckets)

    def add(self, now: float, delay_s: float, *, resolution_s: float = 0.0, size: int = 1) -> float:
        """Keep a due time ``delay_s`` from now for ``size`` messages; return when its bucket ends."""
        exact = now + delay_s * (1 + DRIFT) + resolution_s
        # A bucket finer than the rounding by drift would be useless.
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

    def bring_nearer(self, seconds: float) -> None:
        """Bring all due times nearer, by time that the clock did not count (B15)."""
        moved: dict[float, int] = {}
        for when, size in self._buckets.items():
            # Two that differ by less than a float can show may merge.
            moved[when - seconds] = moved.get(when - seconds, 0) + size
        self._buckets = moved
        self._heap = sorted(moved)

    def next(self) -> float | None:
        """Return when the earliest bucket ends."""
        return self._heap[0] if self._heap else None

    def all(self) -> list[tuple[float, int]]:
        """Return the end and size of each bucket."""
        return sorted(self._buckets.items())

    def pop_due(self, now: float) -> int:
        """Remove what is due; return how many messages were announced for it."""
        size = 0
        while self._heap and self._heap[0] <= now:
            size += self._buckets.pop(heapq.heappop(self._heap))
        return size
