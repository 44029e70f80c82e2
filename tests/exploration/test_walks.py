"""Thousands of random stories of bigger worlds: crashes, restarts, lost frames, unknown outcomes, lapsed leases."""

from __future__ import annotations

import os

import pytest

from tests.exploration.explore import CHAOS_STEPS, walks
from tests.exploration.plan import WILD, Plan

SEEDS = int(os.environ.get("QUEUEBELL_SEEDS", "60"))
FEW = min(SEEDS, 30)
"""Of all tests; the rest are for `make test-rest`."""
FIRST = int(os.environ.get("QUEUEBELL_FIRST_SEED", "0"))


@pytest.mark.timeout(36_000 if SEEDS > 1000 else 600)
@pytest.mark.parametrize(
    "seeds",
    [range(FIRST, FIRST + FEW), pytest.param(range(FIRST + FEW, FIRST + SEEDS), marks=pytest.mark.rest)],
    ids=["few", "many"],
)
@pytest.mark.parametrize("plan", WILD, ids=lambda plan: plan.name)
def test_no_wake_is_lost_in_random_stories(plan: Plan, seeds: range) -> None:
    """I1, I2, I3 and the machine's one sentence hold in every story, and each comes to its end."""
    told = walks(plan, seeds)
    assert told.stories == len(seeds)
    assert told.steps >= len(seeds) * CHAOS_STEPS
    # In a few nobody is left who could drain the queue; a plan in which that is the rule would prove little.
    assert told.drained >= len(seeds) * 0.9
