"""The long run of a cluster: something of it is killed every second, and half way all of it is restarted in turn.

Producers and workers have the addresses of all three bridges. Of bridges, NATS servers and workers one of each is left
at least; PostgreSQL crashes now and then. A second queue is probed all the while, see `long_run`.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from bridge.contract.errors import StoreError
from tests.chaos.cluster_ground import ClusterGround
from tests.chaos.clusters import restart_all
from tests.chaos.long_run import NONE, PACE, PROBE, PROBE_CALL_S, PRODUCERS, QUEUE, SAY_EVERY_S, WORKERS, Crew, Probes
from tests.chaos.tally import TotalQueue
from tests.support.brokers import NatsServer
from tests.support.processes import Processes, until

KILL_EVERY_S = 1.0
AWAY_S = 1.0
"""The longest that something killed stays away before it is started again."""
POSTGRES_EVERY = 20
"""One kill of so many is PostgreSQL's."""
KILLS_LEAST = 4
MORE = 4096
GLANCE_S = 0.1
SWEEP_S = 20.0
BRIDGE, NODE, WORKER, POSTGRES, ROLLING = "bridge", "NATS server", "worker", "PostgreSQL", "restart of all in turn"


@dataclass
class ClusterOutcome:
    """What a run came to; seconds."""

    seed: int
    total: TotalQueue
    handled: int
    took_s: float
    kills: dict[str, int]
    worst_wake_s: dict[str, float]
    broken: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it as what JSON knows."""
        return {
            "seed": self.seed,
            **self.total._asdict(),
            "seconds": round(self.took_s, 1),
            "handled_per_second": round(self.handled / self.took_s),
            "kills": self.kills,
            "worst_wake_s": {name: round(wake, 3) for name, wake in self.worst_wake_s.items()},
            "broken": self.broken,
        }


class ClusterCrew(Crew):
    """Workers and producers of a cluster; the store of the last worker is the database itself."""

    def __init__(self, processes: Processes, ground: ClusterGround, heard: Callable[[str, float], None]) -> None:
        super().__init__(processes, heard)
        self._ground = ground

    def address(self) -> str:
        return self._ground.url

    def addresses(self, seat: int) -> tuple[str, str]:
        store = self._ground.postgres.url() if seat == WORKERS - 1 else self._ground.url
        return store, self._ground.url


class ClusterRun:
    """One long run of a cluster, with ``auth`` of processes that have keys. ``say`` hears of its progress."""

    def __init__(
        self, messages: int, *, minutes: float, seed: int, say: Callable[[str], None], auth: bool = False
    ) -> None:
        self._messages = messages
        self._minutes = minutes
        self._seed = seed
        self._draw = random.Random(seed)
        self._say = say
        self._auth = auth
        self._kills: Counter[str] = Counter()
        self._healing: dict[asyncio.Task[None], str] = {}
        self._ground: ClusterGround
        self._nodes: list[NatsServer] = []
        """Those of NATS that answer."""
        self._crew: ClusterCrew
        self._probes: Probes
        self._began = 0.0

    async def run(self, folder: Path) -> ClusterOutcome:
        """Put, kill, restart, drain, and sum up."""
        async with AsyncExitStack() as stack:
            processes = await stack.enter_async_context(Processes(folder, auth=self._auth))
            settings = PACE._replace(sweep_s=SWEEP_S).settings()
            self._ground = ground = await stack.enter_async_context(ClusterGround(processes, settings))
            probed = await stack.enter_async_context(ground.store(timeout=PROBE_CALL_S))

            async def probe(body: str) -> bool:
                try:
                    await probed.put(PROBE, [body])
                except StoreError:
                    return False
                return True

            self._probes = Probes(probe)
            self._nodes = list(ground.nats.nodes)
            self._crew = crew = ClusterCrew(processes, ground, self._probes.heard)
            for seat in range(WORKERS):
                await crew.start_worker(seat)
            await ground.have_listeners(2 * WORKERS)
            self._began = time.monotonic()
            beside = [
                asyncio.create_task(self._probes.run(), name="probing"),
                asyncio.create_task(self._tell(), name="telling"),
            ]
            try:
                for _ in range(PRODUCERS):
                    await crew.start_producer(-(-self._messages // PRODUCERS))
                await self._hurt()
                self._say("all is put and healed; draining")
                await crew.drain(self._empty)
                took = time.monotonic() - self._began
            finally:
                beside += self._healing
                for task in beside:
                    task.cancel()
                await asyncio.wait(beside)
            total, handled = crew.tally.total(), crew.tally.handled()
        outcome = ClusterOutcome(self._seed, total, handled, took, dict(self._kills), dict(self._probes.worst_s))
        wanted = 1 if self._minutes else self._messages
        outcome.broken = [
            *(f"{name}={count}" for name, count in (("lost", total.lost), ("unexpected", total.unexpected)) if count),
            *([f"only {total.acknowledged:,} were acknowledged"] if total.acknowledged < wanted else []),
        ]
        return outcome

    async def _empty(self) -> bool:
        try:
            state = await self._ground.living().queue(QUEUE)
        except aiohttp.ClientError:
            return False
        return bool(state.get("depth") == {"visible": 0, "invisible": 0})

    # Faults ------------------------------------------------------------------------------------------------------

    async def _hurt(self) -> None:
        await until(self._crew.acknowledged, "the first are acknowledged")
        healed = asyncio.Event()
        feeding = asyncio.create_task(self._feed(healed), name="feeding")
        due = time.monotonic()
        while not self._enough():
            due = max(due + KILL_EVERY_S, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            restarts = self._put() > 0.5 and self._kills.total() >= KILLS_LEAST and not self._kills[ROLLING]
            crashes = self._kills.total() % POSTGRES_EVERY == POSTGRES_EVERY - 1
            await self._healed(wait=restarts or crashes)
            if restarts:
                self._kills[ROLLING] += 1
                self._probes.begin(ROLLING)
                await restart_all(self._ground)
                self._probes.end(bridge_was_away=False)
            else:
                self._kill(crashes=crashes)
        await self._healed(wait=True)
        healed.set()
        await feeding
        for number in self._crew.producing():
            await self._crew.producers[number][0].kill()

    def _put(self) -> float:
        """Return how much is put, of all messages or of the time: 1 is all of it."""
        past = (time.monotonic() - self._began) / (60 * self._minutes) if self._minutes else 0.0
        return max(past, self._crew.acknowledged() / self._messages)

    def _enough(self) -> bool:
        return self._put() >= 1 and self._kills[ROLLING] > 0

    async def _feed(self, healed: asyncio.Event) -> None:
        """Have producers put for as long as anything is hurt."""
        while not healed.is_set():
            if not self._crew.producing():
                await self._crew.start_producer(MORE)
            await asyncio.sleep(GLANCE_S)

    def _kill(self, *, crashes: bool) -> None:
        """Kill one thing, of what may go now, and have it come back beside what else is done."""
        kinds: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {}
        if len(self._ground.bridges) > 1:
            kinds[BRIDGE] = self._bridge
        if len(self._nodes) > 1:
            kinds[NODE] = self._node
        if WORKER not in self._healing.values():
            kinds[WORKER] = self._worker
        if crashes:
            kinds = {POSTGRES: self._ground.restart_postgres}
        if not kinds:
            return  # all that may be away is
        kind = self._draw.choice(list(kinds))
        self._kills[kind] += 1
        self._probes.begin(kind)
        self._healing[asyncio.create_task(kinds[kind](), name=f"kill {kind}")] = kind

    async def _healed(self, *, wait: bool) -> None:
        """Take note of what is back; with ``wait`` wait for all of it."""
        if wait and self._healing:
            await asyncio.wait(self._healing)
        for task, kind in list(self._healing.items()):
            if task.done():
                del self._healing[task]
                await task
                self._probes.end(bridge_was_away=kind == POSTGRES)

    async def _bridge(self) -> None:
        place = self._draw.choice(list(self._ground.bridges))
        await self._ground.kill(place)
        await asyncio.sleep(self._draw.uniform(0.0, AWAY_S))
        await self._ground.start(place)

    async def _node(self) -> None:
        node = self._nodes.pop(self._draw.randrange(len(self._nodes)))
        await node.kill()
        await asyncio.sleep(self._draw.uniform(0.0, AWAY_S))
        await node.start()
        self._nodes.append(node)

    async def _worker(self) -> None:
        seat = self._draw.randrange(WORKERS)
        await self._crew.workers[seat].kill()
        await self._crew.start_worker(seat)

    async def _tell(self) -> None:
        before = 0
        while True:
            await asyncio.sleep(SAY_EVERY_S)
            taken, handled = self._crew.acknowledged(), self._crew.tally.handled()
            seconds = time.monotonic() - self._began
            left = max(0, self._messages - taken) / max(1.0, taken / seconds)
            now = "" if self._probes.fault == NONE else f", now {self._probes.fault}"
            self._say(
                f"{seconds:5.0f} s  acknowledged {taken:,} of {self._messages:,}  handled {handled:,} "
                f"({(handled - before) / SAY_EVERY_S:,.0f}/s)  {left:.0f} s to go  killed {self._kills.total()}{now}"
            )
            before = handled
