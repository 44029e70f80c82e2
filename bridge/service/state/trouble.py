"""What is wrong with a queue, in one line of words, for a person who looks at many; pure, and nothing is changed.

What is asked of every queue is gathered once for all of them: a list of ten thousand is made once a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from bridge.contract.jobs import quantile
from bridge.core.pending_work import Debt
from bridge.core.session_queue import Seat
from bridge.core.sessions import InFlight, Session
from bridge.core.wake_scheduler import Bell
from bridge.observe.slices import Slices, sliced
from bridge.service.state.status import failing_s, hangs, stranded, unattended

BLOCKS_S: Final = 60.0
"""A handler that has run for so long may hang where work waits and nobody has room for it."""
LONG_S: Final = 600.0
"""A handler that has run for so long may hang."""
TIMES: Final = 10.0
"""One that has run for so many times what nearly all take may hang, after `BLOCKS_S` at least and whoever has room."""
ENOUGH: Final = 20
"""So many messages handled tell what nearly all take."""
REJECTED_SHOWN: Final = 3
"""Of the workers that the bridge rejected at a queue so many are named."""
LATELY_S: Final = 600.0
"""Work that was found without a trigger is trouble for so long; after that it is only counted."""
NONE: Final = (math.inf, "", "")


class Troubles:
    """The trouble of queues as of ``now``, once `gather` has walked over the sessions."""

    def __init__(self, bell: Bell, now: float) -> None:
        self._bell = bell
        self._now = now
        self.longest: dict[str, tuple[Session, InFlight]] = {}
        """By queue: whose handler has run longest, where one has run for some seconds."""
        self._silent: dict[str, Session] = {}
        self._rejected = bell.rejections.by_queue(now)
        self._seats: set[str] = set()
        """Queues with a seat in trouble."""

    @classmethod
    def at(cls, bell: Bell, debt: Debt, now: float) -> Troubles:
        """Return the trouble of one queue: its own sessions are looked at, and no others."""
        found = cls(bell, now)
        found._look_at(each for seat in debt.seats if (each := bell.sessions.get(seat.session)) is not None)
        return found

    def gather(self) -> Slices[None]:
        """Walk over all sessions."""
        for part in sliced(self._bell.sessions.named()):
            self._look_at(part)
            yield

    def _look_at(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            for queue, running in session.running.items():
                known = self.longest.get(queue)
                if known is None or running.since < known[1].since:
                    self.longest[queue] = session, running
            self._seats.update(queue for queue, seat in session.seats.items() if in_trouble(seat))
            if is_silent(self._bell, session, self._now):
                for queue in session.seats:
                    self._silent.setdefault(queue, session)

    def of(self, debt: Debt) -> str | None:
        """Say in words what is wrong with a queue, the gravest first; None where nothing is known to be."""
        queue, nobody = debt.queue, not debt.seats
        lone = nobody and (debt.dirty or debt.visible)
        rejected = "; ".join(each.describe(self._now) for each in self._rejected.get(queue, ())[:REJECTED_SHOWN])
        if (lone or stranded(debt)) and (words := unattended(self._bell, debt)) is not None:
            return f"{words}; {rejected}" if rejected else words
        told = queue in self._seats or queue in self.longest or queue in self._silent
        if not nobody and (told or _blocks(debt)):
            words = self._of_seats(debt)
            if words is not None:
                return words
        if rejected:
            return rejected
        if debt.unannounced_at is not None and self._now - debt.unannounced_at < LATELY_S:
            times, ago = f"{debt.unannounced} times", self._now - debt.unannounced_at
            return (
                f"work was found {'once' if debt.unannounced == 1 else times} that no trigger had told of, last "
                f"{ago:.0f} s ago: does every producer publish after its put?"
            )
        return None

    def running_ms(self, debt: Debt) -> int | None:
        """Return for how long the longest handler of a queue has run, None where all are quick."""
        known = self.longest.get(debt.queue)
        return None if known is None else max(0, round(1000 * (self._now - known[1].since)))

    def _of_seats(self, debt: Debt) -> str | None:
        since = [failing_s(seat, self._now) for seat in debt.seats]
        failed = [each for each in since if each is not None]
        if failed:
            who = "of its only listener" if len(since) == 1 else f"of {len(failed)} of its {len(since)} listeners"
            return f"the receives {who} have failed for {max(failed):.0f} s"
        for seat in debt.seats:
            session = self._bell.sessions.get(seat.session)
            if session is not None and (seat.hung or seat.starved is not None):
                return f"{session.listener}: {hangs(seat) if seat.starved is None else seat.starved.describe()}"
        if (words := self._hangs(debt)) is not None:
            return words
        if any(seat.stuck for seat in debt.seats):
            return "a listener said that a receive had begun, and showed no progress since"
        if any(seat.deaf for seat in debt.seats):
            return "a listener did not take up the messages that it was handed"
        silent = self._silent.get(debt.queue)
        if silent is not None:
            return f"{silent.listener} has been silent for {self._now - silent.last_heard:.0f} s"
        for seat in debt.seats:
            if seat.processes is not None and seat.processes.failure is not None:
                return f"its workers do not start, or end as they should not: {seat.processes.failure}"
        return None

    def _hangs(self, debt: Debt) -> str | None:
        known, blocks = self.longest.get(debt.queue), _blocks(debt)
        if known is None:
            return self._held_by_others(debt) if blocks else None
        session, running = known
        ran_s = self._now - running.since
        usual_s = usual(debt)
        if ran_s < (max(BLOCKS_S, TIMES * usual_s) if usual_s is not None else BLOCKS_S if blocks else LONG_S):
            return None
        meanwhile = "" if usual_s is None else f", where nearly all take at most {usual_s:g} s"
        meanwhile += ", work waits, and nobody has room" if blocks else ""
        return f"{session.listener} has handled message {running.id} for {_span(ran_s)}{meanwhile}: does it hang?"

    def _held_by_others(self, debt: Debt) -> str | None:
        """Name the longest call of another queue where a worker has no slot although no call of this one runs."""
        for seat in debt.seats:
            session = self._bell.sessions.get(seat.session)
            if session is None or seat.leases or any((seat.in_flight or {}).values()):
                continue
            since, queue, message = min(((of.since, name, of.id) for name, of in session.running.items()), default=NONE)
            if self._now - since >= BLOCKS_S:
                ran = f"has handled message {message} of {queue} for {_span(self._now - since)}"
                return f"no free slot: {session.listener} {ran}: does it hang?"
        return None


def _blocks(debt: Debt) -> bool:
    return debt.waits and not debt.seats.any_ready


def usual(debt: Debt) -> float | None:
    """Return in how many seconds nearly all messages of a queue are handled; None before enough of them were."""
    spreads = [jobs.handling for jobs in (debt.jobs or {}).values()]
    return max((quantile(each, 0.99) or 0.0 for each in spreads if sum(each.counts) >= ENOUGH), default=None)


def in_trouble(seat: Seat) -> bool:
    """Say whether a session cannot work at one of its queues."""
    failed = seat.processes is not None and seat.processes.failure is not None
    no_slot = seat.hung > 0 or seat.starved is not None
    return seat.failing_since is not None or seat.stuck or seat.deaf or failed or no_slot


def is_silent(bell: Bell, session: Session, now: float) -> bool:
    """Say whether a session has missed a heartbeat."""
    return now - session.last_heard > 2 * max(session.beat_s, bell.sessions.heartbeat_s)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
