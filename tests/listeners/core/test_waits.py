"""The moments one wake machine waits for."""

from __future__ import annotations

from bridge.contract.backoff import RandomExponential
from listeners.core.waits import Waits


def waits() -> Waits:
    return Waits(RandomExponential(1, 100, 1), RandomExponential(1, 100, 1), lambda: 0.5)


def test_tries_are_never_more_than_half_a_minute_apart() -> None:
    """Whatever the back-off says; an answer begins it anew."""
    some = waits()
    pauses = []
    for _ in range(7):
        some.try_again(0.0)
        pauses.append(some.retry)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    some.found_answer()
    some.try_again(0.0)
    assert some.retry == 1.0


def test_a_poll_waits_for_its_back_off_or_the_next_visible_message() -> None:
    """Whichever comes first; capped only where the bridge is merely away."""
    some = waits()
    some.poll_again(0.0, 0.25, capped=True)
    assert some.poll == 0.25
    for _ in range(9):
        some.poll_again(0.0, None, capped=False)
    assert some.poll == 100.0
    some.poll_again(0.0, None, capped=True)
    assert some.poll == 30.0
    some.poll_first(0.0)
    assert some.poll == 15.0


def test_what_comes_back_is_taken_in_order() -> None:
    """Each moment once, all that are past together."""
    some = waits()
    assert some.deadline() is None
    some.comes_back(5.0, "due")
    some.comes_back(3.0, "lease")
    assert sorted(some.returns()) == [3.0, 5.0]
    assert some.deadline() == 3.0
    assert some.returned(2.9) is None
    assert some.returned(3.0) == "lease"
    assert some.returned(9.0) == "due"
    assert some.deadline() is None


def test_what_unknown_receives_may_have_leased_becomes_some_32_looks() -> None:
    """L6: an hour of lost answers with leases of an hour; no moment is earlier than its lease's end."""
    some = waits()
    for second in range(0, 3600, 10):
        some.may_come_back(float(second), second + 3600.0)
    moments = sorted(some.returns())
    assert len(moments) <= 34
    assert all(min(at for at in moments if at >= end) - end <= 3600 / 32 for end in range(3600, 7200, 10))
