"""The dead-man timer (L10)."""

from __future__ import annotations

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
    deadman.tune(60.0, 1000, 0.05)
    deadman.heard(0.0)
    assert deadman.deadline() == 96.0 + 25.0
    deadman.tune(120.0, 1, 0.05)
    deadman.heard(100.0)
    assert deadman.deadline() == 100.0 + 162.0 + 5.0


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(1, 100), st.integers(0, 2000)), max_size=30))
def test_its_deadline_only_moves_forward(news: list[tuple[float, float, int]]) -> None:
    """However stale the news, and however the fleet shrinks."""
    deadman = DeadMan(0.0, lambda: 0.7)
    before = deadman.deadline()
    for at, sweep, sessions in news:
        deadman.tune(sweep, sessions, 0.05)
        deadman.heard(at)
        assert deadman.deadline() >= before
        before = deadman.deadline()


def test_slack_and_spread_are_the_queues_own() -> None:
    """T_dead = 1.1 T + S, and w is never smaller than the queue's own least spread."""
    deadman = DeadMan(0.0, lambda: 0.5)
    deadman.tune(2.0, 1, 0.05, slack_s=1.0, spread_s=4.0)
    deadman.heard(200.0)
    assert deadman.deadline() == 200.0 + 2.2 + 1.0 + 2.0
    deadman.tune(2.0, 1000, 0.05, slack_s=1.0, spread_s=4.0)
    deadman.heard(300.0)
    assert deadman.deadline() == 300.0 + 2.2 + 1.0 + 25.0
