"""Ingestion: puts on schedule, sustained, at five times that rate, one by one, and past what the service can take."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bench.figures import Report
from bench.machine import cpu_seconds, resident_bytes, starved_seconds
from bench.openloop import SLOT
from bench.sizes import Scale
from bench.stage import Child, Stage

BATCH = 10
BODY = "x" * 100
BATCH_BODY = '{"messages": [' + ", ".join(f'{{"body": "{BODY}"}}' for _ in range(BATCH)) + "]}"
PUT = {"method": "POST", "path": "/v1/queues/bench/ingestion/messages", "body": BATCH_BODY, "media": "application/json"}
PUT_ONCE = {
    "method": "PUT",
    "path": f"/v1/queues/bench/ingestion/messages/order-{SLOT.decode()}",
    "body": BODY,
    "media": "text/plain",
}
FIVE = 5
P99_MS = 500.0
SINGLE_TARGET = 5_000
STEP = 1.25
MADE, REFUSED = "201", "429"


class Load:
    """The client of one service, and how many messages it was told are safe."""

    def __init__(self, client: Child, bridge: Child, url: str, connections: int) -> None:
        self.bridge = bridge
        self.acknowledged = 0
        self._client = client
        self._url = url
        self._connections = connections
        self._first = 0

    async def offer(self, request: dict[str, str], rate: float, seconds: float, connections: int = 0) -> dict[str, Any]:
        """Offer requests at a rate, and return what came of them; ``share`` is that of the service, of a core, and
        ``starved`` the time that its threads and the client's were ready and had none, per second."""
        before, starved = cpu_seconds(self.bridge.pid) or 0.0, self._starved()
        asked = asyncio.create_task(
            self._client.ask(
                "run",
                url=self._url,
                **request,
                rate=rate,
                seconds=seconds,
                connections=connections or self._connections,
                first=self._first,
            ),
            name="bench-offer",
        )
        peak = 0
        while not asked.done():
            peak = max(peak, resident_bytes(self.bridge.pid) or 0)
            await asyncio.wait((asked,), timeout=0.1)
        ran: dict[str, Any] = asked.result()
        self._first += int(ran["offered"])
        made = ran["statuses"].get(MADE, 0)
        self.acknowledged += made * (BATCH if request is PUT else 1)
        ran["refused"] = ran["statuses"].get(REFUSED, 0)
        ran["other"] = ran["offered"] - made - ran["refused"]
        ran["p50"], ran["p99"], ran["max"] = ran["latency_ms"].get(MADE, (0.0, 0.0, 0.0))
        ran["share"] = ((cpu_seconds(self.bridge.pid) or before) - before) / (ran["offered"] / ran["rate"])
        ran["starved"] = [
            (b - a) / (ran["offered"] / ran["rate"]) for a, b in zip(starved, self._starved(), strict=True)
        ]
        ran["peak"] = peak
        return ran

    def _starved(self) -> tuple[float, float]:
        return starved_seconds(self.bridge.pid) or 0.0, starved_seconds(self._client.pid) or 0.0


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Batches at one and at five times the rate; then single puts up to the highest rate, and twice that."""
    report = Report("Ingestion")
    client = await stage.role("openloop")
    await _batches(stage, scale, say, report, client)
    await _singles(stage, scale, say, report, client)
    return report


async def _batches(stage: Stage, scale: Scale, say: Callable[[str], None], report: Report, client: Child) -> None:
    data = stage.data("batches")
    bridge, url = await stage.bridge(data)
    load = Load(client, bridge, url, scale.ingest_connections)
    await load.offer(PUT, scale.ingest_rate / 10, 0.5)
    for times, seconds in ((1, scale.ingest_s), (FIVE, scale.ingest_peak_s)):
        rate = scale.ingest_rate * times
        before = load.acknowledged
        ran = await load.offer(PUT, rate, seconds)
        taken = (load.acknowledged - before) / (seconds + max(0.0, ran["drained"]))
        name = f"{rate * BATCH:,.0f} messages a second for {seconds:g} s"
        # The last answers come a moment after the last request was due.
        report.at_least(f"{name}: acknowledged a second", taken, rate * BATCH * 0.99, "{:,.0f}")
        report.at_most(f"{name}: p99, ms", ran["p99"], P99_MS, "{:.1f}")
        report.tell(f"{name}: p50 / max, ms", f"{ran['p50']:.1f} / {ran['max']:.1f}")
        report.at_most(f"{name}: refused", ran["refused"] + ran["other"], 0, "{:,.0f}")
        report.notes.append(f"At {rate:,.0f} POST a second, of a core: {_shares(ran)}")
        say(f"{name}: {taken:,.0f}/s, p99 {ran['p99']:.1f} ms; {_shares(ran)}")
    await bridge.stop()
    report.at_most("lost or doubled, of those acknowledged", abs(_stored(data) - load.acknowledged), 0, "{:,.0f}")
    report.notes.append(
        f"Messages of {len(BODY)} bytes in batches of {BATCH}, one POST each, offered on schedule (open loop) over "
        f"{scale.ingest_connections} connections; latency counts from when a request was due. The service is "
        f"`queuebell serve` with its default file (`synchronous=FULL`); afterwards it was stopped and the "
        f"{load.acknowledged:,} messages acknowledged were counted in the file."
    )


async def _singles(stage: Stage, scale: Scale, say: Callable[[str], None], report: Report, client: Child) -> None:
    data = stage.data("singles")
    bridge, url = await stage.bridge(data)
    load = Load(client, bridge, url, scale.ingest_connections)
    await load.offer(PUT_ONCE, scale.ingest_rate, 0.5)
    highest, at = 0.0, {"p99": 0.0}
    rate = float(scale.ingest_rate * FIVE)
    for _ in range(scale.ingest_steps):
        ran = await load.offer(PUT_ONCE, rate, scale.ingest_step_s)
        held = ran["p99"] < P99_MS and not ran["refused"] and not ran["other"]
        say(f"{rate:,.0f} single PUTs a second: p99 {ran['p99']:.1f} ms, {ran['refused']:,} refused; {_shares(ran)}")
        if not held:
            break
        highest, at = rate, ran
        rate *= STEP
    report.at_least(
        f"single PUTs a second, the highest rate with p99 < {P99_MS:.0f} ms and none refused",
        highest,
        SINGLE_TARGET,
        "{:,.0f}",
    )
    report.tell("there: p99, ms", f"{at['p99']:.1f}")
    before = resident_bytes(bridge.pid) or 0
    over = max(highest, scale.ingest_rate) * 2
    ran = await load.offer(PUT_ONCE, over, scale.ingest_over_s, scale.ingest_over_connections)
    made = ran["statuses"].get(MADE, 0)
    report.tell(
        f"{over:,.0f} single PUTs a second offered: put / refused with 429, a second",
        f"{made * ran['rate'] / ran['offered']:,.0f} / {ran['refused'] * ran['rate'] / ran['offered']:,.0f}",
    )
    report.at_most(
        "there: answered otherwise, or 429 without `Retry-After`",
        ran["other"] + ran["refused"] - min(ran["refused"], ran["begged"]),
        0,
        "{:,.0f}",
    )
    report.at_most("there: p99 of those put, ms", ran["p99"], P99_MS, "{:.1f}")
    report.tell("there: resident memory of the service, MiB, before / at most", f"{before >> 20} / {ran['peak'] >> 20}")
    say(f"{over:,.0f} offered: {ran['statuses']}, p99 {ran['p99']:.1f} ms; {_shares(ran)}")
    await bridge.stop()
    report.at_most("lost or doubled, of those put", abs(_stored(data) - load.acknowledged), 0, "{:,.0f}")
    report.notes.append(
        f"Single PUTs of {len(BODY)} bytes, each under a key of its own: {scale.ingest_step_s:g} s at "
        f"{scale.ingest_rate * FIVE:,} a second, then at rates {STEP} times the one before. The overload lasted "
        f"{scale.ingest_over_s:g} s over {scale.ingest_over_connections:,} connections. Of a core: {_shares(ran)}"
    )


def _shares(ran: dict[str, Any]) -> str:
    service, client = ran["starved"]
    ceiling = ran["rate"] / max(ran["cpu"], 1e-3)
    return (
        f"service {ran['share']:.0%}, load generator {ran['cpu']:.0%} (with a core to itself it could offer "
        f"{ceiling:,.0f} a second); ready but without a core: service {service:.0%}, load generator {client:.0%}."
    )


def _stored(data: Path) -> int:
    """Count what is in the file of a service that has ended."""
    connection = sqlite3.connect(data / "queue.db")
    try:
        rows: Sequence[tuple[int]] = connection.execute("SELECT COUNT(*) FROM messages").fetchall()
        return rows[0][0]
    finally:
        connection.close()
