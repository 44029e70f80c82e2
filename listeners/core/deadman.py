"""The dead-man timer: look by oneself when no cover was heard of for too long (L10).

It is what makes I1 hold whatever bus, producers and bridge do: `T_dead + w` after the newest coverage heard of, a
listener looks at the queue even though nobody woke it.
"""

from __future__ import annotations

from bridge.contract.backoff import Draw
from bridge.contract.bounds import SLACK_S, SPREAD_S, SWEEP_S


class DeadMan:
    """When to look by oneself: 1.1 T + S + U(0, w) after the newest coverage heard of.

    ``w`` grows with the listeners of a queue, so that the first one's cover reaches the others before they look too.
    Stale news of coverage changes nothing: only numbers that shrink bring the deadline nearer. All in seconds.
    """

    __slots__ = ("_deadline", "_share", "spread", "t_dead")

    def __init__(self, now: float, draw: Draw, *, sweep_s: float = SWEEP_S) -> None:
        self.t_dead = 1.1 * sweep_s + SLACK_S
        self.spread = SPREAD_S
        # One draw per round: a new one at each heartbeat, with "only forward", would creep towards the far end of w.
        self._share = draw()
        self._deadline = now + self.t_dead + self.spread * self._share

    def tune(
        self,
        now: float,
        sweep_s: float,
        sessions: int,
        latency_s: float,
        slack_s: float = SLACK_S,
        spread_s: float = SPREAD_S,
    ) -> None:
        """Take over the bridge's numbers (T, S, the smallest w) and the size of the fleet.

        Longer ones count from the next cover on, shorter ones from ``now``: counted from the last cover they may have
        passed already, for the whole fleet at once.
        """
        before = self.t_dead + self.spread * self._share
        self.t_dead = 1.1 * sweep_s + slack_s
        self.spread = max(spread_s, sessions * latency_s)
        wait = self.t_dead + self.spread * self._share
        if wait < before:
            self._deadline = min(self._deadline, now + wait)

    def heard(self, at: float) -> None:
        """Coverage is known for the moment ``at``: a lower bound of when it was, never of when the news came."""
        self._deadline = max(self._deadline, at + self.t_dead + self.spread * self._share)

    def fires(self, now: float, draw: Draw) -> bool:
        """Whether to look now; if so the next round begins."""
        if now < self._deadline:
            return False
        self._share = draw()
        self._deadline = now + self.t_dead + self.spread * self._share
        return True

    def deadline(self) -> float:
        """Return when to ask `fires` next."""
        return self._deadline
