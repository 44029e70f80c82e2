"""Which puts are let in while others wait to be committed: load is shed before memory is.

A put is let in unless one of three things holds. The bytes of all puts let in and not yet answered would pass a bound;
the oldest that is waiting has waited longer than a put may; or as many wait as can be answered in half that time. That
number, the limit, is learnt from every answer by Little's law: of those that waited together, so many as would have
waited half the time. What waited too long lowers it at once, unless few waited: those prove that the store stood still
for a moment, and not how many it can take. What did not raises it by one, and only where about as many wait as are
allowed, since an answer proves nothing about more than waited with it. A put that came to nothing proves nothing.

So a newcomer is judged by how many are before it, and not by how long the last ones waited: that is known only when it
is too late, and would let in a whole wait's arrivals too many and then none until all of them are answered.

Where nobody waits a put is let in however slow the last one was: this cannot lock itself out. The bound on bytes holds
always.

Bodies on their way have a share of those bytes. Where it is full, those that come too slowly give way to a newcomer; as
long as there is room they may be as slow as they like.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec

BYTES_MAX: Final = 64 * 1024 * 1024
BYTES_MIN: Final = 8 * 1024 * 1024
"""Twice the largest put, and more: below this it could never be let in while it is on its way."""
WAIT_MS: Final = 400
AIM_SHARE: Final = 0.5
"""How much of the longest wait is aimed at: the rest is for a store that becomes slower meanwhile."""
FAIR_SHARE: Final = 8
"""One in so many of the limit has to wait together for a long wait to lower it."""
FLOOR_SHARE: Final = 32
"""One in so many of what a commit takes is let in after however bad a wait: to refuse those would speed up nothing."""
PUT_BYTES: Final = 4096
"""What a waiting put is counted for beside its body: its connection's and its task's share."""
RETRY_AFTER_S_MAX: Final = 30
ARRIVING_SHARE: Final = 2
"""Bodies that are still on their way may take one in so many of the bytes: a slow sender keeps nobody else out."""
SMALL_BYTES: Final = 64 * 1024
SMALL_SHARE: Final = 8
"""One in so many of those is for bodies of `SMALL_BYTES` at most: a few large ones that do not come leave them that."""
SLOW_AFTER_S: Final = 1.0
SLOW_BYTES_S: Final = 16 * 1024
"""A body that came more slowly than this, for `SLOW_AFTER_S` or longer, gives way where its share is full."""


class Reason(Enum):
    """Why a put was refused."""

    BYTES = "bytes"
    WAIT = "wait"


class Refused(msgspec.Struct, frozen=True):
    """A put is not let in; another try is worth it after ``retry_after_s`` (1 to 30)."""

    reason: Reason
    retry_after_s: int
    expected_s: float
    """What it would have had to wait."""


class Ticket:
    """One put that was let in, from its admission to its answer."""

    __slots__ = ("among", "arriving", "began", "came", "gave_way", "got", "had", "looked", "size", "yields")

    def __init__(self, size: int, arriving: bool) -> None:
        self.size = size
        self.arriving = arriving
        self.began = -1.0
        """When it began to wait; negative before and afterwards."""
        self.came = -1.0
        """When it can have come at the earliest, which is before it was read."""
        self.among = 0
        """How many waited when it began, with itself."""
        self.got = 0
        """Bytes of the body that have come, as far as its reader says."""
        self.had = 0
        self.looked = 0.0
        """When its pace was looked at last, or it was let in, and what it `had` got then."""
        self.gave_way = False
        """It came too slowly, and its bytes are no longer kept for it: it must not `begin`."""
        self.yields: Callable[[], None] | None = None
        """Set by whoever reads the body: called when it has to give way."""


class Admission:
    """Lets puts in, up to ``bytes_max`` bytes at once, while they are expected to wait no longer than ``wait_s``.

    ``group`` is how many puts one commit takes at most. Times are seconds of any clock that does not go back and is not
    negative. Each question costs the same however many wait.
    """

    def __init__(self, bytes_max: int, wait_s: float, *, group: int = 1024) -> None:
        self.bytes_max = bytes_max
        self.wait_s = wait_s
        self.bytes = 0
        """Bytes let in and not yet answered; never above ``bytes_max``."""
        self.waiting = 0
        """Puts handed to the store and not yet answered."""
        self.limit = float(group)
        """How many may wait at once; what one commit takes until it is known better."""
        self.refused_at: float | None = None
        """When a put was refused last."""
        self._floor = max(1.0, group / FLOOR_SHARE)
        self._arriving = 0
        # Those on their way, in the order in which their pace was looked at last.
        self._coming: dict[Ticket, None] = {}
        # In the order in which they began. Those answered before an older one are passed over once that is answered.
        self._order: deque[Ticket] = deque()

    def ask(self, now: float, size: int, *, arriving: bool = False) -> Ticket | Refused:
        """Let a put of ``size`` bytes in, or say why not. ``arriving``: its body is still on its way."""
        if self.waiting and (self.waiting >= self.limit or now - self._order[0].began > self.wait_s):
            return self._refuse(now, Reason.WAIT)
        taken = size + PUT_BYTES
        if self.bytes + taken > self.bytes_max or (arriving and self._arriving + taken > self._share(size)):
            return self._refuse(now, Reason.BYTES)
        self.bytes += taken
        ticket = Ticket(taken, arriving)
        if arriving:
            self._arriving += taken
            ticket.looked = now
            self._coming[ticket] = None
        return ticket

    def give_way(self, now: float, size: int) -> list[Ticket]:
        """Take their bytes back from bodies that come too slowly, until one of ``size`` more finds room on its way.

        The caller ends their reading. Those that come fast enough are looked at once in `SLOW_AFTER_S`.
        """
        ended: list[Ticket] = []
        most = self._share(size) - size - PUT_BYTES
        while self._coming and self._arriving > most:
            ticket = next(iter(self._coming))
            elapsed = now - ticket.looked
            if elapsed < SLOW_AFTER_S:
                break
            if ticket.got - ticket.had < elapsed * SLOW_BYTES_S:
                self._came(ticket)
                self.bytes -= ticket.size
                ticket.size = 0
                ticket.gave_way = True
                ended.append(ticket)
            else:
                ticket.looked, ticket.had = now, ticket.got
                del self._coming[ticket]
                self._coming[ticket] = None
        return ended

    def begin(self, ticket: Ticket, now: float, size: int | None = None, came: float | None = None) -> None:
        """The body is there, and the put goes to the store; ``size`` is what it came to where less was announced.

        ``came`` is when it can have come at the earliest, where it may have waited before it was read.
        """
        self._came(ticket)
        if size is not None and size + PUT_BYTES < ticket.size:
            self.bytes -= ticket.size - size - PUT_BYTES
            ticket.size = size + PUT_BYTES
        self.waiting += 1
        self._order.append(ticket)
        ticket.began = now
        ticket.came = now if came is None else min(now, came)
        ticket.among = self.waiting

    def end(self, ticket: Ticket, now: float) -> None:
        """The put was answered."""
        if ticket.began >= 0.0:
            self._learn(ticket.among, now - ticket.came)
        self.drop(ticket)

    def drop(self, ticket: Ticket) -> None:
        """The put came to nothing, which teaches nothing."""
        self._came(ticket)
        self.bytes -= ticket.size
        if ticket.began < 0.0:
            return
        ticket.began = -1.0
        self.waiting -= 1
        order = self._order
        while order and order[0].began < 0.0:
            order.popleft()

    def expected_s(self, now: float) -> float:
        """Return how long a put that comes now is expected to wait; 0 while nobody waits."""
        if not self.waiting:
            return 0.0
        aimed = (self.waiting + 1) / self.limit * self.wait_s * AIM_SHARE
        return max(now - self._order[0].began, aimed)

    def _share(self, size: int) -> int:
        """Return how many bytes those on their way may take with one of ``size``."""
        share = self.bytes_max // ARRIVING_SHARE
        return share - share // SMALL_SHARE if size > SMALL_BYTES else share

    def _came(self, ticket: Ticket) -> None:
        """It is no longer on its way."""
        if ticket.arriving:
            ticket.arriving = False
            self._arriving -= ticket.size
            del self._coming[ticket]

    def _learn(self, among: int, waited: float) -> None:
        """Take what one answer tells: so many waited together, for so long."""
        aim = self.wait_s * AIM_SHARE
        if waited > aim:
            # After a stall the first answered had few beside them, but many came to wait with them.
            together = max(among, self.waiting)
            if FAIR_SHARE * together >= self.limit:
                self.limit = max(self._floor, min(self.limit, together * aim / waited))
        elif 2 * among >= self.limit:
            self.limit += 1.0

    def _refuse(self, now: float, reason: Reason) -> Refused:
        self.refused_at = now
        expected = self.expected_s(now)
        return Refused(reason, min(RETRY_AFTER_S_MAX, max(1, math.ceil(expected))), expected)
