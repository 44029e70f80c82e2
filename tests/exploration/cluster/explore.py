"""All interleavings of a small world of two bridges, breadth first."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Hashable, Iterator, Sequence

from queuebell.bridge.core.cluster import capacity, coordinator, wake_requests
from tests.exploration import explore
from tests.exploration.cluster import world as world_of_two
from tests.exploration.cluster.key import key
from tests.exploration.cluster.plan import Plan
from tests.exploration.cluster.world import FAIR, FAULTS, UNFAIR, World
from tests.exploration.plan import Step
from tests.exploration.world import load

ROOMS = (capacity, wake_requests, coordinator, world_of_two)
CONSTANTS = {"FULL_AGAIN": 1, "REPORT_EVERY_S": 0.125, "FULL_FOR_S": 0.125, "MERGE_S": 0.125, "VISIBILITY_S": 3.0}
"""Shorter waits are fewer moments, and parts of a second that a float has exactly make moments that meet."""


@contextlib.contextmanager
def constants(plan: Plan) -> Iterator[None]:
    values = {**CONSTANTS, **plan.constants}
    kept = [(room, name, getattr(room, name)) for room in ROOMS for name in values if hasattr(room, name)]
    try:
        for room, name, _ in kept:
            setattr(room, name, values[name])
        yield
    finally:
        for room, name, value in kept:
            setattr(room, name, value)


WEIGHTS = {"put": 0.2, "put later": 0.2, "come late": 0.2, "drop": 3.0, "late": 2.0, "repeat": 2.0, "up": 0.2}
"""How likely a walk takes a step, where others count 1 and faults 0.3."""


def walk(plan: Plan, seeds: int, steps: int = 40) -> str | None:
    """Tell stories by chance, with a calm end, up to the first in which a message is left."""
    with constants(plan):
        beginning = World(plan).fork()
        for seed in range(seeds):
            world = load(beginning)
            _chaos(world, random.Random(f"{plan.name}/{seed}"), steps)
            _calm(world)
            if _left(world):
                return f"seed {seed} leaves a message"
    return None


def play(story: Sequence[Step], plan: Plan) -> str | None:
    """Tell a story by hand, with a calm end; say whether a message is left."""
    with constants(plan):
        world = World(plan)
        for step in story:
            assert step in world.steps(), (step, world.steps())
            world.do(step)
        _calm(world)
        return "a message is left" if _left(world) else None


def _left(world: World) -> bool:
    return any(message.state != "gone" for message in world.messages)


def _chaos(world: World, chance: random.Random, steps: int) -> None:
    hasty = chance.choice((0.0, 0.1, 0.3))
    for _ in range(steps):
        choices = world.steps()
        idle = not any(kind in FAIR for kind, _ in choices)
        if not choices or chance.random() < (0.7 if idle else hasty):
            world.pass_time()
        else:
            weights = [WEIGHTS.get(kind, 0.3 if kind in FAULTS else 1.0) for kind, _ in choices]
            world.do(chance.choices(choices, weights)[0])


def _calm(world: World) -> None:
    while unborn := [message.number for message in world.messages if message.state == "unborn"]:
        world.do(("put", unborn[0]))
    world.settle(40.0)


class Exploration(explore.Exploration):
    """Explores one plan of two bridges; properties as for one, and that nothing stays owed that somebody could pay."""

    faults = FAULTS
    unfair = UNFAIR

    def begin(self) -> World:
        return World(self.plan)

    @staticmethod
    def name(world: World) -> Hashable:
        return key(world)

    def run(self) -> explore.Explored:
        """Explore; raises `Failure` with a shortest story."""
        with constants(self.plan):
            return super().run()
