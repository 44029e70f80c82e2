"""From what a handler did to what becomes of its message."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.burial import EXHAUSTED, NO_OUTCOME, PERMANENT, UNDECODABLE
from listeners.core.failure import Failure
from listeners.core.settle import (
    Bury,
    Delete,
    Failed,
    GiveBack,
    Outcome,
    Replay,
    Succeeded,
    Verdict,
    WantsRetry,
    exhausted,
    retry_pause,
    schedule,
    transient_pause,
    verdict,
)


@pytest.mark.parametrize(
    ("outcome", "attempt", "max_attempts", "can_bury", "expected"),
    [
        (Succeeded(), 9, 5, True, Delete()),
        (Failed("x"), 1, 5, True, GiveBack(0.5)),
        (Failed("x"), 3, 5, True, GiveBack(2.0)),
        (Failed("x"), 5, 5, True, Bury("attempt 5 of 5: x", EXHAUSTED)),
        (Failed("x"), 5, 0, True, GiveBack(8.0)),
        (Failed("x"), 5, 5, False, GiveBack(8.0)),
        (Failed("x", Failure.TRANSIENT), 1, 5, True, GiveBack(0.5)),
        (Failed("x", Failure.TRANSIENT), 4, 5, True, GiveBack(32.0)),
        (Failed("x", Failure.TRANSIENT, 60.0), 4, 5, True, GiveBack(60.0)),
        (Failed("x", Failure.TRANSIENT, 1.0), 4, 5, True, GiveBack(32.0)),
        (Failed("x", Failure.TRANSIENT), 5, 5, True, Bury("attempt 5 of 5: x", EXHAUSTED)),
        (Failed("x", Failure.PERMANENT), 1, 0, True, Bury("x", PERMANENT)),
        (Failed("x", Failure.PERMANENT), 1, 5, False, GiveBack(30.0)),
        (WantsRetry(7.0), 1, 5, True, GiveBack(7.0)),
        (WantsRetry(0.0), 1, 5, True, GiveBack(0.0)),
        (WantsRetry(), 2, 5, True, GiveBack(1.0)),
        (WantsRetry(7.0), 5, 5, True, Bury("attempt 5 of 5: asked for another attempt", EXHAUSTED)),
        (Bury("y"), 1, 0, True, Bury("y")),
        (Bury("y"), 1, 5, False, GiveBack(30.0)),
        (Bury("y", UNDECODABLE, "E", "t"), 1, 5, True, Bury("y", UNDECODABLE, "E", "t")),
        (Failed("x", error="E", trace="t"), 5, 5, True, Bury("attempt 5 of 5: x", EXHAUSTED, "E", "t")),
        (Failed("x", Failure.PERMANENT, error="E", trace="t"), 1, 5, True, Bury("x", PERMANENT, "E", "t")),
        (Replay(), 9, 5, True, Replay()),
        (Replay(3.0, "q"), 1, 5, False, Replay(3.0, "q")),
    ],
)
def test_the_verdict(outcome: Outcome, attempt: int, max_attempts: int, can_bury: bool, expected: Verdict) -> None:
    """Delete after success only; bury by word or at the last attempt, where there is a poison queue; else give back."""
    assert verdict(outcome, attempt, max_attempts, can_bury, lambda: 0.5) == expected


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_the_pause_grows_to_half_a_minute(attempt: int, draw: float) -> None:
    """0.5 s doubling with each attempt, +-20 %, never above 30 s."""
    pause = retry_pause(attempt, lambda: draw)
    assert 0.08 <= pause <= 30.0
    if attempt > 10:
        assert pause == 30.0


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True))
def test_the_pause_after_a_transient_failure_outlasts_an_outage(attempt: int, draw: float) -> None:
    """0.5 s, four-fold with each attempt, +-20 %, never above five minutes."""
    pause = transient_pause(attempt, lambda: draw)
    assert 0.4 <= pause <= 300.0
    if attempt > 6:
        assert pause == 300.0


def test_handed_out_too_often_is_buried_unseen() -> None:
    """More often than allowed without an outcome: its handler never lived to say anything."""
    assert exhausted(5, 5, True) is None
    assert exhausted(6, 5, True) == Bury("handed out 6 times, of 5 allowed, without an outcome", NO_OUTCOME)
    assert exhausted(6, 0, True) is None
    assert exhausted(6, 5, False) is None


def test_a_store_that_counts_every_hand_out_allows_ten_more() -> None:
    """Stops and lost answers count there as well, and must not bury what no handler has failed at."""
    assert exhausted(15, 5, True, starts=False) is None
    assert exhausted(16, 5, True, starts=False) == Bury(
        "handed out 16 times, of 5 allowed, without an outcome", NO_OUTCOME
    )


@pytest.mark.parametrize(("draw", "share"), [(0.0, 0.8), (0.5, 1.0), (0.75, 1.1)])
def test_pauses_are_spread_around_their_middle(draw: float, share: float) -> None:
    """By a fifth to either side, evenly."""
    assert [retry_pause(attempt, lambda: draw) for attempt in (1, 2, 3)] == pytest.approx(
        [0.5 * share, 1.0 * share, 2.0 * share]
    )
    assert [transient_pause(attempt, lambda: draw) for attempt in (1, 2, 3)] == pytest.approx(
        [0.5 * share, 2.0 * share, 8.0 * share]
    )


UNCLEAR, TRANSIENT, FOREVER = Failure.UNCLEAR, Failure.TRANSIENT, Failure.PERMANENT
FIVE = "next in about 0.5 s, then 1, 2, 4 s; buried after attempt 5, in about 7.5 s altogether"
TEN = "next in about 0.5 s, then 1, 2, 4 s and longer; buried after attempt 10, in about 122 s altogether"
EVER = "next in about 0.5 s, then 1, 2, 4 s and longer, at most every 30 s, until it succeeds"
BUSY = "next in about 0.5 s, then 2, 8, 32 s; buried after attempt 5, in about 42 s altogether"
ASKED = "next in about 60 s, then 2 s; buried after attempt 3, in about 62 s altogether"
SIX = "next in about 0.5 s, then 1, 2, 4 s and longer; buried after attempt 6, in about 16 s altogether"
BUSY_EVER = "next in about 0.5 s, then 2, 8, 32 s and longer, at most every 300 s, until it succeeds"
TWO = "next in about 0.5 s, then 1 s; buried after attempt 3, in about 1.5 s altogether"
SCHEDULES = [
    (UNCLEAR, None, 1, 5, True, FIVE),
    (UNCLEAR, None, 4, 5, True, "next in about 4 s; buried after attempt 5, in about 4 s altogether"),
    (UNCLEAR, None, 5, 5, True, "it is buried: that was attempt 5 of 5"),
    (UNCLEAR, None, 1, 1, True, "it is buried: that was attempt 1 of 1"),
    (UNCLEAR, None, 1, 10, True, TEN),
    (UNCLEAR, None, 1, 0, True, EVER),
    (UNCLEAR, None, 1, 5, False, EVER),
    (TRANSIENT, None, 1, 5, True, BUSY),
    (TRANSIENT, 60.0, 1, 3, True, ASKED),
    (UNCLEAR, None, 1, 6, True, SIX),
    (UNCLEAR, None, 1, 3, True, TWO),
    (UNCLEAR, 60.0, 1, 3, True, TWO),
    (UNCLEAR, None, 6, 5, True, "it is buried: that was attempt 6 of 5"),
    (TRANSIENT, None, 1, 0, True, BUSY_EVER),
    (TRANSIENT, 0.1, 1, 5, True, BUSY),
    (TRANSIENT, 10.4, 1, 2, True, "next in about 10.4 s; buried after attempt 2, in about 10 s altogether"),
    (TRANSIENT, 9.7, 1, 2, True, "next in about 9.7 s; buried after attempt 2, in about 9.7 s altogether"),
    (FOREVER, None, 1, 5, True, "it is buried, for no further attempt would change that"),
    (FOREVER, None, 1, 5, False, "again in 30 s, and so on: a poison queue keeps it until it succeeds"),
]


@pytest.mark.parametrize("failure, after, attempt, most, can_bury, words", SCHEDULES)
def test_the_schedule_that_follows_a_failure(
    failure: Failure, after: float | None, attempt: int, most: int, can_bury: bool, words: str
) -> None:
    """In words, and they are what the verdicts of the attempts to come will be."""
    failed = Failed("no", failure, after)
    assert schedule(failed, attempt, most, can_bury) == words
    pauses = []
    for number in range(attempt, attempt + 4):
        decided = verdict(failed if number == attempt else Failed("no", failure), number, most, can_bury, lambda: 0.5)
        if isinstance(decided, Bury):
            break
        assert isinstance(decided, GiveBack)
        pauses.append(decided.after_s)
    if failure is not FOREVER and pauses:
        first, _, _ = words.partition(";")
        told, _, _ = first.partition(", at most")
        assert [float(number) for number in re.findall(r"\d[\d.]*", told)] == pauses
