"""Workers from zero: what the first message waits for, what a burst starts and ends, and what a sleeping fleet asks."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from bench.figures import Report, median_ratio, percentile
from bench.sizes import Scale
from bench.stage import ROOT, Child, Stage
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.names import split_reference
from queuebell.bridge.producer.buses import open_bus
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import QueueStore

WORKER: Final = ROOT / "bench" / "programs" / "from_zero.py"
ZERO, BARE, BURST, ELSEWHERE = "bench/zero", "bench/bare", "bench/burst", "bench/elsewhere"
MORE_MS: Final = 100.0
"""What a start by the scaler may take beyond 1.1 times a bare one."""
HANDLER_S: Final = 0.1
MAX: Final = 4
LOOK_S: Final = 0.02
WITHIN_S: Final = 120.0
COUNTS_MAX: Final = 67
"""Sweeps an hour of a queue in another store at most (docs/explanation/guarantees.md)."""


class Fleet:
    """A scaler with its workers, and what these have noted."""

    def __init__(self, scaler: Child, notes: Path, command: list[str]) -> None:
        self.scaler = scaler
        self.command = command
        """What one worker is."""
        self._notes = notes

    def running(self) -> set[int]:
        """Return the worker processes that live now."""
        found: set[int] = set()
        for file in Path(f"/proc/{self.scaler.pid}/task").glob("*/children"):
            # A thread may end between the list and its file; its children go to another one, which is read too or next.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                found.update(map(int, file.read_text().split()))
        return found

    def noted(self) -> list[tuple[str, str, int, float]]:
        """Return word, body, process and moment of each note."""
        if not self._notes.exists():
            return []
        lines = (line.split() for line in self._notes.read_text().splitlines())
        return [(word, body, int(pid), float(at)) for word, body, pid, at in lines]

    async def began(self, body: str) -> float:
        """Wait until a handler has begun with a message, and return the moment."""
        async with asyncio.timeout(WITHIN_S):
            while True:
                for word, seen, _, at in self.noted():
                    if (word, seen) == ("begins", body):
                        return at
                await asyncio.sleep(LOOK_S)

    async def gone(self) -> None:
        """Wait until no worker is left."""
        async with asyncio.timeout(WITHIN_S):
            while self.running():
                await asyncio.sleep(LOOK_S)


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Carry out all of it."""
    if not Path("/proc/self/task").is_dir():
        raise RuntimeError("needs /proc, as on Linux: processes are counted there")
    report = Report("Workers from zero")
    _, url = await stage.bridge()
    async with open_store(url) as store:
        await _first(stage, url, store, scale, say, report)
        await _burst(stage, url, store, scale, say, report)
    await _sleep(stage, scale, say, report)
    return report


async def _fleet(stage: Stage, store: str, queue: str, bridge: str, idle_s: float, handler_s: float) -> Fleet:
    """Start a scaler, and wait until the bridge knows it."""
    notes = stage.folder / f"{queue.replace('/', '-')}.txt"
    worker = [sys.executable, str(WORKER), store, queue, bridge, str(notes), str(handler_s)]
    options = ["--bridge", bridge, "--max", str(MAX), "--idle", str(idle_s), "--log-level", "warning"]
    scaler = await stage.program(
        "queuebell scale", [sys.executable, "-m", "queuebell", "scale", store, queue, *options, "--", *worker]
    )
    async with asyncio.timeout(WITHIN_S):
        while (await _state(bridge, queue)).get("sessions", 0) < 1:
            await asyncio.sleep(LOOK_S)
    return Fleet(scaler, notes, worker)


