"""The bill: what the work cost in messages and looks at queues, and what polling would have cost.

Pure arithmetic. Polling is reckoned in its favour: one look a second for each worker, which is there all the time, and
none in between although a poller that finds work looks again at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    process_s: float


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
    process_s: float
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


def polling(workers: int, seconds: float, quiet_s: float) -> Polling:
    """Reckon what polling costs so many workers, and one process controller, that are there for all the seconds."""
    listeners = workers + 1
    month = round(listeners * MONTH_S / POLL_INTERVAL_S)
    return Polling(
        receives=listeners * int(seconds / POLL_INTERVAL_S),
        while_quiet=int(listeners * quiet_s / POLL_INTERVAL_S),
        # Work arrives at any moment between two looks, all equally likely.
        mean_wait_ms=POLL_INTERVAL_S * 500.0,
        p99_wait_ms=POLL_INTERVAL_S * 990.0,
        quiet_month_receives=month,
        quiet_month_dollars=float(PAPER.cost(month)),
        process_s=round(workers * seconds, 1),
    )


def make_out(
    *,
    seconds: float,
    quiet_seconds: float,
    workers: int,
    process_s: float,
    messages: int,
    counters: QueueCounters,
    receives_while_quiet: int,
    wake_latencies_ns: Sequence[int],
) -> Bill:
    """Make out the bill of at most so many workers, which ran for ``process_s`` seconds, all of them together."""
    return Bill(
        seconds=round(seconds, 3),
        quiet_seconds=round(quiet_seconds, 3),
        listeners=workers + 1,
        messages=messages,
        triggers=counters.triggers,
        wakes=counters.wakes,
        receives=counters.receives,
        receives_empty=counters.empty,
        receives_while_quiet=receives_while_quiet,
        process_s=round(process_s, 1),
        wake=latency(wake_latencies_ns),
        polling=polling(workers, seconds, quiet_seconds),
    )
