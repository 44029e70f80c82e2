"""Looks that a rough count asks for (L8): 15, 30, 60 s, one listener of the fleet each, and an end."""

from __future__ import annotations

import pytest

from bridge.contract.sources import WAKE_SOURCES
from listeners.core.recheck import Recheck


def recheck(covered_at: float | None = None, sweep_s: float = 600.0) -> Recheck:
    known = Recheck()
    known.sweep_s = sweep_s
    if covered_at is not None:
        known.covered(covered_at)
    return known


@pytest.mark.parametrize("source", WAKE_SOURCES)
def test_news_begins_the_series_and_looks_that_nobody_asked_for_do_not(source: str) -> None:
    """Else each sweep would begin it anew for as long as somebody holds a message (I2)."""
    expected = None if source in ("sweep", "deadman", "poll", "due") else 15.0
    assert recheck(99.0).next_look(source, 100.0) == expected


@pytest.mark.parametrize(
    ("since", "step"),
    [(0.0, None), (14.9, None), (15.0, 30.0), (15.1, 30.0), (29.9, 30.0), (30.1, 60.0), (60.1, None), (900.0, None)],
)
def test_a_timers_look_goes_on_from_the_time_since_the_last_cover(since: float, step: float | None) -> None:
    """Every listener hears of covers, so that whichever is woken knows how far the series has come."""
    assert recheck(1000.0).next_look("due", 1000.0 + since) == step


@pytest.mark.parametrize(
    ("sweep", "steps"), [(60.0, [15.0, 30.0]), (0.0, [15.0, 30.0, 60.0]), (10.0, []), (600.0, [15.0, 30.0, 60.0])]
)
def test_no_step_where_the_sweep_comes_sooner(sweep: float, steps: list[float]) -> None:
    """At T = 60 s the third step is the sweep itself; with sweeps off the series is whole."""
    known, now, taken, source = recheck(None, sweep), 0.0, [], "trigger"
    while (step := known.next_look(source, now)) is not None:
        taken.append(step)
        known.covered(now)
        now, source = now + step + 0.01, "due"
        assert len(taken) <= 3, "the series must end"
    assert taken == steps


def test_a_timers_look_before_any_cover_is_the_second_step() -> None:
    """A listener that has just come was not told how far the series is; the first step lies behind it."""
    assert recheck().next_look("due", 5.0) == 30.0


def test_two_series_side_by_side_end() -> None:
    """Timers never settle each other (B2), so overlapping ones must not keep each other up for ever."""
    known = recheck()
    timers = [0.0, 4.0, 11.0]
    looks = 0
    while timers:
        now = timers.pop(0)
        step = known.next_look("trigger" if now < 12 else "due", now)
        known.covered(now)
        looks += 1
        assert looks < 20
        if step is not None:
            timers = sorted([*timers, now + step + 0.01])


def test_stale_news_of_coverage_changes_nothing() -> None:
    """The newest cover counts, in whatever order they are heard of."""
    known = recheck(1000.0)
    known.covered(500.0)
    assert known.next_look("due", 1020.0) == 30.0
