"""The histogram."""

from __future__ import annotations

import math
import random

import pytest

from bench.cost.spread import Percentiles, Spread


def test_nothing_and_one() -> None:
    """Of nothing all is 0; of one value all is that value."""
    spread = Spread()
    assert spread.percentiles() == Percentiles()
    spread.add(0.25)
    assert spread.percentiles() == Percentiles(1, 0.25, 0.25, 0.25)


def test_zero_is_a_value() -> None:
    """A wait of no time at all is the shortest."""
    spread = Spread()
    for value in (0.0, 0.0, 4.0):
        spread.add(value)
    assert (spread.percentile(0.5), spread.percentile(0.9)) == (0.0, 4.0)


@pytest.mark.parametrize("share", [0.01, 0.5, 0.99, 1.0])
def test_percentiles_are_near_the_exact_ones(share: float) -> None:
    """Never below the nearest rank's value, and at most 0.4 % above it, over nine orders of magnitude."""
    draw = random.Random(7).random
    values = sorted(10 ** (9 * draw() - 5) for _ in range(5000))
    spread = Spread()
    for value in values:
        spread.add(value)
    exact = values[math.ceil(share * 5000) - 1]
    assert exact <= spread.percentile(share) <= exact * (1 + 1 / 256)
