"""What being watched costs: puts, and an idle put to its handler, with ten pages open, also if all is traced."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from collections.abc import AsyncIterator, Callable
from typing import Final, NamedTuple

import aiohttp

from bench.figures import Report, median_ratio, percentile
from bench.sizes import Scale
from bench.stage import Child, Stage

PAGES: Final = 10
ALONE, PAGES_OPEN, TRACES = WAYS = ("alone", "pages open", "traces too")
CONNECTIONS: Final = 16
WARM_UP: Final = 3
QUEUES: Final = 1000
PUT: Final = "/v1/queues/bench/flood/messages"
"""Nobody listens there, and it is cleared after each run: an idle put must not wait behind a backlog of the load."""
BODY: Final = '{"messages":[{"body":"' + "x" * 100 + '"}]}'
TRACED: Final = BODY.replace(
    "}]", ',"headers":{"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}}]'
)
"""As a producer puts it whose own traces are on."""
VIEWS: Final = ("/v1/watch", "/v1/watch/listeners", "/v1/queues/bench/flood/watch", "/v1/watch/bridge")


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Measure in turns: without pages, with them, and with them and traces."""
    report = Report("Being watched")
    plain, traced = await _side(stage, traced=False), await _side(stage, traced=True)
    client = await stage.role("rawhttp")
    puts: dict[str, list[float]] = {way: [] for way in WAYS}
    waits: dict[str, list[float]] = {way: [] for way in WAYS}
    views = 0
    for number in range(scale.auth_rounds):
        for way in WAYS:
            side = traced if way == TRACES else plain
            async with contextlib.nullcontext() if way == ALONE else _watching(side.url) as told:
                count = scale.hop_samples + WARM_UP
                await side.producer.ask("put", count=count, pace_ms=scale.hop_pace_ms)
                waits[way].append(percentile((await side.worker.ask("take", count=count))[WARM_UP:], 0.5))
                ran = await client.ask(
                    "run", url=side.url, path=PUT, bodies=[TRACED if way == TRACES else BODY], connections=CONNECTIONS,
                    seconds=scale.auth_s, status=201, headers="",
                )  # fmt: skip
                puts[way].append(float(ran["rate"]))
                async with aiohttp.request("DELETE", side.url + PUT) as answer:
                    answer.raise_for_status()
                views += len(told or ())
        say(f"round {number + 1} of {scale.auth_rounds}: {_told(puts, 0)} puts a second, p50 {_told(waits, 2)} ms")
    report.at_most(f"idle put to handler: p50 with {PAGES} pages open, times without", _ratio(waits, PAGES_OPEN), 1.1)
    report.at_least(f"puts a second with {PAGES} pages open, times without", _ratio(puts, PAGES_OPEN), 0.95)
    report.at_most("the same p50, and traces on", _ratio(waits, TRACES), 1.1)
    report.at_least("the same puts a second, and traces on", _ratio(puts, TRACES), 0.9)
    report.tell("puts a second: without / with / with traces too", _told(puts, 0))
    report.tell("p50, ms: without / with / with traces too", _told(waits, 2))
    report.notes.append(
        f"{PAGES} streams of {len(VIEWS)} views, of a bridge that knows {QUEUES:,} queues; {views:,} views were told. "
        f"{scale.auth_rounds} rounds in turns; puts of one message over {CONNECTIONS} connections for "
        f"{scale.auth_s:g} s. The streams are read by the bench's own process, on the same cores. "
        "With traces every span is made and written as OTLP, in bridge, producer and worker, and the puts of the load "
        "bring a trace context."
    )
    return report


class Side(NamedTuple):
    """A bridge with its worker and its producer."""

    url: str
    worker: Child
    producer: Child


async def _side(stage: Stage, *, traced: bool) -> Side:
    """Start them, all with traces or none."""
    _, url = await stage.bridge(stage.data(f"traced-{traced}"), traced=traced)
    worker = await stage.role("ours", "work", url, traced=traced)
    producer = await stage.role("ours", "put", url, traced=traced)
    # Views are of many queues, as an operator's are.
    events = [{"storage_account": "many", "queue_name": f"q{number}"} for number in range(QUEUES)]
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/triggers", json=events) as answer:
        answer.raise_for_status()
    return Side(url, worker, producer)


@contextlib.asynccontextmanager
async def _watching(url: str) -> AsyncIterator[list[int]]:
    """Hold streams open, and list the sizes of the views that they were told."""
    told: list[int] = []

    async def read(path: str) -> None:
        async with session.get(url + path, timeout=aiohttp.ClientTimeout()) as stream:
            async for line in stream.content:
                if line.startswith(b"data: "):
                    told.append(len(line))  # noqa: PERF401 - it never ends

    async with aiohttp.ClientSession(read_bufsize=4 * 1024 * 1024) as session:
        readers = [
            asyncio.create_task(read(VIEWS[number % len(VIEWS)]), name=f"page {number}") for number in range(PAGES)
        ]
        try:
            yield told
        finally:
            for reader in readers:
                reader.cancel()
            await asyncio.wait(readers)


def _ratio(taken: dict[str, list[float]], way: str) -> float:
    return median_ratio(taken[way], taken[ALONE])


def _told(taken: dict[str, list[float]], digits: int) -> str:
    return " / ".join(f"{statistics.median(taken[way]):,.{digits}f}" for way in WAYS)
