"""Where the time of an idle put goes: one clock for the producer, the bridge and the worker, read at each stage."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from bench.stage import Child, Stage

BEGIN: Final = "called"
FLUSH: Final = "the commit with its flush"
STAGES: Final = (
    ("sent", "the producer's store and HTTP client, until the request leaves"),
    ("bytes", "the bridge wakes and reads"),
    ("parsed", "HTTP, admission"),
    ("taken", "checks, whom it may be handed to, and the hand-over to the writer's thread"),
    ("written", "the writer's statements"),
    ("on the disk", FLUSH),
    ("delivered", "the hand-over back to the event loop"),
    ("wake made", "the rules, and the wake with its message"),
    ("wake heard", "the wake is sent; the worker wakes and reads"),
    ("handler", "the listener's rules, `started` to the bridge, the handler's task"),
)
"""The end of each stage, in order, and what lies between it and the one before."""
READY_S: Final = 30.0


def each(marks: Iterable[tuple[str, int]]) -> list[list[float]]:
    """Return the milliseconds of each stage for every put that has them all, from marks (name, ns) in any order."""
    puts: list[dict[str, int]] = []
    for name, at in sorted(marks, key=lambda mark: mark[1]):
        if name == BEGIN:
            puts.append({})
        if puts:
            # What comes again belongs to what follows: the settlement, the next heartbeat.
            puts[-1].setdefault(name, at)
    names = [BEGIN, *(name for name, _ in STAGES)]
    whole = [[put[name] for name in names] for put in puts if all(name in put for name in names)]
    spans = [[(end - begin) / 1e6 for begin, end in pairwise(put)] for put in whole]
    # A heartbeat between two stages of a put was noted in their place.
    return [put for put in spans if min(put) >= 0]


def medians(found: Sequence[Sequence[float]]) -> list[tuple[str, float]]:
    """Return each stage's words and the median of its milliseconds."""
    return [(STAGES[number][1], statistics.median(column)) for number, column in enumerate(zip(*found, strict=True))]


async def stages(stage: Stage, samples: int, pause_s: float) -> list[tuple[str, float]]:
    """Put so many with clocks all along the way, and return the median of each stage."""
    files: list[Path] = []

    async def traced(name: str, *arguments: str, asked: bool = False, **environment: str) -> Child:
        files.append(stage.folder / f"{name}.trace")
        command = [sys.executable, "-m", "bench.traced", *arguments]
        return await stage.program(f"traced {name}", command, asked=asked, **environment, TRACE=str(files[-1]))

    listen = ("--listen", "127.0.0.1:0", "--data", str(stage.data("traced")), "--log-level", "warning")
    bridge = await traced("bridge", "queuebell", "serve", *listen)
    server = (await bridge.line(READY_S)).removeprefix("queuebell ready on ")
    environment = {"SERVER": server, "SAMPLES": str(stage.folder / "traced.samples")}
    worker = await traced("worker", "bench.programs.queuebell_embedded", **environment)
    put = ("bench.programs.producer", "queuebell_embedded")
    producer = await traced("producer", *put, asked=True, **environment)
    await producer.line(READY_S)
    # The first ones open what later ones have open.
    await producer.ask("put", count=2, pause_s=1.0)
    await producer.ask("put", count=samples, pause_s=pause_s)
    for child in (producer, worker, bridge):
        await child.stop()
    marks = [mark for file in files for mark in map(json.loads, file.read_text("ascii").splitlines())]
    return medians(each(marks)[-samples:])
