"""Workers whose queues share slots, through whole runs with faults: they hold, and what is wrong with them is found."""

from __future__ import annotations

from typing import Any, Final

import pytest

from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.pool import Place, Share, Sharing
from tests.simulation.plan import Plan
from tests.simulation.run import run

SEEDS: Final = 24
FEW: Final = 1
"""Of all tests; the rest are for `make test-rest` ..."""
PROVED: Final = 6
"""... up to this one, and for `make test-long`."""
PLANS: Final = (
    Plan(
        name="own-wire",
        queues=3,
        messages=40,
        burst=8,
        pool=4,
        shares=(Share(weight=4), Share(), Share(priority=1, reserved=1)),
        quiet_s=600.0,
        quiet_restart=True,
    ),
    Plan(name="own-broker", channel="broker", queues=2, messages=40, burst=8, pool=1, shares=(Share(weight=4),)),
    Plan(
        name="elsewhere-broker",
        store="elsewhere",
        channel="broker",
        broker="mqtt",
        queues=3,
        messages=40,
        burst=8,
        pool=2,
        shares=(Share(weight=4), Share(), Share(priority=1)),
        quiet_s=600.0,
        quiet_restart=True,
    ),
    Plan(
        name="elsewhere-mostly-crashes",
        store="elsewhere",
        queues=2,
        workers=2,
        messages=40,
        burst=8,
        pool=1,
        faults=("crash", "restart"),
        fault_gap_s=8.0,
    ),
    Plan(
        name="elsewhere-vague",
        store="elsewhere",
        queues=4,
        workers=2,
        messages=40,
        burst=16,
        pool=3,
        shares=(Share(limit=1), Share(reserved=1)),
        complete_receive=False,
        exact_depth=False,
        next_visible=False,
        handler_s=(0.01, 20.0),
    ),
)
NARROW: Final = Plan(
    name="own-wire",
    queues=2,
    workers=1,
    messages=14,
    burst=4,
    hours=100 / 3600,
    handler_s=(3.0, 9.0),
    delayed_share=0.0,
    handler_failure_share=0.0,
    faults=(),
    healed_s=400.0,
    pool=2,
)
"""Few slots, long handlers, and nothing wrong: own queues promise that a look comes within A there."""


@pytest.mark.parametrize(
    "seeds",
    [
        range(FEW),
        pytest.param(range(FEW, PROVED), marks=pytest.mark.rest),
        pytest.param(range(PROVED, SEEDS), marks=pytest.mark.long),
    ],
    ids=str,
)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan.name)
def test_every_seed_holds(plan: Plan, seeds: range) -> None:
    """Through crashes, cuts and lost frames nothing is lost, no slot is used twice, and quiet queues cost nothing."""
    failed: list[str] = []
    hours: list[float] = []
    for seed in seeds:
        outcome = run(plan, seed)
        failed += [f"{plan.name} seed {seed}: {line}" for line in outcome.violations]
        hours.append(outcome.receives_per_hour_empty or 0.0)
        assert outcome.total["lost"] == outcome.total["unexpected"] == 0
    assert not failed
    assert max(hours) <= (0 if plan.store == "own" else 67)


def breaks(rule: str) -> bool:
    """Return whether one of some runs breaks a rule; an empty one is any."""
    return any(line.startswith(rule) for seed in range(16) for line in run(NARROW, seed).violations)


def test_the_sound_rules_hold_where_the_planted_do_not() -> None:
    """What follows is found because of what is planted."""
    assert not breaks("")


def test_a_queue_that_is_not_told_of_room_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: another queue's handler ended, and the bridge, which holds a debt, still takes us for full (L5)."""
    sound = Controller.wants

    def only_for_debts(self: Controller) -> int:
        return sound(self) if self.pending else 0

    monkeypatch.setattr(Controller, "wants", only_for_debts)
    assert breaks("I1")


def test_a_debt_that_does_not_ask_for_slots_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """I1: a look is owed, a slot is free, and nobody looks (L2)."""
    sound = Controller.wants

    def only_for_room(self: Controller) -> int:
        return 0 if self.pending else sound(self)

    monkeypatch.setattr(Controller, "wants", only_for_room)
    assert breaks("I1")


def test_slots_granted_twice_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each queue takes the whole pool for its own."""

    def all_of_it(self: Sharing, place: Place, receiving: int) -> Any:
        return max(0, place.capacity - place.running - receiving)

    monkeypatch.setattr(Sharing, "grant", all_of_it)
    assert breaks("I5")
