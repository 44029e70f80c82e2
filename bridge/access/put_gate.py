"""Admit or reject every put over HTTP, on all endpoints: shed load before memory runs out.

Receives, settlements and heartbeats are always admitted, so that the backlog can drain. A put is refused if

- the bytes of all unanswered puts would exceed a bound, or
- the oldest waiting put has waited longer than the permitted time, or
- as many wait as can be answered in half of that time.

That number, the limit, is learned from every answer by Little's law. An answer that took more than half that time
lowers it immediately to the number that would have met it. If only few waited, the limit stays: the store paused
briefly, which does not show its capacity. A faster answer raises it by one, but only if about as many wait as are
allowed, since it proves nothing about more. A failed put proves nothing.

A put is judged by how many wait, because the last wait is known too late: judged by it, a whole wait's arrivals too
many would be admitted, and then none.

If no put waits, the next one is accepted however slow the last was, so admission cannot lock itself out. The bound on
bytes always holds. Arriving bodies have a share of those bytes. When it is full, bodies that arrive too slowly give
way; while there is room they may be as slow as they like.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec

from queuebell.bridge.contract.errors import Overloaded
from queuebell.bridge.contract.throttle import Throttle
from queuebell.bridge.observe.facts import Fact, PutRefused

REFUSING_S: Final = 5.0
"""Time after a rejection during which the bridge reports that it rejects puts."""
LOG_EVERY_S: Final = 10.0
"""Minimum time between two log lines about rejections; each has the number since the last."""

log = logging.getLogger("queuebell.bridge")


class PutGate:
    """Admits or rejects puts by ``clock`` (monotonic seconds), and reports each rejection."""

    def __init__(self, rule: Admission, clock: Callable[[], float], emit: Callable[[Fact], None]) -> None:
        self.rule = rule
        self._clock = clock
        self._emit = emit
        self._throttle = Throttle(LOG_EVERY_S)

    def admit(self, size: int, *, arriving: bool = False) -> Ticket:
        """Admit a put of ``size`` bytes, which are still to be read if ``arriving``; call `end` after it.

        Raises `Overloaded`.
        """
        answer = self.ask(size, arriving=arriving)
        if isinstance(answer, Ticket):
            return answer
        raise Overloaded(error_text(answer), float(answer.retry_after_s))

    def ask(self, size: int, *, arriving: bool = False) -> Ticket | Refused:
        """Return the ticket as `admit` does, or the reason for a rejection."""
        now = self._clock()
        if arriving:
            for slow in self.rule.give_way(now, size):
                self.count(Reason.BYTES.value)
                if slow.on_give_way is not None:
                    slow.on_give_way()
        answer = self.rule.ask(now, size, arriving=arriving)
        if isinstance(answer, Refused):
            self.count(answer.reason.value)
            self._log(answer)
        return answer

    def begin(self, ticket: Ticket, size: int, since: float | None = None) -> None:
        """Record that the body of ``size`` bytes arrived, at ``since`` or now, and that the put goes to the store."""
        self.rule.begin(ticket, self._clock() if since is None else since, size)

    def end(self, ticket: Ticket) -> None:
        """Record that the put was answered."""
        self.rule.end(ticket, self._clock())

    def drop(self, ticket: Ticket) -> None:
        """Record that the put was rejected or its sender disconnected."""
        self.rule.drop(ticket)

    def count(self, reason: str) -> None:
        """Count a rejected put, also one that another limit rejected."""
        self._emit(PutRefused(reason))

    def _log(self, refused: Refused) -> None:
        suppressed = self._throttle.passes(self._clock())
        if suppressed is not None:
            log.warning(
                "puts are rejected with 429: %d since the last report, or since the start; %s; "
                "acknowledged messages are safe",
                suppressed + 1,
                _WHY[refused.reason],
            )

    def refusing(self) -> str | None:
        """Describe recent rejections; None if all puts are admitted."""
        rule, now = self.rule, self._clock()
        if rule.refused_at is None or now - rule.refused_at > REFUSING_S:
            return None
        return (
            f"puts were rejected with 429 in the last {REFUSING_S:g} s; now {rule.waiting} wait for the store, for "
            f"about {rule.expected_s(now):.1f} s, and {rule.bytes} of {rule.bytes_max} bytes are in use; "
            "acknowledged messages are safe"
        )


def error_text(refused: Refused) -> str:
    """Return the error text for a rejected put."""
    return f"the queue service is busy: {_WHY[refused.reason]}; nothing was put, try again"


BYTES_MAX: Final = 64 * 1024 * 1024
WAIT_MS: Final = 400
AIM_SHARE: Final = 0.5
"""The targeted part of the longest wait; the rest is reserve for a store that slows down."""
FAIR_DIVISOR: Final = 8
"""Divisor of the limit: a long wait lowers the limit only if at least that many waited together."""
FLOOR_DIVISOR: Final = 32
"""Divisor of a commit's size: that many are accepted after any wait, as refusing them would speed up nothing."""
PUT_BYTES: Final = 4096
"""Counted for a waiting put in addition to its body: its connection and task."""
RETRY_AFTER_S_MAX: Final = 30
ARRIVING_DIVISOR: Final = 2
"""Divisor of the bytes that arriving bodies may use, so a slow sender does not block others."""
SMALL_BYTES: Final = 64 * 1024
SMALL_DIVISOR: Final = 8
"""Divisor of those bytes reserved for bodies of `SMALL_BYTES` at most, so a few large slow ones do not block them."""
SLOW_AFTER_S: Final = 1.0
SLOW_BYTES_S: Final = 16 * 1024
"""A body slower than this for `SLOW_AFTER_S` or longer gives way when its share is full."""


