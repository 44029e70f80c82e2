"""Track the sessions of one boot: their names, their queues and whether they are alive."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from bridge.core.agenda import Agenda
from bridge.core.session_queue import SessionQueue

HELLO_S = 5.0
DEAD_AFTER_BEATS = 3
SECONDS_PER_SESSION = 0.0025


class InFlight(msgspec.Struct, frozen=True):
    """Hold the longest-running message of a session's queue, by its newest heartbeat."""

    id: str
    attempt: int
    since: float


class Session(msgspec.Struct, eq=False):
    """Hold one listener's session, which has no name until its hello."""

    id: int
    kind: str
    opened_at: float
    last_heard: float
    instance: str | None = None
    listener: str = ""
    accepts: bool = False
    scaler: bool = False
    """The session starts workers instead of handling messages (Z5)."""
    beat_s: float = 0.0
    """The heartbeat interval last sent to it; it is not late just because the fleet shrank since."""
    queues: dict[str, SessionQueue] = {}
    unsent: dict[str, None] = {}
    """Queues whose slot holds a wake."""
    flushing: bool = False
    """True if a `Flush` was requested since its wakes were last taken."""
    running: dict[str, InFlight] = {}
    """By queue, for handlers that have run for some seconds. Display only."""


class Sessions:
    """Hold all sessions, by number and by instance."""

    def __init__(self, heartbeat_s: float) -> None:
        self._by_id: dict[int, Session] = {}
        self._by_instance: dict[str, Session] = {}
        self._shortest = heartbeat_s
        self.heartbeat_s = heartbeat_s
        """H: grows with the number of sessions, so that heartbeats never become the load. Read with every frame."""

    def __len__(self) -> int:
        return len(self._by_instance)

    @property
    def dead_after_s(self) -> float:
        """Return D: a session silent for this long is dead, and frames sent to it have arrived or never will."""
        return DEAD_AFTER_BEATS * self.heartbeat_s

    def told(self, session: Session) -> None:
        """Note that a session is sent the current heartbeat interval."""
        session.beat_s = self.heartbeat_s

    def alive_until(self, session: Session) -> float:
        """Return until when (D) a session counts as alive if it sends nothing more."""
        return session.last_heard + DEAD_AFTER_BEATS * max(session.beat_s, self.heartbeat_s)

    def get(self, session: int) -> Session | None:
        """Return a session by number."""
        return self._by_id.get(session)

    def named(self) -> list[Session]:
        """Return the sessions that sent a hello."""
        return list(self._by_instance.values())

    def open(self, session: Session) -> None:
        """Add a session that has not sent a hello yet."""
        self._by_id[session.id] = session

    def holder(self, instance: str) -> Session | None:
        """Return an instance's session."""
        return self._by_instance.get(instance)

    def name(self, session: Session, instance: str, listener: str) -> None:
        """Name a session as its hello requests."""
        if session.instance is not None:
            self._by_instance.pop(session.instance, None)
        session.instance = instance
        session.listener = listener
        self._by_instance[instance] = session
        self._counted()

    def remove(self, session: Session) -> None:
        """Forget a session."""
        self._by_id.pop(session.id, None)
        if session.instance is not None and self._by_instance.get(session.instance) is session:
            del self._by_instance[session.instance]
            self._counted()

    def _counted(self) -> None:
        self.heartbeat_s = max(self._shortest, SECONDS_PER_SESSION * len(self._by_instance))


GRACE_BEATS = 1.5
"""A session's grace after a suspend, in heartbeats: one, and half of one for a machine that just resumed."""


