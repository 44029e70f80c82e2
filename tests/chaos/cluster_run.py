"""The long run of a cluster: something of it is killed every second, and half way all of it is restarted in turn.

Producers and workers have the addresses of all three bridges. Of bridges, NATS servers and workers one of each is left
at least; PostgreSQL crashes now and then. A second queue is probed all the while, see `long_run`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from queuebell.bridge.contract.errors import StoreError
from tests.chaos.cluster_ground import ClusterGround
from tests.chaos.clusters import restart_all
from tests.chaos.long_run import PACE, PROBE, PROBE_CALL_S, QUEUE, WORKERS, Crew, Outcome, Probes, Run
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


class ClusterRun(Run):
    """One long run of a cluster."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._healing: dict[asyncio.Task[None], str] = {}
        self._ground: ClusterGround
        self._nodes: list[NatsServer] = []
        """Those of NATS that answer."""
        self._crew: ClusterCrew

    async def run(self, folder: Path) -> Outcome:
        """Put, kill, restart, drain, and sum up."""
        async with AsyncExitStack() as stack:
            processes = await stack.enter_async_context(Processes(folder, auth=self.auth))
            settings = PACE._replace(sweep_s=SWEEP_S).settings()
            self._ground = ground = await stack.enter_async_context(ClusterGround(processes, settings))
            probed = await stack.enter_async_context(ground.store(timeout=PROBE_CALL_S))

            async def probe(body: str) -> bool:
                try:
                    await probed.put(PROBE, [body])
                except StoreError:
                    return False
                return True

            self.probes = Probes(probe)
            self._nodes = list(ground.nats.nodes)
            self._crew = crew = ClusterCrew(processes, ground, self.probes.heard)
            for seat in range(WORKERS):
                await crew.start_worker(seat)
            await ground.have_listeners(2 * WORKERS)
            try:
                took = await self.load(crew, self._hurt, self._empty)
            finally:
                for task in self._healing:
                    task.cancel()
                await asyncio.gather(*self._healing, return_exceptions=True)
        return self.outcome(crew, took, {})

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
        while self._put() < 1 or not self.counts[ROLLING]:
            due = max(due + KILL_EVERY_S, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            restarts = self._put() > 0.5 and self.counts.total() >= KILLS_LEAST and not self.counts[ROLLING]
            crashes = self.counts.total() % POSTGRES_EVERY == POSTGRES_EVERY - 1
            await self._healed(wait=restarts or crashes)
            if restarts:
                self.counts[ROLLING] += 1
                self.probes.begin(ROLLING)
                await restart_all(self._ground)
                self.probes.end(bridge_was_away=False)
            else:
                self._kill(crashes=crashes)
        await self._healed(wait=True)
        healed.set()
        await feeding

    def _put(self) -> float:
        """Return how much is put: 1 is all of it."""
        return self._crew.acknowledged() / self.messages

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
        kind = self.draw.choice(list(kinds))
        self.counts[kind] += 1
        self.probes.begin(kind)
        self._healing[asyncio.create_task(kinds[kind](), name=f"kill {kind}")] = kind

    async def _healed(self, *, wait: bool) -> None:
        """Take note of what is back; with ``wait`` wait for all of it."""
        if wait and self._healing:
            await asyncio.wait(self._healing)
        for task, kind in list(self._healing.items()):
            if task.done():
                del self._healing[task]
                await task
                self.probes.end(bridge_was_away=kind == POSTGRES)

    async def _bridge(self) -> None:
        place = self.draw.choice(list(self._ground.bridges))
        await self._ground.kill(place)
        await asyncio.sleep(self.draw.uniform(0.0, AWAY_S))
        await self._ground.start(place)

    async def _node(self) -> None:
        node = self._nodes.pop(self.draw.randrange(len(self._nodes)))
        await node.kill()
        await asyncio.sleep(self.draw.uniform(0.0, AWAY_S))
        await node.start()
        self._nodes.append(node)

    async def _worker(self) -> None:
        seat = self.draw.randrange(WORKERS)
        await self._crew.workers[seat].kill()
        await self._crew.start_worker(seat)
