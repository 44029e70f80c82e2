"""What one plain subscriber has not been sent yet: one announcement for each queue, the oldest generation first."""

from __future__ import annotations

import heapq

from bridge.contract.sources import merged_size
from bridge.contract.trace_context import joined
from bridge.core.commands import Announce

SPARE = 16
"""Entries out of date that are always left alone; more than one for each queue are cleared away."""


class Pending:
    """Announcements by queue, merged. Each costs the logarithm of how many there are, to add and to take."""

    __slots__ = ("_by_queue", "_order")

    def __init__(self) -> None:
        self._by_queue: dict[str, Announce] = {}
        self._order: list[tuple[int, str]] = []
        """By generation. An entry whose queue has another one by now is out of date."""

    def __len__(self) -> int:
        return len(self._by_queue)

    def add(self, announced: Announce) -> None:
        """Add an announcement: the newest generation stays, the oldest mark, and all the work that was hinted at."""
        before = self._by_queue.get(announced.queue)
        if before is not None:
            newer = announced if announced.gen >= before.gen else before
            announced = Announce(
                queue=announced.queue,
                gen=newer.gen,
                reason=newer.reason,
                size=merged_size(before.size, announced.size, announced.reason),
                marked_at=min(before.marked_at, announced.marked_at),
                traceparent=newer.traceparent or before.traceparent,
                shared=before.shared and announced.shared,
                traces=joined(before, announced),
            )
        self._by_queue[announced.queue] = announced
        if before is None or announced.gen != before.gen:
            if len(self._order) > 2 * len(self._by_queue) + SPARE:
                self._order = sorted((each.gen, each.queue) for each in self._by_queue.values())
            else:
                heapq.heappush(self._order, (announced.gen, announced.queue))

    def pop(self, queue: str) -> Announce | None:
        """Take that of a queue."""
        taken = self._by_queue.pop(queue, None)
        if not self._by_queue:
            self._order.clear()
        return taken

    def first(self) -> Announce | None:
        """Take the one of the oldest generation."""
        while self._order:
            gen, queue = heapq.heappop(self._order)
            pending = self._by_queue.get(queue)
            if pending is not None and pending.gen == gen:
                return self.pop(queue)
        return None

    def clear(self) -> None:
        """Drop all."""
        self._by_queue.clear()
        self._order.clear()