class Reason(Enum):
    """Name why a put was refused."""

    BYTES = "bytes"
    WAIT = "wait"


class Refused(msgspec.Struct, frozen=True):
    """Refuse a put; a retry makes sense after ``retry_after_s`` (1 to 30)."""

    reason: Reason
    retry_after_s: int
    expected_s: float
    """How long it would have had to wait."""


class Ticket:
    """Track one accepted put, from its admission to its answer."""

    __slots__ = (
        "arriving",
        "began",
        "checked_at",
        "gave_way",
        "on_give_way",
        "received",
        "received_at_check",
        "size",
        "waiting_at_start",
    )

    def __init__(self, size: int, arriving: bool) -> None:
        self.size = size
        self.arriving = arriving
        self.began = -1.0
        """When it began to wait; negative before and afterwards."""
        self.waiting_at_start = 0
        """How many waited when it began, itself included."""
        self.received = 0
        """Bytes of the body that have arrived, as its reader reports."""
        self.received_at_check = 0
        self.checked_at = 0.0
        """When its pace was last checked, or it was accepted, and the bytes `received_at_check` by then."""
        self.gave_way = False
        """It arrived too slowly and its bytes are released: it must not `begin`."""
        self.on_give_way: Callable[[], None] | None = None
        """Set by the reader of the body: called when the body has to give way."""


