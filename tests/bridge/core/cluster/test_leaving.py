"""When the sessions of a bridge that leaves are sent away (C7)."""

from __future__ import annotations

import random

import pytest

from bridge.core.cluster.leaving import SPREAD_S, at_once, departures
from tests.support.member import FIRST, MemberRig, boot


@pytest.mark.parametrize("sessions", [1, 2, 300, 499, 500, 501, 10_000])
def test_they_share_the_time_and_the_last_goes_within_five_seconds(sessions: int) -> None:
    """Ascending, each within its own share, so that no two shares ever go at once."""
    span = min(5.0, 0.01 * sessions)
    for seed in range(5):
        after = departures(sessions, 1, random.Random(seed).random)
        assert len(after) == sessions
        for place, at in enumerate(after):
            assert span * place / sessions <= at < span * (place + 1) / sessions
        assert after[-1] < SPREAD_S


def test_chance_decides_the_moment_within_a_share() -> None:
    """Two bridges that leave together do not send theirs away in step."""
    assert departures(4, 1, lambda: 0.0) == pytest.approx([0.0, 0.01, 0.02, 0.03])
    assert departures(4, 1, lambda: 0.5) == pytest.approx([0.005, 0.015, 0.025, 0.035])


@pytest.mark.parametrize("sessions", [0, 1, 300])
def test_with_nobody_to_go_to_all_go_at_once(sessions: int) -> None:
    """A lone bridge stops as fast as it always did."""
    assert departures(sessions, 0, lambda: 0.9) == [0.0] * sessions


def test_none_is_nobody() -> None:
    """A bridge without sessions waits for nothing."""
    assert departures(0, 2, lambda: 0.5) == []


def test_those_who_leave_as_well_take_over_nothing() -> None:
    """Nor does anybody of whom a bridge that is alone once heard."""
    rig = MemberRig()
    assert rig.turns.others(rig.now) == 0
    second = boot(first=True, number=1)
    rig.member(FIRST)
    rig.member(second)
    rig.echo()
    assert rig.turns.others(rig.now) == 2
    rig.member(second, leaving=True)
    assert rig.turns.others(rig.now) == 1
    rig.turns.end(rig.now)
    assert rig.turns.others(rig.now) == 0


@pytest.mark.parametrize(
    ("ends", "merged"),
    [
        ([], []),
        ([(1.0, 2)], [(1.0, 2)]),
        ([(1.0, 2), (6.0, 3)], [(6.0, 5)]),
        ([(1.0, 2), (6.001, 3)], [(1.0, 2), (6.001, 3)]),
        ([(0.0, 1), (4.0, 1), (8.0, 1), (12.0, 1)], [(4.0, 2), (12.0, 2)]),
    ],
)
def test_leases_that_end_together_are_one_look(ends: list[tuple[float, int]], merged: list[tuple[float, int]]) -> None:
    """Into the last of them, and never over more than the time in which the sessions went."""
    assert at_once(ends) == merged


def test_sessions_that_go_one_after_the_other_leave_one_look_behind() -> None:
    """At most one receive a queue and restart; a delay is told as it is."""
    rig = MemberRig()
    sessions = [rig.session() for _ in range(3)]
    for number in sessions:
        rig.wait(1.0)
        rig.lose(number)
    lost_at = rig.now
    rig.bell.timers.arm_due(rig.debt(), rig.now, 29.0, "due", 1)
    told = rig.turns.bequest(rig.now)
    (delay, lease) = sorted(event.not_before_ms for event in told)
    assert 29_000 <= delay < 29_020
    assert 30_000 <= lease < 30_020
    assert rig.now == lost_at


def test_delays_that_end_together_are_told_each_as_it_is() -> None:
    """B2: only the ends of leases are merged, which are later for it; a delay is no second late."""
    rig = MemberRig()
    rig.session()
    for delay_s in (20.0, 21.0, 22.0):
        rig.bell.timers.arm_due(rig.debt(), rig.now, delay_s, "due", 1)
    told = [event.not_before_ms for event in rig.turns.bequest(rig.now)]
    assert [each is not None and round(each / 1000) for each in told] == [20, 21, 22]
