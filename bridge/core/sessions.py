"""The sessions of one boot: who they are, what they listen to, whether they live."""

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
    """The message of a queue whose handler has run longest in one session, as its newest heartbeat said."""

    id: str
    attempt: int
    since: float


class Session(msgspec.Struct, eq=False):
    """One listener's conversation; nameless until its hello."""

    id: int
    kind: str
    opened_at: float
    last_heard: float
    instance: str | None = None
    listener: str = ""
    accepts: bool = False
    scaler: bool = False
    """It starts workers instead of handling messages (Z5)."""
    beat_s: float = 0.0
    """The heartbeat it was last told; a fleet that shrinks meanwhile makes nobody late."""
    queues: dict[str, SessionQueue] = {}
    unsent: dict[str, None] = {}
    """Queues whose slot holds a wake."""
    flushing: bool = False
    """Whether a `Flush` was asked for since its wakes were taken last."""
    running: dict[str, InFlight] = {}
    """By queue, of handlers that have run for some seconds. Only shown."""


class Sessions:
    """All sessions, by number and by instance."""

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
        """D: a session of which nothing is heard for so long is dead, and what was sent to it arrived or never will."""
        return DEAD_AFTER_BEATS * self.heartbeat_s

    def told(self, session: Session) -> None:
        """Note that a session is being told how many there are, and so how often to beat."""
        session.beat_s = self.heartbeat_s

    def alive_until(self, session: Session) -> float:
        """Return until when (D) a session is held to be alive if nothing more is heard of it."""
        return session.last_heard + DEAD_AFTER_BEATS * max(session.beat_s, self.heartbeat_s)

    def get(self, session: int) -> Session | None:
        """Return a session by number."""
        return self._by_id.get(session)

    def named(self) -> list[Session]:
        """Return the sessions that said hello."""
        return list(self._by_instance.values())

    def open(self, session: Session) -> None:
        """Add a session that has not said hello yet."""
        self._by_id[session.id] = session

    def holder(self, instance: str) -> Session | None:
        """Return the session that an instance holds."""
        return self._by_instance.get(instance)

    def name(self, session: Session, instance: str, listener: str) -> None:
        """Give a session the name of its hello."""
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
"""What a session is given after a suspend: one heartbeat, and half of one for a machine that has just woken."""


class SessionTimeouts:
    """The moments at which sessions are looked at for a sign of life.

    A deadline is not moved by every frame: it is looked up when it passes.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._deaths: Agenda[int] = Agenda()
        self._resumed_at = -math.inf

    def expect(self, session: Session) -> None:
        """Look at a session when it may be dead, for as long as it lasts."""
        self._deaths.set(session.id, self._alive_until(session))

    def forget(self, session: int) -> None:
        """Look at a session no more."""
        self._deaths.clear(session)

    def deadline(self) -> float | None:
        """Return when to ask `dead` next."""
        return self._deaths.next()

    def dead(self, now: float) -> list[Session]:
        """Return the sessions that are dead by now, the longest expected first."""
        first = self._deaths.next()
        if first is None or first > now:
            return []
        # Those that pass soon are looked up along with it, or ten thousand living sessions would wake the bridge more
        # often than their heartbeats do.
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
        """The clock stood still for ``gap_s``: sessions were silent for that long as well, and get a grace.

        Their heartbeats may stand unread in our own sockets. Who says nothing within the grace and was silent beyond D
        is dead at its end, and not only D later.
        """
        self._resumed_at = now
        for session in self._sessions.named():
            session.last_heard -= gap_s
            session.opened_at -= gap_s
            self.expect(session)

    def _alive_until(self, session: Session) -> float:
        # As often as it was told to beat: a fleet that has just shrunk makes nobody late.
        beat_s = max(session.beat_s, self._sessions.heartbeat_s)
        return max(self._sessions.alive_until(session), self._resumed_at + GRACE_BEATS * beat_s)


KEPT_MAX: Final = 256
"""Rejections remembered; the one that was repeated longest ago makes room."""
RECENT_S: Final = 90.0
"""How long one is shown. A rejected worker tries again every 30 s at most, so one that still runs stays shown."""


class Rejection(msgspec.Struct):
    """One worker that was rejected at one queue for one reason; times are of the rules' clock."""

    queue: str
    """"" where the bridge could not read which queues the worker asked for."""
    listener: str
    code: str
    why: str
    first_at: float
    last_at: float
    instance: str
    """Of the worker that was rejected last."""
    count: int = 1

    def describe(self, now: float) -> str:
        """Return in one line which worker is rejected, why, and how often."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return (
            f"the bridge rejected {self.listener or 'a worker'} {times}, last {max(0.0, now - self.last_at):.0f} s "
            f"ago: {self.why}"
        )


class Rejections:
    """The rejections of one boot, bounded."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, str], Rejection] = OrderedDict()

    def add(self, now: float, queues: Iterable[str], listener: str, code: str, why: str, *, instance: str = "") -> None:
        """Note that a worker was rejected, and so at each of its queues, if they are known."""
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
        """Forget what was held against a worker that the bridge has accepted."""
        for key in [key for key, each in self._kept.items() if each.instance == instance]:
            del self._kept[key]

    def recent(self, now: float) -> list[Rejection]:
        """Return those that still count, by queue; what is older is forgotten."""
        while self._kept and now - next(iter(self._kept.values())).last_at > RECENT_S:
            self._kept.popitem(last=False)
        return sorted(self._kept.values(), key=lambda each: (each.queue, each.listener, each.code))

    def by_queue(self, now: float) -> dict[str, list[Rejection]]:
        """Return the same, grouped by queue."""
        grouped: dict[str, list[Rejection]] = {}
        for each in self.recent(now):
            grouped.setdefault(each.queue, []).append(each)
        return grouped
