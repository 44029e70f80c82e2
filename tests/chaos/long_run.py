"""The long run: producers put as many messages as are asked for, workers handle them, and faults fall on all of them.

A second queue is probed all the while, one message after the other: it has room at any time, so that how long a probe
waits is what a fault does to a wake.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.chaos.bulk_tally import BulkTally
from tests.chaos.pace import ALLOWANCE_S, Pace
from tests.chaos.site import INSIDE
from tests.chaos.tally import TotalQueue
from tests.support.processes import PRODUCER, WORKER, Processes, Program, Service, free_port, until
from tests.support.tcp_proxy import TcpProxy

QUEUE = "chaos/bulk"
PROBE = "chaos/probe"
PACE = Pace(heartbeat_s=1.0, start_ack_s=0.5, store_call_s=10.0, sweep_s=60.0, visibility_s=5.0, luck=1.0)
PRODUCERS = 2
WORKERS = 3
PROBE_EVERY_S = 0.2
PROBE_CALL_S = 2.0
SAY_EVERY_S = 2.0
STANDSTILL_S = 60.0
"""A drain that handles nothing for so long has failed."""
NONE = "none"


class Worker(Program):
    """A worker process; it tells of probes."""

    probed: Callable[[str, float], None] | None = None

    def heard(self, line: str) -> None:
        """Take note of a probe."""
        event = json.loads(line)
        if event["event"] == "probe" and self.probed is not None:
            self.probed(event["body"], event["at"])


@dataclass
class Outcome:
    """What a long run came to; seconds."""

    seed: int
    total: TotalQueue
    handled: int
    took_s: float
    faults: dict[str, int]
    worst_wake_s: dict[str, float]
    bounds_s: dict[str, float]
    broken: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it as what JSON knows."""
        return {
            "seed": self.seed,
            **self.total._asdict(),
            "duplicates_share": self.total.duplicated / max(1, self.handled),
            "seconds": round(self.took_s, 1),
            "handled_per_second": round(self.handled / self.took_s),
            "faults": self.faults,
            "worst_wake_s": {name: round(wake, 3) for name, wake in self.worst_wake_s.items()},
            "bounds_s": self.bounds_s,
            "broken": self.broken,
        }


class Crew:
    """The workers and producers of a long run, how to start each anew, and their account."""

    def __init__(self, processes: Processes, heard: Callable[[str, float], None]) -> None:
        self.processes = processes
        # Apart from the logs, which are named for their processes too.
        self.notes = processes.folder / "notes"
        self.notes.mkdir()
        self.tally = BulkTally(self.notes)
        self.workers: list[Worker] = []
        self.producers: dict[int, tuple[Program, int]] = {}
        self._heard = heard
        self._started = 0
        self._numbers = 0

    def address(self) -> str:
        """Where producers put."""
        raise NotImplementedError

    def addresses(self, seat: int) -> tuple[str, str]:
        """Where the worker of a seat has its queues, and where its sessions."""
        raise NotImplementedError

    async def start_worker(self, seat: int) -> Worker:
        """Start a worker."""
        self._started += 1
        file = self.notes / f"handled-{self._started}"
        module = ("-m", "tests.chaos.bulk_worker")
        worker: Worker = await self.processes.start(
            *(sys.executable, *module, *self.addresses(seat), QUEUE, PROBE, str(PACE.visibility_s), str(file)),
            name=file.name,
            kind=Worker,
            role=WORKER,
        )
        worker.probed = self._heard
        self.workers[seat : seat + 1] = [worker]
        await worker.line('"up"')
        return worker

    async def start_producer(self, count: int) -> None:
        """Start a producer of so many messages."""
        self._numbers += 1
        module = ("-m", "tests.chaos.bulk_producer")
        program = await self.processes.start(
            *(sys.executable, *module, self.address(), QUEUE, str(self._numbers), str(count), str(self.notes)),
            name=f"producer-{self._numbers}",
            role=PRODUCER,
        )
        self.producers[self._numbers] = (program, count)

    def acknowledged(self) -> int:
        """Return how many messages were acknowledged so far."""
        return sum(self.tally.acknowledged(number) for number in range(1, self._numbers + 1))

    def producing(self) -> list[int]:
        """Return the numbers of the producers that still run."""
        return [number for number, (program, _) in self.producers.items() if program.code is None]

    async def drain(self, empty: Callable[[], Awaitable[bool]]) -> None:
        """Wait until the queue is empty; fails where nothing of it is handled for too long."""

        async def moved(before: int) -> bool:
            return self.tally.handled() > before or await empty()

        while not await empty():
            before = self.tally.handled()
            await until(lambda before=before: moved(before), "another message is handled", STANDSTILL_S)


