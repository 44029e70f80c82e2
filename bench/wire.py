"""An idle put to the start of its handler at gaps of 0.5, 15 and 60 s, beside the bare wire and a bare NATS hop.

At 60 s our wires are closed in between: a put opens one.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Callable

from bench.figures import Report, percentile
from bench.sizes import Scale
from bench.stage import Child, Stage

OURS, BARE, NATS = "ours", "bare", "nats"
LABELS = {OURS: "Queuebell", BARE: "bare wire (bench/bare_wire.py)", NATS: "bare nats-py hop (nothing stored)"}
AIM = 1.35
"""Times the bare wire."""


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Measure all ways in turns, a put of each at a time."""
    report = Report("Idle put to handler start over the wire")
    ends = await _ends(stage, report)
    for gap, count in zip(scale.wire_gaps_s, scale.wire_samples, strict=True):
        first: dict[str, float] = {}
        samples: dict[str, list[float]] = {way: [] for way in ends}
        for number in range(count + 1):
            for way, (producer, worker) in ends.items():
                await asyncio.sleep(gap / len(ends))
                await producer.ask("put", count=1, pace_ms=0)
                (taken,) = await worker.ask("take", count=1)
                if number:
                    samples[way].append(taken)
                else:
                    first[way] = taken
        say(
            f"gap {gap:g} s: p50 "
            + ", ".join(f"{way} {statistics.median(taken):.2f} ms" for way, taken in samples.items())
        )
        ratio = statistics.median(samples[OURS]) / statistics.median(samples[BARE])
        report.at_most(f"gap {gap:g} s: p50, times the bare wire", ratio, AIM)
        for way, taken in samples.items():
            spread = f"{statistics.median(taken):.2f} / {percentile(taken, 0.99):.2f} / {max(taken):.2f}"
            report.tell(f"gap {gap:g} s: {LABELS[way]}: p50 / p99 / max, ms; the first", f"{spread}; {first[way]:.2f}")
    report.notes.append(
        "Puts of each way in turns. Producer, service and worker are processes of their own. Stamped just before the "
        "put is called and first thing in the handler; the wake carries the message. The first put of each gap stands "
        "apart."
    )
    return report


async def _ends(stage: Stage, report: Report) -> dict[str, tuple[Child, Child]]:
    _, url = await stage.bridge()
    worker = await stage.role("ours", "work", url)
    ends = {OURS: (await stage.role("ours", "put", url), worker)}
    bare = await stage.role("bare_wire", "serve", stage.data("bare_wire"))
    worker = await stage.role("bare_wire", "work", bare.ready["url"])
    ends[BARE] = (await stage.role("bare_wire", "put", bare.ready["url"]), worker)
    nats = await stage.nats()
    if nats is None:
        report.notes.append("No nats-server was found: the hop over NATS was not measured.")
    else:
        worker = await stage.role("bare_brokers", "hear", nats)
        ends[NATS] = (await stage.role("bare_brokers", "put", nats), worker)
    return ends
