"""From what a handler did to what becomes of its message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.contract.burial import EXHAUSTED, PERMANENT, UNDECODABLE
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
    WantsBury,
    WantsReplay,
    WantsRetry,
    exhausted,
    retry_pause,
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
        (WantsBury("y"), 1, 0, True, Bury("y")),
        (WantsBury("y"), 1, 5, False, GiveBack(30.0)),
        (WantsBury("y", UNDECODABLE, "E", "t"), 1, 5, True, Bury("y", UNDECODABLE, "E", "t")),
        (Failed("x", error="E", trace="t"), 5, 5, True, Bury("attempt 5 of 5: x", EXHAUSTED, "E", "t")),
        (Failed("x", Failure.PERMANENT, error="E", trace="t"), 1, 5, True, Bury("x", PERMANENT, "E", "t")),
        (WantsReplay(), 9, 5, True, Replay()),
        (WantsReplay(3.0, "q"), 1, 5, False, Replay(3.0, "q")),
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
    assert isinstance(exhausted(6, 5, True), Bury)
    assert exhausted(6, 0, True) is None
    assert exhausted(6, 5, False) is None
