"""The dead-man timer (L10)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listeners.core.deadman import DeadMan


def test_it_fires_after_t_dead_and_its_share_of_the_spread() -> None:
    """1.1 T + 30 s + U(0, 10 s) after the newest coverage heard of."""
    assert DeadMan(0.0, lambda: 0.0).deadline() == 96.0
    assert DeadMan(0.0, lambda: 1.0).deadline() == 106.0
    deadman = DeadMan(0.0, lambda: 0.5)
    deadman.heard(10.0)
    assert not deadman.fires(110.9, lambda: 0.5)
    assert deadman.fires(111.0, lambda: 0.25)
    assert deadman.deadline() == 111.0 + 98.5


def test_the_spread_grows_with_the_fleet() -> None:
    """w = max(10 s, N x path latency): 1000 listeners 50 ms away spread over 50 s; the period is the bridge's."""
    deadman = DeadMan(0.0, lambda: 0.5)
    deadman.tune(0.0, 60.0, 1000, 0.05)
    deadman.heard(0.0)
    assert deadman.deadline() == 96.0 + 25.0
    deadman.tune(100.0, 120.0, 1, 0.05)
    deadman.heard(100.0)
    assert deadman.deadline() == 100.0 + 162.0 + 5.0


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(1, 100), st.integers(0, 2000)), max_size=30))
def test_its_deadline_only_moves_forward_unless_its_numbers_shrink(news: list[tuple[float, float, int]]) -> None:
    """However stale the news; shorter numbers bring it to what they promise from now, and never nearer."""
    deadman, now = DeadMan(0.0, lambda: 0.7), 0.0
    wait = deadman.deadline()
    for step, sweep, sessions in news:
        now += step / 10
        before = deadman.deadline()
        deadman.tune(now, sweep, sessions, 0.05)
        was, wait = wait, deadman.t_dead + 0.7 * deadman.spread
        assert deadman.deadline() == (before if wait >= was else min(before, now + wait))
        before = deadman.deadline()
        deadman.heard(max(0.0, now - step))
        assert deadman.deadline() >= before


def test_a_shorter_sweep_counts_at_once_for_listeners_that_live() -> None:
    """A bridge that comes back with T = 10 s after T = a day promises 61 s, not a day."""
    deadman = DeadMan(0.0, lambda: 0.5)
    deadman.tune(0.0, 86_400.0, 1, 0.0)
    deadman.heard(10.0)
    assert deadman.deadline() == pytest.approx(95_085.0)
    deadman.tune(5000.0, 10.0, 1, 0.0)
    assert deadman.deadline() == 5000.0 + 11.0 + 30.0 + 5.0
    deadman.tune(5020.0, 10.0, 1, 0.0)
    assert deadman.deadline() == 5046.0, "the same again is no change"


@pytest.mark.parametrize("sweep", [60.0, 66.0])
def test_numbers_that_do_not_shrink_bring_nothing_nearer(sweep: float) -> None:
    """The same again, or longer ones: not even where the newest cover is dated ahead of our clock."""
    deadman = DeadMan(0.0, lambda: 0.5)
    deadman.heard(20.0)
    deadman.tune(10.0, sweep, 1, 0.0)
    assert deadman.deadline() == 121.0


def test_slack_and_spread_are_the_queues_own() -> None:
    """T_dead = 1.1 T + S, and w is never smaller than the queue's own least spread."""
    deadman = DeadMan(0.0, lambda: 0.5)
    deadman.tune(0.0, 2.0, 1, 0.05, slack_s=1.0, spread_s=4.0)
    deadman.heard(200.0)
    assert deadman.deadline() == 200.0 + 2.2 + 1.0 + 2.0
    deadman.tune(200.0, 2.0, 1000, 0.05, slack_s=1.0, spread_s=4.0)
    deadman.heard(300.0)
    assert deadman.deadline() == 300.0 + 2.2 + 1.0 + 25.0