class Admission:
    """Accept puts, up to ``bytes_max`` bytes at once, while they are expected to wait no longer than ``wait_s``.

    ``group`` is the maximum number of puts per commit. Times are seconds of any monotonic clock that is not negative.
    Each call has a constant cost, however many wait.
    """

    def __init__(self, bytes_max: int, wait_s: float, *, group: int = 1024) -> None:
        self.bytes_max = bytes_max
        self.wait_s = wait_s
        self.bytes = 0
        """Bytes accepted and not yet answered; never above ``bytes_max``."""
        self.waiting = 0
        """Puts passed to the store and not yet answered."""
        self.limit = float(group)
        """How many may wait at once; the size of one commit until more is known."""
        self.refused_at: float | None = None
        """When a put was last refused."""
        self._floor = max(1.0, group / FLOOR_DIVISOR)
        self._arriving = 0
        # Arriving puts, in the order of their last pace check.
        self._in_transit: dict[Ticket, None] = {}
        # In the order in which they began. Those answered before an older one are skipped once that is answered.
        self._order: deque[Ticket] = deque()

    def ask(self, now: float, size: int, *, arriving: bool = False) -> Ticket | Refused:
        """Accept a put of ``size`` bytes, or return the reason not to. ``arriving``: its body is still in transit."""
        if self.waiting and (self.waiting >= self.limit or now - self._order[0].began > self.wait_s):
            return self._refuse(now, Reason.WAIT)
        taken = size + PUT_BYTES
        if self.bytes + taken > self.bytes_max or (arriving and self._arriving + taken > self._share(size)):
            return self._refuse(now, Reason.BYTES)
        self.bytes += taken
        ticket = Ticket(taken, arriving)
        if arriving:
            self._arriving += taken
            ticket.checked_at = now
            self._in_transit[ticket] = None
        return ticket

    def give_way(self, now: float, size: int) -> list[Ticket]:
        """Take bytes back from bodies that arrive too slowly, until one of ``size`` more fits.

        The caller ends their reading. Each body that is fast enough is checked once per `SLOW_AFTER_S`.
        """
        ended: list[Ticket] = []
        most = self._share(size) - size - PUT_BYTES
        while self._in_transit and self._arriving > most:
            ticket = next(iter(self._in_transit))
            elapsed = now - ticket.checked_at
            if elapsed < SLOW_AFTER_S:
                break
            if ticket.received - ticket.received_at_check < elapsed * SLOW_BYTES_S:
                self._arrived(ticket)
                self.bytes -= ticket.size
                ticket.size = 0
                ticket.gave_way = True
                ended.append(ticket)
            else:
                ticket.checked_at, ticket.received_at_check = now, ticket.received
                del self._in_transit[ticket]
                self._in_transit[ticket] = None
        return ended

    def begin(self, ticket: Ticket, now: float, size: int | None = None) -> None:
        """Pass a complete put to the store; ``size`` is its actual size if that is below the announced one."""
        self._arrived(ticket)
        if size is not None and size + PUT_BYTES < ticket.size:
            self.bytes -= ticket.size - size - PUT_BYTES
            ticket.size = size + PUT_BYTES
        self.waiting += 1
        self._order.append(ticket)
        ticket.began = now
        ticket.waiting_at_start = self.waiting

    def end(self, ticket: Ticket, now: float) -> None:
        """Record that the put was answered."""
        if ticket.began >= 0.0:
            self._learn(ticket.waiting_at_start, now - ticket.began)
        self.drop(ticket)

    def drop(self, ticket: Ticket) -> None:
        """Release a put that failed; nothing is learned from it."""
        self._arrived(ticket)
        self.bytes -= ticket.size
        if ticket.began < 0.0:
            return
        ticket.began = -1.0
        self.waiting -= 1
        order = self._order
        while order and order[0].began < 0.0:
            order.popleft()

    def expected_s(self, now: float) -> float:
        """Return the expected wait of a put that arrives now; 0 while none waits."""
        if not self.waiting:
            return 0.0
        aimed = (self.waiting + 1) / self.limit * self.wait_s * AIM_SHARE
        return max(now - self._order[0].began, aimed)

    def _share(self, size: int) -> int:
        """Return how many bytes arriving bodies may use, including one of ``size``."""
        share = self.bytes_max // ARRIVING_DIVISOR
        return share - share // SMALL_DIVISOR if size > SMALL_BYTES else share

    def _arrived(self, ticket: Ticket) -> None:
        """Record that the body has arrived."""
        if ticket.arriving:
            ticket.arriving = False
            self._arriving -= ticket.size
            del self._in_transit[ticket]

    def _learn(self, among: int, waited: float) -> None:
        """Learn from one answer: ``among`` puts waited together, this one for ``waited`` seconds."""
        aim = self.wait_s * AIM_SHARE
        if waited > aim:
            # After a stall, the puts answered first began when few waited; many more have joined since.
            together = max(among, self.waiting)
            if FAIR_DIVISOR * together >= self.limit:
                self.limit = max(self._floor, min(self.limit, together * aim / waited))
        elif 2 * among >= self.limit:
            self.limit += 1.0

    def _refuse(self, now: float, reason: Reason) -> Refused:
        self.refused_at = now
        expected = self.expected_s(now)
        return Refused(reason, min(RETRY_AFTER_S_MAX, max(1, math.ceil(expected))), expected)


_WHY: Final = {Reason.WAIT: "puts wait too long", Reason.BYTES: "too many bytes wait to be put"}
