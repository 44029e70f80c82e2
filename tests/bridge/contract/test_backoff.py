"""Back-offs: how long after how many misses, and what a hit does."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from queuebell.bridge.contract.backoff import Backoff, CappedExponential, FullJitter, RandomExponential
from queuebell.bridge.contract.bounds import bound, in_words
from queuebell.bridge.contract.times import from_rfc3339


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


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-11-20T17:31:00", "2026-11-20T17:31:00.123"])
def test_a_time_needs_its_offset(text: str) -> None:
    with pytest.raises(ValueError, match="offset" if "T" in text else "Invalid isoformat"):
        from_rfc3339(text)


def test_without_sweeps_each_listener_may_look_before_it_hears_of_the_first() -> None:
    """Covers reach the others by heartbeat: 5 s of w = 10 s; with w shorter than that nearly all look, at most all."""
    assert bound(sweep_s=0, listeners=5).receives_mean == pytest.approx(3600 / (30 + 10 / 6) * 2.245, rel=0.001)
    assert bound(sweep_s=0, listeners=50, spread_s=0, latency_s=0).receives_mean == 50 * 120
    assert bound(sweep_s=0, listeners=50, heartbeat_s=1e9).receives_mean == pytest.approx(50 * 3600 / (30 + 10 / 51))
    assert "each of its workers up to 120 receives an hour" in in_words(bound(sweep_s=0), sweeps=False)
