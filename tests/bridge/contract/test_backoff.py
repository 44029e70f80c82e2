"""Back-offs: how long after how many misses, and what a hit does."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable

import pytest

from bridge.contract.backoff import Backoff, CappedExponential, FullJitter, RandomExponential
from bridge.contract.bounds import bound, in_words
from bridge.contract.throttle import Throttle
from bridge.contract.times import from_rfc3339, rfc3339


def waits(backoff: Backoff, count: int, draw: float = 0.5) -> list[float]:
    """Miss so often, and return the waits."""
    return [backoff.miss(lambda: draw) for _ in range(count)]


@pytest.mark.parametrize(
    ("make", "draw", "expected"),
    [
        (lambda: RandomExponential(1, 100, 2), 0.5, [1, 3, 7, 15, 31, 63, 100, 100]),
        (lambda: RandomExponential(1, 100, 2), 0.0, [1, 2.6, 5.8, 12.2, 25, 50.6, 100, 100]),
        (lambda: RandomExponential(1, 100, 2), 1.0, [1, 3.4, 8.2, 17.8, 37, 75.4, 100, 100]),
        (lambda: RandomExponential(5, 5, 0), 0.5, [5, 5, 5]),
        (lambda: RandomExponential(0, 0, 0), 0.5, [0, 0]),
        (lambda: RandomExponential(), 0.5, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]),
        (lambda: CappedExponential(1, 10, 3), 0.5, [1, 3, 9, 10, 10]),
        (lambda: CappedExponential(2, 2, 1.5), 0.5, [2, 2]),
        (lambda: CappedExponential(), 0.5, [1, 2, 4, 8, 16, 32, 60, 60]),
        (lambda: FullJitter(1, 10), 0.5, [0.5, 1, 2, 4, 5, 5]),
        (lambda: FullJitter(1, 10), 0.0, [0, 0]),
        (lambda: FullJitter(3, 3), 0.5, [1.5, 1.5]),
        (lambda: FullJitter(), 0.5, [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.5, 2.5]),
    ],
)
def test_each_miss_waits_longer_up_to_the_cap(make: Callable[[], Backoff], draw: float, expected: list[float]) -> None:
    """By the formula that the class states, and from its beginning again after a hit, which hits add nothing to."""
    backoff = make()
    assert waits(backoff, len(expected), draw) == pytest.approx(expected)
    backoff.hit()
    backoff.hit()
    assert waits(backoff, len(expected), draw) == pytest.approx(expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomExponential(-0.1, 1, 1),
        lambda: RandomExponential(1, 1, -0.1),
        lambda: RandomExponential(1.1, 1, 1),
        lambda: RandomExponential(math.nan, 1, 1),
        lambda: RandomExponential(1, math.nan, 1),
        lambda: RandomExponential(1, 1, math.nan),
        lambda: CappedExponential(1, 2, math.nan),
        lambda: CappedExponential(0, 1),
        lambda: CappedExponential(1.1, 1),
        lambda: CappedExponential(1, 2, 1),
        lambda: FullJitter(0, 1),
        lambda: FullJitter(1.1, 1),
    ],
)
def test_a_back_off_that_cannot_be_is_refused(make: Callable[[], Backoff]) -> None:
    """Negative, without growth, or with a cap below its beginning."""
    with pytest.raises(ValueError, match="needs"):
        make()


def test_one_passes_in_a_period_and_the_next_knows_how_many_did_not() -> None:
    """The first always passes; the period begins with what passed, not with what was kept back."""
    throttle = Throttle(10.0)
    assert throttle.passes(-5.0) == 0
    assert [throttle.passes(at) for at in (-5.0, 0.0, 4.9)] == [None, None, None]
    assert throttle.passes(5.0) == 3
    assert throttle.passes(14.9) is None
    assert throttle.passes(100.0) == 1
    assert throttle.passes(110.0) == 0


EARLY = datetime.timezone(datetime.timedelta(hours=5, minutes=30))


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (datetime.datetime(2026, 11, 20, 17, 31, 0, 123_999, datetime.UTC), "2026-11-20T17:31:00.123Z"),
        (datetime.datetime(2026, 11, 20, 17, 31, tzinfo=datetime.UTC), "2026-11-20T17:31:00.000Z"),
        (datetime.datetime(2026, 11, 20, 3, 0, 5, 7000, EARLY), "2026-11-19T21:30:05.007Z"),
        (datetime.datetime(1969, 12, 31, 23, 59, 59, 999_000, datetime.UTC), "1969-12-31T23:59:59.999Z"),
    ],
)
def test_a_moment_is_written_in_utc_to_the_millisecond(moment: datetime.datetime, text: str) -> None:
    """Whatever its zone; fractions are cut off, not rounded, and it is read back as the same."""
    assert rfc3339(moment) == text
    assert from_rfc3339(text) == moment.replace(microsecond=moment.microsecond // 1000 * 1000)


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-11-20T17:31:00", "2026-11-20T17:31:00.123"])
def test_a_time_needs_its_offset(text: str) -> None:
    """Or nobody knows when it is."""
    with pytest.raises(ValueError, match="offset" if "T" in text else "Invalid isoformat"):
        from_rfc3339(text)


def test_without_sweeps_each_listener_may_look_before_it_hears_of_the_first() -> None:
    """Covers reach the others by heartbeat: 5 s of w = 10 s; with w shorter than that nearly all look, at most all."""
    assert bound(sweep_s=0, listeners=5).receives_mean == pytest.approx(3600 / (30 + 10 / 6) * 2.245, rel=0.001)
    assert bound(sweep_s=0, listeners=50, spread_s=0, latency_s=0).receives_mean == 50 * 120
    assert bound(sweep_s=0, listeners=50, heartbeat_s=1e9).receives_mean == pytest.approx(50 * 3600 / (30 + 10 / 51))
    assert "each of its listeners up to 120 receives an hour" in in_words(bound(sweep_s=0), sweeps=False)


@pytest.mark.parametrize(
    ("listeners", "heartbeat_s", "spread_s", "looks"),
    [
        (1, 5, 10, 1),
        (2, 5, 10, 1 + 0.5 - 0.25 / 3),
        (2, 10, 10, 1 + 1 - 1 / 3),
        (2, 20, 10, (1 + 1 - 1 / 3) / 2 + 2 / 2),
        (3, 20, 10, (1 + 1.5 - 1 / 4) / 2 + 3 / 2),
        (3, 5, 1, (1 + 1.5 - 1 / 4) / 5 + 3 * 4 / 5),
        (4, 5, 0, 4),
    ],
)
def test_how_many_look_before_they_hear_of_the_first(
    listeners: int, heartbeat_s: float, spread_s: float, looks: float
) -> None:
    """The mean of the number of N evenly spread timers that pass within U(0, H) of the first."""
    found = bound(sweep_s=0, slack_s=30, heartbeat_s=heartbeat_s, spread_s=spread_s, listeners=listeners, latency_s=0.0)
    assert found.receives_mean == pytest.approx(looks * 3600 / (30 + spread_s / (listeners + 1)))
    assert found.receives_most == 120


def test_the_sentences() -> None:
    """The very words, with numbers to one place and without an empty one."""
    assert in_words(bound(), sweeps=True) == (
        "a message waits 116 s at most, up to 200 listeners of its queue; an empty queue in another store costs its "
        "listeners together 60 receives an hour, 67 at most; without a bridge 120 for each listener"
    )
    assert in_words(bound(sweep_s=0, slack_s=30.25), sweeps=False) == (
        "a message waits 50.2 s at most, up to 200 listeners of its queue; an empty queue in another store costs each "
        "of its listeners up to 120 receives an hour: sweeps are off, only the dead-man timers receive, and they hear "
        "of each other's receives by heartbeat; without a bridge 120 for each listener"
    )
