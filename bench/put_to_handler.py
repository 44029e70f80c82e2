"""From an idle put to the start of the handler, in separate processes, beside the floor and a bare NATS hop."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from bench.figures import Report, median_ratio, percentile
from bench.sizes import Scale
from bench.stage import Child, Stage

WARM_UP = 3
FLOOR, CARRIED, PLAIN, WITHIN, NATS = "floor", "carried", "plain", "within", "nats"
LABELS = {
    CARRIED: "Queuebell, wakes that carry their messages (default)",
    PLAIN: "Queuebell, plain wakes",
    WITHIN: "Queuebell, bridge, producer and worker in one process",
    FLOOR: "floor (bench/floor.py)",
    NATS: "bare nats-py hop (no queue, nothing stored)",
}


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Measure all ways in turns, a round of each at a time."""
    report = Report("Idle put to handler start")
    ends = await _ends(stage, report)
    samples: dict[str, list[list[float]]] = {way: [] for way in ends}
    order = list(ends)
    for number in range(scale.hop_rounds):
        for way in order:
            producer, worker = ends[way]
            count = scale.hop_samples + WARM_UP
            await producer.ask("put", count=count, pace_ms=scale.hop_pace_ms)
            samples[way].append((await worker.ask("take", count=count))[WARM_UP:])
        say(
            f"round {number + 1} of {scale.hop_rounds}: p50 "
            + ", ".join(f"{way} {percentile(samples[way][-1], 0.5):.2f} ms" for way in order)
        )
        # Each way follows another one the next time.
        order = order[1:] + order[:1]
    p50 = {way: [percentile(taken, 0.5) for taken in rounds] for way, rounds in samples.items()}
    every = {way: [value for taken in rounds for value in taken] for way, rounds in samples.items()}
    report.at_most("p50, times the floor", median_ratio(p50[CARRIED], p50[FLOOR]), 1.3)
    if NATS in p50:
        report.at_most("p50, times a bare nats-py hop (aim: 3)", median_ratio(p50[CARRIED], p50[NATS]), 5.0)
    report.at_most("p99, ms", percentile(every[CARRIED], 0.99), 10.0)
    report.tell("plain wakes: p50, times the floor", f"{median_ratio(p50[PLAIN], p50[FLOOR]):.2f}")
    if NATS in p50:
        report.tell("plain wakes: p50, times the hop", f"{median_ratio(p50[PLAIN], p50[NATS]):.2f}")
    for way, label in LABELS.items():
        if way in every:
            report.tell(
                f"{label}: p50 / p99 / max, ms",
                f"{statistics.median(every[way]):.2f} / {percentile(every[way], 0.99):.2f} / {max(every[way]):.2f}",
            )
    carried = (await ends[CARRIED][1].ask("figures"))["carried"]
    report.notes.append(
        f"{len(every[CARRIED])} samples each, one put every {scale.hop_pace_ms:g} ms, in {scale.hop_rounds} rounds of "
        "each in turns. Producer, service and worker are processes of their own. Ratios are medians over rounds of "
        "p50 by p50. Stamped just before the put is called and first thing in the handler."
    )
    report.notes.append(f"Of {scale.hop_rounds * (scale.hop_samples + WARM_UP)} messages {carried} came within wakes.")
    return report


async def _ends(stage: Stage, report: Report) -> dict[str, tuple[Child, Child]]:
    floor = await stage.role("floor", "serve", stage.data("floor"))
    ends = {
        FLOOR: (
            await stage.role("floor", "put", floor.ready["url"]),
            await stage.role("floor", "work", floor.ready["url"]),
        )
    }
    # Two bridges: at one, the plain worker and the other would share the work.
    for way, plain in ((CARRIED, ()), (PLAIN, ("plain",))):
        _, url = await stage.bridge()
        worker = await stage.role("ours", "work", url, *plain)
        ends[way] = (await stage.role("ours", "put", url), worker)
    within = await stage.role("ours", "within", stage.data("within"))
    ends[WITHIN] = (within, within)
    nats = await stage.nats()
    if nats is None:
        report.notes.append("No nats-server was found: the hop over NATS was not measured.")
    else:
        worker = await stage.role("bare_brokers", "hear", nats)
        ends[NATS] = (await stage.role("bare_brokers", "put", nats), worker)
    return ends
