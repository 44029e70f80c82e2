"""How long a session may be silent before it is held to be dead (B8), also across a suspend (B15)."""

from __future__ import annotations

import math

from bridge.core.due import Agenda
from bridge.core.sessions import Session, Sessions

GRACE_BEATS = 1.5
"""What a session is given after a suspend: one heartbeat, and half of one for a machine that has just woken."""


class Silence:
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
