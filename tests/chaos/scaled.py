"""Faults of workers that a scaler starts: it, they, the bridge and the store are killed at each step from put to end.

Each step begins with no worker at all, and after each nobody is left of those that were there before: no process whose
scaler is gone, and none of its group.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import aiohttp

from tests.chaos import pace
from tests.chaos.pace import Promise
from tests.chaos.row import Row
from tests.chaos.scaled_worker import STEPS
from tests.chaos.site import INSIDE, QUEUE, Site
from tests.support.processes import GLANCE_S, SCALER, Program, until

START_S: Final = 3.0
"""What a Python worker takes from its start to its hello on a machine that has other things to do."""
MAX: Final = 2
KILLS: Final = 6
SCALER_STEPS: Final = {
    "wake": "queuebell.listeners.scaling.queue_scaler:QueueScaler.wake/1",
    "count": "queuebell.bridge.queues.http.store:HttpStore.depth/1",
    "start": "queuebell.listeners.scaling.actuators.process:ProcessActuator._start/1",
    "hello": "queuebell.listeners.scaling.scaled_queue:ScaledQueue.ready/1",
    "busy": "queuebell.listeners.scaling.scaled_queue:ScaledQueue.busy_changed/1",
    "idle": "queuebell.listeners.scaling.scaled_queue:ScaledQueue.audited/1",
    "end": "queuebell.listeners.scaling.actuators.process:ProcessActuator.stop/1",
}
"""Where a scaler is killed, from the wake on."""
LATE: Final = ("idle", "end")
"""Steps after the message was handled."""
FRAMES: Final = (1, 2, 3, 4, 6)
"""Frames that the bridge takes until a worker has covered: started, more, hello, started, cover ..., and beats."""
STORE_STEPS: Final = (
    "queuebell.bridge.http.api.queues:QueueRoutes.describe/1",
    "queuebell.bridge.http.api.queues:QueueRoutes.receive/1",
    "queuebell.bridge.http.api.queues:QueueRoutes.settle/1",
)


class ScaledGround:
    """A scaler, the events of its workers, and the account of their processes. An async context manager."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.folder = site.processes.folder / "scaled"
        self.pids: set[int] = set()
        self.scaler: Program
        self._read = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.folder.mkdir()
        (self.folder / "events").touch()
        self._task = asyncio.create_task(self._follow(), name="events of workers")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
        for pid in self.living():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    async def _follow(self) -> None:
        while True:
            self._hear()
            await asyncio.sleep(GLANCE_S)

    def _hear(self) -> None:
        with (self.folder / "events").open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                event = json.loads(line)
                self.pids.add(event["pid"])
                if event["event"] == "start":
                    self.site.tally.began(event["body"], event["at"])
                elif event["event"] == "done":
                    self.site.tally.ended(event["body"])

    async def scale(self, *launcher: str, **options: object) -> float:
        """Start a scaler, and return when the bridge knew it."""
        site = self.site
        wanted = {"max": MAX, "per_process": 4, "idle": 0.1, "start_timeout": 20, "grace": 2, **options}
        words = [word for name, value in wanted.items() for word in (f"--{name.replace('_', '-')}", str(value))]
        worker = [sys.executable, "-m", "tests.chaos.scaled_worker", str(self.folder), site.store.url, site.bridge.url]
        module = launcher or ("-m", "queuebell")
        self.scaler = await site.processes.start(
            *(sys.executable, *module, "scale", site.store.url, QUEUE, "--bridge", site.bridge.url, *words, "--"),
            *(*worker, QUEUE, str(site.pace.visibility_s)),
            name="scaler",
            role=SCALER,
        )
        await until(self._known, "the bridge knows the scaler")
        return time.monotonic()

    async def _known(self) -> bool:
        _, state = await self.site.bridge.ask("/v1/listeners")
        return any(one["kind"] == "scaler" for one in state["listeners"])

    def living(self) -> set[int]:
        """Return the groups of workers in which somebody lives."""
        return {pid for pid in self.pids if _lives(pid)}

    async def until_nobody(self) -> None:
        """Wait until no worker is left, nor anybody of its group."""

        def nobody() -> bool:
            self._hear()
            return not self.living()

        await until(nobody, "no worker is left", 60.0)


def _lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    # Who has ended and was not waited for yet is nobody.
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] not in "ZX":
                return True
    return not Path("/proc/self/stat").exists()


async def scaler_killed(site: Site, steps: Collection[str] = tuple(SCALER_STEPS)) -> None:
    """F49a."""
    await site.own()
    async with ScaledGround(site) as ground:
        for step in steps:
            await ground.scale(*INSIDE, "exit", SCALER_STEPS[step])
            ground.scaler.signal(signal.SIGUSR1)
            bodies = await site.put(3)
            if step in LATE:
                await site.tally.all_done(bodies)
            assert await ground.scaler.ended() == 9, step
            # The workers of the dead one hear its end; the next one starts its own.
            left = set(ground.pids)
            ready = await ground.scale()
            await site.wakes(bodies, ready)
            await until(lambda left=left: not left & ground.living(), f"nobody is left of those before ({step})", 60.0)
            assert await ground.scaler.stop() == 0
            await ground.until_nobody()
        site.figures["killed at"] = f"{len(steps)} steps, {len(ground.pids)} workers, 0 left"


