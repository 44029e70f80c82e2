"""What an idle fleet asks of a store, and what one trigger costs when fifty listeners wait."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import Callable
from typing import Any

from bench.figures import Report
from bench.sizes import Scale
from bench.stage import Stage

QUEUE = "bench/idle"
TEN = 10
PACE_MS = 50.0


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Ten listeners left alone; then fifty, with now and then a message."""
    report = Report("Receives")
    _, url = await stage.bridge()
    ten = await stage.role("ours", "idle", url, TEN)
    # Idle after work, which is harder than idle from the start.
    await ten.ask("puts", count=5, pace_ms=PACE_MS)
    before = await _receives(url)
    await asyncio.sleep(scale.idle_s)
    report.at_most(
        f"by {TEN} idle listeners in {scale.idle_s:g} s", (await _receives(url))["total"] - before["total"], 0, "{:.0f}"
    )
    await ten.stop()

    count = scale.idle_puts
    _, url = await stage.bridge()
    own = await stage.role("ours", "idle", url, scale.idle_listeners)
    before = await _receives(url)
    await own.ask("puts", count=count, pace_ms=PACE_MS)
    after = await _receives(url)
    label = f"with {scale.idle_listeners} idle listeners"
    report.at_most(f"a put on an own queue, {label}", (after["total"] - before["total"]) / count, 2.0)
    await own.stop()

    _, url = await stage.bridge()
    elsewhere = await stage.role("ours", "idle", url, scale.idle_listeners, "elsewhere")
    counted = await elsewhere.ask("puts", count=count, pace_ms=PACE_MS)
    report.at_most(f"a trigger of a queue that lives elsewhere, {label}", counted["receives"] / count, 2.0)
    report.notes.append(
        f"{count} puts, one each {PACE_MS:g} ms, so that the fleet is idle each time. Own queue: counted by the "
        "bridge; a message that comes within a wake needs no receive. Elsewhere: counted at the listeners' store; of "
        f"these {counted['empty'] / count:.2f} a trigger were empty."
    )
    return report


async def _receives(url: str) -> dict[str, Any]:
    def get() -> dict[str, Any]:
        with urllib.request.urlopen(f"{url}/v1/queues/{QUEUE}", timeout=10) as answer:
            state: dict[str, Any] = json.load(answer)["receives"]
            return state

    return await asyncio.to_thread(get)
