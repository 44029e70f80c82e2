"""One queue of a store that bills each call: exact about what is visible, leased and gone. Pure."""

from __future__ import annotations

from array import array
from collections import deque


class Store:
    """Messages are numbers, counted from 0 in the order of their puts; times are seconds of one clock.

    ``visible_at`` says since when each message has been visible. A message that is not deleted within
    ``visibility_s`` of its receive is visible again. Every call is a transaction, and is counted: ``puts`` and
    ``deletes`` one for each message, ``hits`` and ``misses`` one for each receive.
    """

    def __init__(self, visibility_s: float) -> None:
        self.visibility_s = visibility_s
        self.visible_at = array("d")
        self.puts = self.hits = self.misses = self.deletes = 0
        self.misses_at_rest = 0
        """Receives that found nothing while the queue held no message at all, not even a leased one."""
        self.rose = False
        """Whether the visible messages rose from none; for the reader to clear."""
        self._visible: deque[int] = deque()
        self._leased: dict[int, float] = {}
        # All leases are of one length, so they end in the order in which they began.
        self._ends: deque[tuple[float, int]] = deque()

    @property
    def visible(self) -> int:
        """How many messages are visible, as of the last call."""
        return len(self._visible)

    @property
    def leased(self) -> int:
        """How many messages are leased, as of the last call."""
        return len(self._leased)

    @property
    def at_rest(self) -> bool:
        """Whether there is no message at all."""
        return not self._visible and not self._leased

    def put(self, now: float, count: int) -> int:
        """Put ``count`` messages; return the number of the first."""
        self.advance(now)
        first = len(self.visible_at)
        self.rose = self.rose or not self._visible
        self.visible_at.extend([now] * count)
        self._visible.extend(range(first, first + count))
        self.puts += count
        return first

    def receive(self, now: float, limit: int) -> list[int]:
        """Lease up to ``limit`` messages, those first that have been visible longest."""
        if self._ends:
            self.advance(now)
        visible = self._visible
        if not visible:
            self.misses += 1
            if not self._leased:
                self.misses_at_rest += 1
            return []
        self.hits += 1
        found = [visible.popleft() for _ in range(min(limit, len(visible)))]
        end = now + self.visibility_s
        for message in found:
            self._leased[message] = end
            self._ends.append((end, message))
        return found

    def delete(self, now: float, message: int) -> bool:
        """Delete a leased message; False, and nothing changed, if its lease has ended."""
        self.advance(now)
        self.deletes += 1
        return self._leased.pop(message, None) is not None

    def advance(self, now: float) -> None:
        """Let leases end that have ended by ``now``."""
        while self._ends and (self._ends[0][0] <= now or self._leased.get(self._ends[0][1]) != self._ends[0][0]):
            end, message = self._ends.popleft()
            if self._leased.get(message) == end:
                del self._leased[message]
                self.rose = self.rose or not self._visible
                self.visible_at[message] = end
                self._visible.append(message)

    def next_visible(self) -> float | None:
        """Return when the next lease ends, as of the last call."""
        while self._ends and self._leased.get(self._ends[0][1]) != self._ends[0][0]:
            self._ends.popleft()
        return self._ends[0][0] if self._ends else None
