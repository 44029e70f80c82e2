"""Every interleaving of small worlds, with sweep and dead-man off."""

from __future__ import annotations

import os

import pytest

from tests.exploration.explore import Exploration, Explored
from tests.exploration.plan import DEEP, EXPLORED, Plan

DEEP_STATES = int(os.environ.get("QUEUEBELL_PROVE_STATES", "50000"))


def saw_all(found: Explored, least: int) -> bool:
    """Return whether an exploration went everywhere, in a world that is as big as it should be."""
    return found.complete and found.states >= least and found.steps >= found.states - 1


@pytest.mark.parametrize(
    ("plan", "least"),
    # Thousands of moments take seconds: `make test-rest`.
    [pytest.param(*row, id=row[0].name, marks=pytest.mark.rest if row[1] >= 1000 else ()) for row in EXPLORED],
)
def test_no_wake_is_lost_in_any_interleaving(plan: Plan, least: int) -> None:
    """I1: no message waits beside a free slot, wherever a story goes; and all stories were told."""
    assert saw_all(Exploration(plan, states_max=20_000).run(), least)


if os.environ.get("QUEUEBELL_PROVE"):

    @pytest.mark.timeout(36_000)
    @pytest.mark.parametrize("plan", DEEP, ids=lambda plan: plan.name)
    def test_no_wake_is_lost_in_bigger_worlds(plan: Plan) -> None:
        """The same, whole or as many moments as `make test-all` allows: a number, so that no clock has a say."""
        found = Exploration(plan, states_max=DEEP_STATES).run()
        assert saw_all(found, 200) or (found.states >= DEEP_STATES and found.expanded >= DEEP_STATES / 100)
