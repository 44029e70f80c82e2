"""All interleavings of a small world, breadth first, and seeded random stories of bigger ones: chaos, then calm."""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import msgspec
from msgspec.structs import replace

from queuebell.listeners.wake.table import ImpossibleEvent
from tests.exploration.key import FARTHEST_S, key
from tests.exploration.plan import Plan, Step, Violation
from tests.exploration.world import FAULTS, UNFAIR, World, load

TIME: Step = ("time", 0)
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


class Explored:
    """What an exploration saw: how many moments and steps, and from how many moments every step was taken."""

    def __init__(self) -> None:
        self.states = 0
        self.steps = 0
        self.expanded = 0

    @property
    def complete(self) -> bool:
        """Return whether that was all of them; counted, not promised, so that no way of stopping early can hide."""
        return 0 < self.states == self.expanded


class Exploration:
    """Explores one plan.

    Property, by ``patience_s`` of the plan. None: from every moment on, without a handler ending and without a fault,
    a moment can be reached in which no message waits beside a free slot (AG EF). A number: no message may wait so for
    longer, where time passes only when nothing else can happen.

    What is of this world alone stands in `begin`, `name` and the two sets of steps; other worlds have their own.
    """

    faults = FAULTS
    unfair = UNFAIR

    def __init__(self, plan: Plan, *, states_max: int = 1_000_000) -> None:
        self.plan = plan
        self.states_max = states_max
        self.seen: dict[Hashable, int] = {}
        self.parents: list[tuple[int, Step] | None] = []
        self.back: list[list[int]] = []
        """Per moment, from which moments a fair step leads to it."""
        self.bad: list[bool] = []
        self.cut: list[int] = []
        self.result = Explored()

    def begin(self) -> World:
        world = World(self.plan)
        world.calm = True
        return world

    @staticmethod
    def name(world: World) -> Hashable:
        return key(world)

    def run(self) -> Explored:
        """Explore; raises `Failure` with a shortest story."""
        world = self.begin()
        self._add(world, 0.0 if world.bad() else None, None)
        queue: deque[tuple[int, bytes, float | None]] = deque([(0, world.fork(), None)])
        while queue:
            number, state, since = queue.popleft()
            if len(self.parents) >= self.states_max:
                self.cut.append(number)
                continue
            self._expand(number, state, since, queue)
            self.result.expanded += 1
        self.result.states = len(self.parents)
        self._must_recover()
        return self.result

    def _expand(
        self, number: int, state: bytes, since: float | None, queue: deque[tuple[int, bytes, float | None]]
    ) -> None:
        patience = self.plan.patience_s
        first: World | None = load(state)
        steps = first.steps()
        if all(self._waits(step) for step in steps):
            at = first.deadline()
            if at is not None and at < first.now + FARTHEST_S:
                if since is not None and patience is not None and at - since > patience:
                    text = f"a visible message waits beside a free slot, {at - since:.1f} s until anything happens"
                    self._fail(number, Violation("LOST", text))
                steps.append(TIME)
            elif since is not None and patience is not None:
                self._fail(number, Violation("LOST", "a visible message waits beside a free slot for ever"))
        for step in steps:
            world = load(state) if first is None else first
            first = None
            try:
                take(world, step)
            except (Violation, ImpossibleEvent, AssertionError) as violation:
                self._fail(number, violation, step)
            self.result.steps += 1
            bad_since = None if not world.bad() else world.now if since is None else since
            into = self._add(world, bad_since, (number, step))
            if not self._waits(step):
                self.back[abs(into) - 1].append(number)
            if into > 0:
                queue.append((into - 1, world.fork(), bad_since))

    def _waits(self, step: Step) -> bool:
        return step[0] in self.faults or step[0] in self.unfair

    def _add(self, world: World, since: float | None, parent: tuple[int, Step] | None) -> int:
        """Return the number of this moment plus one, negative if it is known."""
        name: Hashable = self.name(world)
        if self.plan.patience_s:
            name = (name, None if since is None else round(world.now - since, 3))
        known = self.seen.get(name)
        if known is not None:
            return -known - 1
        number = self.seen[name] = len(self.parents)
        self.parents.append(parent)
        self.back.append([])
        self.bad.append(since is not None)
        return number + 1

    def _must_recover(self) -> None:
        """AG EF: every moment leads, by fair steps alone, to one in which nothing waits beside a free slot."""
        if self.plan.patience_s is not None:
            return
        fine = [not bad for bad in self.bad]
        for number in self.cut:
            fine[number] = True
        stack = [number for number, is_fine in enumerate(fine) if is_fine]
        while stack:
            for before in self.back[stack.pop()]:
                if not fine[before]:
                    fine[before] = True
                    stack.append(before)
        if not all(fine):
            self._fail(fine.index(False), Violation("LOST", "a visible message waits beside a free slot for ever"))

    def _fail(self, number: int, violation: Exception, last: Step | None = None) -> None:
        steps: list[Step] = [] if last is None else [last]
        parent = self.parents[number]
        while parent is not None:
            steps.append(parent[1])
            parent = self.parents[parent[0]]
        raise Failure(violation, self.plan, None, narrate(self.begin(), steps[::-1])) from violation


def narrate(world: World, steps: list[Step]) -> list[str]:
    lines: list[str] = []
    for step in steps:
        lines.append(world.tell(step))
        try:
            take(world, step)
        except (Violation, ImpossibleEvent, AssertionError):
            break
    return lines


def take(world: World, step: Step) -> None:
    if step == TIME:
        world.pass_time()
    else:
        world.do(step)


class Trial(msgspec.Struct, frozen=True):
    """One way to plant a wrong turn: ``play`` returns which property breaks under the rules it is given.

    ``planted`` are rules with the fault, ``effort`` how many states or seeds to look at with it and without it.
    """

    play: Callable[..., str | None]
    rules: Any
    planted: Any
    effort: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def breaks(self) -> str | None:
        return self.play(self.planted, *self.effort[0])

    def holds(self) -> str | None:
        return self.play(self.rules, *self.effort[1])


class WrongTurn(msgspec.Struct, frozen=True):
    name: str
    caught: tuple[Trial, ...]


def turn(name: str, *caught: Trial) -> WrongTurn:
    return WrongTurn(name, caught)


def explored(
    plan: Any, planted: dict[str, Any], states_max: int = 30_000, kind: type[Exploration] = Exploration
) -> Trial:
    """Plant these fields in a small world, which is explored breadth first."""
    return Trial(functools.partial(_explore, kind), plan, replace(plan, **planted), ((states_max,), (600,)))


def _explore(kind: type[Exploration], plan: Any, states_max: int) -> str | None:
    try:
        found = kind(plan, states_max=states_max).run()
    except Failure as failure:
        return failure.rule
    return None if found.complete or found.states >= states_max else f"cut off after {found.states} states"


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
