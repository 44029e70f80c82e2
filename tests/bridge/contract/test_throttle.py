"""One line in a while about the same thing, and how many there would have been."""

from __future__ import annotations

from bridge.contract.throttle import Throttle


def test_one_passes_in_a_period_and_the_next_knows_how_many_did_not() -> None:
    """The first always passes; the period begins with what passed, not with what was kept back."""
    throttle = Throttle(10.0)
    assert throttle.passes(-5.0) == 0
    assert [throttle.passes(at) for at in (-5.0, 0.0, 4.9)] == [None, None, None]
    assert throttle.passes(5.0) == 3
    assert throttle.passes(14.9) is None
    assert throttle.passes(100.0) == 1
    assert throttle.passes(110.0) == 0