async def worker_killed(site: Site) -> None:
    """F49b."""
    await site.own()
    async with ScaledGround(site) as ground:
        for step in STEPS:
            await ground.scale()  # another each time: one that saw them all fail would wait longer and longer
            mark = ground.folder / f"die-{step}"
            mark.touch()
            began = time.monotonic()
            bodies = await site.put(1)
            await until(lambda mark=mark: not mark.exists(), f"somebody died at {step}")
            await site.tally.all_done(bodies)
            site.tally.measure(bodies, began)
            # Who died before its delete was done with the message, and its queue is not: that is for this scaler still.
            await site.store.is_drained(QUEUE)
            await ground.until_nobody()
            assert await ground.scaler.stop() == 0
        site.figures["killed at"] = f"{len(STEPS)} steps, {len(ground.pids)} workers, 0 left"


async def bridge_killed(site: Site) -> None:
    """F49c."""
    await site.elsewhere()
    async with ScaledGround(site) as ground:
        await ground.scale()
        for number in FRAMES:
            await ground.until_nobody()
            await site.bridge.kill()
            await site.again(
                launcher=(*INSIDE, "exit", f"queuebell.bridge.core.wake_scheduler:WakeScheduler.frame/{number}")
            )
            await until(ground._known, "the scaler is back")
            site.bridge.signal(signal.SIGUSR1)
            bodies = await site.put(1, tell=False)
            with contextlib.suppress(OSError, aiohttp.ServerDisconnectedError):
                await site.trigger()
            assert await site.bridge.ended() == 9
            ready = await site.again()
            await site.wakes(bodies, ready)
        await ground.until_nobody()
        assert await ground.scaler.stop() == 0
        site.figures["killed at"] = f"{len(FRAMES)} frames, {len(ground.pids)} workers, 0 left"


async def store_killed(site: Site) -> None:
    """F49d."""
    await site.elsewhere()
    async with ScaledGround(site) as ground:
        await ground.scale()
        for step in STORE_STEPS:
            # A scaler may count at any moment and find the message before its trigger; a worker would have it then.
            counted, bodies = step == STORE_STEPS[0], list[str]()
            while not bodies:
                # The store may have died of a worker that was started before: that one needs a store to end.
                await site.store.kill()
                site.store = await site.serve(data="store", port=site.store.port)
                await ground.until_nobody()
                await site.store.kill()
                site.store = await site.serve(data="store", port=site.store.port, launcher=(*INSIDE, "exit", step))
                if not counted:
                    site.store.signal(signal.SIGUSR1)
                bodies = await site.try_put(1)
            if counted:
                site.store.signal(signal.SIGUSR1)
            await site.trigger()
            assert await site.store.ended() == 9
            site.store = await site.serve(data="store", port=site.store.port)
            await site.wakes(bodies, time.monotonic())
        await ground.until_nobody()
        assert await ground.scaler.stop() == 0
        site.figures["killed at"] = f"{len(STORE_STEPS)} steps, {len(ground.pids)} workers, 0 left"


async def all_killed_by_turns(site: Site, kills: int = KILLS) -> None:
    """F49e: puts go on, and one of them dies each time that some more were handled."""
    await site.own()
    chance, killed = random.Random(kills), Counter[str]()
    async with ScaledGround(site) as ground:
        await ground.scale(max=4, per_process=2)
        done = len(site.tally.done)
        while sum(killed.values()) < kills:
            await site.try_put(8)
            if len(site.tally.done) < done + 8:
                await asyncio.sleep(GLANCE_S)
                continue
            victim = chance.choice(("scaler", "scaler", "bridge", "workers", "scaler and bridge"))
            killed[victim] += 1
            if victim == "workers":
                for pid in ground.living():
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, signal.SIGKILL)
            if "bridge" in victim:
                await site.bridge.kill()
            if "scaler" in victim:
                await ground.scaler.kill()
            if "bridge" in victim:
                await site.again()
            if "scaler" in victim:
                # Not the back-off of what was killed: the next one knows of no failure.
                await ground.scale(max=4, per_process=2)
            done = len(site.tally.done)
        await site.tally.all_done()
        await ground.until_nobody()
        assert await ground.scaler.stop() == 0
        told = ", ".join(f"{count} x {who}" for who, count in sorted(killed.items()))
        site.figures["killed"] = f"{told}; {len(ground.pids)} workers, 0 left"


def started(promise: Promise) -> Promise:
    """Add the start of a worker."""
    return pace.later(promise, START_S, "a start")


ROWS = (
    Row("F49a", "scaler killed at each step", "failpoints from the wake to the end of a worker",
        started(pace.reconnect), scaler_killed),
    Row("F49b", "scaled worker killed at each step", "kill -9 of itself, from its first line to its delete",
        started(pace.later(pace.lease, 2.0 + START_S, "back-off and a start")), worker_killed),
    Row("F49c", "bridge of a scaler killed at each frame", "failpoint at one of the first frames after a put",
        started(pace.reconnect), bridge_killed),
    Row("F49d", "store of a scaler killed at a count, a receive, a delete", "failpoints before each answer",
        started(pace.store_back), store_killed),
    Row("F49e", "scaler, scaled workers and bridge killed by turns under load", "kill -9 of one or two, six times",
        started(pace.store_back), all_killed_by_turns, judged=False),
)  # fmt: skip
