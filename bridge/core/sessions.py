"""The sessions of one boot: who they are, what they listen to, whether they live."""

from __future__ import annotations

import msgspec

from bridge.core.slots import Seat

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
    seats: dict[str, Seat] = {}
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
