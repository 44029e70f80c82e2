"""What a listener remembers of failed attempts, and forgets."""

from __future__ import annotations

import datetime

from bridge.contract.burial import HISTORY_MAX, Attempt
from listeners.core.history import MESSAGES_MAX, REASON_MAX, History

NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)


def test_attempts_are_told_in_order_until_their_message_ends() -> None:
    """Each with its number, its time and its reason."""
    history = History()
    history.failed("a", 1, NOON, "first")
    history.failed("b", 1, NOON, "other")
    history.failed("a", 2, NOON + datetime.timedelta(seconds=1), "second")
    assert history.of("a") == (
        Attempt(1, NOON, "first"),
        Attempt(2, NOON + datetime.timedelta(seconds=1), "second"),
    )
    history.forget("a")
    history.forget("a")
    assert history.of("a") == ()
    assert len(history) == 1


def test_memory_is_bounded() -> None:
    """Some messages, some attempts of each, and reasons of some length; who failed longest ago goes first."""
    history = History(most=3)
    for number in range(100):
        history.failed("again", number, NOON, "x" * 9000)
        history.failed(f"m{number}", 1, NOON, "")
        assert len(history) == min(3, number + 2)
    kept = history.of("again")
    assert [one.attempt for one in kept] == list(range(100 - HISTORY_MAX, 100))
    assert {len(one.reason) for one in kept} == {REASON_MAX}
    assert history.of("m0") == ()
    assert history.of("m99") != ()
    assert History()._most == MESSAGES_MAX
