"""What is wrong with a queue, in one line of words, for a person who looks at many; pure, and nothing is changed.

What is asked of every queue is gathered once for all of them: a list of ten thousand is made once a second.
"""

from __future__ import annotations

from typing import Final

from bridge.contract.jobs import quantile
from bridge.core.bell import Bell
from bridge.core.ledger import Debt
from bridge.core.sessions import InFlight, Session
from bridge.core.slots import Seat
from bridge.service.status import failing_s, stranded, unattended

BLOCKS_S: Final = 60.0
"""A handler that has run for so long may hang where work waits and nobody has room for it."""
LONG_S: Final = 600.0
"""A handler that has run for so long may hang."""
TIMES: Final = 10.0
"""One that has run for so many times what nearly all take may hang, after `BLOCKS_S` at least and whoever has room."""
ENOUGH: Final = 20
"""So many messages handled tell what nearly all take."""
LATELY_S: Final = 600.0
"""Work that was found without a trigger is trouble for so long; after that it is only counted."""


class Troubles:
    """The trouble of all queues as of ``now``."""

    def __init__(self, bell: Bell, now: float) -> None:
        self._bell = bell
        self._now = now
        self.longest: dict[str, tuple[Session, InFlight]] = {}
        """By queue: whose handler has run longest, where one has run for some seconds."""
        self._silent: dict[str, Session] = {}
        self._seats: set[str] = set()
        """Queues with a seat in trouble."""
        for session in bell.sessions.named():
            for queue, running in session.running.items():
                known = self.longest.get(queue)
                if known is None or running.since < known[1].since:
                    self.longest[queue] = session, running
            self._seats.update(queue for queue, seat in session.seats.items() if in_trouble(seat))
            if is_silent(bell, session, now):
                for queue in session.seats:
                    self._silent.setdefault(queue, session)

    def of(self, debt: Debt) -> str | None:
        """Say in words what is wrong with a queue, the gravest first; None where nothing is known to be."""
        queue, nobody = debt.queue, not debt.seats
        lone = nobody and (debt.dirty or debt.visible or debt.invisible)
        if (lone or stranded(debt)) and (words := unattended(self._bell, debt)) is not None:
            return words
        if not nobody and (queue in self._seats or queue in self.longest or queue in self._silent):
            words = self._of_seats(debt)
            if words is not None:
                return words
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
        known = self.longest.get(debt.queue)
        if known is None:
            return None
        session, running = known
        ran_s = self._now - running.since
        blocks = debt.waits and not debt.seats.any_ready
        usual_s = usual(debt)
        if ran_s < (max(BLOCKS_S, TIMES * usual_s) if usual_s is not None else BLOCKS_S if blocks else LONG_S):
            return None
        meanwhile = "" if usual_s is None else f", where nearly all take at most {usual_s:g} s"
        meanwhile += ", work waits, and nobody has room" if blocks else ""
        return f"{session.listener} has handled message {running.id} for {_span(ran_s)}{meanwhile}: does it hang?"


def usual(debt: Debt) -> float | None:
    """Return in how many seconds nearly all messages of a queue are handled; None before enough of them were."""
    spreads = [jobs.handling for jobs in (debt.jobs or {}).values()]
    return max((quantile(each, 0.99) or 0.0 for each in spreads if sum(each.counts) >= ENOUGH), default=None)


def in_trouble(seat: Seat) -> bool:
    """Say whether a session cannot work at one of its queues."""
    failed = seat.processes is not None and seat.processes.failure is not None
    return seat.failing_since is not None or seat.stuck or seat.deaf or failed


def is_silent(bell: Bell, session: Session, now: float) -> bool:
    """Say whether a session has missed a heartbeat."""
    return now - session.last_heard > 2 * max(session.beat_s, bell.sessions.heartbeat_s)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
