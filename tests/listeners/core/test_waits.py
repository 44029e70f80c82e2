"""The moments one wake machine waits for."""

from __future__ import annotations

from bridge.contract.backoff import RandomExponential
from listeners.core.waits import Waits


def waits() -> Waits:
    return Waits(RandomExponential(1, 100, 1), RandomExponential(1, 100, 1), lambda: 0.5)


def test_what_unknown_receives_may_have_leased_becomes_some_32_looks() -> None:
    """L6: an hour of lost answers with leases of an hour; no moment is earlier than its lease's end."""
    some = waits()
    for second in range(0, 3600, 10):
        some.may_come_back(float(second), second + 3600.0)
    moments = sorted(some.returns())
    assert len(moments) <= 34
    assert all(min(at for at in moments if at >= end) - end <= 3600 / 32 for end in range(3600, 7200, 10))
