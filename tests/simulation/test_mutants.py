"""The known wrong turns: each is caught where the unmodified rules hold, sweep and dead-man off.

V5 and V16 are the publisher's and are planted in its own tests.
"""

from __future__ import annotations

import msgspec
import pytest

from bridge.core.bell import Bell
from tests.simulation import mutants
from tests.simulation.configurations import MUTANTS, WALKED
from tests.simulation.explore import Exploration
from tests.simulation.plan import Plan
from tests.simulation.walk import Failure, Walk, walks
from tests.support.bells import QUEUE, Rig


@pytest.mark.parametrize(("plan", "mutant"), MUTANTS, ids=lambda value: getattr(value, "name", ""))
def test_a_wrong_turn_is_caught(plan: Plan, mutant: dict[str, object]) -> None:
    """Breadth first finds a story in which the mutant breaks a property."""
    with pytest.raises(Failure):
        Exploration(msgspec.structs.replace(plan, **mutant), states_max=30_000).run()


@pytest.mark.parametrize("plan", [plan for plan, _ in MUTANTS], ids=lambda plan: plan.name)
def test_the_rules_hold_where_mutants_are_caught(plan: Plan) -> None:
    """The unmodified rules hold in the same worlds, as far as these are explored here."""
    Exploration(plan, states_max=600).run()


def _tell(plan: Plan) -> None:
    for seed in range(400):
        Walk(plan, seed, chaos=40).run()


@pytest.mark.parametrize(("plan", "mutant"), WALKED, ids=lambda value: getattr(value, "name", ""))
def test_a_wrong_turn_is_caught_by_chance(plan: Plan, mutant: dict[str, object]) -> None:
    """Some seed finds it, and none finds anything in the unmodified rules."""
    mutated = msgspec.structs.replace(plan, **mutant)
    with pytest.raises(Failure):
        _tell(mutated)
    walks(plan, range(100), chaos=40)


def _second_hears_after(bell: type[Bell]) -> float | None:
    """Return when the second session is woken while the first hangs and a trigger comes every second."""
    rig = Rig(bell=bell)
    first, second = rig.join(capacity=1), rig.join(capacity=1)
    rig.settle_hello(first)
    rig.trigger()
    hanging = first if rig.debt().owner == first else second
    other = second if hanging == first else first
    rig.wakes(first)
    rig.wakes(second)
    began = rig.now
    for _ in range(60):
        rig.wait(1.0)
        rig.beat(hanging)
        rig.beat(other)
        rig.trigger()
        if rig.wakes(other):
            return rig.now - began
    return None


def test_a_that_every_mark_restarts_is_caught() -> None:
    """B4: with a trigger a second the owner that hangs loses its monopoly after A, and with the mutant never."""
    heard = _second_hears_after(Bell)
    assert heard is not None and heard <= 3.0
    assert _second_hears_after(mutants.RestartsA) is None


def _settled_by_an_old_cover(bell: type[Bell]) -> bool:
    """Forget a queue, meet it anew, and let a cover arrive that was begun before: say whether it settled."""
    rig = Rig(bell=bell)
    first = rig.join()
    rig.settle_hello(first)
    old = rig.debt().gen
    rig.beat(first, gen=old, covered=old, free=32)
    # A look of the listener's own (L6) begins here, knowing of `old`; then its connection breaks.
    rig.lose(first)
    rig.bell.ledger.forget(QUEUE)
    assert rig.bell.ledger.find(QUEUE) is None
    rig.trigger()
    again = rig.join()
    rig.deaf.add(again)
    rig.cover(again, old)
    return not rig.debt().dirty


def test_v19_a_queue_forgotten_and_met_again_does_not_know_an_old_cover() -> None:
    """B1: one counter per boot; with one per queue the old cover settles the new debt."""
    assert not _settled_by_an_old_cover(Bell)
    assert _settled_by_an_old_cover(mutants.GenPerQueue)


def _hears_of_a_rise(bell: type[Bell]) -> bool:
    """Empty and filled again within one commit, whose empty answer one of two went idle on: say if it is woken."""
    rig = Rig(bell=bell)
    full, idle = rig.join(own=True, capacity=1), rig.join(own=True, capacity=1)
    rig.more(full)
    rig.level(1, rose=True, put=1)
    (gen,) = rig.gens(idle)
    rig.started(idle, gen)
    rig.level(1, rose=True, put=1)
    rig.cover(idle, gen)
    rig.wait(4.0)
    return bool(rig.wakes(idle))


def test_o1_a_rise_within_a_commit_that_is_not_reported_is_caught() -> None:
    """O1: the empty answer is older than the rise; without a newer generation its cover ends the story."""
    assert _hears_of_a_rise(Bell)
    assert not _hears_of_a_rise(mutants.RiseUnreported)
