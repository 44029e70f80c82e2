"""What an empty queue costs a fleet of listeners, and what a bridge restart costs it: plans and table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from tests.simulation.fault import Fault
from tests.simulation.jobs import Job, Played
from tests.simulation.plan import PRESETS, Plan
from tests.simulation.promise import promise

FLEETS: Final = (1, 10, 100, 1000)
_BEGIN_S: Final = 60.0
_RESTART_AT_S: Final = 240.0
_RESTART_S: Final = 400.0


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One fleet: receives an hour of its empty queue, over so many hours; receives of one bridge restart."""

    store: str
    listeners: int
    hours: float
    receives_per_hour: float | None
    promised_per_hour: int
    restarts: int
    restart_receives: int
    promised_restart: int
    ok: bool
    violations: list[str]
    bridges: int = 1


def store_of(plan: Plan) -> str:
    """Return where the messages wait, in the words of the options."""
    return "own" if plan.doors else plan.store


def jobs(
    stores: Sequence[str], channel: str, fleets: Sequence[int], hours: float, seed: int, bridges: int = 1
) -> list[Job]:
    """Return the runs to play, the smallest fleets first: for each an idle one of so many hours, and a restart."""
    found = []
    several = "cluster-" if bridges > 1 else ""
    for listeners in sorted(fleets):
        for store in stores:
            preset = PRESETS[f"{several}{store}-{channel}"]
            plan = msgspec.structs.replace(
                preset,
                bridges=bridges,
                workers=listeners,
                messages=1,
                delayed_share=0.0,
                handler_failure_share=0.0,
                faults=(),
                hours=_BEGIN_S / 3600,
                healed_s=1.0,
                # What comes before the calm takes its time too.
                quiet_s=hours * 3600 + promise(preset).churn_s,
            )
            found.append(Job(plan, seed, []))
            restart = msgspec.structs.replace(plan, hours=_RESTART_S / 3600, messages=0, quiet_s=0.0)
            found.append(Job(restart, seed, [Fault(_RESTART_AT_S, "crash", plan.bridge_names[0], 1.0)]))
    return found


def row(runs: Sequence[Played]) -> Row:
    """Put the two runs of one fleet into one row."""
    plan = runs[0].job.plan
    violations: list[str] = []
    receives, calm_s, restarts, restart_receives = 0, 0.0, 0, 0
    for run in runs:
        if run.outcome is None:
            violations.append(f"broken: {run.broken.rstrip().splitlines()[-1]}")
            continue
        figures = run.outcome.figures
        violations += run.outcome.violations
        if run.job.faults:
            restarts += figures.restarts
            restart_receives = max(restart_receives, figures.restart_receives)
        else:
            receives += figures.calm_receives
            calm_s += figures.calm_s
    bounds = promise(plan)
    rate = receives / calm_s * 3600 if calm_s else None
    if not violations and rate is None:
        violations.append("idle: the queue was never calm, nothing was measured")
    if not violations and not restarts:
        violations.append("idle: no restart could be watched")
    return Row(
        store_of(plan),
        plan.workers,
        round(calm_s / 3600, 3),
        None if rate is None else round(rate, 3),
        bounds.receives_an_hour,
        restarts,
        restart_receives,
        bounds.receives_a_restart,
        not violations,
        violations,
        plan.bridges,
    )


def tell_head() -> str:
    """Name the columns of the table."""
    head = f"  {'queue':<11}{'listeners':>9}{'hours':>8}{'receives/h':>12}{'promised':>10}"
    return f"{head}{'a restart':>12}{'promised':>10}"


def tell_row(row: Row) -> list[str]:
    """Lay out one row of the table."""
    rate = "-" if row.receives_per_hour is None else f"{row.receives_per_hour:.1f}"
    restart = str(row.restart_receives) if row.restarts else "-"
    line = (
        f"  {row.store:<11}{row.listeners:>9,}{row.hours:>8.2f}{rate:>12}{'<= ' + str(row.promised_per_hour):>10}"
        f"{restart:>12}{'<= ' + str(row.promised_restart):>10}"
    )
    return [line, *(f"    {violation}" for violation in row.violations[:3])]