class SessionTimeouts:
    """Track when each session must show a sign of life.

    A frame does not move the deadline: the session's state is read when the deadline passes.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._deaths: Agenda[int] = Agenda()
        self._resumed_at = -math.inf

    def expect(self, session: Session) -> None:
        """Watch a session: check it when it may be dead."""
        self._deaths.set(session.id, self._alive_until(session))

    def forget(self, session: int) -> None:
        """Stop watching a session."""
        self._deaths.clear(session)

    def deadline(self) -> float | None:
        """Return when to call `dead` next."""
        return self._deaths.next()

    def dead(self, now: float) -> list[Session]:
        """Return the sessions that are dead by now, the earliest deadline first."""
        first = self._deaths.next()
        if first is None or first > now:
            return []
        # Deadlines that pass soon are checked too, or ten thousand live sessions would wake the bridge more often than
        # their heartbeats do.
        found: list[Session] = []
        for number in self._deaths.pop_due(now + self._sessions.heartbeat_s / 10):
            session = self._sessions.get(number)
            if session is None:
                continue
            alive_until = self._alive_until(session)
            if now < alive_until:
                self._deaths.set(number, alive_until)
            else:
                found.append(session)
        return found

    def suspended(self, now: float, gap_s: float) -> None:
        """Handle a suspend of ``gap_s``: sessions were silent for that long too, and get a grace period.

        Their heartbeats may still be unread in the bridge's sockets. A session that was silent beyond D and sends
        nothing within the grace period is dead at its end, not D later.
        """
        self._resumed_at = now
        for session in self._sessions.named():
            session.last_heard -= gap_s
            session.opened_at -= gap_s
            self.expect(session)

    def _alive_until(self, session: Session) -> float:
        beat_s = max(session.beat_s, self._sessions.heartbeat_s)
        return max(self._sessions.alive_until(session), self._resumed_at + GRACE_BEATS * beat_s)


KEPT_MAX: Final = 256
"""Rejections kept; the least recently repeated one is evicted."""
RECENT_S: Final = 90.0
"""How long a rejection is shown. A rejected worker retries every 30 s at most, so one that still runs stays shown."""


class Rejection(msgspec.Struct):
    """Hold the rejections of one worker at one queue for one reason; times are of the rules' clock."""

    queue: str
    """"" if the bridge could not read which queues the worker requested."""
    listener: str
    code: str
    why: str
    first_at: float
    last_at: float
    instance: str
    """The worker that was rejected last."""
    count: int = 1

    def describe(self, now: float) -> str:
        """Return one line: the rejected worker, the reason and the count."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return (
            f"the bridge rejected {self.listener or 'a worker'} {times}, last {max(0.0, now - self.last_at):.0f} s "
            f"ago: {self.why}"
        )


class Rejections:
    """Keep the newest rejections of one boot."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, str], Rejection] = OrderedDict()

    def add(self, now: float, queues: Iterable[str], listener: str, code: str, why: str, *, instance: str = "") -> None:
        """Record a worker's rejection at each of its queues, if they are known."""
        for queue in tuple(queues) or ("",):
            key = queue, listener, code
            known = self._kept.get(key)
            if known is None or now - known.last_at > RECENT_S:
                self._kept[key] = Rejection(queue, listener, code, why, now, now, instance)
            else:
                known.count, known.why, known.last_at, known.instance = known.count + 1, why, now, instance
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)

    def accepted(self, instance: str) -> None:
        """Forget the rejections of a worker that the bridge has accepted."""
        for key in [key for key, each in self._kept.items() if each.instance == instance]:
            del self._kept[key]

    def recent(self, now: float) -> list[Rejection]:
        """Return the current rejections, sorted by queue; forget older ones."""
        while self._kept and now - next(iter(self._kept.values())).last_at > RECENT_S:
            self._kept.popitem(last=False)
        return sorted(self._kept.values(), key=lambda each: (each.queue, each.listener, each.code))

    def by_queue(self, now: float) -> dict[str, list[Rejection]]:
        """Return the current rejections by queue."""
        grouped: dict[str, list[Rejection]] = {}
        for each in self.recent(now):
            grouped.setdefault(each.queue, []).append(each)
        return grouped
