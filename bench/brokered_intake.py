"""What intake over any broker is measured by: bursts beside a bare subscriber, then a stream with probes in it."""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
import urllib.error
import urllib.request
from collections.abc import Callable

import msgspec

from bench.figures import Report, median_ratio, percentile
from bench.machine import cpu_seconds
from bench.sizes import Scale
from bench.stage import Child, Stage

QUEUES = 100
PROBE_MS = 10.0
OFFERED = 1.04
LATENCY_MS = 500.0
RATIO = 0.5


class Beside(msgspec.Struct, frozen=True):
    """What to measure beside: the ``bus`` at ``url``, a subscriber of its own, and how much."""

    bus: str
    url: str
    label: str
    burst: int
    target: int | None
    """Triggers a second that the stream is to reach; None where only the ratio counts."""


async def intake(stage: Stage, scale: Scale, say: Callable[[str], None], report: Report, beside: Beside) -> None:
    """Measure, and add what was found to ``report``."""
    names = [f"flood{number}" for number in range(QUEUES)]
    topics = [["queuebell", "trigger", "bench", name] for name in names]
    bodies = [json.dumps({"storage_account": "bench", "queue_name": name, "payload_size": 3}) for name in names]
    publisher = await stage.role("rawpublish", beside.url)
    flood = {"topics": topics, "bodies": bodies}

    # Both hear every burst only if both are there: each is there for its own rounds alone.
    rates: dict[str, list[float]] = {"queuebell": [], "bare": []}
    for number in range(scale.burst_rounds):
        bridge, probe, url = await _bridge(stage, beside)
        counted = await _count(url, beside.bus)
        sent = await publisher.ask("run", messages=beside.burst, **flood)
        at = await probe.ask("mark")
        missing = counted + beside.burst + 1 - await _count(url, beside.bus)
        if missing:
            raise RuntimeError(f"{missing} of {beside.burst} triggers were lost")
        rates["queuebell"].append(beside.burst / (at - sent["begun"]))
        await probe.stop()
        await bridge.stop()
        bare = await stage.role("bare_brokers", beside.bus, beside.url)
        await bare.ask("expect", messages=beside.burst)
        sent = await publisher.ask("run", messages=beside.burst, **flood)
        taken = await bare.ask("taken")
        if taken["heard"] < beside.burst:
            raise RuntimeError(f"the bare subscriber heard {taken['heard']} of {beside.burst}")
        rates["bare"].append(beside.burst / (taken["at"] - sent["begun"]))
        await bare.stop()
        say(
            f"round {number + 1} of {scale.burst_rounds}: " + ", ".join(f"{n} {r[-1]:,.0f}/s" for n, r in rates.items())
        )
    report.at_least(f"triggers a second, times {beside.label}", median_ratio(rates["queuebell"], rates["bare"]), RATIO)
    report.tell("triggers a second, in bursts", f"{statistics.median(rates['queuebell']):,.0f}")
    report.tell(f"{beside.label}: messages a second", f"{statistics.median(rates['bare']):,.0f}")

    rate = beside.target or round(statistics.median(rates["queuebell"]) / 2, -3)
    await _stream(stage, scale, say, report, beside, publisher, flood, rate)
    report.notes.append(
        f"Bursts of {beside.burst:,} triggers over {QUEUES} queues, {scale.burst_rounds} rounds of each in turns, from "
        "the first one written to the wake of one that was written after the last. Broker, publisher, bridge and "
        "prober are processes of their own and share the cores."
    )


async def _stream(
    stage: Stage,
    scale: Scale,
    say: Callable[[str], None],
    report: Report,
    beside: Beside,
    publisher: Child,
    flood: dict[str, object],
    rate: float,
) -> None:
    bridge, probe, url = await _bridge(stage, beside)
    await probe.ask("run", messages=20, pace_ms=PROBE_MS)
    counted, cpu = await _count(url, beside.bus), cpu_seconds(bridge.pid) or 0.0
    messages = round(rate * OFFERED * scale.stream_s)
    probes = round(scale.stream_s * 1000 / PROBE_MS)
    (sent, waited) = await asyncio.gather(
        publisher.ask("run", messages=messages, rate=rate * OFFERED, **flood),
        probe.ask("run", messages=probes, pace_ms=PROBE_MS),
    )
    at = await probe.ask("mark")
    used = (cpu_seconds(bridge.pid) or 0.0) - cpu
    seconds = at - sent["begun"]
    lost = counted + messages + probes + 1 - await _count(url, beside.bus)
    dirty = await asyncio.to_thread(_dirty, url)
    taken = messages / seconds
    label = f"over {scale.stream_s:g} s"
    if beside.target is None:
        report.tell(f"triggers a second {label}, at half the rate of bursts", f"{taken:,.0f}")
    else:
        report.at_least(f"triggers a second {label}", taken, beside.target, "{:,.0f}")
    report.at_most("of these lost", lost, 0, "{:.0f}")
    report.at_most("meanwhile, trigger to wake heard: p99, ms", percentile(waited, 0.99), LATENCY_MS, "{:.1f}")
    report.tell("meanwhile, trigger to wake heard: p50 / max, ms", f"{percentile(waited, 0.5):.1f} / {max(waited):.1f}")
    report.notes.append(
        f"The stream: {messages:,} triggers offered at {rate * OFFERED:,.0f} a second, counted at the bridge's "
        f"/metrics; afterwards {dirty} of {QUEUES} queues were dirty. Of a core: bridge {used / seconds:.0%}, "
        f"publisher {sent['cpu']:.0%}. The wakes of {probes:,} single triggers on queues of their own, one each "
        f"{PROBE_MS:g} ms, were heard over a WebSocket session."
    )
    say(report.notes[-1])
    if dirty != QUEUES:
        raise RuntimeError(f"only {dirty} of {QUEUES} queues were marked")


async def _bridge(stage: Stage, beside: Beside) -> tuple[Child, Child, str]:
    bridge, url = await stage.bridge(None, f"--{beside.bus}", beside.url)
    await asyncio.to_thread(_ready, url)
    return bridge, await stage.role("probe", beside.url, url), url


def _ready(url: str) -> None:
    for _ in range(100):
        try:
            urllib.request.urlopen(f"{url}/readyz", timeout=10).close()
        except urllib.error.HTTPError:
            time.sleep(0.02)
            continue
        return
    raise RuntimeError("the bridge did not become ready")


async def _count(url: str, bus: str) -> int:
    def get() -> str:
        with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
            return str(answer.read(), "utf-8")

    found = re.search(rf'^queuebell_triggers_total{{bus="{bus}"}} (\S+)$', await asyncio.to_thread(get), re.MULTILINE)
    return int(float(found[1])) if found else 0


def _dirty(url: str) -> int:
    states = []
    for number in range(QUEUES):
        with urllib.request.urlopen(f"{url}/v1/queues/bench/flood{number}", timeout=10) as answer:
            states.append(bool(json.load(answer)["dirty"]))
    return sum(states)
