"""When to look at a queue that nobody asked about (B9, C5)."""

from __future__ import annotations

from bridge.contract.backoff import Draw

JITTER = 0.1


def next_sweep(covered_at: float, period_s: float, draw: Draw) -> float:
    """Return when the next sweep of a queue is due, counted from its last cover.

    Counted from the cover and never from the attempt: a sweep scheduled from its own attempt drifts to gaps of two
    periods whenever its receive takes time, and wakes dead-man timers. The jitter of 10 % keeps queues apart.
    """
    return covered_at + period_s * (1 - JITTER + 2 * JITTER * draw())


def latest_sweep(covered_at: float, period_s: float) -> float:
    """Return by when the sweep is due, however it was drawn: whoever is not first in turn waits for that (C5)."""
    return covered_at + period_s * (1 + JITTER)
