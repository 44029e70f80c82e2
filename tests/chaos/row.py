"""One row of the fault catalogue, and what came of running it."""

from __future__ import annotations

import enum
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.pace import ALLOWANCE_S, Bound, Pace, Promise
from tests.chaos.site import Site
from tests.chaos.tally import TotalQueue
from tests.support.processes import Processes

Story = Callable[[Site], Awaitable[None]]


class Needs(enum.Enum):
    """What a row needs beyond this checkout."""

    NOTHING = "nothing"
    SYSTEM = "a system package"
    KERNEL = "a kernel that lets us"


@dataclass(frozen=True)
class Row:
    """One fault: what is injected and how, what is promised, and the story that injects it.

    ``inject`` is None where it is a command for another machine. ``command`` is the way to inject by hand what a
    kernel may forbid; ``possible`` says whether this machine lets us do it here. Where it is not ``judged``, a wait
    beyond what is promised is told and breaks nothing.
    """

    number: str
    fault: str
    how: str
    promise: Promise
    inject: Story | None
    needs: Needs = Needs.NOTHING
    command: str = ""
    possible: Callable[[], bool] = field(default=lambda: True)
    judged: bool = True


@dataclass(frozen=True)
class Measurement:
    """What a run of a row came to; seconds."""

    row: Row
    bound: Bound
    worst_wake_s: float
    total: TotalQueue
    took_s: float
    figures: dict[str, str]

    def __str__(self) -> str:
        figures = "".join(f", {name}: {value}" for name, value in self.figures.items())
        return (
            f"{self.worst_wake_s:.3f} s of {self.bound.seconds:.2f} s, {self.total}{figures}; took {self.took_s:.1f} s"
        )

    def faults(self, allowance_s: float = ALLOWANCE_S) -> list[str]:
        """Return what was promised and not kept; ``allowance_s`` is what this machine may add to a bound."""
        broken = [f"{what}={n}" for what, n in (("lost", self.total.lost), ("unexpected", self.total.unexpected)) if n]
        if self.total.acknowledged + self.total.recovered == 0:
            broken.append("nothing was put")
        if self.row.judged and self.worst_wake_s > self.bound.seconds + allowance_s:
            broken.append(f"worst wake {self.worst_wake_s:.2f} s, promised {self.bound.seconds:.2f} s")
        return broken


async def run(row: Row, folder: Path, pace: Pace | None = None, *, auth: bool = False) -> Measurement:
    """Run one row in ``folder``: inject, heal, drain to the last message, sum up; with ``auth`` all have keys."""
    pace = pace or Pace()
    assert row.inject is not None, f"{row.number} is a command: {row.command}"
    began = time.monotonic()
    async with Processes(folder, auth=auth) as processes:
        site = Site(processes, pace)
        try:
            await row.inject(site)
            await site.drain()
        finally:
            await site.close()
        return Measurement(
            row,
            row.promise(pace),
            site.tally.worst_wake_s,
            site.tally.total(),
            time.monotonic() - began,
            dict(site.figures),
        )
