"""Triggers over NATS, beside a bare nats-py subscriber that only counts."""

from __future__ import annotations

from collections.abc import Callable

from bench.brokered_intake import Beside, intake
from bench.figures import Report
from bench.sizes import Scale
from bench.stage import Stage


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Bursts in turns with the bare one; then a stream at the rate of the target."""
    report = Report("Trigger intake over NATS")
    url = await stage.nats()
    if url is None:
        report.notes.append("Skipped: no nats-server was found.")
        return report
    beside = Beside("nats", url, "a bare nats-py subscriber that only counts", scale.burst, 50_000)
    await intake(stage, scale, say, report, beside)
    return report
