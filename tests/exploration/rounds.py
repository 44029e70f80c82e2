"""A fleet with sweep and dead-man on, over paths that take time: when it looks, and where its deadlines stand."""

from __future__ import annotations

import msgspec

from queuebell.bridge.core.settings import Periods
from queuebell.listeners.session.session import Liveness
from queuebell.listeners.wake.timers import DeadMan
from tests.exploration.plan import Plan
from tests.exploration.world import World

LATENCY_S = 0.05
SWEEP_S = 60.0

FLEET = Plan(
    name="sweep and dead-man on", listeners=3, messages=0, liveness=Liveness, deadman=DeadMan,
    periods=Periods(sweep_s=SWEEP_S),
)  # fmt: skip


class Rounds(msgspec.Struct):
    """What an idle fleet did; all in seconds."""

    receives: list[float]
    """When each receive began, from the first on."""
    back: int
    """How often a dead-man deadline moved back."""
    forward: int
    """How often one moved on."""

    @property
    def longest_gap(self) -> float:
        """Return the longest time between two receives."""
        return max(after - before for before, after in zip(self.receives, self.receives[1:], strict=False))


def rounds(plan: Plan, hours: float) -> Rounds:
    """Leave a fleet alone for some hours; every frame, call and answer takes `LATENCY_S`."""
    world = World(plan)
    world.calm = True
    seen = Rounds([], 0, 0)
    deadlines: dict[tuple[int, str], float] = {}
    until = world.now + hours * 3600

    def look() -> None:
        seen.receives += [world.now] * (world.receives - len(seen.receives))
        for node in world.nodes:
            for queue, controller in node.controllers.items():
                if controller.deadman is None:
                    continue
                at = controller.deadman.deadline()
                before = deadlines.get((node.number, queue), at)
                seen.back += at < before
                seen.forward += at > before
                deadlines[node.number, queue] = at

    while world.now < until:
        steps = world.steps(faults=False)
        arrives = world.now + LATENCY_S
        while steps and world.now < arrives:
            world.pass_time(arrives - world.now)
            look()
        for step in steps:
            # One thing that arrives may make another vain.
            if step in world.steps(faults=False):
                world.do(step)
                look()
        if not steps:
            world.pass_time(until - world.now)
            look()
    return seen
