"""The long run: producers put as many messages as are asked for, workers handle them, and faults fall on all of them.

A second queue is probed all the while, one message after the other: it has room at any time, so that how long a probe
waits is what a fault does to a wake.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import aiohttp

from tests.chaos import pace
from tests.chaos.bulk import BulkTally
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
REPORT_EVERY_S = 2.0
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


class Outcome(NamedTuple):
    """What a long run came to; seconds."""

    seed: int
    total: TotalQueue
    handled: int
    took_s: float
    faults: dict[str, int]
    """How often each was injected, or what was killed how often."""
    worst_wake_s: dict[str, float]
    bounds_s: dict[str, float]
    broken: list[str]


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
        module = ("-m", "tests.chaos.bulk", "work")
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
        module = ("-m", "tests.chaos.bulk", "put")
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
            await asyncio.sleep(PROBE_EVERY_S)

    async def _measure(self, body: str, acknowledged_at: float) -> None:
        while body not in self._seen:
            self._news.clear()
            await self._news.wait()
        wake = max(0.0, self._seen.pop(body) - max(acknowledged_at, self.healed_at))
        # Whatever fault it met on its way, it is the newest that it waited for.
        met = self._touched
        self.worst_s[met] = max(self.worst_s.get(met, 0.0), wake)


class Run:
    """A run of so many messages, with ``auth`` of processes that have keys. ``say`` hears of its progress."""

    def __init__(self, messages: int, *, seed: int, say: Callable[[str], None], auth: bool = False) -> None:
        self.messages = messages
        self.seed = seed
        self.draw = random.Random(seed)
        self.say = say
        self.auth = auth
        self.counts: Counter[str] = Counter()
        self.probes: Probes
        self.began = 0.0

    async def load(
        self, crew: Crew, hurt: Callable[[], Awaitable[None]], empty: Callable[[], Awaitable[bool]]
    ) -> float:
        """Put, hurt, and drain; return how long that took."""
        self.began = time.monotonic()
        beside = [
            asyncio.create_task(self.probes.run(), name="probing"),
            asyncio.create_task(self._tell(crew), name="telling"),
        ]
        try:
            for _ in range(PRODUCERS):
                await crew.start_producer(-(-self.messages // PRODUCERS))
            await hurt()
            for number in crew.producing():
                await crew.producers[number][0].kill()
            self.say("all is put and healed; draining")
            await crew.drain(empty)
            return time.monotonic() - self.began
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)

    def outcome(self, crew: Crew, took_s: float, bounds_s: dict[str, float]) -> Outcome:
        """Sum up; of what has no bound, no wait is too long."""
        total, worst = crew.tally.total(), dict(self.probes.worst_s)
        broken = [f"{name}={n}" for name, n in (("lost", total.lost), ("unexpected", total.unexpected)) if n]
        if total.acknowledged < self.messages:
            broken.append(f"only {total.acknowledged:,} were acknowledged")
        for fault, bound in bounds_s.items():
            if worst.get(fault, 0.0) > bound + ALLOWANCE_S:
                broken.append(f"{fault}: worst wake {worst[fault]:.2f} s, promised {bound:.2f} s")
        return Outcome(self.seed, total, crew.tally.handled(), took_s, dict(self.counts), worst, bounds_s, broken)

    async def _tell(self, crew: Crew) -> None:
        before = 0
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            taken, handled = crew.acknowledged(), crew.tally.handled()
            now = "" if self.probes.fault == NONE else f", now {self.probes.fault}"
            self.say(
                f"{time.monotonic() - self.began:5.0f} s  acknowledged {taken:,} of {self.messages:,}  handled "
                f"{handled:,} ({(handled - before) / REPORT_EVERY_S:,.0f}/s)  faults {self.counts.total()}{now}"
            )
            before = handled


class LongRun(Run):
    """One long run, of one bridge."""

    async def run(self, folder: Path, faults: list[str]) -> Outcome:
        """Put, hurt, heal, drain, and sum up."""
        async with AsyncExitStack() as stack:
            processes = await stack.enter_async_context(Processes(folder, auth=self.auth))
            port = free_port()
            proxy = await stack.enter_async_context(TcpProxy(port))
            client = await stack.enter_async_context(aiohttp.ClientSession(headers=processes.headers))
            self.probes = Probes(lambda body: _probe(client, f"http://127.0.0.1:{port}", body))
            ground = Ground(processes, proxy, port, self.probes.heard)
            await ground.start_bridge()
            for seat in range(WORKERS):
                await ground.start_worker(seat)
            await ground.bridge.has_listeners(2 * WORKERS)

            async def empty() -> bool:
                return (await ground.bridge.queue(QUEUE)).get("depth") == {"visible": 0, "invisible": 0}

            took = await self.load(ground, lambda: self._hurt(ground, [FAULTS[name] for name in faults]), empty)
        bounds = {NONE: 0.0} | {name: FAULTS[name].bound_s(PACE) for name in faults if self.counts[name]}
        return self.outcome(ground, took, bounds)

    async def _hurt(self, ground: Ground, faults: list[LongFault]) -> None:
        pending: list[LongFault] = []
        while ground.producing():
            await asyncio.sleep(self.draw.uniform(0.5, 2.0))
            if not faults:
                continue
            # Every kind once, in an order drawn, before any comes again.
            pending = pending or self.draw.sample(faults, len(faults))
            fault = pending.pop()
            self.counts[fault.number] += 1
            self.probes.begin(fault.number)
            await fault.inject(ground, self.draw)
            self.probes.end(bridge_was_away=fault.bridge_is_away)


async def _probe(client: aiohttp.ClientSession, url: str, body: str) -> bool:
    try:
        async with asyncio.timeout(PROBE_CALL_S):
            async with client.post(f"{url}/v1/queues/{PROBE}/messages", json={"messages": [{"body": body}]}) as got:
                await got.read()
                return got.status == 201
    except (aiohttp.ClientError, OSError, TimeoutError):
        return False


# What is done to its processes, and what a probe may wait meanwhile --------------------------------------------------


class LongFault(NamedTuple):
    """One kind of fault; while the ``bridge_is_away``, waits count from when it is back."""

    number: str
    what: str
    inject: Callable[[Ground, random.Random], Awaitable[None]]
    bound_s: Callable[[Pace], float]
    bridge_is_away: bool = False


async def lasts(seconds: float) -> None:
    """Let a fault last."""
    await asyncio.sleep(seconds)


async def kill_producer(ground: Ground, draw: random.Random) -> None:
    """Kill a producer, and start another for what it leaves."""
    running = ground.producing()
    if running:
        number = draw.choice(running)
        program, count = ground.producers[number]
        await program.kill()
        left = count - ground.tally.acknowledged(number)
        if left > 0:
            await ground.start_producer(left)


async def kill_bridge(ground: Ground, draw: random.Random) -> None:
    """Kill the bridge, and start it again after a moment."""
    await ground.bridge.kill()
    await lasts(draw.uniform(0.0, 1.0))
    await ground.start_bridge()


async def stop_bridge(ground: Ground, draw: random.Random) -> None:
    """Stop the bridge, shorter or longer than it takes to be found dead."""
    ground.bridge.signal(signal.SIGSTOP)
    await lasts(draw.uniform(0.3, 1.5) * PACE.death_s)
    ground.bridge.signal(signal.SIGCONT)


async def kill_worker(ground: Ground, draw: random.Random) -> None:
    """Kill a worker with all it holds, and start another in its place."""
    seat = draw.randrange(WORKERS)
    await ground.workers[seat].kill()
    await ground.start_worker(seat)


async def stop_worker(ground: Ground, draw: random.Random) -> None:
    """Stop a worker for longer than its leases."""
    worker = ground.workers[draw.randrange(WORKERS)]
    worker.signal(signal.SIGSTOP)
    await lasts(PACE.visibility_s + draw.uniform(0.5, 2.0))
    worker.signal(signal.SIGCONT)


async def half_open(ground: Ground, _: random.Random) -> None:
    """Let every byte of one session vanish until both sides must know."""
    ground.proxy.black_hole()
    await lasts(1.2 * PACE.death_s)
    ground.proxy.heal()
    ground.proxy.cut()


async def resets(ground: Ground, draw: random.Random) -> None:
    """Reset one session again and again."""
    for _ in range(8):
        ground.proxy.cut()
        await lasts(draw.uniform(0.0, 0.3))


async def slices(ground: Ground, _: random.Random) -> None:
    """Carry one session byte by byte."""
    for on in (True, False):
        ground.proxy.up.one_byte = ground.proxy.down.one_byte = on
        await lasts(2.0 * on)


async def clock_jumps(ground: Ground, _: random.Random) -> None:
    """Set the bridge's wall clock an hour ahead."""
    ground.bridge.signal(signal.SIGUSR1)
    await lasts(0.5)


