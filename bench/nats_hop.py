"""From publish to wake over NATS both ways, and on to the handler, beside a bare hop of nats-py."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from bench.figures import Report, median_ratio, percentile
from bench.sizes import Scale
from bench.stage import Stage

WARM_UP = 3
LABELS = {
    "wake": "publish to wake heard by the listener",
    "handler": "publish to handler",
    "hop": "bare nats-py hop",
}


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """One trigger at a time, in turns with the bare hop."""
    report = Report("Publish to wake, NATS in and NATS out")
    nats = await stage.nats()
    if nats is None:
        report.notes.append("Skipped: no nats-server was found.")
        return report
    # The messages are in another bridge's queue service, so that only the trigger tells of them.
    _, store = await stage.bridge()
    await stage.bridge(None, "--nats", nats)
    worker = await stage.role("brokered", "work", nats, store)
    producer = await stage.role("brokered", "put", nats, store)
    hop = (await stage.role("bare_brokers", "put", nats), await stage.role("bare_brokers", "hear", nats))
    samples: dict[str, list[list[float]]] = {name: [] for name in LABELS}
    count = scale.wake_samples + WARM_UP
    for number in range(scale.wake_rounds):
        published = await producer.ask("put", count=count, pace_ms=scale.hop_pace_ms)
        heard = await worker.ask("take", count=count)
        for name in ("wake", "handler"):
            samples[name].append(
                [(heard[name][key] - at) / 1e6 for key, at in list(published.items())[WARM_UP:]],
            )
        await hop[0].ask("put", count=count, pace_ms=scale.hop_pace_ms)
        samples["hop"].append((await hop[1].ask("take", count=count))[WARM_UP:])
        say(
            f"round {number + 1} of {scale.wake_rounds}: p50 "
            + ", ".join(f"{name} {percentile(taken[-1], 0.5):.2f} ms" for name, taken in samples.items())
        )
    p50 = {name: [percentile(taken, 0.5) for taken in rounds] for name, rounds in samples.items()}
    report.at_most("publish to wake heard: p50, times a bare nats-py hop", median_ratio(p50["wake"], p50["hop"]), 3.0)
    report.tell("publish to handler: p50, times the hop", f"{median_ratio(p50['handler'], p50['hop']):.2f}")
    for name, label in LABELS.items():
        every = [value for taken in samples[name] for value in taken]
        report.tell(
            f"{label}: p50 / p99 / max, ms",
            f"{statistics.median(every):.2f} / {percentile(every, 0.99):.2f} / {max(every):.2f}",
        )
    report.notes.append(
        f"{scale.wake_rounds * scale.wake_samples} samples each, one every {scale.hop_pace_ms:g} ms, in "
        f"{scale.wake_rounds} rounds of each in turns; producer, bridge and worker are processes of their own, and so "
        "is the queue service, which another bridge keeps. A message is put there first, then the trigger is published "
        "(stamped just before), the wake heard on the worker's session over NATS, and the message received over HTTP "
        "and handled. The publish is acknowledged by the bridge, the bare one by nobody."
    )
    return report
