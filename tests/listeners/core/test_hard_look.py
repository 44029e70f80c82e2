"""The hard look (T_hard)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from listeners.core.hard_look import HardLook


def test_it_is_off_unless_somebody_asks() -> None:
    """Neither host nor bridge: no deadline, no look, no cost."""
    hard = HardLook(0.0, lambda: 0.5)
    hard.looked(5.0)
    assert not hard.tune(10.0, 0.0, lambda: 0.5)
    assert hard.deadline() is None
    assert not hard.fires(1e9)
    assert hard.cost(100) == 0.0


@pytest.mark.parametrize(
    ("own", "bridge", "counts"), [(None, 300.0, 300.0), (60.0, 0.0, 60.0), (60.0, 300.0, 60.0), (600.0, 300.0, 300.0)]
)
def test_the_smaller_of_both_counts(own: float | None, bridge: float, counts: float) -> None:
    """Host and bridge may both ask; zero asks for nothing."""
    hard = HardLook(0.0, lambda: 0.5, own)
    hard.tune(0.0, bridge, lambda: 0.5)
    assert hard.seconds == counts
    assert not hard.tune(1.0, bridge, lambda: 0.5), "the same again is no change"


def test_its_cost_is_named() -> None:
    """N x 3600 / T_hard receives an hour."""
    assert HardLook(0.0, lambda: 0.0, 300.0).cost(50) == 600.0


def test_a_fleet_that_starts_together_does_not_look_together() -> None:
    """The first round is spread over the whole of T_hard, also where the bridge switches it on later."""
    assert [HardLook(0.0, lambda share=share: share, 100.0).deadline() for share in (0.0, 0.25, 0.5)] == [
        0.0,
        25.0,
        50.0,
    ]
    late = HardLook(0.0, lambda: 0.5)
    assert late.tune(1000.0, 100.0, lambda: 0.25)
    assert late.deadline() == 1025.0


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("tune"), st.sampled_from([0.0, 5.0, 50.0, 500.0])),
            st.tuples(st.just("looked"), st.floats(0, 100)),
            st.tuples(st.just("tick"), st.floats(0, 100)),
        ),
        max_size=40,
    )
)
def test_its_deadline_moves_back_only_when_t_hard_shrinks(events: list[tuple[str, float]]) -> None:
    """Whatever is tuned or told, while it is on: at most T_hard away, be it as long as it is or as it was."""
    hard, now, before = HardLook(0.0, lambda: 0.9, 50.0), 0.0, 0.0
    for kind, value in events:
        if kind == "tune":
            was = hard.seconds
            hard.tune(now, value, lambda: 0.9)
            if hard.seconds < was:
                deadline = hard.deadline()
                assert deadline is not None
                assert deadline <= now + hard.seconds
                before = min(before, deadline)
        elif kind == "looked":
            hard.looked(max(0.0, now - value))
        else:
            now += value
            hard.fires(now)
        deadline = hard.deadline()
        assert deadline is not None
        assert before <= deadline <= now + 50.0
        before = deadline


def test_a_shorter_t_hard_counts_at_once_and_is_spread_again() -> None:
    """A minute after a week: nobody waits for the week's end, and the fleet does not look in step."""
    hard = HardLook(0.0, lambda: 0.5)
    hard.tune(0.0, 604_800.0, lambda: 0.5)
    hard.looked(5.0)
    assert hard.tune(10.0, 60.0, lambda: 0.25)
    assert hard.deadline() == 25.0
    assert hard.tune(11.0, 30.0, lambda: 0.9)
    assert hard.deadline() == 25.0, "near enough already"
    assert hard.tune(26.0, 20.0, lambda: 0.9)
    assert hard.fires(26.0), "what is due stays due"


def test_what_was_switched_off_leaves_no_far_deadline_behind() -> None:
    """Off and on again with less: the old deadline, a week away, does not count."""
    hard = HardLook(0.0, lambda: 0.5)
    hard.tune(0.0, 604_800.0, lambda: 0.5)
    hard.tune(10.0, 0.0, lambda: 0.5)
    assert hard.deadline() is None
    hard.tune(20.0, 60.0, lambda: 0.5)
    assert hard.deadline() == 50.0
    hard.tune(30.0, 0.0, lambda: 0.5)
    hard.tune(40.0, 60.0, lambda: 0.9)
    assert hard.deadline() == 50.0, "switched off and on for a moment, it is not put off"


def test_limits_of_a_shorter_t_hard() -> None:
    """At exactly its end nothing is put off, what is due in this very moment stays due, and a second is allowed."""
    hard = HardLook(0.0, lambda: 0.5, 100.0)
    assert hard.tune(30.0, 20.0, lambda: 0.25)
    assert hard.deadline() == 50.0, "within 20 s of now"
    assert hard.tune(50.0, 10.0, lambda: 0.9)
    assert hard.fires(50.0)
    off = HardLook(0.0, lambda: 0.5)
    assert off.tune(0.0, 1.0, lambda: 0.5)
    assert off.deadline() == 0.5, "a deadline of before it was switched on is none"
    assert (off.seconds, off.cost(2)) == (1.0, 7200.0)
