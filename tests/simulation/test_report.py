"""The command's lines of text: they fit a terminal, and say what matters."""

from __future__ import annotations

import pytest

from tests.simulation.crew import Job, Played
from tests.simulation.fault import Fault
from tests.simulation.plan import PRESETS
from tests.simulation.report import (
    STORY_LINES,
    WIDTH,
    tell_costs,
    tell_coverage,
    tell_fault,
    tell_numbers,
    tell_progress,
    tell_shortest,
    tell_time,
    until,
)
from tests.simulation.summary import FAILURES_MAX, Shortest, Summary
from tests.support.fake_runs import fails, held


def summed(runs: int, run: object = held) -> Summary:
    summary = Summary()
    for seed in range(runs):
        plan = list(PRESETS.values())[seed % len(PRESETS)]
        summary.add(Played(Job(plan, seed), run(plan, seed)), f"again {seed}")  # type: ignore[operator]
    return summary


def test_progress_says_how_fast_and_how_long_still() -> None:
    """Runs, rate, messages, losses, and the time left, in one line."""
    summary = summed(10)
    put = summary.numbers.acknowledged
    assert tell_progress(summary, 5.0, 0.25) == f"10 runs, 2.0/s, {put:,} messages, lost 0, 15 s left"
    assert "left" not in tell_progress(summed(0), 0.0, 0.0)
    assert "FAILED" in tell_progress(summed(40, fails), 5.0, 0.5)


@pytest.mark.parametrize(("seconds", "text"), [(4.4, "4 s"), (600.0, "10 min"), (36_000.0, "10.0 h")])
def test_times_are_in_the_unit_that_fits(seconds: float, text: str) -> None:
    """Seconds, minutes, hours."""
    assert tell_time(seconds) == text


def test_everything_fits_a_terminal() -> None:
    """No line of a large campaign is wider than 80 columns."""
    report = summed(200).report(123.456)
    for line in (*tell_numbers(report), *tell_costs(report), *tell_coverage(report)):
        assert len(line) <= WIDTH, line


def test_what_was_never_reached_is_told() -> None:
    """A situation that no run got into proves nothing."""
    lines = tell_coverage(summed(4).report(1.0))
    assert "  never    unheard-of thing" in lines and "  reached  rare thing 2" in lines


def test_failures_are_counted_all_and_kept_up_to_a_limit() -> None:
    """A campaign in which everything fails stays readable, and knows how often."""
    report = summed(300, fails).report(1.0)
    assert report.failed > FAILURES_MAX == len(report.failures)
    assert report.broken_rules == {"lost": report.failed} and not report.ok


def test_a_story_is_told_up_to_its_violation() -> None:
    """What comes after it is counted only, and so is what is too long before it."""
    story = [f"{number:12.6f} Phase name=x" for number in range(200)]
    assert len(until(story, ["I8 at 99.000 s a/q: dropped"])) == 100
    assert until(story, ["lost: 1 of 2"]) == story and until(story, []) == story
    lines = tell_shortest(Shortest("I8", [], {}, ["I8 at 99.000 s a/q: dropped"], story, 7, "again"))
    assert f"  ({100 - STORY_LINES} lines before)" in lines and "  (100 lines after)" in lines
    assert "  no fault at all" in lines


def test_a_fault_is_one_line() -> None:
    """When, what, how much of it, to whom, for how long."""
    assert tell_fault(Fault(1.5, "frame_loss", "broker", 2.0, 0.5)) == (
        "at 1.500 s frame_loss (0.5) of broker for 2.000 s"
    )
