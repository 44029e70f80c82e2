"""The promise of a port: one queue of a session, as a session feeds it and asks it."""

from __future__ import annotations

from typing import Protocol

from bridge.contract.wire import LastEmptyReceive, QueueBeat, Running, Subscription, Wake
from listeners.core.periods import Periods


class Port(Protocol):
    """One queue of a session."""

    def subscription(self) -> Subscription:
        """Return this queue's part of a hello."""
        ...

    def wake(self, frame: Wake) -> None:
        """Take the bridge's wake. Raises `ValueError` for one that cannot be read."""
        ...

    def welcomed(self, boot: str, gen: int) -> None:
        """Hear that a session stands."""
        ...

    def lost(self) -> None:
        """Hear that there is no living bridge (L9)."""
        ...

    def covered_elsewhere(self, at: float) -> None:
        """Hear that the queue was covered at ``at`` (L10)."""
        ...

    def fleet(self, periods: Periods, sessions: int, latency_s: float) -> None:
        """Hear of the bridge's numbers for this queue and of its sessions."""
        ...

    def beat(self, now: float) -> QueueBeat:
        """Return levels for a heartbeat."""
        ...

    def owes_report(self) -> int:
        """Return how many bytes it takes at most to tell what the bridge has not heard of beside the levels."""
        ...

    def report(self, stamp: int, beat: QueueBeat) -> QueueBeat:
        """Return ``beat`` with what is owed."""
        ...

    def echoed(self, stamp: int, told: LastEmptyReceive) -> None:
        """Hear that the bridge has the heartbeat of this stamp, and what it answers of this queue."""
        ...

    def running(self, now: float) -> Running | None:
        """Return the message whose handler has run longest, None where none runs."""
        ...

    def receiving(self) -> bool:
        """Say whether a receive is in flight: what it brings nobody knows yet."""
        ...

    def leases(self, now: float, most: int) -> list[int]:
        """Return lease ends in ms from now, so many at most."""
        ...
