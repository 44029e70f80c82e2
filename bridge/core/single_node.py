"""Replace `bridge.core.cluster.coordinator` for a bridge without peers, which always acts immediately.

Each method is called in the tick of its event.
"""

from __future__ import annotations

from typing import Final

from bridge.contract.cluster import Name
from bridge.core.pending_work import PendingWork

OF_TURNS: Final = frozenset({"member", "able", "turn", "covered", "outward", "again for turns"})
"""Kinds of timers that belong to the coordinator."""


class SingleNode:
    """Act immediately, without a cluster."""

    def on_wake_request(self, work: PendingWork, now: float, name: Name | None, *, shared: bool, fresh: bool) -> None:
        """Record a wake request. ``shared``: peers have it too; ``fresh``: no work was pending before."""

    def on_generation_sent(self, work: PendingWork, now: float, gen: int) -> None:
        """Record that a session is sent a generation."""

    def on_empty_receive(
        self, work: PendingWork, now: float, gen: int, after_s: float, next_visible_s: float | None
    ) -> None:
        """Record an empty receive that began at least ``after_s`` after its session learned of ``gen``."""

    def sweep_delay_s(self, work: PendingWork, now: float) -> float:
        """Return this bridge's sweep delay behind the first in the order (C5)."""
        return 0.0

    def on_settled(self, work: PendingWork) -> None:
        """Record that no work is pending any more."""

    def stop_waiting(self, work: PendingWork) -> None:
        """Stop waiting for the turn of this queue."""

    def on_hello(self, work: PendingWork, now: float, store: str | None) -> bool:
        """Record a hello for a queue; return whether work settled by a peer must be pending again."""
        return False

    def suspended(self) -> None:
        """Record that the clock stopped (B15)."""

    def already_settled(self, now: float, name: Name, queue: str) -> bool:
        """Return whether the first request of this name was settled before it was made."""
        return False

    def forget(self, queue: str) -> None:
        """Forget a queue."""

    def tick(self, now: float, kind: str, work: PendingWork | None) -> None:
        """Run a due timer of the coordinator's kinds."""

    def report_changes(self, now: float) -> None:
        """Report which sessions can be woken now."""

    def on_no_room(self, work: PendingWork, now: float) -> None:
        """Record pending work that no session here has room for (B6)."""
