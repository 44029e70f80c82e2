"""The bound and the cost: the published figures come out of the published formulae."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.bounds import bound, in_words


def test_the_published_figures() -> None:
    """116 s up to 200 listeners, 60 receives an hour and 67 at most, 120 an hour for each listener without a bridge."""
    found = bound()
    assert (found.bound_s, found.dead_man_s, found.spread_s) == pytest.approx((116.0, 96.0, 10.0))
    assert (found.receives_mean, found.receives_most, found.away) == (60.0, 67, 120.0)
    assert found.listeners_max == 200
    assert bound(listeners=200).bound_s == pytest.approx(116.0)


def test_more_listeners_stretch_the_spread() -> None:
    """106 s + w beyond 200: a thousand listeners at 50 ms are 156 s."""
    assert bound(listeners=1000).bound_s == pytest.approx(156.0)
    assert bound(listeners=1000).listeners_max == 1000
    assert bound(listeners=1000, latency_s=0.0).bound_s == pytest.approx(116.0)


def test_without_sweeps_only_the_dead_man_looks() -> None:
    """The bound is then S + w + R, and a listener that hears of no cover adds 3600 / S."""
    found = bound(sweep_s=0)
    assert (found.bound_s, found.receives_most) == (50.0, 120)
    assert found.receives_mean == pytest.approx(3600 / 35)


@given(
    sweep=st.floats(0.1, 86_400), slack=st.floats(0.1, 86_400), spread=st.floats(0, 3600), call=st.floats(0.05, 3600),
    listeners=st.integers(1, 10_000),
)  # fmt: skip
def test_a_shorter_sweep_buys_time_for_receives(
    sweep: float, slack: float, spread: float, call: float, listeners: int
) -> None:
    """The bound always has room for a sweep that is late by its jitter, the slack and one call; the cost follows T."""
    found = bound(sweep_s=sweep, slack_s=slack, spread_s=spread, store_call_s=call, listeners=listeners)
    half = bound(sweep_s=sweep / 2, slack_s=slack, spread_s=spread, store_call_s=call, listeners=listeners)
    assert found.bound_s >= 1.1 * sweep + slack + call
    assert half.bound_s < found.bound_s
    assert half.receives_mean == pytest.approx(2 * found.receives_mean)
    assert found.receives_mean <= found.receives_most + 1e-6


def test_without_sweeps_each_listener_may_look_before_it_hears_of_the_first() -> None:
    """Covers reach the others by heartbeat: 5 s of w = 10 s; with w shorter than that nearly all look, at most all."""
    assert bound(sweep_s=0, listeners=5).receives_mean == pytest.approx(3600 / (30 + 10 / 6) * 2.245, rel=0.001)
    assert bound(sweep_s=0, listeners=50, spread_s=0, latency_s=0).receives_mean == 50 * 120
    assert bound(sweep_s=0, listeners=50, heartbeat_s=1e9).receives_mean == pytest.approx(50 * 3600 / (30 + 10 / 51))
    assert "each of its listeners up to 120 receives an hour" in in_words(bound(sweep_s=0), sweeps=False)


@given(
    listeners=st.integers(1, 1000), spread=st.floats(0, 3600), beat=st.floats(0.1, 3600), slack=st.floats(0.1, 86_400),
)  # fmt: skip
def test_without_sweeps_the_mean_lies_between_one_look_and_all(
    listeners: int, spread: float, beat: float, slack: float
) -> None:
    """One listener looks alone whatever H is; N of them never cost more than N alone."""
    found = bound(sweep_s=0, slack_s=slack, spread_s=spread, heartbeat_s=beat, listeners=listeners)
    once = 3600 / (slack + found.spread_s / (listeners + 1))
    assert once * (1 - 1e-9) <= found.receives_mean <= listeners * once * (1 + 1e-9)
    assert found.receives_mean <= listeners * found.receives_most + 1e-6


def test_every_number_has_its_place_in_the_formulae() -> None:
    """Figures that no two terms share: T_dead = 1.1 T + S, w = max(spread, N x latency), B = T_dead + w + R."""
    found = bound(sweep_s=10, slack_s=3, spread_s=2, store_call_s=0.5, heartbeat_s=7, listeners=30, latency_s=0.1)
    assert (found.dead_man_s, found.spread_s, found.bound_s) == pytest.approx((14, 3, 17.5))
    assert (found.receives_mean, found.receives_most) == (360.0, 400)
    assert (found.listeners_max, found.away) == (30, 120.0)
    assert bound(spread_s=2, latency_s=0.1, listeners=20).listeners_max == 20
    assert bound(spread_s=2, latency_s=0.1, listeners=1).listeners_max == 20
    assert bound(spread_s=0.3, latency_s=0.1).listeners_max == 3
    assert bound(latency_s=0, listeners=7).listeners_max == 7
    assert bound(latency_s=0.5).listeners_max == 20
    assert bound(sweep_s=0.5).receives_most == 8000
    assert bound(sweep_s=50).receives_most == 80
    assert bound(sweep_s=51).receives_most == 79


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


def test_none_costs_as_one() -> None:
    """Nobody listens yet: what is said is what the first one would cost."""
    assert bound(sweep_s=0, listeners=0) == bound(sweep_s=0, listeners=1)


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
