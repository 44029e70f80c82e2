"""Which of several equal bridges is asked: the rule through whatever happens to them, and at its limits."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.failover import (
    REST_CAP_S,
    REST_FIRST_S,
    RETRY_AFTER_S_MAX,
    Failover,
    Outcome,
    retry_after_s,
)

STORIES = st.lists(
    st.tuples(
        st.integers(0, 4),
        st.sampled_from(Outcome),
        st.floats(0, 100),
        st.none() | st.floats(-10, 1000),
    ),
    max_size=60,
)


def made(count: int, seed: int = 0) -> Failover[int]:
    return Failover(range(count), random.Random(seed).random)


@given(count=st.integers(1, 5), seed=st.integers(0, 99), story=STORIES)
def test_whatever_happened_all_are_asked_and_the_one_in_use_first(
    count: int, seed: int, story: list[tuple[int, Outcome, float, float | None]]
) -> None:
    """A round has each once, the one in use first, and those that rest last: only who failed, and only so long.

    The longest is 5 s, or what it asks for, up to a minute.
    """
    failover, now = made(count, seed), 0.0
    using: int | None = None
    failed: dict[int, float] = {}
    for which, outcome, passed, pause in story:
        which, now = which % count, now + passed
        failover.tell(which, outcome, now, retry_after=pause)
        if outcome is Outcome.ANSWERED:
            failed.pop(which, None)
            using = which if using is None else using
        else:
            longest = max(REST_CAP_S, min(RETRY_AFTER_S_MAX, pause or 0.0))
            failed[which] = max(failed.get(which, -math.inf), now + longest)
            using = None if using == which else using
        order = failover.round(now)
        assert sorted(order) == list(range(count))
        if using is not None:
            assert order[0] == using
        resting = {each: failover._until(each) for each in order if failover._until(each) > now}
        assert order[count - len(resting) :] == sorted(resting, key=lambda each: resting[each])
        assert all(until <= failed[each] for each, until in resting.items())
        # Whoever rests no more has its turn again, and nobody rests for ever.
        later = failover.round(max(failed.values(), default=now))
        assert sorted(later) == list(range(count))
        assert later == failover._turns


@given(count=st.integers(2, 5), seed=st.integers(0, 99), start=st.floats(0, 1e6))
def test_the_next_is_asked_when_one_is_gone(count: int, seed: int, start: float) -> None:
    """One after the other, in the order that was drawn; who failed longest ago comes first again."""
    failover = made(count, seed)
    order = failover.round(start)
    for turn, which in enumerate(order):
        assert failover.round(start)[0] == which
        assert failover.tell(which, Outcome.NOT_DONE, start)
        assert failover.round(start)[: count - turn - 1] == order[turn + 1 :]
    assert failover.round(start + REST_CAP_S) == order
    # Back, it is kept, although the others have rested.
    assert failover.tell(order[1], Outcome.ANSWERED, start) is False
    assert failover.round(start + REST_CAP_S)[0] == order[1]


def test_it_is_begun_at_random() -> None:
    """Each order as likely as any other: a fleet spreads over its bridges."""
    orders: dict[tuple[int, ...], int] = {}
    chance = random.Random(5)
    for _ in range(6000):
        order = tuple(Failover(range(3), chance.random).round(0.0))
        orders[order] = orders.get(order, 0) + 1
    assert len(orders) == 6 and all(800 < count < 1200 for count in orders.values())
    assert Failover("ab", lambda: 1.0).round(0.0)  # a draw at its very end is within the list


@pytest.mark.parametrize(
    ("outcome", "repeatable", "goes_on"),
    [
        (Outcome.ANSWERED, True, False), (Outcome.REFUSED, True, False), (Outcome.NOT_DONE, False, True),
        (Outcome.NOT_DONE, True, True), (Outcome.UNKNOWN, False, False), (Outcome.UNKNOWN, True, True),
    ],
)  # fmt: skip
def test_what_may_be_asked_of_the_next(outcome: Outcome, repeatable: bool, goes_on: bool) -> None:
    """What nobody did, and what may be done twice where nobody knows; never what was answered or refused."""
    assert made(2).tell(0, outcome, 0.0, repeatable=repeatable) is goes_on


def test_who_refuses_is_not_asked_first_the_next_time() -> None:
    """A key may be wrong at one only."""
    failover = made(2)
    refused, other = failover.round(0.0)
    failover.tell(refused, Outcome.REFUSED, 0.0)
    assert failover.round(REST_CAP_S) == [other, refused]


def test_who_asks_for_a_pause_has_it() -> None:
    """Beside one that does not, and for a minute at most; the one that is left is asked all the same."""
    failover = made(3)
    busy, gone, well = failover.round(0.0)
    failover.tell(busy, Outcome.NOT_DONE, 0.0, retry_after=30.0)
    failover.tell(gone, Outcome.NOT_DONE, 0.0)
    failover.tell(well, Outcome.NOT_DONE, 10.0)
    assert failover.round(29.0) == [gone, well, busy]
    assert failover.round(10.0)[0] == gone and failover.round(10.0)[2] == busy
    failover.tell(gone, Outcome.NOT_DONE, 29.0)
    assert failover.round(30.0)[0] == busy
    failover.tell(busy, Outcome.NOT_DONE, 30.0, retry_after=1e9)
    assert failover.round(29.0 + RETRY_AFTER_S_MAX)[-1] == busy
    assert failover.round(30.0 + RETRY_AFTER_S_MAX) == failover._turns


def test_rests_grow_and_an_answer_ends_them() -> None:
    """Full jitter from 0.1 s, doubled up to 5 s."""
    rests = []
    failover = Failover(range(2), lambda: 0.999)
    for turn in range(8):
        failover.tell(0, Outcome.UNKNOWN, turn * 100.0)
        rests.append(failover._until(0) - turn * 100.0)
    assert rests == pytest.approx([0.999 * min(REST_CAP_S, REST_FIRST_S * 2**turn) for turn in range(8)])
    failover.tell(0, Outcome.ANSWERED, 900.0)
    assert failover._until(0) == -math.inf and not failover._rests
    failover.tell(0, Outcome.UNKNOWN, 900.0)
    assert failover._until(0) - 900.0 == pytest.approx(0.999 * REST_FIRST_S)


def test_a_late_answer_moves_nobody() -> None:
    """Of one that was given up: calls are under way at the next one, and two that answer by turns would take turns."""
    failover = made(2)
    old, new = failover.round(0.0)
    failover.tell(old, Outcome.ANSWERED, 0.0)
    failover.tell(old, Outcome.UNKNOWN, 1.0)
    failover.tell(new, Outcome.ANSWERED, 2.0)
    failover.tell(old, Outcome.ANSWERED, 3.0)
    assert failover.round(4.0) == [new, old]


def test_a_change_is_told_once() -> None:
    """Whom was in use before, and who is; the first is no change, nor is it where one comes back."""
    failover = made(2)
    first, second = failover.round(0.0)
    assert failover.changed() is None
    failover.tell(first, Outcome.ANSWERED, 0.0)
    assert failover.changed() is None
    failover.tell(first, Outcome.UNKNOWN, 1.0)
    assert failover.changed() is None
    failover.tell(first, Outcome.ANSWERED, 2.0)
    assert failover.changed() is None
    failover.tell(first, Outcome.UNKNOWN, 3.0)
    failover.tell(second, Outcome.ANSWERED, 3.0)
    assert failover.changed() == (first, second)
    assert failover.changed() is None


def test_one_address_is_asked_each_time() -> None:
    """However often it failed: pauses are its user's."""
    failover = made(1)
    assert not failover.several and made(2).several
    for turn in range(9):
        assert failover.round(float(turn)) == [0]
        failover.tell(0, Outcome.NOT_DONE, float(turn), retry_after=99.0)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None), ("", None), ("5", 5.0), ("0", 0.0), ("999999", 999999.0), ("1000000", None), ("-1", None),
        ("1.5", None), ("\u0665", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None),
    ],
)  # fmt: skip
def test_a_pause_is_read_in_seconds(header: str | None, seconds: float | None) -> None:
    """A date would need the other's clock."""
    assert retry_after_s(header) == seconds