class Ground(Crew):
    """The processes of a long run with one bridge."""

    def __init__(self, processes: Processes, proxy: TcpProxy, port: int, heard: Callable[[str, float], None]) -> None:
        super().__init__(processes, heard)
        self.proxy = proxy
        self.bridge: Service
        self._port = port

    async def start_bridge(self) -> None:
        """Start the bridge on its port and its data."""
        launcher = (*INSIDE, "clock", "3600")
        self.bridge = await self.processes.serve(port=self._port, launcher=launcher, **PACE.settings())

    def address(self) -> str:
        return self.bridge.url

    def addresses(self, seat: int) -> tuple[str, str]:
        """The session of seat 0 goes through the proxy."""
        return self.bridge.url, f"http://127.0.0.1:{self.proxy.port}" if seat == 0 else self.bridge.url


class Probes:
    """Puts one probe after the other and keeps the longest wait per fault; ``put`` says whether it was acknowledged."""

    def __init__(self, put: Callable[[str], Awaitable[bool]]) -> None:
        self._put = put
        self.worst_s: dict[str, float] = {}
        self.fault = NONE
        self.healed_at = 0.0
        """Waits count from here where it is later: nobody is promised anything while the bridge is away."""
        self._seen: dict[str, float] = {}
        self._news = asyncio.Event()
        self._touched = NONE

    def begin(self, fault: str) -> None:
        """A fault begins."""
        self.fault = self._touched = fault

    def end(self, *, bridge_was_away: bool) -> None:
        """The fault is over."""
        self.fault = NONE
        if bridge_was_away:
            self.healed_at = time.monotonic()

    def heard(self, body: str, at: float) -> None:
        """A worker handled a probe."""
        self._seen.setdefault(body, at)
        self._news.set()

    async def run(self) -> None:
        """Probe until cancelled."""
        number = 0
        while True:
            number += 1
            body = f"probe-{number}"
            self._touched = self.fault
            if await self._put(body):
                await self._measure(body, time.monotonic())
            pause = PROBE_EVERY_S
            await asyncio.sleep(pause)

    async def _measure(self, body: str, acknowledged_at: float) -> None:
        while body not in self._seen:
            self._news.clear()
            await self._news.wait()
        wake = max(0.0, self._seen.pop(body) - max(acknowledged_at, self.healed_at))
        # Whatever fault it met on its way, it is the newest that it waited for.
        met = self._touched
        self.worst_s[met] = max(self.worst_s.get(met, 0.0), wake)


