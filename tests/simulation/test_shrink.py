"""Shrinking: what is left still fails, nothing of it can be left out, and it comes to an end."""

from __future__ import annotations

import msgspec
import pytest

from tests.simulation.fault import Fault
from tests.simulation.plan import PRESETS, Plan
from tests.simulation.shrink import Budget, ddmin, shrink, smaller_plans

PLAN = PRESETS["elsewhere-wire"]


@pytest.mark.parametrize("guilty", [[], [0], [13], [3, 17], [0, 1, 2, 18, 19], list(range(20))])
def test_ddmin_finds_exactly_what_is_needed(guilty: list[int]) -> None:
    """Whatever the faults are that it takes, they are what is left, in their order."""
    assert ddmin(range(20), lambda part: set(guilty) <= set(part), Budget(2000)) == guilty


def test_a_part_that_fails_only_for_some_sizes_is_still_minimal() -> None:
    """No single item can be left out of the answer, even where failing is not monotonic."""

    def fails(part: list[int]) -> bool:
        return len(part) % 2 == 0 and {4, 9} <= set(part)

    found = ddmin(range(12), fails, Budget(5000))
    assert fails(found)
    assert not any(fails([item for item in found if item != left_out]) for left_out in found)


def test_the_tries_are_bounded() -> None:
    """When they run out, the best so far is the answer."""
    budget = Budget(6)
    found = ddmin(range(64), lambda part: 5 in part, budget)
    assert budget.used == 6 and budget.left == 0
    assert 5 in found and len(found) < 64


def test_smaller_plans_are_smaller() -> None:
    """Each takes something away, and never the last of anything."""
    for plan in smaller_plans(PLAN):
        changed = [name for name in PLAN.__struct_fields__ if getattr(plan, name) != getattr(PLAN, name)]
        assert len(changed) == 1
        assert getattr(plan, changed[0]) < getattr(PLAN, changed[0])
        assert min(plan.messages, plan.workers, plan.producers, plan.queues, plan.burst) >= 1


def test_faults_then_everything_else() -> None:
    """Two faults and two messages are needed: that is what is left, and each try is told."""
    faults = [Fault(float(number), "crash", "worker-0", 1.0) for number in range(12)]
    needed = {faults[2], faults[7]}
    told: list[int] = []

    def fails(plan: Plan, part: list[Fault]) -> bool:
        return needed <= set(part) and plan.messages >= 2

    found = shrink(PLAN, faults, fails, progress=lambda tried, left, plan: told.append(tried))
    assert found.done and found.faults == [faults[2], faults[7]]
    assert (found.plan.messages, found.plan.workers, found.plan.producers, found.plan.queues) == (2, 1, 1, 1)
    assert told == sorted(told) and told[-1] == found.tries


def test_a_plan_without_its_target_has_no_such_fault() -> None:
    """With one worker left, faults of the others are gone, and where one is needed its worker stays."""
    faults = [Fault(1.0, "partition", "worker-2>bridge", 1.0), Fault(2.0, "crash", "bridge", 1.0)]
    alone = shrink(PLAN, faults, lambda plan, part: faults[1] in part)
    assert alone.faults == [faults[1]] and alone.plan.workers == 1
    needed = shrink(PLAN, faults, lambda plan, part: faults[0] in part)
    assert needed.faults == [faults[0]] and needed.plan.workers == 3


def test_a_failure_that_needs_nothing_shrinks_to_nothing() -> None:
    """A defect that shows without faults is told without faults."""
    plan = msgspec.structs.replace(PLAN, workers=1)
    assert shrink(plan, [Fault(1.0, "crash", "bridge", 1.0)], lambda plan, part: True).faults == []
