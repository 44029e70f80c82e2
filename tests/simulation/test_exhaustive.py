"""Every interleaving of small worlds, with sweep and dead-man off."""

from __future__ import annotations

import os

import pytest

from tests.simulation.configurations import DEEP, EXPLORED
from tests.simulation.explore import Exploration
from tests.simulation.plan import Plan


@pytest.mark.parametrize("plan", EXPLORED, ids=lambda plan: plan.name)
def test_no_wake_is_lost_in_any_interleaving(plan: Plan) -> None:
    """I1: no message waits beside a free slot, wherever a story goes; and all stories were told."""
    assert Exploration(plan, states_max=20_000).run().complete


if os.environ.get("QUEUEBELL_PROVE"):

    @pytest.mark.timeout(3600)
    @pytest.mark.parametrize("plan", DEEP, ids=lambda plan: plan.name)
    def test_no_wake_is_lost_in_bigger_worlds(plan: Plan) -> None:
        """The same, for as long as `make prove` allows."""
        Exploration(plan, seconds_max=float(os.environ.get("QUEUEBELL_PROVE_SECONDS", "120"))).run()
