"""The SQLite store alone, every commit on the disk, beside a bare sqlite3 loop of one statement a commit."""

from __future__ import annotations

import statistics
from collections.abc import Callable

from bench.figures import Report
from bench.sizes import Scale
from bench.stage import Stage

CALLERS = (1, 16, 64)


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Run the bare loop and the store with 1, 16 and 64 callers in turns."""
    report = Report("The store alone")
    runs: dict[str, list[dict[str, float]]] = {}
    for number in range(scale.store_rounds):
        for callers in (0, *CALLERS):
            folder = stage.data(f"store-{number}-{callers}")
            child = await stage.role("storeload", folder, callers, scale.store_s)
            name = f"{callers} callers" if callers else "bare sqlite3 loop"
            runs.setdefault(name, []).append(child.ready)
            await child.stop()
        say(f"round {number + 1} of {scale.store_rounds}")
    rates = {
        name: {key: statistics.median(run[key] for run in taken) for key in taken[0]} for name, taken in runs.items()
    }
    for name, rate in rates.items():
        report.tell(
            f"{name}: put / get / delete a second", " / ".join(f"{rate[key]:,.0f}" for key in ("put", "get", "delete"))
        )
    report.notes.append(
        "`synchronous=FULL`, 100-byte bodies, one message a call. The bare loop commits each statement and keeps "
        "neither receipts nor counts; the store commits whatever callers are waiting at once."
    )
    return report
