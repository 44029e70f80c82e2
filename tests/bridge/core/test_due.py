"""Due times cost the same however many stand: asked by counting comparisons, never by a clock (B2)."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from bridge.core import due
from bridge.core.due import DueTimes


class Counted(float):
    """A time that counts how often it is compared."""

    compared = 0

    def __lt__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) < float(other)

    def __le__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) <= float(other)

    def __gt__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) > float(other)

    def __ge__(self, other: float) -> bool:
        Counted.compared += 1
        return float(self) >= float(other)


class Ceiling(int):
    """What `math.ceil` returns here: times a width, it is a time that counts."""

    def __mul__(self, other: float) -> Counted:  # type: ignore[override]
        return Counted(int(self) * other)


def counted_math(number: float) -> Ceiling:
    """Round up to a number whose product counts."""
    return Ceiling(math.ceil(number))


@pytest.fixture(autouse=True)
def counting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the ends of buckets count their comparisons."""
    counted: Any = SimpleNamespace(ceil=counted_math, ldexp=math.ldexp, floor=math.floor, log2=math.log2)
    monkeypatch.setattr(due, "math", counted)
    Counted.compared = 0


@pytest.mark.parametrize("standing", [1_000, 40_000])
def test_another_due_time_costs_no_look_at_those_that_stand(standing: int) -> None:
    """With 40,000 distinct due times on one queue, each further one and each that comes costs a few comparisons."""
    times = DueTimes()
    for number in range(standing):
        times.add(0.0, 100.0 + number)
    assert len(times) >= min(standing, 10_000), "too few buckets to prove anything"
    Counted.compared = 0
    for number in range(100):
        times.add(0.0, 50.0 + number / 10)
        assert times.next() is not None
    assert times.pop_due(40.0) == 0
    assert Counted.compared <= 100 * 2 * (math.log2(standing) + 2), "linear in what stands"
    Counted.compared = 0
    assert times.pop_due(55.0) > 0
    assert Counted.compared <= 100 * 3 * (math.log2(standing) + 2)


def test_every_due_time_comes_out_once_in_order_and_with_its_size() -> None:
    """Whatever the order they came in, and after time that the clock did not count."""
    times = DueTimes()
    for number in (5, 1, 3, 3, 2):
        times.add(0.0, number, size=number)
    times.nearer(0.5)
    seen = []
    while (at := times.next()) is not None:
        seen.append((math.floor(at + 0.5), times.pop_due(at)))
    assert seen == [(1, 1), (2, 2), (3, 6), (5, 5)]
    assert not len(times)