class LongRun:
    """One long run, with ``auth`` of processes that have keys. ``say`` hears of its progress."""

    def __init__(
        self,
        messages: int,
        *,
        minutes: float,
        seed: int,
        faults: list[str],
        say: Callable[[str], None],
        auth: bool = False,
    ) -> None:
        self._messages = messages
        self._minutes = minutes
        self._seed = seed
        self._draw = random.Random(seed)
        self._wanted = faults
        self._say = say
        self._auth = auth
        self._counts: Counter[str] = Counter()
        self._probes: Probes
        self._began = 0.0

    async def run(self, folder: Path) -> Outcome:
        """Put, hurt, heal, drain, and sum up."""
        from tests.chaos.long_faults import FAULTS

        async with AsyncExitStack() as stack:
            processes = await stack.enter_async_context(Processes(folder, auth=self._auth))
            port = free_port()
            proxy = await stack.enter_async_context(TcpProxy(port))
            client = await stack.enter_async_context(aiohttp.ClientSession(headers=processes.headers))
            self._probes = Probes(lambda body: _probe(client, f"http://127.0.0.1:{port}", body))
            ground = Ground(processes, proxy, port, self._probes.heard)
            await ground.start_bridge()
            for seat in range(WORKERS):
                await ground.start_worker(seat)
            await ground.bridge.has_listeners(2 * WORKERS)
            probing = asyncio.create_task(self._probes.run(), name="probing")
            telling = asyncio.create_task(self._tell(ground), name="telling")
            self._began = time.monotonic()
            try:
                for _ in range(PRODUCERS):
                    await ground.start_producer(-(-self._messages // PRODUCERS))
                await self._hurt(ground, [FAULTS[name] for name in self._wanted])
                await self._drain(ground)
                took = time.monotonic() - self._began
            finally:
                for task in (probing, telling):
                    task.cancel()
                await asyncio.wait([probing, telling])
            total, handled = ground.tally.total(), ground.tally.handled()
        bounds = {name: FAULTS[name].bound_s(PACE) for name in self._wanted if self._counts[name]}
        outcome = Outcome(self._seed, total, handled, took, dict(self._counts), dict(self._probes.worst_s), bounds)
        outcome.broken = _broken(outcome, self._messages if not self._minutes else 1)
        return outcome

    async def _hurt(self, ground: Ground, faults: list[Any]) -> None:
        ends = self._began + self._minutes * 60 if self._minutes else float("inf")
        pending: list[Any] = []
        while ground.producing() and time.monotonic() < ends:
            await asyncio.sleep(self._draw.uniform(0.5, 2.0))
            if not faults:
                continue
            # Every kind once, in an order drawn, before any comes again.
            if not pending:
                pending = self._draw.sample(faults, len(faults))
            fault = pending.pop()
            self._counts[fault.number] += 1
            self._probes.begin(fault.number)
            await fault.inject(ground, self._draw)
            self._probes.end(bridge_was_away=fault.bridge_is_away)
        for number in ground.producing():
            await ground.producers[number][0].kill()

    async def _drain(self, ground: Ground) -> None:
        self._say("all is put and healed; draining")

        async def empty() -> bool:
            return (await ground.bridge.queue(QUEUE)).get("depth") == {"visible": 0, "invisible": 0}

        await ground.drain(empty)

    async def _tell(self, ground: Ground) -> None:
        every, before = SAY_EVERY_S, 0
        while True:
            await asyncio.sleep(every)
            taken, handled = ground.acknowledged(), ground.tally.handled()
            seconds = time.monotonic() - self._began
            left = max(0, self._messages - taken) / max(1.0, taken / seconds)
            self._say(
                f"{seconds:5.0f} s  acknowledged {taken:,} of {self._messages:,}  handled {handled:,} "
                f"({(handled - before) / every:,.0f}/s)  {left:.0f} s to go  "
                f"faults {self._counts.total()}{'' if self._probes.fault == NONE else ', now ' + self._probes.fault}"
            )
            before = handled


async def _probe(client: aiohttp.ClientSession, url: str, body: str) -> bool:
    try:
        async with asyncio.timeout(PROBE_CALL_S):
            async with client.post(f"{url}/v1/queues/{PROBE}/messages", json={"messages": [{"body": body}]}) as got:
                await got.read()
                return got.status == 201
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


def _broken(outcome: Outcome, wanted: int) -> list[str]:
    """Return what was promised and not kept."""
    total = outcome.total
    broken = [f"{name}={count}" for name, count in (("lost", total.lost), ("unexpected", total.unexpected)) if count]
    if total.acknowledged < wanted:
        broken.append(f"only {total.acknowledged:,} were acknowledged")
    for fault, wake in outcome.worst_wake_s.items():
        bound = outcome.bounds_s.get(fault, 0.0)
        if wake > bound + ALLOWANCE_S:
            broken.append(f"{fault}: worst wake {wake:.2f} s, promised {bound:.2f} s")
    return broken
