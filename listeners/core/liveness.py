"""Whether the bridge lives, as far as this listener can tell: by the echo of its own heartbeats (L9, L10)."""

from __future__ import annotations

from typing import Final

WELCOME_WITHIN_S: Final = 5.0
DEAD_AFTER_BEATS: Final = 3
SECONDS_PER_SESSION: Final = 0.0025


class Liveness:
    """The clocks of one session after another: when to beat, and when the bridge counts as gone.

    ``degraded`` is the level that modes follow: it rises when no welcome came within 5 s of looking for a bridge, or no
    echo of an own heartbeat within three of its intervals, and falls with the next welcome. Seconds throughout.
    """

    def __init__(self, now: float) -> None:
        self.beat_s = self._told_s = 5.0
        self.degraded = False
        self.latency_s = 0.0
        self._looking_since: float | None = now
        self._welcomed_at: float | None = None
        self._alive_at = now
        self._beat_at = now

    @property
    def welcomed(self) -> bool:
        """Whether a session stands."""
        return self._welcomed_at is not None

    def welcome(self, now: float, heartbeat_s: float) -> None:
        """Take a welcome: the session stands, and the first heartbeat is due at once."""
        self.beat_s = self._told_s = heartbeat_s
        self.degraded = False
        self._looking_since = None
        self._welcomed_at = self._alive_at = self._beat_at = now

    def fleet(self, now: float, sessions: int) -> None:
        """Hear how many sessions the bridge has: H grows and shrinks with them, also after the welcome."""
        self.beat_s = max(self._told_s, SECONDS_PER_SESSION * sessions)
        # The bridge waits for as long as it told us last: a beat that was due later comes earlier now.
        self._beat_at = min(self._beat_at, now + self.beat_s)

    def lost(self, now: float) -> None:
        """Take the end of a session."""
        self._welcomed_at = None
        if self._looking_since is None:
            self._looking_since = now

    def beat(self, now: float) -> int | None:
        """Return the stamp of the heartbeat to send now, own monotonic milliseconds; None if it is too early."""
        if self._welcomed_at is None or now < self._beat_at:
            return None
        self._beat_at = now + self.beat_s
        return int(now * 1000)

    def echoed(self, now: float, stamp: int, since_ms: int) -> float | None:
        """Take the echo of an own heartbeat: return the earliest moment it can have been sent, or None if it is absurd.

        Only an echo of this session counts: a bridge that talks but does not hear us is no bridge.
        """
        sent = stamp / 1000 + since_ms / 1000
        if self._welcomed_at is None or stamp < int(self._welcomed_at * 1000) or sent > now + 0.001:
            return None
        self._alive_at = max(self._alive_at, sent)
        self.latency_s = max(0.0, now - sent)
        return sent

    def dead(self, now: float) -> bool:
        """Say once per case that the bridge is gone: close the session if there is one, and poll."""
        if self._welcomed_at is not None:
            if now < self._alive_at + DEAD_AFTER_BEATS * self.beat_s:
                return False
            self._welcomed_at = None
        elif self.degraded or self._looking_since is None or now < self._looking_since + WELCOME_WITHIN_S:
            return False
        self.degraded = True
        return True

    def deadline(self) -> float | None:
        """Return when to ask `beat` and `dead` next."""
        if self._welcomed_at is not None:
            return min(self._beat_at, self._alive_at + DEAD_AFTER_BEATS * self.beat_s)
        if self.degraded or self._looking_since is None:
            return None
        return self._looking_since + WELCOME_WITHIN_S
