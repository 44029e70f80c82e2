"""The customer's day."""

from __future__ import annotations

import random

import pytest

from bench.cost.clockwork import CALL_S
from bench.cost.day import Burst, Day, draw_day
from bridge.contract.errors import BadInput


def day(*, seed: int = 1, **changed: float) -> Day:
    given = {
        "length_s": 86_400.0, "busy_s": 7200.0, "bursts": 6, "items_min": 2000, "items_max": 200_000, "threads": 200,
        **changed,
    }  # fmt: skip
    return draw_day(**given, draw=random.Random(seed).random)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_the_handlers_fill_the_busy_hours(seed: int) -> None:
    """All slots together are taken for exactly the busy time, a quarter of the hours within which all work arrives."""
    drawn = day(seed=seed)
    assert drawn.items * (drawn.handler_s + CALL_S) == pytest.approx(200 * 7200)
    assert all(2000 <= burst.items <= 200_000 for burst in drawn.bursts)
    assert 0 <= drawn.bursts[0].at <= drawn.bursts[-1].at <= 8 * 3600
    assert drawn == day(seed=seed)


def test_bursts_become_visible_a_thousand_a_second() -> None:
    """Puts come in the order of time, also where bursts overlap."""
    two = Day(3600, 1.0, (Burst(10.0, 2500), Burst(11.5, 1)))
    assert two.puts() == [(10.0, 1000), (11.0, 1000), (11.5, 1), (12.0, 500)]


@pytest.mark.parametrize(
    "changed",
    [
        {"busy_s": 0.0},
        {"busy_s": 90_000.0},
        {"bursts": 0},
        {"items_min": 0},
        {"items_min": 9, "items_max": 8},
        {"threads": 0},
        {"threads": 1, "busy_s": 60.0},
    ],
)
def test_a_day_that_cannot_be_is_refused(changed: dict[str, float]) -> None:
    """No busy time, no bursts, no threads, or more messages than they can handle."""
    with pytest.raises(BadInput) as refused:
        day(**changed)
    assert refused.value.code == "bad_parameter"
