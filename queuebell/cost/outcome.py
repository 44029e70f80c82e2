"""What one day of one policy came to."""

from __future__ import annotations

import msgspec

from queuebell.cost.spread import Percentiles


class Outcome(msgspec.Struct, frozen=True):
    """Transactions by kind, and what the messages waited.

    ``at_rest_s`` is how long the queue held no message, ``misses_at_rest`` the empty receives of that time. A latency
    counts from a message becoming visible to the answer that brings it; ``first`` is that of each message that ended
    a rest. ``wakes`` are the bridge's, by reason.
    """

    policy: str
    title: str
    listeners: int
    puts: int
    hits: int
    misses: int
    misses_at_rest: int
    deletes: int
    at_rest_s: float
    latency: Percentiles
    first: Percentiles
    wakes: dict[str, int] = {}

    @property
    def transactions(self) -> int:
        """All that the store would bill."""
        return self.puts + self.hits + self.misses + self.deletes
