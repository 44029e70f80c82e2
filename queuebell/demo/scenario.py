"""The white paper's scenario, played: bursts of work, quiet in between, one worker killed half-way, then the bill."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from bridge.contract.errors import QueuebellError
from bridge.contract.names import poison_reference
from bridge.queues import open_store
from bridge.service.state import QueueState
from listeners.handler import Message
from listeners.listener import Listener
from listeners.scaling.scaler import Scaler
from queuebell.cost.progress import Progress
from queuebell.demo import bill, report
from queuebell.demo.analysis import FileFacts
from queuebell.demo.controller import Account, Controller
from queuebell.demo.fleet import CONTROLLER, INITIATOR, ONLOOKER, SCALER, ChildFell, Fleet
from queuebell.demo.initiator import Initiator, find_sources, library_root, sample, split
from queuebell.demo.outcome import BurstTime, Outcome, faults_of
from queuebell.demo.plan import DemoFailed, Plan
from queuebell.demo.state import BridgeState, counters
from queuebell.demo.telling import shown
from queuebell.demo.work import INPUT_QUEUE, RESULT_QUEUE, WorkResult
from queuebell.demo.worker import BATCH
from queuebell.demo.workers import Workers

# Short, so that what a killed worker held comes back soon; leases of the living are renewed at half of it.
VISIBILITY_S: Final = 3.0
PROBES_AFTER_EACH_QUIET: Final = 20
PROBE_PAUSE_S: Final = 0.015
SILENCE_MAX_S: Final = 30.0
START_MAX_S: Final = 30.0
FALL_IS_KNOWN_WITHIN_S: Final = 1.0
GRACE_S: Final = 2.0
IDLE_MORE_S: Final = 1.0
"""By how much workers outlive a quiet: what the single puts after it wake is a worker, and no new process."""
QUEUES: Final = (INPUT_QUEUE, RESULT_QUEUE)


async def play(plan: Plan, progress: Progress) -> Outcome:
    """Play the scenario and leave nothing behind, whatever happens: no process, and no file unless asked to keep it.

    Raises `DemoFailed`. Cancelling it ends everything in order.
    """
    folder = Path(tempfile.mkdtemp(prefix="queuebell-demo-"))
    fleet = Fleet(folder, plan.worker_command)
    loop = asyncio.get_running_loop()
    stopped: list[str] | None = None
    try:
        story = Story(plan, progress, fleet)
        await _guarded(story, fleet)
        progress.now("stop", "the workers, then the bridge", at_once=True)
        stopped = await fleet.stop()
        return story.outcome(stopped)
    except ChildFell as fell:
        raise DemoFailed(str(fell)) from fell
    finally:
        if stopped is None:
            await fleet.stop()
        if plan.keep:
            progress.done("kept", str(folder))
        else:
            await loop.run_in_executor(None, lambda: shutil.rmtree(folder, ignore_errors=True))


async def _guarded(story: Story, fleet: Fleet) -> None:
    """Play the story for as long as every process stands that should."""
    try:
        async with asyncio.TaskGroup() as group:
            guard = group.create_task(fleet.guard(), name="demo: guard")
            await story.play(group)
            guard.cancel()
    except BaseExceptionGroup as several:
        errors = _leaves_of(several)
    else:
        return
    fall = next((error for error in errors if isinstance(error, ChildFell)), None)
    if fall is None:
        # When the bridge falls its clients often hear of it before its parent does: the fall is the better news.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FALL_IS_KNOWN_WITHIN_S):
                await fleet.guard()
    error = fall or errors[0]
    if isinstance(error, QueuebellError | OSError | aiohttp.ClientError):
        raise DemoFailed(f"{type(error).__name__}: {error}") from error
    raise error


def _leaves_of(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves += _leaves_of(error) if isinstance(error, BaseExceptionGroup) else [error]
    return leaves


class Story:
    """One run, step by step."""

    def __init__(self, plan: Plan, progress: Progress, fleet: Fleet) -> None:
        self._plan = plan
        self._progress = progress
        self._fleet = fleet
        self._root = library_root()
        self._sources = sample(plan.sources or find_sources(self._root), plan.files)
        self._controller = Controller(self._on_entry)
        self._initiator: Initiator
        self._state: BridgeState
        self._bursts: list[BurstTime] = []
        self._burst_label = ""
        self._burst_from = 0
        self._burst_files = 0
        self._kill_at: int | None = None
        self._killed = 0
        self._quiet_s = 0.0
        self._receives_while_quiet = 0
        self._poisoned = 0
        self._gave_up = False
        self._began = time.monotonic()
        self._seconds = 0.0
        self._counters = bill.QueueCounters()
        self._workers: Workers
        self._process_s = 0.0
        self._course = [0]
        self._processes_changed = asyncio.Event()
        self._direct: dict[str, FileFacts] = {}

    async def play(self, group: asyncio.TaskGroup) -> None:
        """Play it all; what is found is in `outcome` afterwards."""
        version = platform.python_version()
        self._progress.heading(f"Queuebell demo: the standard library of Python {version}")
        self._progress.line()
        async with AsyncExitStack() as stack:
            direct = group.create_task(self._analyse_directly(), name="demo: direct analysis")
            await self._start(group, stack)
            for number, sources in enumerate(split(self._sources, self._plan.bursts), 1):
                await self._burst(number, sources)
                if self._gave_up:
                    break
                await self._quiet(number)
                await self._probe(number)
            await self._settle_accounts()
            await self._go()
            await self._compare(direct)

    def outcome(self, ends: Sequence[str]) -> Outcome:
        """Sum up; ``ends`` are processes that did not end well."""
        account, initiator = self._controller.account, self._initiator
        facts = {
            initiator.sources[number]: found for number, found in account.facts.items() if number in initiator.sources
        }
        ours, theirs = report.add_up(facts), report.add_up(self._direct)
        differing = report.differences(facts, self._direct)
        lost = initiator.put - account.items
        faults = faults_of(
            put=initiator.put,
            lost=max(0, lost),
            unknown=max(0, -lost, len(account.facts) - len(facts)),
            differing=differing,
            totals_equal=ours == theirs,
            receives_while_quiet=self._receives_while_quiet,
            poisoned=self._poisoned,
            processes=self._course,
            ends=[*self._workers.unwell, *ends],
        )
        return Outcome(
            ok=not faults,
            faults=faults,
            python=platform.python_version(),
            workers=self._plan.workers,
            processes=self._course,
            killed_worker=self._killed,
            bursts=self._bursts,
            files_put=len(initiator.sources),
            probes_put=initiator.probes,
            lost=max(0, lost),
            duplicates=account.duplicates,
            later_attempts=account.later_attempts,
            equal=not differing and ours == theirs,
            differing=differing[:20],
            report=ours,
            direct=theirs,
            bill=bill.make_out(
                seconds=self._seconds,
                quiet_seconds=self._quiet_s,
                workers=self._plan.workers,
                process_s=self._process_s,
                messages=initiator.put + account.results,
                counters=self._counters,
                receives_while_quiet=self._receives_while_quiet,
                wake_latencies_ns=account.probe_latencies_ns,
            ),
        )

    async def _start(self, group: asyncio.TaskGroup, stack: AsyncExitStack) -> None:
        plan, progress = self._plan, self._progress
        progress.now("bridge", "starting", at_once=True)
        url = await self._fleet.start_bridge(auth=plan.auth)
        keys = self._fleet.keys
        where = "kept" if plan.keep else "temporary"
        progress.done("bridge", f"{url}, its data in a {where} folder")
        if plan.auth:
            progress.done("keys", f"for {', '.join(keys)}, and nobody else")
        progress.now("fleet", "starting", at_once=True)
        puts, store = (open_store(url, api_key=keys.get(name)) for name in (INITIATOR, CONTROLLER))
        stack.push_async_callback(puts.close)
        stack.push_async_callback(store.close)
        self._initiator = Initiator(puts, self._root)
        self._state = await stack.enter_async_context(BridgeState(url, keys.get(ONLOOKER)))
        if plan.auth and not await self._state.refuses_strangers(INPUT_QUEUE):
            raise DemoFailed("the bridge answers those who have no key")

        async def enter(messages: list[Message]) -> None:
            for message in messages:
                self._controller.enter(message.value)

        listener = Listener(
            store,
            RESULT_QUEUE,
            enter,
            name="process-controller",
            visibility_timeout=VISIBILITY_S,
            payload=WorkResult,
            grace=GRACE_S,
            handle_signals=False,
        )
        self._workers = self._fleet.workers(url, VISIBILITY_S, self._on_processes)
        scaler = Scaler(
            url,
            INPUT_QUEUE,
            self._workers,
            max=plan.workers,
            idle=plan.quiet_s + IDLE_MORE_S,
            per_process=BATCH,
            api_key=keys.get(SCALER),
            handle_signals=False,
        )
        for each, name in ((listener, "process controller"), (scaler, "scaler")):
            task = group.create_task(each.run(), name=f"demo: {name}")
            # Stopped before the store closes, and awaited: the group would else wait for it for ever.
            stack.push_async_callback(_stop, each, task)
        try:
            async with asyncio.timeout(START_MAX_S):
                await self._state.until_sessions(INPUT_QUEUE, 1)
                await self._state.until_sessions(RESULT_QUEUE, 1)
        except TimeoutError:
            raise DemoFailed(f"scaler and process controller had no session within {START_MAX_S:.0f} s") from None
        progress.done("fleet", f"no worker process yet; a scaler starts up to {plan.workers} when there is work")
        progress.done("work", f"{len(self._sources):,} source files, bursts: {plan.bursts}")

    async def _burst(self, number: int, sources: Sequence[str]) -> None:
        account = self._controller.account
        self._burst_label, self._burst_from, self._burst_files = f"burst {number}", len(account.facts), len(sources)
        if number == self._plan.bursts // 2 + 1:
            self._kill_at = self._burst_from + (len(sources) + 1) // 2
        seen = len(account.burst_starts)
        began = time.monotonic()
        await self._initiator.put_burst(sources)
        try:
            await self._controller.has(self._initiator.put, patience=SILENCE_MAX_S)
        except TimeoutError:
            self._gave_up = True
            self._progress.done(self._burst_label, f"given up after {SILENCE_MAX_S:.0f} s without any result")
            return
        seconds = time.monotonic() - began
        stamps = account.burst_starts[seen:]
        first_ms = (min((start for _, start in stamps), default=0) - min((put for put, _ in stamps), default=0)) / 1e6
        self._bursts.append(BurstTime(len(sources), round(first_ms, 3), round(seconds, 3)))
        self._progress.done(
            self._burst_label,
            f"{len(sources):,} files: first handler after {first_ms:.1f} ms, all done in {seconds:.1f} s",
        )
        if number == 1:
            self._progress.done("started", f"{shown(self._workers.course)} worker processes")

    def _on_entry(self, account: Account) -> None:
        done = len(account.facts) - self._burst_from
        due = self._kill_at is not None and len(account.facts) >= self._kill_at
        # The one that reported last is in the midst of its work: what it holds only its leases' end gives back.
        if due and account.last_worker is not None and self._workers.kill(account.last_worker):
            self._kill_at, self._killed = None, account.last_worker
            self._progress.done("kill -9", f"worker {self._killed}, half-way through {self._burst_label}")
        if done < self._burst_files:
            waiting = "" if self._burst_files - done > 16 or not self._killed else "  waiting for leases to end"
            words = f"{done:,} of {self._burst_files:,}  {len(self._workers.running())} workers{waiting}"
            self._progress.now(self._burst_label, words, share=done / self._burst_files)

    def _on_processes(self, now: int) -> None:
        self._processes_changed.set()
        self._progress.now(self._burst_label or "fleet", f"worker processes: {now}", at_once=True)

    async def _rest(self) -> dict[str, QueueState]:
        try:
            async with asyncio.timeout(SILENCE_MAX_S):
                return await self._state.until_at_rest(QUEUES)
        except TimeoutError:
            raise DemoFailed(f"the queues did not come to rest within {SILENCE_MAX_S:.0f} s") from None

    async def _quiet(self, number: int) -> None:
        before = await self._rest()
        began = time.monotonic()
        end = began + self._plan.quiet_s
        while (left := end - time.monotonic()) > 0:
            self._progress.now(f"quiet {number}", f"{left:.1f} s to go, everybody asleep", at_once=True)
            await asyncio.sleep(min(left, 0.1))
        after = {queue: await self._state.of(queue) for queue in QUEUES}
        seconds = time.monotonic() - began
        receives = sum(after[queue].receives.total - before[queue].receives.total for queue in QUEUES)
        self._quiet_s += seconds
        self._receives_while_quiet += receives
        self._progress.done(f"quiet {number}", f"{seconds:.1f} s: {receives} receives, everybody asleep")

    async def _probe(self, number: int) -> None:
        """Put single messages while the fleet sleeps: each one's way from put to handler is a wake-up's whole way."""
        label = f"probe {number}"
        seen = len(self._controller.account.probe_latencies_ns)
        for count in range(PROBES_AFTER_EACH_QUIET):
            share = count / PROBES_AFTER_EACH_QUIET
            self._progress.now(label, f"{count} of {PROBES_AFTER_EACH_QUIET} single puts", share=share)
            await self._initiator.put_probe()
            try:
                await self._controller.has(self._initiator.put, patience=SILENCE_MAX_S)
            except TimeoutError:
                self._gave_up = True
                break
            await self._state.until_at_rest(QUEUES, pause_s=0.002)
            await asyncio.sleep(PROBE_PAUSE_S)
        found = bill.latency(self._controller.account.probe_latencies_ns[seen:])
        self._progress.done(
            label,
            f"{found.count} single puts, each woke a worker: p50 {found.p50_ms:.1f} ms, max {found.max_ms:.1f} ms",
        )

    async def _go(self) -> None:
        """Wait until the workers, which have nothing to do any more, are gone."""
        began = time.monotonic()
        before = len(self._workers.running())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._plan.quiet_s + SILENCE_MAX_S):
                while self._workers.running() and not self._gave_up:
                    self._processes_changed.clear()
                    await self._processes_changed.wait()
        self._course, self._process_s = list(self._workers.course), self._workers.process_s
        self._seconds = time.monotonic() - self._began
        self._progress.done(
            "gone", f"{before} idle worker processes, {self._course[-1]} left {time.monotonic() - began:.1f} s later"
        )

    async def _settle_accounts(self) -> None:
        states = await self._rest() if not self._gave_up else {queue: await self._state.of(queue) for queue in QUEUES}
        for state in states.values():
            self._counters = self._counters.plus(counters(state))
        for queue in QUEUES:
            depth = (await self._state.of(poison_reference(queue))).depth
            self._poisoned += 0 if depth is None else depth.visible + depth.invisible

    async def _analyse_directly(self) -> float:
        """Do the same in one process, beside the fleet and at a slightly lower priority; return its seconds."""
        began = time.monotonic()
        child = await self._fleet.start_direct()
        paths = {str(Path(self._root, source)): source for source in self._sources}
        output, _ = await child.process.communicate(msgspec.json.encode(list(paths)))
        if child.process.returncode != 0:
            raise ChildFell(child.obituary())
        found = msgspec.json.decode(output, type=dict[str, FileFacts])
        self._direct = {paths[path]: facts for path, facts in found.items()}
        return time.monotonic() - began

    async def _compare(self, direct: asyncio.Task[float]) -> None:
        self._progress.now("check", "the same analysis in one process", at_once=True)
        seconds = await direct
        self._progress.done("check", f"the same analysis in one process, beside all this, took {seconds:.1f} s")


async def _stop(listener: Listener | Scaler, task: asyncio.Task[None]) -> None:
    try:
        await listener.stop()
    finally:
        # Also when the group cancels us meanwhile: the store must not close under what the listener still settles.
        if not task.cancelling():
            task.cancel()
        await asyncio.wait([task])