async def no_descriptors(ground: Ground, _: random.Random) -> None:
    """Leave the bridge two file descriptors."""
    pid = ground.bridge.process.pid
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    limit = len(list(Path(f"/proc/{pid}/fd").iterdir())) + 2
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    await lasts(1.5)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


async def block_loop(ground: Ground, draw: random.Random) -> None:
    """Block a worker's event loop for longer than D."""
    ground.workers[draw.randrange(WORKERS)].tell(f"block {1.3 * PACE.death_s}")
    await lasts(1.3 * PACE.death_s)


def taken_over(periods: Pace) -> float:
    """The holder is gone: its lease ends, or it is found dead, and others are asked."""
    return pace.lease(periods).seconds


def back_again(periods: Pace) -> float:
    """The bridge is back; a probe may have been leased to a session that went with it."""
    return pace.reconnect(periods).seconds + periods.visibility_s + 1.0


def unhurt(periods: Pace) -> float:
    """Nobody who is needed is hurt."""
    return pace.healthy(periods).seconds


FAULTS = {
    fault.number: fault
    for fault in (
        LongFault("F1", "producer killed", kill_producer, unhurt),
        LongFault("F10", "bridge killed", kill_bridge, back_again, bridge_is_away=True),
        LongFault("F12", "bridge stopped", stop_bridge, back_again, bridge_is_away=True),
        LongFault("F15", "worker killed with its leases", kill_worker, taken_over),
        LongFault("F17", "worker stopped for longer than its leases", stop_worker, taken_over),
        LongFault("F21", "half-open session", half_open, taken_over),
        LongFault("F22", "sessions reset", resets, taken_over),
        LongFault("F24", "one byte at a time", slices, taken_over),
        LongFault("F30", "wall clock jumps", clock_jumps, unhurt),
        LongFault("F34", "no file descriptors", no_descriptors, taken_over),
        LongFault("F37", "event loop blocked", block_loop, taken_over),
    )
}
"""By number, as in the catalogue."""
