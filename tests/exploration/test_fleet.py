"""Fleets in virtual time, at the level of the rules."""

from __future__ import annotations

import pytest

from tests.exploration.plan import Plan
from tests.exploration.store import UNPUT
from tests.exploration.world import World


def _flow(world: World) -> None:
    """Let everything arrive that is under way; neither puts nor handlers' ends."""
    while steps := [step for step in world.steps(faults=False) if step[0] not in ("put", "finish")]:
        world.do(steps[0])


def _until(world: World, at: float) -> None:
    while world.now < at:
        _flow(world)
        world.pass_time(at - world.now)
    _flow(world)


def _ready(plan: Plan) -> World:
    world = World(plan)
    world.calm = True
    _flow(world)
    _until(world, world.now + 5.0)
    return world


@pytest.mark.parametrize(("own", "carry"), [(False, False), (True, False), (True, True)])
def test_fifty_puts_in_five_seconds_start_at_once_on_fifty_listeners(own: bool, carry: bool) -> None:
    """Fifty listeners with one slot and handlers of 10 s: each put finds a free one, with at most two receives."""
    world = _ready(Plan(own=own, carry=carry, listeners=50, messages=50))
    before, began = world.receives, world.now
    for number in range(50):
        world.do(("put", number))
        _flow(world)
        assert world.messages[number].state != UNPUT
        assert sum(len(node.held) for node in world.nodes) == number + 1, "a put did not start at once"
        _until(world, world.now + 0.1)
    assert world.receives - before <= 100 and world.now >= began + 5.0
