"""The hard look: one receive of one's own in T_hard, however much coverage is heard of.

The dead-man timer believes what the bridge says of covers. A bridge that claims coverage that did not happen silences
it for ever; only this bounds the harm. It costs the fleet N x 3600 / T_hard receives an hour, so it is off by default.
"""

from __future__ import annotations

from bridge.contract.backoff import Draw


class HardLook:
    """When to look whatever was heard: T_hard after the newest receive of one's own began.

    The first round is spread over T_hard, so that a fleet does not look in step. ``own_s`` is what the listener's host
    asks for and `tune` what the bridge asks for; the smaller counts, 0 or None asks for nothing. Only a T_hard that
    shrinks brings the deadline nearer. All in seconds.
    """

    __slots__ = ("_deadline", "_own_s", "seconds")

    def __init__(self, now: float, draw: Draw, own_s: float | None = None) -> None:
        self._own_s = own_s or 0.0
        self.seconds = self._own_s
        """T_hard as it counts now; 0 while it is off."""
        self._deadline = now + self.seconds * draw()

    def tune(self, now: float, bridge_s: float, draw: Draw) -> bool:
        """Take over the bridge's T_hard; say whether what counts has changed.

        A longer one counts from the next look on. A shorter one counts at once, spread again over the fleet, unless
        the look is near enough already.
        """
        asked = [seconds for seconds in (self._own_s, bridge_s) if seconds > 0]
        seconds = min(asked, default=0.0)
        if seconds == self.seconds:
            return False
        due = bool(self.seconds) and self._deadline <= now
        if seconds and not due and not now < self._deadline <= now + seconds:
            self._deadline = now + seconds * draw()
        self.seconds = seconds
        return True

    def looked(self, began_at: float) -> None:
        """A receive of one's own began at ``began_at``."""
        if self.seconds:
            self._deadline = max(self._deadline, began_at + self.seconds)

    def fires(self, now: float) -> bool:
        """Whether to look now; if so the next round begins."""
        if not self.seconds or now < self._deadline:
            return False
        self._deadline = now + self.seconds
        return True

    def deadline(self) -> float | None:
        """Return when to ask `fires` next; None while it is off."""
        return self._deadline if self.seconds else None

    def cost(self, listeners: int) -> float:
        """Return the receives an hour that it costs so many listeners of one queue: N x 3600 / T_hard."""
        return listeners * 3600 / self.seconds if self.seconds else 0.0
