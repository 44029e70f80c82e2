"""Seeded random stories of bigger worlds: chaos, then calm; replayable from the seed."""

from __future__ import annotations

import random

import msgspec

from queuebell.listeners.wake.table import ImpossibleEvent
from tests.exploration.plan import Plan, Step, Violation
from tests.exploration.world import FAULTS, UNFAIR, World

CHAOS_STEPS = 70
CALM_S = 75.0
STEPS_MAX = 6000
QUIET_S = 120.0


class Failure(Violation):
    """A story in which a property does not hold."""

    def __init__(self, violation: Exception, plan: Plan, seed: int | None, story: list[str]) -> None:
        rule = violation.rule if isinstance(violation, Violation) else type(violation).__name__
        text = f"{violation}\n  plan {plan.name}, seed {seed}, {len(story)} steps\n  " + "\n  ".join(story)
        super().__init__(rule, text)


class Told(msgspec.Struct):
    """What stories came to: how many were told to their end, in how many steps, and how many drained the queue."""

    stories: int = 0
    steps: int = 0
    drained: int = 0


class Walk:
    """One story, told by chance; ``weights`` are drawn anew for each, so that some are calm and some wild."""

    def __init__(self, plan: Plan, seed: int, *, chaos: int = CHAOS_STEPS) -> None:
        self.plan = plan
        self.seed = seed
        self.chance = random.Random(f"{plan.name}/{seed}")
        self.chaos = chaos
        self.world = World(plan)
        self.story: list[str] = []
        self.taken = 0

    def run(self) -> None:
        """Tell the story to its end; raises `Failure`."""
        try:
            self._chaos()
            self._calm(CALM_S)
            self._end()
        except (Violation, ImpossibleEvent, AssertionError) as violation:
            raise Failure(violation, self.plan, self.seed, self.story) from violation

    def _do(self, step: Step) -> None:
        self.taken += 1
        if self.taken > STEPS_MAX:
            raise Violation("livelock", "the run does not come to its end")
        self.story.append(self.world.tell(step))
        self.world.do(step)

    def _time(self, most: float | None = None) -> None:
        self.taken += 1
        if self.taken > STEPS_MAX:
            raise Violation("livelock", "the run does not come to its end")
        self.world.pass_time(most)

    def _chaos(self) -> None:
        chance, world = self.chance, self.world
        hasty = chance.choice((0.0, 0.02, 0.1))
        fault = chance.choice((0.05, 0.2, 0.5))
        lazy = chance.choice((0.02, 0.2, 1.0))
        eager = chance.choice((0.1, 0.3, 1.0))
        for _ in range(self.chaos):
            steps = world.steps()
            weights = [
                fault if kind in FAULTS else lazy if kind in UNFAIR else eager if kind in ("put", "join") else 1.0
                for kind, _ in steps
            ]
            if not steps or chance.random() < hasty:
                # At any time, even before what is under way arrives.
                self._time(None if chance.random() < 0.5 else chance.random() * 3.0)
                self.story.append(f"{world.now - 1000:8.3f} time")
                continue
            self._do(chance.choices(steps, weights)[0])
            if all(kind in FAULTS or kind in UNFAIR for kind, _ in steps):
                self._time()
                self.story.append(f"{world.now - 1000:8.3f} time")

    def _calm(self, seconds: float, *, finish: bool = False) -> None:
        """No more faults; what is under way arrives, timers fire only when nothing else is left to happen."""
        world = self.world
        world.calm = True
        until = world.now + seconds
        since: float | None = None
        patience = CALM_S * 2 / 3 if self.plan.patience_s is None else self.plan.patience_s
        while True:
            steps = [s for s in world.steps(faults=False) if finish or s[0] not in UNFAIR]
            if steps:
                self._do(self.chance.choice(steps))
                continue
            if not world.bad():
                since = None
            elif since is None:
                since = world.now
            at = world.deadline()
            if since is not None and (max(world.now, until) if at is None else at) - since > patience:
                raise Violation("LOST", f"a visible message waits beside a free slot since {world.now - since:.1f} s")
            if world.now >= until or (finish and world.drained):
                return
            self._time(max(0.001, until - world.now))

    def _end(self) -> None:
        """In a fair world handlers end, every message is handled, and then nothing happens any more."""
        world = self.world
        if not any(node.alive and not node.hung and not node.stopping for node in world.nodes):
            return
        self._calm(QUIET_S, finish=True)
        if not world.drained:
            left = [m.id for m in world.messages if m.state != "gone"]
            raise Violation("LOST", f"messages {left} are never handled")
        while steps := world.steps(faults=False):
            self._do(steps[0])
        if any(node.alive and node.hung for node in world.nodes):
            return
        self._quiet(50.0)
        receives = world.receives
        self._quiet(30.0)
        if world.receives != receives:
            raise Violation("I2", f"{world.receives - receives} receives of empty queues while nothing happens")
        if any(work.dirty for work in world.scheduler.pending.by_queue.values() if len(work.sessions)):
            raise Violation("B7", "a debt is left although every message was handled")

    def _quiet(self, seconds: float) -> None:
        world = self.world
        until = world.now + seconds
        while world.now < until:
            while steps := world.steps(faults=False):
                self._do(steps[0])
            self._time(max(0.001, until - world.now))


def walks(plan: Plan, seeds: range, *, chaos: int = CHAOS_STEPS) -> Told:
    """Run every seed; raises `Failure`."""
    told = Told()
    for seed in seeds:
        walk = Walk(plan, seed, chaos=chaos)
        walk.run()
        told.stories += 1
        told.steps += walk.taken
        told.drained += walk.world.drained
    return told
