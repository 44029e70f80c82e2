"""The part of `bridge.core.cluster.coordinator` for a bridge without others: it always acts immediately.

Everything here is called in the tick in which it happens.
"""

from __future__ import annotations

from typing import Final

from bridge.contract.cluster import Name
from bridge.core.pending_work import PendingWork

OF_TURNS: Final = frozenset({"member", "able", "turn", "covered", "outward", "again for turns"})
"""Kinds of timers that are the turns' own."""


class SingleNode:
    """Turns of a bridge without others."""

    def on_wake_request(self, work: PendingWork, now: float, name: Name | None, *, shared: bool, fresh: bool) -> None:
        """Take note of a mark. ``shared``: others have it too; ``fresh``: nothing was owed before."""

    def on_generation_sent(self, work: PendingWork, now: float, gen: int) -> None:
        """Take note that a session is told of a generation."""

    def on_empty_receive(
        self, work: PendingWork, now: float, gen: int, after_s: float, next_visible_s: float | None
    ) -> None:
        """Take note of an empty receive that began at least ``after_s`` after its session learned of ``gen``."""

    def sweep_delay_s(self, work: PendingWork, now: float) -> float:
        """Return how much later than whoever comes first this bridge sweeps a queue (C5)."""
        return 0.0

    def on_settled(self, work: PendingWork) -> None:
        """Take note that nothing is owed any more."""

    def stop_waiting(self, work: PendingWork) -> None:
        """Wait no longer for the turn of this queue."""

    def on_hello(self, work: PendingWork, now: float, store: str | None) -> bool:
        """Take note of a hello for a queue; whether what was forgiven there has to be owed again."""
        return False

    def suspended(self) -> None:
        """Take note that the clock stood still (B15)."""

    def already_settled(self, now: float, name: Name, queue: str) -> bool:
        """Whether the first mark of this name was paid before it was made."""
        return False

    def forget(self, queue: str) -> None:
        """Forget a queue."""

    def tick(self, now: float, kind: str, work: PendingWork | None) -> None:
        """Do what is due of the kinds that are its own."""

    def report_changes(self, now: float) -> None:
        """Say what changed of whom could be woken."""

    def on_no_room(self, work: PendingWork, now: float) -> None:
        """Take note of a debt that nobody here has room for (B6)."""
