"""Marks are a place to look first, for a short time."""

from __future__ import annotations

import datetime

from bridge.queues.postgres.marks import MARK_S, QUEUES_MAX, PostgresMarks

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
