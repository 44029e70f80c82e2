"""The bill's arithmetic."""

from __future__ import annotations

import pytest

from queuebell.demo.bill import Latency, QueueCounters, latency, make_out, percentile, polling


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, 0.0),
        ([7.0], 0.5, 7.0),
        ([7.0], 0.99, 7.0),
        ([1.0, 2.0], 0.5, 1.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.5, 50.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
        ([float(n) for n in range(1, 61)], 0.99, 60.0),
        ([1.0, 2.0], 0.0, 1.0),
        ([1.0, 2.0], 1.0, 2.0),
    ],
)
def test_percentile(values: list[float], share: float, expected: float) -> None:
    """The nearest rank, of values that were measured and never of one in between."""
    assert percentile(values, share) == expected


def test_latency() -> None:
    """Nanoseconds in any order become milliseconds."""
    assert latency([3_000_000, 1_000_000, 2_500_000]) == Latency(3, 2.5, 3.0, 3.0)
    assert latency([]) == Latency(0, 0.0, 0.0, 0.0)


def test_polling() -> None:
    """One look a second for each worker and the controller, whole seconds only, and a month of thirty days at rest."""
    reckoned = polling(1, 10.9, quiet_s=4.5)
    assert reckoned.receives == 10 + 10
    assert reckoned.while_quiet == 9
    assert reckoned.process_s == 10.9
    assert (reckoned.mean_wait_ms, reckoned.p99_wait_ms) == (500.0, 990.0)
    assert reckoned.quiet_month_receives == 2 * 30 * 86_400
    assert reckoned.quiet_month_dollars == pytest.approx(5.184)


def test_counters_add_up() -> None:
    """Two queues' counters make one sum."""
    assert QueueCounters(1, 2, 3, 4).plus(QueueCounters(10, 20, 30, 40)) == QueueCounters(11, 22, 33, 44)


def test_make_out() -> None:
    """What was measured stands in the bill beside what polling costs the same listeners."""
    bill = make_out(
        seconds=12.0004,
        quiet_seconds=4.5,
        workers=2,
        process_s=13.51,
        messages=100,
        counters=QueueCounters(triggers=40, wakes=50, receives=60, empty=7),
        receives_while_quiet=0,
        wake_latencies_ns=[2_000_000],
    )
    assert (bill.seconds, bill.listeners, bill.messages) == (12.0, 3, 100)
    assert (bill.triggers, bill.wakes, bill.receives, bill.receives_empty) == (40, 50, 60, 7)
    assert (bill.process_s, bill.polling.process_s) == (13.5, 24.0)
    assert bill.polling.receives == 36
    assert bill.polling.while_quiet == 13
    assert bill.wake.p99_ms == 2.0
