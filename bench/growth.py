"""How the processor time of each operation grows with what is there: the table of ``tests/growth``, by a clock.

``python -m bench growth``: a quarter of an hour, most of it to make a million of each thing.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Final

from bench.figures import Report
from bench.sizes import Scale
from bench.stage import Stage
from tests.growth.table import TABLE
from tests.support import growth

TIMES: Final = 200
LISTENERS_MAX: Final = 10_000
"""Sessions and subscribers; of all else up to a million."""
OPEN: Final = ("listeners", "sessions", "subscribed", "subscribers")


async def measure(stage: Stage, scale: Scale, say: Callable[[str], None]) -> Report:
    """Carry out each operation of the table beside ever more of each thing that it might depend on."""
    report = Report("Growth")
    growth.clock = time.process_time
    try:
        for world, row in TABLE.items():
            for thing in dict.fromkeys(" ".join(row.values()).split()):
                sizes = [size for size in scale.growth if thing not in OPEN or size <= LISTENERS_MAX]
                operations = [name for name, things in row.items() if thing in things.split()]
                taken: dict[str, list[float]] = {name: [] for name in operations}
                for size in sizes:
                    async with world().opened() as made:
                        await getattr(made, f"fill_{thing}")(size)
                        for name in operations:
                            works = [await getattr(made, name)() for _ in range(TIMES)]
                            taken[name].append(statistics.median(work.cpu_s for work in works))
                for name, seconds in taken.items():
                    figures = ", ".join(f"{1e6 * one:.0f}" for one in seconds)
                    report.tell(f"{name} by {thing}", f"{figures} us; exponent {exponent(sizes, seconds):+.2f}")
                say(f"{world.__name__}: {thing}")
    finally:
        growth.clock = None
    report.notes.append(
        f"Medians of {TIMES} in one process without a disk, beside {', '.join(f'{size:,}' for size in scale.growth)} "
        f"(of sessions and subscribers up to {LISTENERS_MAX:,}). The exponent is the slope of the best line through "
        "the logarithms: 0 is flat, 1 is linear."
    )
    return report


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Return the slope of time over size, both as logarithms; 0 for one size."""
    if len(sizes) < 2:
        return 0.0
    return statistics.linear_regression([math.log(size) for size in sizes], [math.log(one) for one in seconds]).slope
