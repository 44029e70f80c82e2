"""Whose turn it is: evenly, anywhere to begin with, and past what failed."""

from __future__ import annotations

from collections import Counter

import pytest

from bridge.producer.turns import REST_MAX_S, TRIES, Turns


def half() -> float:
    """Chance as it comes on average."""
    return 0.5


def test_turns_are_exactly_even() -> None:
    """Each partition once a round."""
    turns = Turns(8, half)
    assert [turns.take(0.0) for _ in range(16)] == [4, 5, 6, 7, 0, 1, 2, 3] * 2


def test_producers_begin_anywhere() -> None:
    """Many that put once each spread as chance does: none has a first partition of its own."""
    firsts = Counter(Turns(10, lambda place=place: place / 1000).take(0.0) for place in range(1000))
    assert firsts == dict.fromkeys(range(10), 100)


def test_what_failed_rests_longer_each_time() -> None:
    """One second, then twice as long, up to half a minute; what is not due is passed over."""
    turns, now = Turns(2, lambda: 0.0), 0.0
    rests = []
    for _ in range(8):
        while turns.take(now) != 0:
            now += 0.01
        turns.failed(now, 0)
        began = now
        while {turns.take(now), turns.take(now)} == {1}:
            now += 0.01
        rests.append(now - began)
        now += 0.01
    assert 0.9 < rests[0] < 1.1
    assert rests == sorted(rests)
    assert REST_MAX_S * 0.79 < rests[-1] <= REST_MAX_S + 0.02


def test_what_works_again_rests_no_more() -> None:
    """One success forgets all failures."""
    turns = Turns(2, lambda: 0.0)
    turns.failed(0.0, 0)
    assert [turns.take(0.5), turns.take(0.5)] == [1, 1]
    turns.worked(0)
    assert {turns.take(0.5), turns.take(0.5)} == {0, 1}


def test_where_all_rest_the_one_that_is_due_first_is_asked() -> None:
    """A put is always tried: what rests may have come back."""
    turns = Turns(3, lambda: 0.0)
    for now, number in ((0.0, 2), (0.1, 0), (0.2, 1)):
        turns.failed(now, number)
    assert turns.take(0.3) == 2
    assert turns.take(0.3, [2]) == 0


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_batch_is_tried_on_three_at_most(count: int) -> None:
    """Each on another one; where three fail, it is the store that is away."""
    turns, tried = Turns(count, half), list[int]()
    while (number := turns.take(0.0, tried)) is not None:
        turns.failed(0.0, number)
        tried.append(number)
    assert len(tried) == len(set(tried)) == min(TRIES, count)


def test_what_was_tried_is_passed_over_wherever_the_turn_stands() -> None:
    """Also where it is the very one whose turn it is."""
    turns = Turns(3, lambda: 0.0)
    assert turns.take(0.0, [0]) == 1
    assert turns.take(0.0, [2, 0]) == 1


def test_each_partition_has_a_rest_of_its_own() -> None:
    """What one suffered lengthens no rest of another; and what works again begins with the shortest."""
    turns = Turns(2, lambda: 0.5)
    for _ in range(5):
        turns.failed(0.0, 0)
    turns.failed(0.0, 1)
    assert turns.take(0.9) == 1
    assert turns.take(1.1) == 1
    assert turns.take(1.1, [1]) == 0
    turns.worked(0)
    turns.failed(10.0, 0)
    turns.worked(1)
    assert {turns.take(11.1), turns.take(11.1)} == {0, 1}
