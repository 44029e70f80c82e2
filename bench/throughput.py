"""The queue service end to end: messages put by one process and handled by another, empty and with a backlog."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from bench.figures import Report
from bench.machine import cpu_seconds
from bench.sizes import Scale
from bench.stage import Child, Stage

CALLERS = 4
SLOTS = 256
TARGET = 10_000
OFFERED = 10_500
BODY = json.dumps({"messages": [{"body": "x" * 100}]})


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Batches at depth 0, batches on top of a backlog, single puts."""
    report = Report("Throughput of the queue service")
    bridge, url = await stage.bridge()
    worker = await stage.role("ours", "bulk-work", url, SLOTS)
    producer = await stage.role("ours", "bulk-put", url, CALLERS)
    await producer.ask("run", messages=3200)
    await worker.ask("count", at_least=3200)
    say("begins at depth 0")
    watched = [(child, cpu_seconds(child.pid) or 0.0) for child in (bridge, producer, worker)]
    ran = await producer.ask("run", messages=scale.bulk_messages)
    ended = await worker.ask("count", at_least=3200 + int(ran["messages"]))
    seconds = ended["at"] - ran["begun"]
    rate = ran["messages"] / seconds
    report.at_least("put and handled a second, from depth 0", rate, TARGET, "{:,.0f}")
    report.tell("of these: puts alone a second", f"{ran['messages'] / (ran['ended'] - ran['begun']):,.0f}")
    report.notes.append(
        f"{ran['messages']:,.0f} messages of 100 bytes in batches of 32 by {CALLERS} callers, one worker with {SLOTS} "
        f"slots and a batch handler that does nothing. {_shares(watched, seconds)}"
    )
    say(f"{rate:,.0f}/s; {report.notes[-1]}")
    await producer.stop()
    await worker.stop()

    single = await stage.role("ours", "single-put", url)
    raw = await stage.role("rawhttp")
    for callers in (1, 16, 64):
        through = await single.ask("run", callers=callers, seconds=scale.single_s)
        ran = await raw.ask(
            "run",
            url=url,
            path="/v1/queues/bench/single/messages",
            bodies=[BODY],
            connections=callers,
            seconds=scale.single_s,
            status=201,
        )
        report.tell(
            f"single puts a second, {callers} callers: raw client / `HttpStore`", f"{ran['rate']:,.0f} / {through:,.0f}"
        )
    await bridge.stop()
    await _backlog(stage, scale, say, report)
    return report


async def _backlog(stage: Stage, scale: Scale, say: Callable[[str], None], report: Report) -> None:
    data = stage.data("backlog")
    filled = await stage.role("ours", "fill", data, scale.backlog)
    report.notes.append(
        f"The backlog of {scale.backlog:,} was put straight into the file, "
        f"{scale.backlog / filled.ready['seconds']:,.0f} messages a second."
    )
    say(report.notes[-1])
    await filled.stop()
    bridge, url = await stage.bridge(data)
    producer = await stage.role("ours", "bulk-put", url, CALLERS)
    worker = await stage.role("ours", "bulk-work", url, SLOTS)
    await asyncio.sleep(min(1.0, scale.bulk_s))
    watched = [(child, cpu_seconds(child.pid) or 0.0) for child in (bridge, producer, worker)]
    begun = await worker.ask("count")
    ran = await producer.ask("run", seconds=scale.bulk_s, rate=OFFERED)
    ended = await worker.ask("count")
    seconds = ended["now"] - begun["now"]
    handled = (ended["handled"] - begun["handled"]) / seconds
    put = ran["messages"] / (ran["ended"] - ran["begun"])
    label = f"on a backlog of {scale.backlog:,}"
    report.at_least(f"put a second, {label}", put, TARGET, "{:,.0f}")
    report.at_least(f"handled a second meanwhile, {label}", handled, TARGET, "{:,.0f}")
    report.notes.append(
        f"With the backlog, over {seconds:.0f} s, {OFFERED:,} a second offered: {_shares(watched, seconds)}"
    )
    say(report.notes[-1])


def _shares(watched: list[tuple[Child, float]], seconds: float) -> str:
    parts = [f"{child.name} {((cpu_seconds(child.pid) or before) - before) / seconds:.0%}" for child, before in watched]
    return f"Of a core: {', '.join(parts)}."
