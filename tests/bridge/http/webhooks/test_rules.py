"""When a webhook is tried: the schedule on a virtual clock (S30)."""

from __future__ import annotations

import itertools

import pytest

from bridge.contract.trace_context import Traces
from bridge.contract.wire import Wake
from bridge.http.webhooks.rules import SCHEDULE_S, Deliveries, Outcome, retry_after

OK = Outcome(204)
FAILED = Outcome(500)


def wake(gen: int, size: int = 1, trace: str | None = None, age_ms: int = 0) -> Wake:
    return Wake("a/b", "b" * 32, gen, "trigger", size, age_ms, trace)


def attempt(deliveries: Deliveries, outcome: Outcome, now: float, *, waits: bool = False) -> tuple[float, int]:
    """Make the next attempt when it is due, and return when that was and what was sent."""
    deadline = deliveries.deadline()
    assert deadline is not None
    now = max(now, deadline)
    sent = deliveries.begin(now)
    assert deliveries.deadline() is None
    deliveries.ended(now, outcome, waits=waits)
    return now, sent.gen


def test_a_wake_goes_at_once_and_then_at_growing_intervals() -> None:
    """0, 1, 5, 15 and 60 s, and then it is left to the next wake."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(100.0, wake(1))
    now, times = 100.0, []
    while deliveries.deadline() is not None and len(times) < 10:
        now, gen = attempt(deliveries, FAILED, now)
        times.append(now)
        assert gen == 1
    assert [late - early for early, late in itertools.pairwise([100.0, *times])] == list(SCHEDULE_S)
    assert (deliveries.dropped, deliveries.failures) == (1, 5)


def test_what_waits_is_brought_when_the_endpoint_comes_back() -> None:
    """An hour of failures while work waits: tried once a minute, and told within one when it answers again."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(0.0, wake(1, 3))
    now, tried = 0.0, 0
    while now < 3600 and tried < 100:
        now, gen = attempt(deliveries, FAILED, now, waits=True)
        tried += 1
        assert gen == 1
    assert tried <= 4 + 3600 / 60
    assert (deliveries.dropped, deliveries.deadline()) == (0, now + 60)
    attempt(deliveries, OK, now)
    assert (deliveries.delivered, deliveries.deadline()) == (1, None)


def test_what_is_left_is_counted_and_a_newer_wake_is_not_left() -> None:
    """Drained while the endpoint was away: nothing is brought. With a newer wake pending, that one is still tried."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(0.0, wake(1))
    now = 0.0
    for _ in range(4):
        now, _ = attempt(deliveries, FAILED, now, waits=True)
    assert deliveries.begin(now + 60).gen == 1
    deliveries.offer(now + 60, wake(2))
    deliveries.ended(now + 61, FAILED, waits=False)
    assert deliveries.dropped == 0
    for _ in range(5):
        now, gen = attempt(deliveries, FAILED, now, waits=False)
        assert gen == 2
    assert (deliveries.dropped, deliveries.deadline()) == (1, None)


def test_being_told_again_of_the_same_work_does_not_add_up() -> None:
    """Ten reminders of five messages are five messages; a put on top is six."""
    deliveries = Deliveries(lambda: 0.0)
    for gen in range(10):
        deliveries.offer(0.0, Wake("a/b", "b" * 32, gen, "resync", 5, 0, None))
    deliveries.offer(0.0, wake(10))
    assert deliveries.begin(0.0).size == 6


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
            deliveries.ended(now, FAILED, waits=False)
    assert len(times) <= 4 + 3600 / 60
    assert all(late - early >= 60 for early, late in itertools.pairwise(times[5:]))


def test_one_wake_is_pending_the_newest_with_all_the_work() -> None:
    """What came while an attempt was under way takes the place of what failed."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(0.0, wake(1))
    assert deliveries.begin(0.0).gen == 1
    deliveries.offer(0.5, wake(2, 5, "t"))
    deliveries.offer(1.0, wake(3, 2, age_ms=100))
    deliveries.ended(2.0, FAILED, waits=False)
    assert deliveries.deadline() == 3.0
    sent = deliveries.begin(3.0)
    assert (sent.gen, sent.size, sent.traceparent, sent.age_ms) == (3, 7, "t", 2500)
    deliveries.ended(3.0, OK, waits=False)
    assert deliveries.deadline() is None
    assert (deliveries.delivered, deliveries.failures, deliveries.attempts) == (1, 0, 0)


def test_a_wake_that_stands_for_several_tells_the_trace_of_each() -> None:
    """What waits is merged with what comes, the traces too."""
    first, second = (f"00-{n:032x}-{n:016x}-01" for n in (1, 2))
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(0.0, wake(1, 1, first))
    deliveries.offer(0.5, wake(2, 1, second))
    assert deliveries.begin(1.0).traces == Traces((first, second))


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
    deliveries.ended(0.0, Outcome(410), waits=False)
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


@pytest.mark.parametrize(("granted", "interval"), [(0.5, 60.0), (1.0, 60.0), (2.0, 30.0), (600.0, 0.1), (1e9, 0.1)])
def test_a_granted_rate_is_kept_between_one_a_minute_and_our_own(granted: float, interval: float) -> None:
    """No endpoint makes us slower than one request a minute, and none faster than we asked to be."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.allow(granted)
    deliveries.offer(100.0, wake(1))
    attempt(deliveries, OK, 100.0)
    deliveries.offer(100.0, wake(2))
    assert deliveries.deadline() == pytest.approx(100.0 + interval)


@pytest.mark.parametrize(("waited_s", "age_ms"), [(0.0, 40), (2.0, 2040)])
def test_merged_wakes_are_as_old_as_the_older(waited_s: float, age_ms: int) -> None:
    """To the millisecond, from the older one's own age and its wait."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(100.0, wake(1, age_ms=40))
    deliveries.offer(100.0 + waited_s, wake(2))
    assert deliveries.pending is not None and deliveries.pending.age_ms == age_ms


