"""One run: plan, seed and faults in, outcome out."""

from __future__ import annotations

import functools
import gc
import hashlib
import inspect
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from queuebell.bridge.core.wake_scheduler import WakeScheduler
from tests.simulation.access import Desk
from tests.simulation.bounds import RESTART_WATCH_S
from tests.simulation.checks import Checks, Figures, rule_of
from tests.simulation.faults import Fault, Faults, draw_faults
from tests.simulation.fleet import Fleet
from tests.simulation.plan import Plan
from tests.simulation.worker import Workload
from tests.simulation.world import World

AGAIN_S: Final = 15.0
"""How long beyond their grace those may take that were stopping when all was healed, before they are started again."""
RESTART_S: Final = 1.0
"""How long the bridge is away when it starts again in the quiet phase."""
SETTLE_S: Final = 5.0
"""What goes on after the last message was handled: settlements, covers, timers that were on their way."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of one run and its figures; two runs of equal plan, seed and faults have equal outcomes.

    ``total`` has Jepsen's numbers: attempted, acknowledged, lost, duplicated, recovered, unexpected. ``coverage``
    counts how often a run got into each situation worth reaching. ``receives_per_hour_empty`` is of the quiet phase,
    None where there was none. ``story`` is empty unless it was asked for.
    """

    plan: str
    ok: bool
    violations: list[str]
    total: dict[str, int]
    receives_per_hour_empty: float | None
    coverage: dict[str, int]
    trace_sha256: str
    virtual_s: float
    steps: int
    story: list[str]
    figures: Figures

    @property
    def broken(self) -> set[str]:
        return {rule_of(line) for line in self.violations}


class Story:
    """What happened as lines of text, and their hash: two runs are the same if and only if their hashes are.

    Lines hold times to the microsecond, names and numbers, and nothing that differs between processes.
    """

    def __init__(self, *, keep: bool) -> None:
        self.lines: list[str] = []
        self._keep = keep
        self._hash = hashlib.sha256()

    def hear(self, at: float, what: str, *fields: object) -> None:
        texts = (f"{value:.6f}" if isinstance(value, float) else str(value) for value in fields)
        told = " ".join(f"{name}={text}" for name, text in zip(_parameters(what), texts, strict=True))
        line = f"{at:12.6f} {what} {told}"
        self._hash.update(line.encode() + b"\n")
        if self._keep:
            self.lines.append(line)

    def sha256(self) -> str:
        return self._hash.hexdigest()


@functools.cache
def _parameters(what: str) -> tuple[str, ...]:
    return tuple(inspect.signature(getattr(Checks, what)).parameters)[2:]


def run(
    plan: Plan,
    seed: int,
    faults: Sequence[Fault] | None = None,
    *,
    keep_story: bool = False,
    scheduler: type[WakeScheduler] = WakeScheduler,
) -> Outcome:
    """Run ``plan`` with ``seed`` to its end and judge it; ``faults`` None draws them from the seed.

    The outcome is a function of the arguments, on every supported Python. ``scheduler`` are the bridge's rules.
    """
    checks, story = Checks(plan), Story(keep=keep_story)

    def hear(at: float, what: str, *fields: object) -> None:
        story.hear(at, what, *fields)
        getattr(checks, what)(at, *fields)

    loud = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        world = World(plan, seed, hear, scheduler)
        return _Run(world, checks, story).outcome(faults)
    finally:
        logging.disable(loud)


class _Run:
    def __init__(self, world: World, checks: Checks, story: Story) -> None:
        self._world = world
        self._checks = checks
        self._story = story
        world.workload = Workload(world)
        world.desk = Desk(world) if world.plan.auth else None
        self._fleet = Fleet(world)
        self._faults = Faults(world, self._fleet)

    def outcome(self, faults: Sequence[Fault] | None) -> Outcome:
        world, checks = self._world, self._checks
        plan, kernel = world.plan, world.kernel
        self._faults.plan(draw_faults(plan, kernel.chance("faults")) if faults is None else faults)
        self._phase("faults")
        self._fleet.start_all()
        kernel.run(plan.faulty_s)
        world.healed = True
        self._faults.heal()
        self._phase("healed")
        self._fleet.start_all()
        # After those that were stopping when all was healed.
        kernel.after(plan.grace_s + AGAIN_S, self._fleet.start_all)
        drained = kernel.run(plan.faulty_s + plan.healed_s, self._drained)
        if drained:
            kernel.run(kernel.now + SETTLE_S)
        if drained and plan.quiet_s and plan.quiet_restart:
            self._restart_bridge()
        per_hour = self._quiet() if plan.quiet_s else None
        for what, (most, allowed) in sorted(world.held.items()):
            world.emit("held", what, most, allowed)
        self._phase("end")
        checks.finish(kernel.now)
        virtual = kernel.now
        kernel.over = True
        try:
            violations = [*checks.violations, *world.failures, *(f"defect: {line}" for line in kernel.defects)]
            return Outcome(
                plan=plan.name,
                ok=not violations,
                violations=violations,
                total=checks.total.numbers().as_dict(),
                receives_per_hour_empty=per_hour,
                coverage=dict(sorted(world.coverage.items())),
                trace_sha256=self._story.sha256(),
                virtual_s=virtual,
                steps=kernel.steps,
                story=self._story.lines,
                figures=checks.figures(),
            )
        finally:
            self._bury()

    def _phase(self, name: str) -> None:
        self._world.emit("phase", name)

    def _drained(self) -> bool:
        return self._world.workload.done() and not self._world.visible()

    def _restart_bridge(self) -> None:
        """Have a bridge crash and come back while every queue is calm (I6)."""
        world, kernel = self._world, self._world.kernel
        self._phase("restart")
        # Whoever is started again after the healing disturbs the calm once more.
        settled = max(kernel.now, world.plan.faulty_s + world.plan.grace_s + AGAIN_S)
        kernel.run(settled + self._checks.promise.churn_s + SETTLE_S)
        self._fleet.kill(world.bridges[0])
        kernel.run(kernel.now + RESTART_S)
        self._fleet.start(world.bridges[0])
        world.reached("bridge restarted while all was calm")
        kernel.run(kernel.now + RESTART_WATCH_S + RESTART_S)

    def _quiet(self) -> float:
        world, kernel = self._world, self._world.kernel
        self._phase("quiet")
        calm = kernel.now + 60.0 + 10.0 + world.plan.visibility_s
        kernel.run(calm)
        before = world.receives
        kernel.run(calm + world.plan.quiet_s)
        # Where no count proves anything, each sweep has a listener started that looks (Z7).
        if world.plan.scalers and world.plan.exact_depth:
            world.emit("calm")
        return (world.receives - before) * 3600.0 / world.plan.quiet_s / world.plan.queues

    def _bury(self) -> None:
        world = self._world
        for host in world.hosts.values():
            if host.process is not None:
                process = host.process
                process.die()
                world.buried.append(process)
        world.kernel.forget()
        enabled = gc.isenabled()
        gc.disable()
        try:
            for process in world.buried:
                process.bury()
        finally:
            if enabled:
                gc.enable()
        world.buried.clear()
        self._fleet.close()
