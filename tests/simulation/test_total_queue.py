"""Jepsen's numbers: each of them is found when it is there, and none when it is not."""

from __future__ import annotations

import tracemalloc

import pytest

from tests.simulation.total_queue import STRANGERS_MAX, Numbers, TotalQueue


def drained() -> TotalQueue:
    """Ten messages of each of two producers, put, acknowledged and handled."""
    queue = TotalQueue()
    for producer in (0, 7):
        queue.attempt(producer, 0, 10)
        queue.acknowledge(producer, 0, 10)
        for number in range(10):
            queue.handle(producer, number)
    return queue


def test_a_sound_run_has_nothing_to_report() -> None:
    """All attempted, acknowledged and handled once."""
    assert drained().numbers() == Numbers(20, 20)


def test_acknowledged_and_never_handled_is_lost() -> None:
    """And the first of them are named."""
    queue = drained()
    queue.attempt(7, 10, 3)
    queue.acknowledge(7, 10, 3)
    queue.handle(7, 11)
    numbers = queue.numbers()
    assert numbers.lost == 2
    assert queue.first_lost() == [(7, 10), (7, 12)]
    assert queue.first_lost(1) == [(7, 10)]


def test_handled_again_is_duplicated_once_per_message() -> None:
    """A message that comes five times is one duplicated message, and no failure."""
    queue = drained()
    for _ in range(4):
        queue.handle(0, 3)
    assert queue.numbers() == Numbers(20, 20, duplicated=1)


def test_an_unknown_put_that_came_out_is_recovered() -> None:
    """One that did not come out is not lost; one acknowledged after all is not recovered."""
    queue = TotalQueue()
    queue.attempt(0, 0, 3)
    queue.unknown(0, 0, 3)
    queue.handle(0, 0)
    queue.acknowledge(0, 2)
    queue.handle(0, 2)
    assert queue.numbers() == Numbers(3, 1, recovered=1)


@pytest.mark.parametrize("stranger", [(0, 10), (0, 10**9), (3, 0), (0, -1)])
def test_what_nobody_put_is_unexpected(stranger: tuple[int, int]) -> None:
    """Within the array, far outside, of a producer there is not, or negative; twice is one message."""
    queue = drained()
    queue.handle(*stranger)
    queue.handle(*stranger)
    numbers = queue.numbers()
    assert numbers.unexpected == 1


def test_strangers_cost_bounded_memory() -> None:
    """A defect that handles nonsense for ever does not fill the memory."""
    queue = TotalQueue()
    for number in range(STRANGERS_MAX + 50):
        queue.handle(1, number)
    assert queue.numbers().unexpected == STRANGERS_MAX


def test_marks_of_what_was_never_attempted_are_a_mistake_of_the_caller() -> None:
    """It is refused, not counted."""
    queue = TotalQueue()
    queue.attempt(0, 0)
    with pytest.raises(ValueError):
        queue.acknowledge(0, 1)


def test_runs_add_up() -> None:
    """The numbers of many runs are the sums, also after a way through their names."""
    one, two = Numbers(1, 2, 3, 4, 5, 6), Numbers(10, 20, 30, 40, 50, 60)
    assert one + two == Numbers(11, 22, 33, 44, 55, 66)
    assert Numbers.of(one.as_dict()) == one


def test_a_million_messages_take_a_byte_each() -> None:
    """The marks of a producer are one array, however many there are."""
    queue = TotalQueue()
    tracemalloc.start()
    try:
        for first in range(0, 1_000_000, 10_000):
            queue.attempt(0, first, 10_000)
            queue.acknowledge(0, first, 10_000)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert queue.numbers().lost == 1_000_000
    assert taken < 1_300_000
