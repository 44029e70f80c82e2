"""What one day of one policy came to."""

from __future__ import annotations

import msgspec

from bench.cost.spread import Percentiles


class Outcome(msgspec.Struct, frozen=True):
    """Transactions by kind, and what the messages waited.

    ``at_rest_s`` is how long the queue held no message, ``misses_at_rest`` the empty receives of that time. A latency
    counts from a message becoming visible to the answer that brings it; ``first`` is that of each message that ended
    a rest. ``wakes`` are the bridge's, by reason.

    A listener has up to ``slots`` and is a process: ``process_s`` are the seconds of all together, each from its start
    to its end. ``starts`` is how many a scaler started, and ``counts`` how often it asked the store for the work there.
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
    slots: int = 1
    from_zero: bool = False
    process_s: float = 0.0
    starts: int = 0
    counts: int = 0

    @property
    def waiting(self) -> int:
        """All that was spent to learn whether there is work: receives that found nothing, and counts."""
        return self.misses + self.counts

    @property
    def transactions(self) -> int:
        """All that the store would bill."""
        return self.puts + self.hits + self.misses + self.deletes + self.counts