async def _first(
    stage: Stage, url: str, store: QueueStore, scale: Scale, say: Callable[[str], None], report: Report
) -> None:
    """In turns: a put that a scaler starts a worker for, and a bare start of that worker with a message waiting."""
    fleet = await _fleet(stage, url, ZERO, url, scale.zero_idle_s, 0.0)
    bare_notes = stage.folder / "bare.txt"
    bare_command = [*fleet.command[:3], BARE, url, str(bare_notes), "0"]
    scaled: list[float] = []
    bare: list[float] = []
    for number in range(scale.zero_rounds):
        for kind in ("scaled", "bare") if number % 2 else ("bare", "scaled"):
            body = f"{kind}-{number}"
            if kind == "scaled":
                begun = time.monotonic()
                await store.put(ZERO, [body])
                scaled.append(((await fleet.began(body)) - begun) * 1000)
                await fleet.gone()
            else:
                await store.put(BARE, [body])
                begun = time.monotonic()
                worker = await stage.program("python worker.py", bare_command)
                bare.append(((await Fleet(worker, bare_notes, bare_command).began(body)) - begun) * 1000)
                await worker.stop()
        say(f"from zero, round {number + 1} of {scale.zero_rounds}: {scaled[-1]:.0f} ms; bare {bare[-1]:.0f} ms")
    p50, beside = statistics.median(scaled), statistics.median(bare)
    report.at_most("put to handler from zero, p50, ms: 1.1 times a bare start and 100 ms", p50, 1.1 * beside + MORE_MS)
    report.tell("there: times a bare start of the same worker", f"{median_ratio(scaled, bare):.2f}")
    for name, taken in (("from zero", scaled), ("bare", bare)):
        spread = f"{min(taken):.0f} / {percentile(taken, 0.5):.0f} / {max(taken):.0f}"
        report.tell(f"there, {name}: least / p50 / most, ms", spread)
    report.notes.append(
        f"From zero: {scale.zero_rounds} puts in turns with {scale.zero_rounds} bare starts of the same worker "
        "(`python worker.py`, a message waiting), each with no worker there; from before the put, or the start, to the "
        "first line of the handler. Bridge, scaler and worker are processes of their own; the queue is the bridge's."
    )
    await fleet.scaler.stop()


async def _burst(
    stage: Stage, url: str, store: QueueStore, scale: Scale, say: Callable[[str], None], report: Report
) -> None:
    """Many puts at once: how many processes run when, and which end how."""
    fleet = await _fleet(stage, url, BURST, url, scale.zero_idle_s, HANDLER_S)
    seen: list[tuple[float, int]] = []
    lived: dict[int, float] = {}
    begun = time.monotonic()

    async def look() -> None:
        while True:
            now, at = fleet.running(), time.monotonic()
            # The last look that has a process counts: while one ends the kernel may leave out another for a moment.
            lived.update(dict.fromkeys(now, at))
            if not seen or seen[-1][1] != len(now):
                seen.append((at - begun, len(now)))
                say(f"burst: {len(now)} processes after {at - begun:.1f} s")
            await asyncio.sleep(LOOK_S)

    looking = asyncio.create_task(look(), name="look at processes")
    bodies = [f"burst-{number}" for number in range(scale.zero_burst)]
    for start in range(0, len(bodies), 32):
        await store.put(BURST, bodies[start : start + 32])
    put_s = time.monotonic() - begun
    async with asyncio.timeout(WITHIN_S + len(bodies) * HANDLER_S / 32):
        while sum(word == "ends" for word, *_ in fleet.noted()) < len(bodies):
            await asyncio.sleep(10 * LOOK_S)
    done_at = max(at for word, _, _, at in fleet.noted() if word == "ends")
    async with asyncio.timeout(WITHIN_S):
        while seen[-1][1]:
            await asyncio.sleep(LOOK_S)
    looking.cancel()
    notes = fleet.noted()
    per_process: Counter[int] = Counter()
    for word, _, pid, _ in notes:
        per_process[pid] += 1 if word == "begins" else -1
    ends = {pid: max(at for _, _, each, at in notes if each == pid) for pid in per_process}
    gone_at = max(lived.values())
    report.at_most(
        f"{len(bodies):,} puts, at most {MAX} processes: most at once", max(n for _, n in seen), MAX, "{:.0f}"
    )
    report.at_most(
        "there: processes ended while they held a message", sum(map(bool, per_process.values())), 0, "{:.0f}"
    )
    again = sum(word == "begins" for word, *_ in notes) - len(bodies)
    report.at_most("there: messages handled twice, or not", again, 0, "{:.0f}")
    shortest = min(lived[pid] - ends[pid] for pid in ends)
    report.at_least(
        "there: s between a process's last message and its end, least", shortest, scale.zero_idle_s - LOOK_S
    )
    report.at_most("there: processes left once they were idle", len(fleet.running()), 0, "{:.0f}")
    report.tell(
        f"there: s until all were put / handled / the last process had gone, {scale.zero_idle_s:g} s of them idle",
        f"{put_s:.1f} / {done_at - begun:.1f} / {gone_at - begun:.1f}",
    )
    report.tell("there: processes over time", ", ".join(f"{now} at {at:.1f} s" for at, now in seen))
    report.notes.append(
        f"Burst: put in batches of 32 by one caller, handled in {HANDLER_S:g} s each, 32 at a time in a process. "
        f"Processes are the scaler's children, looked at every {LOOK_S * 1000:.0f} ms. A process that ends leaves a "
        "message that it holds with a beginning and without an end."
    )
    await fleet.scaler.stop()


