"""The ledger at its limit: what can be forgotten makes room, and looking for it costs no more for many names."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from bridge.contract.errors import BadInput
from bridge.core.ledger import Ledger
from bridge.core.settings import Periods, Tuning


class Counted(OrderedDict[str, None]):
    """Counts the names that are looked at."""

    looked = 0

    def popitem(self, last: bool = True) -> tuple[str, None]:
        self.looked += 1
        return super().popitem(last)

    def __iter__(self) -> object:  # type: ignore[override]
        raise AssertionError("the first of a mapping from whose front much was deleted costs a walk over the gaps")


def full_ledger(size: int, *, needed: int) -> tuple[Ledger, Counted]:
    """A ledger at its limit, whose first ``needed`` queues cannot be forgotten."""
    ledger = Ledger(size, Tuning(Periods()))
    counted = ledger._clean = Counted()
    for number in range(size):
        ledger.open(f"a/q{number}", 0.0).dirty = number < needed
    return ledger, counted


def test_a_name_that_nobody_needs_makes_room() -> None:
    """The oldest that can be forgotten goes, those that are owed stay, and all are known that were let in."""
    ledger, _ = full_ledger(10, needed=4)
    for number in range(6):
        ledger.open(f"a/new{number}", 0.0).dirty = True
    assert sorted(ledger.debts) == sorted([*(f"a/q{n}" for n in range(4)), *(f"a/new{n}" for n in range(6))])
    with pytest.raises(BadInput) as refused:
        ledger.open("a/one-more", 0.0)
    assert refused.value.code == "too_many_queues"
    assert len(ledger.debts) == 10
    ledger.settle(ledger.debts["a/q2"])
    ledger.open("a/one-more", 0.0)
    assert "a/q2" not in ledger.debts


def test_a_refused_name_costs_a_bounded_number_of_looks() -> None:
    """However many queues are known, and however often it is asked: a thousand at most, and none twice a round."""
    size = 5000
    ledger, counted = full_ledger(size, needed=size)
    for number in range(2 * size // 1000):
        before = counted.looked
        with pytest.raises(BadInput):
            ledger.open(f"a/new{number}", 0.0)
        assert counted.looked - before == 1000
    assert len(counted) == size
    ledger.settle(ledger.debts[f"a/q{size - 1}"])
    counted.looked = 0
    while "a/late" not in ledger.debts:
        try:
            ledger.open("a/late", 0.0)
        except BadInput:
            assert counted.looked <= size
    assert counted.looked <= size
    assert f"a/q{size - 1}" not in ledger.debts
