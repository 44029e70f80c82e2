"""Describe the trouble of a queue in one line, for lists of many queues; pure, and changes nothing.

State that every queue needs is gathered once for all: a list of ten thousand is made once a second.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from queuebell.bridge.contract.jobs import quantile
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.core.sessions import InFlight, Session, SessionQueue
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.observe.slices import Slices, sliced
from queuebell.bridge.service.state.status import failing_s, hangs, stranded, unattended

BLOCKS_S: Final = 60.0
"""Run time after which a handler may hang, if work waits and no worker has room."""
LONG_S: Final = 600.0
"""Run time after which any handler may hang."""
TIMES: Final = 10.0
"""A handler that runs this many times longer than nearly all others, and at least `BLOCKS_S`, may hang."""
ENOUGH: Final = 20
"""Handled messages needed to know how long nearly all take."""
REJECTED_SHOWN: Final = 3
"""Rejected workers named per queue."""
LATELY_S: Final = 600.0
"""Time for which work found without a trigger is reported as trouble; afterwards it is only counted."""
NONE: Final = (math.inf, "", "")


class Troubles:
    """Describes the trouble of queues at ``now``; `gather` must read the sessions first."""

    def __init__(self, scheduler: WakeScheduler, now: float) -> None:
        self._scheduler = scheduler
        self._now = now
        self.longest: dict[str, tuple[Session, InFlight]] = {}
        """By queue: the session with the longest-running handler, if one has run for some seconds."""
        self._silent: dict[str, Session] = {}
        self._rejected = scheduler.rejections.by_queue(now)
        self._troubled: set[str] = set()
        """Queues with a session in trouble."""

    @classmethod
    def at(cls, scheduler: WakeScheduler, work: PendingWork, now: float) -> Troubles:
        """Return the trouble of one queue, from its own sessions only."""
        found = cls(scheduler, now)
        found._read(each for entry in work.sessions if (each := scheduler.sessions.get(entry.session)) is not None)
        return found

    def gather(self) -> Slices[None]:
        """Read all sessions."""
        for part in sliced(self._scheduler.sessions.named()):
            self._read(part)
            yield

    def _read(self, sessions: Iterable[Session]) -> None:
        for session in sessions:
            for queue, running in session.running.items():
                known = self.longest.get(queue)
                if known is None or running.since < known[1].since:
                    self.longest[queue] = session, running
            self._troubled.update(queue for queue, entry in session.queues.items() if in_trouble(entry))
            if is_silent(self._scheduler, session, self._now):
                for queue in session.queues:
                    self._silent.setdefault(queue, session)

    def of(self, work: PendingWork) -> str | None:
        """Describe the most severe trouble of a queue; None if there is none."""
        queue, no_session = work.queue, not work.sessions
        lone = no_session and (work.dirty or work.visible)
        rejected = "; ".join(each.describe(self._now) for each in self._rejected.get(queue, ())[:REJECTED_SHOWN])
        if (lone or stranded(work)) and (detail := unattended(self._scheduler, work)) is not None:
            return f"{detail}; {rejected}" if rejected else detail
        reported = queue in self._troubled or queue in self.longest or queue in self._silent
        if not no_session and (reported or _blocks(work)):
            detail = self._of_sessions(work)
            if detail is not None:
                return detail
        if rejected:
            return rejected
        if work.unannounced_at is not None and self._now - work.unannounced_at < LATELY_S:
            times, ago = f"{work.unannounced} times", self._now - work.unannounced_at
            return (
                f"work without a trigger was found {'once' if work.unannounced == 1 else times}, last "
                f"{ago:.0f} s ago: does every producer publish after its put?"
            )
        return None

    def running_ms(self, work: PendingWork) -> int | None:
        """Return the run time of a queue's longest-running handler; None if all are quick."""
        known = self.longest.get(work.queue)
        return None if known is None else max(0, round(1000 * (self._now - known[1].since)))

    def _of_sessions(self, work: PendingWork) -> str | None:
        since = [failing_s(entry, self._now) for entry in work.sessions]
        failed = [each for each in since if each is not None]
        if failed:
            whose = "of its only worker" if len(since) == 1 else f"of {len(failed)} of its {len(since)} workers"
            return f"the receives {whose} have failed for {max(failed):.0f} s"
        for entry in work.sessions:
            session = self._scheduler.sessions.get(entry.session)
            if session is not None and (entry.hung or entry.starved is not None):
                return f"{session.listener}: {hangs(entry) if entry.starved is None else entry.starved.describe()}"
        if (detail := self._hangs(work)) is not None:
            return detail
        if any(entry.stuck for entry in work.sessions):
            return "a worker reported a start but made no progress since"
        if any(entry.unresponsive for entry in work.sessions):
            return "a worker did not accept the messages sent to it"
        silent = self._silent.get(work.queue)
        if silent is not None:
            return f"{silent.listener} has been silent for {self._now - silent.last_heard:.0f} s"
        for entry in work.sessions:
            if entry.processes is not None and entry.processes.failure is not None:
                return f"its workers fail to start, or exit unexpectedly: {entry.processes.failure}"
        return None

    def _hangs(self, work: PendingWork) -> str | None:
        known, blocks = self.longest.get(work.queue), _blocks(work)
        if known is None:
            return self._held_by_others(work) if blocks else None
        session, running = known
        ran_s = self._now - running.since
        usual_s = usual(work)
        if ran_s < (max(BLOCKS_S, TIMES * usual_s) if usual_s is not None else BLOCKS_S if blocks else LONG_S):
            return None
        meanwhile = "" if usual_s is None else f", although nearly all others take at most {usual_s:g} s"
        meanwhile += ", work waits, and no worker has room" if blocks else ""
        return f"{session.listener} has been handling message {running.id} for {_span(ran_s)}{meanwhile}: does it hang?"

    def _held_by_others(self, work: PendingWork) -> str | None:
        """Name the longest call of another queue that takes a worker's slots while no call of this queue runs."""
        for entry in work.sessions:
            session = self._scheduler.sessions.get(entry.session)
            if session is None or entry.leases or any((entry.in_flight or {}).values()):
                continue
            since, queue, message = min(((of.since, name, of.id) for name, of in session.running.items()), default=NONE)
            if self._now - since >= BLOCKS_S:
                ran = f"has been handling message {message} of {queue} for {_span(self._now - since)}"
                return f"no free slot: {session.listener} {ran}: does it hang?"
        return None


def _blocks(work: PendingWork) -> bool:
    return work.waits and not work.sessions.any_ready


def usual(work: PendingWork) -> float | None:
    """Return the time in seconds within which nearly all messages are handled; None before enough were."""
    spreads = [jobs.handling for jobs in (work.jobs or {}).values()]
    return max((quantile(each, 0.99) or 0.0 for each in spreads if sum(each.counts) >= ENOUGH), default=None)


def in_trouble(entry: SessionQueue) -> bool:
    """Return whether a session cannot work on one of its queues."""
    failed = entry.processes is not None and entry.processes.failure is not None
    no_slot = entry.hung > 0 or entry.starved is not None
    return entry.failing_since is not None or entry.stuck or entry.unresponsive or failed or no_slot


def is_silent(scheduler: WakeScheduler, session: Session, now: float) -> bool:
    """Return whether a session has missed a heartbeat."""
    return now - session.last_heard > 2 * max(session.beat_s, scheduler.sessions.heartbeat_s)


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