async def _sleep(stage: Stage, scale: Scale, say: Callable[[str], None], report: Report) -> None:
    """Nobody there but scalers: of an own queue, and of one in another store."""
    _, url = await stage.bridge()
    _, other = await stage.bridge()
    own = await _fleet(stage, url, ZERO, url, scale.zero_idle_s, 0.0)
    elsewhere = await _fleet(stage, other, ELSEWHERE, url, scale.zero_idle_s, 0.0)
    account, queue = split_reference(ELSEWHERE)
    bus = open_bus(url)
    async with open_store(url) as near, open_store(other) as far:

        async def wake(number: int) -> None:
            await near.put(ZERO, [f"sleep-{number}"])
            await far.put(ELSEWHERE, [f"sleep-{number}"])
            await bus.publish([CloudQueueWorkDetected(account, queue)])
            for fleet in (own, elsewhere):
                await fleet.began(f"sleep-{number}")
                await fleet.gone()

        # Asleep after work, which is harder than asleep from the start.
        await wake(1)
        before = await _asked(url, other)
        say(f"asleep for {scale.zero_sleep_s:g} s")
        begun = time.monotonic()
        await asyncio.sleep(scale.zero_sleep_s)
        slept_s = time.monotonic() - begun
        after = await _asked(url, other)
        awake = len(own.running()) + len(elsewhere.running())
        await wake(2)
        await bus.close()
    spent = {name: after[name] - before[name] for name in after}
    label = f"asleep for {slept_s / 60:.1f} minutes"
    report.at_most(f"{label}: processes", awake, 0, "{:.0f}")
    report.at_most(f"{label}, own queue: receives and the scaler's counts", spent["own"], 0, "{:.0f}")
    report.at_most(f"{label}, another store: receives", spent["receives"], 0, "{:.0f}")
    hours = slept_s / 3600
    report.at_most(f"{label}, another store: counts", spent["counts"], COUNTS_MAX * hours + 1, "{:.1f}")
    if slept_s >= 60:
        report.tell("there: counts an hour", f"{spent['counts'] / hours:.0f}")
    report.notes.append(
        "Asleep: a scaler each of an own queue and of one in another queue service, after one message each, with no "
        "worker. Receives are counted by the queue's own service; each wake of a scaler is a count of its queue."
    )


async def _asked(url: str, other: str) -> dict[str, int]:
    """Return what has been asked of the queues until now."""
    own, told, far = await _state(url, ZERO), await _state(url, ELSEWHERE), await _state(other, ELSEWHERE)
    return {
        "own": own["receives"]["total"] + sum(own["wakes"].values()),
        "counts": sum(told["wakes"].values()),
        "receives": far["receives"]["total"],
    }


async def _state(url: str, queue: str) -> dict[str, Any]:
    def get() -> dict[str, Any]:
        try:
            with urllib.request.urlopen(f"{url}/v1/queues/{queue}", timeout=10) as answer:
                state: dict[str, Any] = json.load(answer)
                return state
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return {}
            raise

    return await asyncio.to_thread(get)