def test_seconds_of_nine_digits_are_read_and_of_ten_are_nonsense() -> None:
    """A number that no endpoint means is not waited for."""
    assert retry_after("999999999", 0.0) == 999_999_999.0
    assert retry_after("1000000000", 0.0) is None


def counters(deliveries: Deliveries) -> tuple[object, ...]:
    """All that is told of an endpoint."""
    names = ("attempts", "failures", "delivered", "dropped", "disabled", "pending", "in_flight")
    return tuple(getattr(deliveries, name) for name in names)


def test_what_is_told_of_an_endpoint_counts_up_and_starts_anew() -> None:
    """Nothing at first; attempts and failures since the last success, deliveries and drops since the start."""
    deliveries = Deliveries(lambda: 0.0)
    assert counters(deliveries) == (0, 0, 0, 0, False, None, None)
    assert deliveries.disabled is False
    now = 0.0
    for round_ in (1, 2):
        deliveries.offer(now, wake(1))
        for tried in range(1, len(SCHEDULE_S)):
            now, _ = attempt(deliveries, FAILED, now)
            assert counters(deliveries)[:4] == (tried, tried, round_ - 1, round_ - 1)
        now, _ = attempt(deliveries, FAILED, now)
        assert counters(deliveries) == (0, len(SCHEDULE_S), round_ - 1, round_, False, None, None)
        deliveries.offer(now, wake(2))
        now, _ = attempt(deliveries, FAILED, now)
        assert counters(deliveries)[:2] == (1, len(SCHEDULE_S) + 1)
        now, _ = attempt(deliveries, OK, now)
        assert counters(deliveries) == (0, 0, round_, round_, False, None, None)
        now += 60
    deliveries.offer(now, wake(3))
    now, _ = attempt(deliveries, Outcome(410), now)
    assert counters(deliveries) == (1, 1, 2, 2, True, None, None)
    assert deliveries.disabled is True


def test_what_is_sent_again_is_as_old_as_it_is_by_then() -> None:
    """Its own age, its wait, and every attempt since; a clock that stands back takes nothing away."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(100.0, wake(1, age_ms=40))
    assert deliveries.begin(102.0).age_ms == 2040
    assert deliveries.in_flight == wake(1, age_ms=2040)
    deliveries.ended(103.0, FAILED, waits=True)
    assert deliveries.begin(104.5).age_ms == 4540
    deliveries.ended(104.5, FAILED, waits=True)
    assert deliveries.begin(104.4).age_ms == 4540


def test_merged_wakes_are_no_younger_where_a_clock_stands_back() -> None:
    """And of two traces the newer one's is kept."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(100.0, wake(1, trace="old", age_ms=40))
    deliveries.offer(99.0, wake(2, trace="new", age_ms=7))
    assert deliveries.pending == wake(2, 2, "new", 40)
    deliveries.offer(99.0, wake(3, age_ms=50))
    assert deliveries.pending == wake(3, 3, "new", 50)


@pytest.mark.parametrize(("draw", "pause"), [(0.0, 5.0), (0.5, 5.5), (1.0, 6.0)])
def test_the_spread_is_a_fifth_of_the_pause(draw: float, pause: float) -> None:
    """Counted from the end of the attempt."""
    deliveries = Deliveries(lambda: draw)
    deliveries.offer(0.0, wake(1))
    now, _ = attempt(deliveries, FAILED, 0.0)
    deadline = deliveries.deadline()
    assert deadline is not None
    deliveries.begin(deadline)
    deliveries.ended(now + 100.0, FAILED, waits=False)
    assert deliveries.deadline() == pytest.approx(now + 100.0 + pause)


def test_the_longest_of_rate_pause_and_retry_after_counts() -> None:
    """None of the three shortens another."""
    for per_minute, asked, next_ in ((1.0, None, 60.0), (1.0, 90.0, 90.0), (1.0, 30.0, 60.0), (600.0, 0.5, 1.0)):
        deliveries = Deliveries(lambda: 0.0)
        deliveries.allow(per_minute)
        deliveries.offer(0.0, wake(1))
        attempt(deliveries, Outcome(503, retry_after_s=asked), 0.0)
        assert deliveries.deadline() == next_


def test_our_own_rate_is_kept_where_nothing_was_said() -> None:
    """Ten a second, from the beginning of one attempt to that of the next."""
    deliveries = Deliveries(lambda: 0.0)
    deliveries.offer(7.0, wake(1))
    deliveries.begin(7.0)
    deliveries.ended(7.05, OK, waits=False)
    deliveries.offer(7.06, wake(2))
    assert deliveries.deadline() == pytest.approx(7.1)


def test_one_attempt_at_a_time() -> None:
    """What comes while one is under way waits for its end; nothing is due before the first wake."""
    deliveries = Deliveries(lambda: 0.0)
    assert deliveries.deadline() is None
    deliveries.offer(0.0, wake(1))
    assert deliveries.deadline() == float("-inf")
    deliveries.begin(0.0)
    deliveries.offer(5.0, wake(2))
    assert deliveries.deadline() is None
    deliveries.ended(6.0, OK, waits=True)
    assert deliveries.deadline() == pytest.approx(0.1)
