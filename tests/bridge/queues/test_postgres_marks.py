"""Marks are a place to look first, for a short time."""

from __future__ import annotations

import datetime

import pytest

from bridge.queues.postgres.marks import AGAIN_S, FEW, LOOK_S, MARK_S, QUEUES_MAX, PostgresMarks, is_far

EARLY = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
LATE = EARLY + datetime.timedelta(seconds=1)


def test_a_full_batch_leaves_a_mark_and_a_short_one_takes_it() -> None:
    """Only its own queue has it."""
    marks = PostgresMarks()
    assert marks.mark("a/b", 0.0) is None
    marks.took("a/b", 0.0, EARLY)
    assert (marks.mark("a/b", 0.1), marks.mark("a/c", 0.1)) == (EARLY, None)
    marks.took("a/b", 0.1, None)
    assert marks.mark("a/b", 0.2) is None


def test_full_batches_move_a_mark_and_do_not_keep_it_alive() -> None:
    """However many full batches there are, a second after a look from the beginning comes the next."""
    marks = PostgresMarks()
    marks.took("a/b", 10.0, EARLY)
    marks.took("a/b", 10.0 + MARK_S * 0.9, LATE)
    assert marks.mark("a/b", 10.0 + MARK_S * 0.99) == LATE
    assert marks.mark("a/b", 10.0 + MARK_S) is None
    marks.took("a/b", 10.0 + MARK_S, LATE)
    assert marks.mark("a/b", 10.0 + MARK_S * 1.9) == LATE


def test_of_the_receives_in_flight_one_looks_from_the_beginning() -> None:
    """The others go on from the mark, and what the one finds counts for all of them."""
    marks = PostgresMarks()
    marks.took("a/b", 0.0, EARLY)
    assert [marks.mark("a/b", MARK_S) for _ in range(3)] == [None, EARLY, EARLY]
    assert marks.mark("a/b", MARK_S * 2) is None
    marks.took("a/b", MARK_S * 2, None)
    assert marks.mark("a/b", MARK_S * 2) is None


def test_marks_are_not_kept_for_ever_more_queues() -> None:
    """Past the limit all begin anew."""
    marks = PostgresMarks()
    for number in range(QUEUES_MAX):
        marks.took(f"a/{number}", 0.0, EARLY)
    marks.took("a/one-more", 0.0, LATE)
    assert marks.mark("a/0", 0.1) is None
    assert marks.mark("a/one-more", 0.1) == LATE


@pytest.mark.parametrize(
    "walked, limit, far, every_s",
    [
        (0, 32, False, MARK_S),
        (FEW, 1, False, MARK_S),
        (FEW + 3_201, 32, True, MARK_S),
        (FEW + 3_201, 256, False, MARK_S),
        (500_000, 32, True, 5.0),
        (100_000_000, 256, True, LOOK_S),
    ],
)
def test_the_farther_the_beginning_the_seldomer_a_look_from_there(
    walked: int, limit: int, far: bool, every_s: float
) -> None:
    """What a look walked over says how long it counts, within limits, and whether short batches go without."""
    assert is_far(walked, limit) == far
    marks = PostgresMarks()
    marks.took("a/b", 10.0, EARLY, walked=walked, limit=limit)
    assert marks.far("a/b", 10.0) == (min(AGAIN_S, every_s) if far else None)
    marks.took("a/b", 10.0 + every_s / 2, LATE)
    assert marks.mark("a/b", 10.0 + every_s * 0.99) == LATE
    assert marks.mark("a/b", 10.0 + every_s) is None
    assert marks.mark("a/b", 10.0 + every_s * 1.9) == LATE, "one looks for the others too"
    marks.took("a/b", 10.0 + every_s, LATE, walked=0, limit=limit)
    assert marks.far("a/b", 10.0 + every_s) is None, "the vacuum has come"
    assert marks.far("a/c", 0.0) is None
