"""The bill: what the work cost in messages and looks at queues, and what polling would have cost.

Pure arithmetic. Polling is reckoned in its favour: one look a second for each listener for as long as it lived, and
none in between although a poller that finds work looks again at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from queuebell.cost.tariff import DAYS_A_MONTH, PAPER

POLL_INTERVAL_S: Final = 1.0
MONTH_S: Final = DAYS_A_MONTH * 86_400


class QueueCounters(msgspec.Struct, frozen=True):
    """One queue's counters since the bridge started."""

    triggers: int = 0
    wakes: int = 0
    receives: int = 0
    empty: int = 0

    def plus(self, other: QueueCounters) -> QueueCounters:
        """Add another queue's."""
        return QueueCounters(
            self.triggers + other.triggers,
            self.wakes + other.wakes,
            self.receives + other.receives,
            self.empty + other.empty,
        )


class Latency(msgspec.Struct, frozen=True):
    """Wake latencies in milliseconds; all 0.0 where nothing was measured."""

    count: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class Polling(msgspec.Struct, frozen=True):
    """What one look a second would have cost the same listeners in the same time."""

    receives: int
    while_quiet: int
    mean_wait_ms: float
    p99_wait_ms: float
    quiet_month_receives: int
    quiet_month_dollars: float


class Bill(msgspec.Struct, frozen=True):
    """What it cost."""

    seconds: float
    quiet_seconds: float
    listeners: int
    messages: int
    triggers: int
    wakes: int
    receives: int
    receives_empty: int
    receives_while_quiet: int
    wake: Latency
    polling: Polling


def percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile of ascending values, ``share`` from 0 to 1; 0.0 of none."""
    if not ordered:
        return 0.0
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def latency(nanoseconds: Sequence[int]) -> Latency:
    """Sum up latencies."""
    ordered = sorted(each / 1e6 for each in nanoseconds)
    return Latency(len(ordered), percentile(ordered, 0.5), percentile(ordered, 0.99), percentile(ordered, 1.0))


def polling(lifetimes_s: Sequence[float], quiet_s: float, listeners_at_rest: int) -> Polling:
    """Reckon what polling costs listeners that live so long, of which so many are there while it is quiet."""
    month = round(listeners_at_rest * MONTH_S / POLL_INTERVAL_S)
    return Polling(
        receives=sum(int(each / POLL_INTERVAL_S) for each in lifetimes_s),
        while_quiet=int(listeners_at_rest * quiet_s / POLL_INTERVAL_S),
        # Work arrives at any moment between two looks, all equally likely.
        mean_wait_ms=POLL_INTERVAL_S * 500.0,
        p99_wait_ms=POLL_INTERVAL_S * 990.0,
        quiet_month_receives=month,
        quiet_month_dollars=float(PAPER.cost(month)),
    )


def make_out(
    *,
    seconds: float,
    quiet_seconds: float,
    lifetimes_s: Mapping[str, float],
    at_rest: int,
    messages: int,
    counters: QueueCounters,
    receives_while_quiet: int,
    wake_latencies_ns: Sequence[int],
) -> Bill:
    """Make out the bill; ``lifetimes_s`` are the listeners', ``at_rest`` how many of them were left at the end."""
    return Bill(
        seconds=round(seconds, 3),
        quiet_seconds=round(quiet_seconds, 3),
        listeners=len(lifetimes_s),
        messages=messages,
        triggers=counters.triggers,
        wakes=counters.wakes,
        receives=counters.receives,
        receives_empty=counters.empty,
        receives_while_quiet=receives_while_quiet,
        wake=latency(wake_latencies_ns),
        polling=polling(list(lifetimes_s.values()), quiet_seconds, at_rest),
    )
