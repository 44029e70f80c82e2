"""How many messages of one queue are visible and invisible, kept by counting, never by asking the table.

Pure: time comes in as whole milliseconds of the store's clock (O2). Every change costs O(log n) of the number of
different due times, whatever the number of messages.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Final

# Stale heap entries are dropped when their time comes; leases that are extended over and over with a long timeout
# would pile them up until then, so the heap is rebuilt when most of it is stale.
_SLACK = 64


class Calendar:
    """A multiset of times in milliseconds that knows its earliest."""

    __slots__ = ("_counts", "_heap", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []
        self.total = 0

    def add(self, at: int, count: int) -> None:
        """Note ``count`` more at this time."""
        self.total += count
        known = self._counts.get(at)
        if known is not None:
            self._counts[at] = known + count
            return
        self._counts[at] = count
        heapq.heappush(self._heap, at)
        if len(self._heap) > 2 * len(self._counts) + _SLACK:
            self._heap = list(self._counts)
            heapq.heapify(self._heap)

    def remove(self, at: int, count: int) -> None:
        """Forget ``count`` at this time; they must have been added before."""
        left = self._counts[at] - count
        self.total -= count
        if left:
            self._counts[at] = left
        else:
            del self._counts[at]

    def earliest(self) -> int | None:
        """Return the earliest time, or None."""
        heap = self._heap
        while heap:
            if heap[0] in self._counts:
                return heap[0]
            heapq.heappop(heap)
        return None

    def take_until(self, now: int) -> int:
        """Forget everything up to and including ``now`` and return how many that were."""
        taken = 0
        heap = self._heap
        while heap and heap[0] <= now:
            taken += self._counts.pop(heapq.heappop(heap), 0)
        self.total -= taken
        return taken

    def __contains__(self, at: int) -> bool:
        return at in self._counts

    def items(self) -> Iterator[tuple[int, int]]:
        """Yield (time, count) in no particular order."""
        return iter(self._counts.items())


EMPTY: Final = Calendar()
"""Without times: most queues have none and share it, and replace it before they add one."""


class Tally:
    """The counts of one queue as of ``now``, the time it was last advanced to.

    ``rose`` is set whenever ``visible`` goes from 0 to more, and is for the owner to clear.
    """

    __slots__ = ("_due", "_expiring", "now", "rose", "visible")

    def __init__(self, now: int) -> None:
        self.now = now
        self.visible = 0
        self.rose = False
        self._due = EMPTY
        self._expiring = EMPTY

    @property
    def invisible(self) -> int:
        """Messages that are leased or delayed."""
        return self._due.total

    @property
    def total(self) -> int:
        """All messages."""
        return self.visible + self._due.total

    def add(self, vis: int, exp: int | None, count: int = 1) -> None:
        """Count messages in that are visible from ``vis`` and expire at ``exp``."""
        if vis <= self.now:
            self._raise(count)
        else:
            self._add_due(vis, count)
        if exp is not None:
            self.expire_at(exp, count)

    def remove(self, vis: int, exp: int | None, count: int = 1) -> None:
        """Count messages out that were counted in with this ``vis`` (or have come due since) and ``exp``."""
        if vis <= self.now:
            self.visible -= count
        else:
            self._due.remove(vis, count)
        if exp is not None:
            self._expiring.remove(exp, count)

    def move(self, old: int, new: int, count: int = 1) -> None:
        """Change from when messages are visible; their expiry stays."""
        if old <= self.now and new <= self.now:
            return
        if old <= self.now:
            self.visible -= count
        else:
            self._due.remove(old, count)
        if new <= self.now:
            self._raise(count)
        else:
            self._add_due(new, count)

    def expire_at(self, exp: int, count: int) -> None:
        """Note that ``count`` of the messages counted in expire at ``exp``."""
        if self._expiring is EMPTY:
            self._expiring = Calendar()
        self._expiring.add(exp, count)

    def advance(self, now: int) -> None:
        """Let time pass: what came due is visible. Time that goes back is ignored."""
        if now <= self.now:
            return
        self.now = now
        came_due = self._due.take_until(now)
        if came_due:
            self._raise(came_due)

    def has_expired(self) -> bool:
        """Say whether messages counted here have expired: they are to be removed before any count is believed."""
        earliest = self._expiring.earliest()
        return earliest is not None and earliest <= self.now

    def next_visible(self) -> int | None:
        """Return when the next invisible message becomes visible, or None."""
        return self._due.earliest()

    def next_expiry(self) -> int | None:
        """Return when a message expires next, or None."""
        return self._expiring.earliest()

    def next_change(self) -> int | None:
        """Return when time alone changes the counts next, by a message becoming visible or expiring, or None."""
        due = self._due.earliest()
        expiry = self._expiring.earliest()
        if due is None:
            return expiry
        return due if expiry is None else min(due, expiry)

    def _add_due(self, at: int, count: int) -> None:
        if self._due is EMPTY:
            self._due = Calendar()
        self._due.add(at, count)

    def _raise(self, count: int) -> None:
        if not self.visible:
            self.rose = True
        self.visible += count
