"""What the bridge believes of one listener's room, so that it is told what changes that and nothing else (L5)."""

from __future__ import annotations


class AdvertisedRoom:
    """The bridge's count of our free slots, and whether a `more` bars us (B6).

    ``free`` is what `room`, a hello or a heartbeat said, less what wakes have carried since (O7).
    """

    __slots__ = ("_looked", "_more_stands", "barred", "free")

    def __init__(self, capacity: int) -> None:
        self.free = capacity
        self.barred = False
        """`more` was said and no room since: the bridge asks others."""
        self._more_stands = False
        self._looked = False
        """`started` was said and no count since: the bridge hands no messages to who may use its slots for a look."""

    def greeted(self, capacity: int) -> None:
        """Begin anew with a session: a hello told the capacity."""
        self.free = capacity
        self.barred = self._more_stands = self._looked = False

    def carried(self, count: int) -> None:
        """Take note that a wake brought ``count`` messages, which the bridge counted itself."""
        self.free = max(0, self.free - count)

    def started(self) -> None:
        """Take note that `started` was said, which may make us the owner again: the next `more` tells something new."""
        self._more_stands = False
        self._looked = True

    def beaten(self, free: int) -> None:
        """Take note of a heartbeat, which tells room as `room` and none as `more` (S2)."""
        self.free = free
        self.barred = free <= 0
        self._looked = False

    def more(self, again: bool) -> bool:
        """Whether `more` is to be said now; ``again`` even if it stands, for a wake crossed it."""
        if self._more_stands and not again:
            return False
        self.free = 0
        self.barred = self._more_stands = True
        return True

    def room(self, available: int, exact: bool) -> bool:
        """Whether `room` is to be said now: while barred, and with ``exact`` whenever the bridge's count is wrong."""
        wrong = self.free != available or self._looked
        if available <= 0 or not (self.barred or (exact and wrong)):
            return False
        self.free = available
        self.barred = self._more_stands = self._looked = False
        return True
