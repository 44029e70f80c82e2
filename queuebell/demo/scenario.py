"""The scenario: bursts of files with quiet in between; the first starts the workers, and one of them is killed."""

from __future__ import annotations

import asyncio
import itertools
import os
import platform
import signal
import sys
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from queuebell.bridge.brokers.embedded import die_with_parent
from queuebell.bridge.contract.names import poison_reference
from queuebell.bridge.queues.base import QueueStore
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.service.state.answers import QueueState
from queuebell.command.client import BridgeClient
from queuebell.command.progress import Progress
from queuebell.demo.analysis import Facts
from queuebell.demo.outcome import Outcome, Plan, percentile, total
from queuebell.demo.worker import BATCH, FILES, RESULTS, VISIBILITY_S, Item, Result
from queuebell.listeners.handler import Message
from queuebell.listeners.listener import Listener
from queuebell.listeners.scaling.actuators.process import ProcessActuator
from queuebell.listeners.scaling.scaler import Scaler

SERVE: Final = (
    sys.executable,
    "-m",
    "queuebell",
    "serve",
    "--listen",
    "127.0.0.1:0",
    "--log-level",
    "warning",
    "--data",
)
READY: Final = "queuebell ready on "
SINGLES: Final = 20
"""Messages that are put one by one after each quiet: each one measures a whole wake-up."""
SINGLE_PAUSE_S: Final = 0.02
PATIENCE_S: Final = 30.0
GRACE_S: Final = 5.0
IDLE_MORE_S: Final = 1.0
"""How much longer workers idle than a quiet lasts, so that the messages after it wake them and start none."""
NOTICED_S: Final = 1.0
SAMPLE_S: Final = 0.05
Stop = Callable[[], Awaitable[None]]
NOT_THE_LIBRARY: Final = frozenset({"site-packages", "dist-packages", "__pycache__"})


class DemoFailed(Exception):
    """The demo could not finish; the text is one line."""


def sources(count: int | None) -> list[str]:
    """Return the ``.py`` files of the standard library, or ``count`` of them, evenly spread."""
    found = []
    for folder, folders, names in os.walk(sysconfig.get_path("stdlib")):
        folders[:] = sorted(set(folders) - NOT_THE_LIBRARY)
        found += [str(Path(folder, name)) for name in sorted(names) if name.endswith(".py")]
    wanted = len(found) if count is None else min(count, len(found))
    return [found[index * len(found) // wanted] for index in range(wanted)]


async def play(plan: Plan, progress: Progress) -> Outcome:
    """Play the scenario; no process and no file is left afterwards, also after a cancellation. Raises `DemoFailed`."""
    progress.heading(f"Queuebell demo: the standard library of Python {platform.python_version()}")
    progress.line()
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="queuebell-demo-"))
        url, ended = await stack.enter_async_context(_bridge(Path(folder)))
        progress.done("bridge", url)
        run = asyncio.create_task(_Run(plan, progress, url).play(stack), name="demo: run")
        stack.push_async_callback(_end, run)
        await asyncio.wait({run, ended}, return_when=asyncio.FIRST_COMPLETED)
        if run.done() and run.exception():
            # A client often notices the end of the bridge before its parent does.
            await asyncio.wait({ended}, timeout=NOTICED_S)
        if ended.done():
            raise DemoFailed(f"the bridge {ended.result()}")
        return run.result()


async def _end(task: asyncio.Task[Outcome]) -> None:
    task.cancel()
    await asyncio.wait([task])


@asynccontextmanager
async def _bridge(folder: Path) -> AsyncIterator[tuple[str, asyncio.Task[str]]]:
    """Run ``queuebell serve`` on a free port; yield its URL and a task that ends with its process."""
    tie = [sys.executable, "-IS", die_with_parent.__file__, str(os.getpid()), str(int(signal.SIGTERM))]
    # A bridge that the user configured by environment is not this one.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("QUEUEBELL_")}
    with (folder / "bridge.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *tie, *SERVE, str(folder / "data"), stdout=asyncio.subprocess.PIPE, stderr=log, env=environment,
            process_group=0,
        )  # fmt: skip
    assert process.stdout is not None

    async def end() -> str:
        code = await process.wait()
        last = (folder / "bridge.log").read_text("utf-8", "replace").strip().rpartition("\n")[2]
        return f"ended with code {code}: {last[:300]}"

    ended = asyncio.create_task(end(), name="demo: end of the bridge")
    try:
        line = (await process.stdout.readline()).decode().strip()
        if not line.startswith(READY):
            raise DemoFailed(f"the bridge {await ended}")
        yield line.removeprefix(READY), ended
    finally:
        with suppress(ProcessLookupError):
            process.terminate()
        _, late = await asyncio.wait([ended], timeout=GRACE_S)
        if late:
            process.kill()
            await asyncio.wait([ended])


