"""Every interleaving of small worlds of two bridges, with sweep and dead-man off."""

from __future__ import annotations

import os

import pytest

from tests.exploration.cluster.explore import Exploration
from tests.exploration.cluster.mutants import Believes
from tests.exploration.cluster.plan import BIGGER, DEEP, EXPLORED, Plan, quick
from tests.exploration.explore import Failure

DEEP_STATES = int(os.environ.get("QUEUEBELL_PROVE_STATES", "50000"))


@pytest.mark.parametrize(
    "plan, least",
    [
        *(pytest.param(*world, id=world[0].name) for world in EXPLORED),
        *(pytest.param(*world, id=world[0].name, marks=pytest.mark.rest) for world in BIGGER),
    ],
)
def test_nothing_is_left_and_debts_end_in_any_interleaving(plan: Plan, least: int) -> None:
    """I1, C4: no message waits beside a free slot, wherever a story goes; and all stories were told."""
    found = Exploration(plan, states_max=10_000).run()
    assert found.complete and found.states >= least


def test_what_is_left_for_ever_is_found() -> None:
    """A planted loss, and no limit to patience: `own` is believed, and every trigger is nobody's (W10)."""
    with pytest.raises(Failure, match="for ever"):
        Exploration(quick("believed", engine=True, scheduler=Believes)).run()


if os.environ.get("QUEUEBELL_PROVE"):

    @pytest.mark.timeout(36_000)
    @pytest.mark.parametrize("plan", DEEP, ids=lambda plan: plan.name)
    def test_nothing_is_left_in_bigger_worlds(plan: Plan) -> None:
        """The same, whole or as many moments as `make test-all` allows: a number, so that no clock has a say."""
        found = Exploration(plan, states_max=DEEP_STATES).run()
        assert found.complete or (found.states >= DEEP_STATES and found.expanded >= DEEP_STATES / 100)
