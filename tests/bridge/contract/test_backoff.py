"""Back-offs: how long after how many misses, and what a hit does."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from bridge.contract.backoff import Backoff, CappedExponential, FullJitter, RandomExponential

MANY = 2000
"""Misses; two to the power of that is no float."""


def waits(backoff: Backoff, count: int, draw: float = 0.5) -> list[float]:
    """Miss so often, and return the waits."""
    return [backoff.miss(lambda: draw) for _ in range(count)]


@pytest.mark.parametrize(
    ("make", "draw", "expected"),
    [
        (lambda: RandomExponential(1, 100, 2), 0.5, [1, 3, 7, 15, 31, 63, 100, 100]),
        (lambda: RandomExponential(1, 100, 2), 0.0, [1, 2.6, 5.8, 12.2, 25, 50.6, 100, 100]),
        (lambda: RandomExponential(1, 100, 2), 1.0, [1, 3.4, 8.2, 17.8, 37, 75.4, 100, 100]),
        (lambda: RandomExponential(5, 5, 0), 0.5, [5, 5, 5]),
        (lambda: RandomExponential(0, 0, 0), 0.5, [0, 0]),
        (lambda: RandomExponential(), 0.5, [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]),
        (lambda: CappedExponential(1, 10, 3), 0.5, [1, 3, 9, 10, 10]),
        (lambda: CappedExponential(2, 2, 1.5), 0.5, [2, 2]),
        (lambda: CappedExponential(), 0.5, [1, 2, 4, 8, 16, 32, 60, 60]),
        (lambda: FullJitter(1, 10), 0.5, [0.5, 1, 2, 4, 5, 5]),
        (lambda: FullJitter(1, 10), 0.0, [0, 0]),
        (lambda: FullJitter(3, 3), 0.5, [1.5, 1.5]),
        (lambda: FullJitter(), 0.5, [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.5, 2.5]),
    ],
)
def test_each_miss_waits_longer_up_to_the_cap(make: Callable[[], Backoff], draw: float, expected: list[float]) -> None:
    """By the formula that the class states, and from its beginning again after a hit, which hits add nothing to."""
    backoff = make()
    assert waits(backoff, len(expected), draw) == pytest.approx(expected)
    backoff.hit()
    backoff.hit()
    assert waits(backoff, len(expected), draw) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("make", "most"), [(lambda: RandomExponential(1, 1e30, 1), 2.0**64), (lambda: FullJitter(1, 1e30), 2.0**63)]
)
def test_a_store_that_is_away_for_weeks_breaks_no_sum(make: Callable[[], Backoff], most: float) -> None:
    """The power is bounded at two to the 64th, however many misses there were."""
    found = waits(make(), MANY)
    assert found == sorted(found)
    assert found[-1] == pytest.approx(most)


def test_a_hit_may_halve_the_pause() -> None:
    """So that a queue that is rarely hit keeps most of it; never below the floor."""
    backoff = CappedExponential(1, 50, 2, halve=True)
    assert waits(backoff, 6) == [1, 2, 4, 8, 16, 32]
    backoff.hit()
    assert waits(backoff, 1) == [25]
    for _ in range(9):
        backoff.hit()
    assert waits(backoff, 2) == [1, 2]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomExponential(-0.1, 1, 1),
        lambda: RandomExponential(1, 1, -0.1),
        lambda: RandomExponential(1.1, 1, 1),
        lambda: RandomExponential(math.nan, 1, 1),
        lambda: RandomExponential(1, math.nan, 1),
        lambda: RandomExponential(1, 1, math.nan),
        lambda: CappedExponential(1, 2, math.nan),
        lambda: CappedExponential(0, 1),
        lambda: CappedExponential(1.1, 1),
        lambda: CappedExponential(1, 2, 1),
        lambda: FullJitter(0, 1),
        lambda: FullJitter(1.1, 1),
    ],
)
def test_a_back_off_that_cannot_be_is_refused(make: Callable[[], Backoff]) -> None:
    """Negative, without growth, or with a cap below its beginning."""
    with pytest.raises(ValueError, match="needs"):
        make()
