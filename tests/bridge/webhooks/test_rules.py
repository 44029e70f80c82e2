"""When a webhook is tried: the schedule on a virtual clock (S30)."""

from __future__ import annotations

import itertools

import pytest

from bridge.contract.wire import Wake
from bridge.webhooks.rules import SCHEDULE_S, Deliveries, Outcome, retry_after

OK = Outcome(204)
FAILED = Outcome(500)


def wake(gen: int, size: int = 1, trace: str | None = None, age_ms: int = 0) -> Wake:
    return Wake("a/b", "b" * 32, gen, "trigger", size, age_ms, trace)


def attempt(deliveries: Deliveries, outcome: Outcome, now: float) -> tuple[float, int]:
    """Make the next attempt when it is due, and return when that was and what was sent."""
    deadline = deliveries.deadline()
    assert deadline is not None
    now = max(now, deadline)
    sent = deliveries.begin(now)
    assert deliveries.deadline() is None
    deliveries.ended(now, outcome)
    return now, sent.gen


def test_a_wake_goes_at_once_and_then_at_growing_intervals() -> None:
    """0, 1, 5, 15 and 60 s, and then it is left to the next wake."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(100.0, wake(1))
    now, times = 100.0, []
    while deliveries.deadline() is not None:
        now, gen = attempt(deliveries, FAILED, now)
        times.append(now)
        assert gen == 1
    assert [late - early for early, late in itertools.pairwise([100.0, *times])] == list(SCHEDULE_S)
    assert (deliveries.dropped, deliveries.failures) == (1, 5)


def test_a_dead_endpoint_costs_a_request_a_minute_however_many_triggers_come() -> None:
    """No amplification: new wakes wait for the pause, they do not start the schedule anew."""
    deliveries = Deliveries(lambda: 0.0)
    now, times = 0.0, []
    for gen in range(3600):
        now = float(gen)
        deliveries.offer(now, wake(gen))
        deadline = deliveries.deadline()
        assert deadline is not None
        if deadline <= now:
            times.append(now)
            assert deliveries.begin(now).gen == gen
            deliveries.ended(now, FAILED)
    assert len(times) <= 4 + 3600 / 60
    assert all(late - early >= 60 for early, late in itertools.pairwise(times[5:]))


def test_one_wake_is_pending_the_newest_with_all_the_work() -> None:
    """What came while an attempt was under way takes the place of what failed."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(0.0, wake(1))
    assert deliveries.begin(0.0).gen == 1
    deliveries.offer(0.5, wake(2, 5, "t"))
    deliveries.offer(1.0, wake(3, 2, age_ms=100))
    deliveries.ended(2.0, FAILED)
    assert deliveries.deadline() == 3.0
    sent = deliveries.begin(3.0)
    assert (sent.gen, sent.size, sent.traceparent, sent.age_ms) == (3, 7, "t", 2500)
    deliveries.ended(3.0, OK)
    assert deliveries.deadline() is None
    assert (deliveries.delivered, deliveries.failures, deliveries.attempts) == (1, 0, 0)


def test_a_success_ends_the_pauses() -> None:
    """The next wake goes at once, but for the rate."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(0.0, wake(1))
    now, _ = attempt(deliveries, FAILED, 0.0)
    now, _ = attempt(deliveries, OK, now)
    deliveries.offer(now + 5, wake(2))
    deadline = deliveries.deadline()
    assert deadline is not None
    assert deadline <= now + 5


def test_s29_a_granted_rate_is_kept_and_wakes_merge_meanwhile() -> None:
    """Six a minute is one in ten seconds; more than we asked is not used."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.allow(6)
    deliveries.offer(0.0, wake(1))
    attempt(deliveries, OK, 0.0)
    deliveries.offer(1.0, wake(2))
    deliveries.offer(2.0, wake(3))
    assert deliveries.deadline() == 10.0
    assert attempt(deliveries, OK, 2.0) == (10.0, 3)
    deliveries.allow(1e9)
    deliveries.offer(20.0, wake(4))
    attempt(deliveries, OK, 20.0)
    deliveries.offer(20.0, wake(5))
    assert deliveries.deadline() == pytest.approx(20.1)


def test_s30_retry_after_is_obeyed_within_an_hour() -> None:
    """It lengthens the pause and never shortens it."""
    for asked, pause in ((30.0, 30.0), (0.0, 1.0), (1e9, 3600.0)):
        deliveries = Deliveries(lambda: 0.0)
        deliveries.offer(0.0, wake(1))
        attempt(deliveries, Outcome(429, retry_after_s=asked), 0.0)
        assert deliveries.deadline() == pause


def test_s30_gone_is_for_good() -> None:
    """410: nothing more is sent and nothing is kept."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(0.0, wake(1))
    deliveries.begin(0.0)
    deliveries.offer(0.0, wake(2))
    deliveries.ended(0.0, Outcome(410))
    deliveries.offer(1.0, wake(3))
    assert (deliveries.disabled, deliveries.pending, deliveries.deadline()) == (True, None, None)


def test_jitter_only_lengthens() -> None:
    """Endpoints that failed together are not tried together."""
    deadlines = set()
    for draw in (0.0, 0.5, 0.999):
        deliveries = Deliveries(lambda draw=draw: draw)  # type: ignore[misc]
        deliveries.offer(0.0, wake(1))
        attempt(deliveries, FAILED, 0.0)
        deadlines.add(deliveries.deadline())
    assert len(deadlines) == 3
    assert all(deadline is not None and 1.0 <= deadline < 1.2 for deadline in deadlines)


@pytest.mark.parametrize(
    ("status", "delivered"),
    [(200, True), (202, True), (204, True), (301, False), (307, False), (400, False), (None, False)],
)
def test_s27_only_2xx_is_a_delivery(status: int | None, delivered: bool) -> None:
    """A redirect is a failure, whatever it leads to."""
    assert Outcome(status).delivered is delivered


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("120", 120.0),
        (" 0 ", 0.0),
        ("-1", None),
        ("1e3", None),
        ("soon", None),
        ("9" * 30, None),
        ("Fri, 20 Nov 2026 18:00:30 GMT", 30.0),
        ("Fri, 20 Nov 2026 17:00:00 GMT", 0.0),
        ("Fri, 99 Nov 2026 17:00:00 GMT", None),
    ],
)
def test_retry_after_is_seconds_or_a_date(text: str | None, seconds: float | None) -> None:
    """RFC 9110 10.2.3; nonsense counts as absent."""
    assert retry_after(text, 1795197600.0) == seconds
