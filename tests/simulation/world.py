"""The world of one run: its hosts, their network, what is wrong just now, and who hears of what happens."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from queuebell.bridge.core.wake_scheduler import WakeScheduler
from tests.simulation.faults import Trouble, knob
from tests.simulation.process import Host, Kernel, Network, Process

if TYPE_CHECKING:
    from tests.simulation.access import Desk
    from tests.simulation.plan import Plan
    from tests.simulation.worker import Workload

DRIFT: Final = 0.0005
"""By how much a clock may be faster or slower than true time where several bridges compare what theirs say."""
EPOCH: Final = 1_790_000_000.0
"""What wall clocks say when a run begins."""


class World:
    """Everything that processes share, and nothing that they may look at but the network and their own clock."""

    def __init__(self, plan: Plan, seed: int, hear: Callable[..., None], scheduler: type[WakeScheduler]) -> None:
        self.plan = plan
        self.kernel = Kernel(seed)
        self.network = Network(self.kernel)
        self.trouble = Trouble()
        self.scheduler = scheduler
        self.queues = [f"shop/q{number}" for number in range(plan.queues)]
        self.coverage: Counter[str] = Counter()
        self.failures: list[str] = []
        """What processes ended with that were not told to end."""
        self.hosts = self.network.hosts
        self.buried: list[Process] = []
        """Processes that are gone; they stay as they were until the run is over."""
        self.workload: Workload
        self.desk: Desk | None = None
        """Where keys are made, in a run with authentication."""
        self.healed = False
        self.held: dict[str, tuple[int, int]] = {}
        """By kind: the most that the bridge held for one session, and what it may hold (I5)."""
        self.receives = 0
        self.bridges = plan.bridge_names
        self.emptied: dict[str, float] = {}
        """By queue: when the newest receive began that left nothing behind, of those that were answered."""
        self.named_at: dict[tuple[str, str, tuple[str, str]], float] = {}
        """By boot, queue and name of a publish: when it was marked there first."""
        self._hear = hear
        self._levels: dict[str, int] = {}
        self._level_versions: dict[str, int] = {}
        chance = self.kernel.chance("hosts")
        for name in self.bridges:
            self._host(name, "bridge", chance)
        roles = ["store"] if plan.store == "elsewhere" else []
        roles += ["broker"] if plan.channel == "broker" or plan.bridges > 1 else []
        for name in roles:
            self._host(name, name, chance)
        if not plan.scalers:
            for name in plan.worker_names:
                self._host(name, "worker", chance)
        for name in plan.producer_names:
            self._host(name, "producer", chance)
        self.scaled = {name: plan.worker_names[number :: plan.scalers] for number, name in enumerate(plan.scaler_names)}
        """By scaler: the hosts that it starts its workers on."""
        self.of_scalers = {host for hosts in self.scaled.values() for host in hosts}
        for scaler, hosts in self.scaled.items():
            self._host(scaler, "scaler", chance)
            for name in hosts:
                self._host(name, "worker", chance)

    def _host(self, name: str, role: str, chance: random.Random) -> None:
        host = self.hosts[name] = Host(name, role, 100.0 + 1000.0 * round(chance.random(), 3))
        if self.plan.bridges > 1:
            # What bridges compare must be right whatever their clocks say: hours apart, and not quite as fast.
            host.lag -= 3600.0 * len(self.hosts)
            host.rate = 1.0 + DRIFT * (2.0 * round(chance.random(), 3) - 1.0)

    def scales(self, scaler: str) -> str:
        """Return the queue of a scaler; several of one queue are machines that share it (Z5)."""
        return self.queues[list(self.scaled).index(scaler) % len(self.queues)]

    @property
    def store_host(self) -> str:
        return "store" if self.plan.store == "elsewhere" else "bridge"

    def emit(self, what: str, *fields: object) -> None:
        """Have an event heard, one of the methods of `Checks`, unless the run is over."""
        if not self.kernel.over:
            self._hear(self.kernel.now, what, *fields)

    def reached(self, situation: str) -> None:
        if not self.kernel.over:
            self.coverage[situation] += 1

    def holds(self, what: str, count: int, allowed: int) -> None:
        """Note that the bridge holds so much for one session; what is furthest beyond its bound, or nearest, stays."""
        before = self.held.get(what)
        if before is None or count - allowed > before[0] - before[1]:
            self.held[what] = (count, allowed)

    def reaches_store(self, host: str) -> bool:
        """Say whether the store answers receives as it should, over a way from ``host`` to it and back.

        Where there are doors, whichever of them is asked.
        """
        if not self.trouble.store_works or self.trouble[knob(host)]:
            return False
        if not self.plan.doors:
            return self._joined(host, self.store_host)
        for name in self.bridges:
            process = self.hosts[name].process
            if process is None or process.paused or not process.ports or self.trouble[knob(name)]:
                return False
            if not (self._joined(host, name) and self._joined(name, self.store_host)):
                return False
        return True

    def _joined(self, near: str, far: str) -> bool:
        return not self.network.way(near, far).blocks and not self.network.way(far, near).blocks

    def lets_take(self, host: str, queue: str) -> bool:
        """Say whether the store asks ``host`` for no key, or for one that lets it take from a queue."""
        return self.desk is None or self.plan.store != "own" or self.desk.may_take(host, queue)

    def level(self, queue: str, visible: int) -> None:
        before = self._levels.get(queue, 0)
        self._level_versions[queue] = self._level_versions.get(queue, 0) + 1
        if visible != before:
            self._levels[queue] = visible
            self.emit("level", queue, visible)

    def level_rises(self, queue: str, after_s: float) -> None:
        """One message more at least can be received in ``after_s``, unless another level is told before."""
        self.kernel.after(after_s, self._rise, queue, self._level_versions.get(queue, 0))

    def _rise(self, queue: str, version: int) -> None:
        if self._level_versions.get(queue, 0) == version and not self.kernel.over:
            self.level(queue, self._levels.get(queue, 0) + 1)

    def visible(self) -> int:
        return sum(self._levels.values())

    def began(self, process: Process) -> None:
        self.emit("process_up", process.host.name, process.host.role)

    def ended(self, process: Process, why: str, *, silent: bool = False) -> None:
        """Take a process out of the world: it never runs again, and its connections break, or stay half-open."""
        if not process.up:
            return
        process.die()
        self.network.died(process, silent=silent)
        self.buried.append(process)
        self.emit("process_down", process.host.name, process.host.role, why)
