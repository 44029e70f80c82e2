"""Triggers over MQTT, beside a bare paho subscriber that only counts."""

from __future__ import annotations

from collections.abc import Callable

from bench.brokered_intake import Beside, intake
from bench.figures import Report
from bench.sizes import Scale
from bench.stage import Stage


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Bursts in turns with the bare one; then a stream at half the rate of those."""
    report = Report("Trigger intake over MQTT")
    url = await stage.mosquitto()
    if url is None:
        report.notes.append("Skipped: no mosquitto was found.")
        return report
    beside = Beside("mqtt", url, "a bare paho subscriber that only counts", scale.burst_mqtt, None)
    await intake(stage, scale, say, report, beside)
    return report