class _Run:
    """One run: what was put, what came back, and how many workers there were."""

    def __init__(self, plan: Plan, progress: Progress, url: str) -> None:
        self._plan = plan
        self._progress = progress
        self._store: QueueStore = HttpStore(url)
        self._asking = BridgeClient(url)
        self._workers = ProcessActuator([*plan.worker, url])
        self._ids = itertools.count(1)
        self._results: dict[int, Result] = {}
        self._put = self._duplicates = self._quiet_receives = 0
        self._quiet_s = self._process_s = 0.0
        self._latencies_ms: list[float] = []
        self._came = asyncio.Event()
        self._processes = [0]
        self._kill_at: int | None = None
        self._killed: int | None = None
        self._scaler = Scaler(
            url,
            FILES,
            self._workers,
            max=plan.workers,
            idle=plan.quiet_s + IDLE_MORE_S,
            per_process=BATCH,
            handle_signals=False,
        )
        self._collector = Listener(
            url, RESULTS, self._collect, payload=Result, visibility_timeout=VISIBILITY_S, handle_signals=False
        )

    async def play(self, stack: AsyncExitStack) -> Outcome:
        """Play it all; what is begun here ends with ``stack``."""
        plan, progress = self._plan, self._progress
        stack.push_async_callback(self._store.close)
        stack.enter_context(self._asking)
        for service in (self._collector, self._scaler):
            await stack.enter_async_context(_running(service.run(), service.stop))
        await stack.enter_async_context(_running(self._sample()))
        began = time.monotonic()
        async with _within("the scaler and the collector of results had no session"):
            # The bridge answers questions; it does not call.
            while not all([(await self._state(queue)).sessions for queue in (FILES, RESULTS)]):  # noqa: ASYNC110
                await asyncio.sleep(SAMPLE_S)
        progress.done("workers", f"none yet; a scaler starts up to {plan.workers} when there is work")
        files = sources(plan.files)
        progress.done("work", f"{len(files):,} source files in bursts: {plan.bursts}")
        for number in range(plan.bursts):
            await self._burst(number + 1, files[number :: plan.bursts])
            await self._quiet(number + 1)
            await self._single(number + 1)
        states = [await self._at_rest(queue) for queue in (FILES, RESULTS)]
        dead = [await self._state(poison_reference(queue)) for queue in (FILES, RESULTS)]
        async with _within("idle workers did not end", plan.quiet_s):
            while self._workers.running():  # noqa: ASYNC110 - the processes do not call either
                await asyncio.sleep(SAMPLE_S)
        await asyncio.sleep(2 * SAMPLE_S)
        seconds = time.monotonic() - began
        progress.done("gone", "all workers have ended")
        progress.now("check", "the same analysis in one process", at_once=True)
        direct, direct_s = await _directly(files)
        progress.done("check", f"the same analysis in one process took {direct_s:.1f} s")
        facts = {
            result.item.path: result.facts for result in self._results.values() if result.item.path and result.facts
        }
        return Outcome(
            files=len(files),
            put=self._put,
            missing=self._put - len(self._results),
            duplicates=self._duplicates,
            differing=[path for path in files if facts.get(path) != direct.get(path)],
            totals=total(facts),
            workers=plan.workers,
            processes=self._processes,
            killed=self._killed,
            seconds=round(seconds, 3),
            process_s=round(self._process_s, 3),
            direct_s=round(direct_s, 3),
            quiet_s=round(self._quiet_s, 3),
            quiet_receives=self._quiet_receives,
            wakes=sum(sum(state.wakes.values()) for state in states),
            receives=sum(state.receives.total for state in states),
            receives_empty=sum(state.receives.empty for state in states),
            dead_letters=sum(state.depth.visible + state.depth.invisible for state in dead if state.depth is not None),
            p50_ms=round(percentile(self._latencies_ms, 0.5), 3),
            p99_ms=round(percentile(self._latencies_ms, 0.99), 3),
        )

    async def _burst(self, number: int, paths: Sequence[str]) -> None:
        label, done, began = f"burst {number}", len(self._results), time.monotonic()
        if number == self._plan.bursts // 2 + 1:
            self._kill_at = done + (len(paths) + 1) // 2

        def show(count: int) -> None:
            share = (count - done) / len(paths)
            self._progress.now(label, f"{count - done:,} of {len(paths):,}", share=share)

        await self._put_items(paths)
        await self._all_results(show)
        first_ms = min((result.started_ns - result.item.put_ns) / 1e6 for result in list(self._results.values())[done:])
        taken = time.monotonic() - began
        self._progress.done(label, f"{len(paths):,} files: first handler after {first_ms:.1f} ms, all in {taken:.1f} s")

    async def _quiet(self, number: int) -> None:
        before = [(await self._at_rest(queue)).receives.total for queue in (FILES, RESULTS)]
        began = time.monotonic()
        while (left := began + self._plan.quiet_s - time.monotonic()) > 0:
            self._progress.now(f"quiet {number}", f"{left:.1f} s to go", at_once=True)
            await asyncio.sleep(min(left, 2 * SAMPLE_S))
        after = [(await self._state(queue)).receives.total for queue in (FILES, RESULTS)]
        receives = sum(after) - sum(before)
        self._quiet_s += time.monotonic() - began
        self._quiet_receives += receives
        self._progress.done(f"quiet {number}", f"{self._plan.quiet_s:.1f} s: {receives} receives")

    async def _single(self, number: int) -> None:
        taken = []
        for _ in range(SINGLES):
            await self._put_items([None])
            await self._all_results()
            last = self._results[self._put]
            taken.append((last.started_ns - last.item.put_ns) / 1e6)
            await asyncio.sleep(SINGLE_PAUSE_S)
        self._latencies_ms += taken
        self._progress.done(
            f"wake {number}", f"{SINGLES} single messages to sleeping workers: p50 {percentile(taken, 0.5):.1f} ms"
        )

    async def _put_items(self, paths: Sequence[str | None]) -> None:
        size = self._store.capabilities.batch_max
        for at in range(0, len(paths), size):
            items = [Item(next(self._ids), time.monotonic_ns(), path) for path in paths[at : at + size]]
            await self._store.put(FILES, [msgspec.json.encode(item) for item in items])
            self._put += len(items)

    async def _all_results(self, show: Callable[[int], None] = lambda count: None) -> None:
        while len(self._results) < self._put:
            self._came.clear()
            async with _within(f"{self._put - len(self._results)} results did not come"):
                await self._came.wait()
            show(len(self._results))

    async def _collect(self, message: Message) -> None:
        result: Result = message.value
        if self._results.setdefault(result.item.id, result) is not result:
            self._duplicates += 1
        self._came.set()
        if self._kill_at is not None and len(self._results) >= self._kill_at:
            # It reported just now, so it is in the midst of its work. One that has just ended is not killed.
            with suppress(ProcessLookupError):
                os.kill(result.pid, signal.SIGKILL)
                self._kill_at, self._killed = None, result.pid
                self._progress.done("kill -9", f"worker {result.pid}, with messages in flight")

    async def _sample(self) -> None:
        """Note how many worker processes there are, and add up their time."""
        while True:
            now = len(self._workers.running())
            if now != self._processes[-1]:
                self._processes.append(now)
            self._process_s += now * SAMPLE_S
            await asyncio.sleep(SAMPLE_S)

    async def _state(self, queue: str) -> QueueState:
        _, state = await asyncio.to_thread(self._asking.read, f"/v1/queues/{queue}", QueueState)
        return state or QueueState(queue=queue)

    async def _at_rest(self, queue: str) -> QueueState:
        """Wait until nothing is pending in a queue and its counters stay the same."""
        before = None
        async with _within(f"queue {queue} did not come to rest"):
            while True:
                now = await self._state(queue)
                depth = now.depth
                if now == before and not now.dirty and (depth is None or not (depth.visible or depth.invisible)):
                    return now
                before = now
                await asyncio.sleep(SAMPLE_S)


@asynccontextmanager
async def _within(failure: str, more_s: float = 0.0) -> AsyncIterator[None]:
    """Raise `DemoFailed` with a text if the body takes too long."""
    try:
        async with asyncio.timeout(PATIENCE_S + more_s):
            yield
    except TimeoutError:
        raise DemoFailed(f"{failure} within {PATIENCE_S + more_s:.0f} s") from None


@asynccontextmanager
async def _running(coroutine: Coroutine[None, None, None], stop: Stop | None = None) -> AsyncIterator[None]:
    """Run a coroutine next to the body; then stop or cancel it, and wait for its end."""
    task = asyncio.create_task(coroutine, name="demo: next to the run")
    try:
        yield
    finally:
        try:
            if stop is not None:
                await stop()
        finally:
            task.cancel()
            await asyncio.wait([task])


async def _directly(paths: Sequence[str]) -> tuple[dict[str, Facts], float]:
    """Analyse all files in one other process; return the facts by path, and the seconds that it took."""
    began = time.monotonic()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "queuebell.demo.analysis"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        output, _ = await process.communicate(msgspec.json.encode(paths))
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return msgspec.json.decode(output, type=dict[str, Facts]), time.monotonic() - began
