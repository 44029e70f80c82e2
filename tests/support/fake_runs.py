"""Runs that come to whatever a test of the command wants them to come to, in no time."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence

import msgspec

from tests.simulation.fault import Fault, draw_faults
from tests.simulation.kernel import Kernel
from tests.simulation.outcome import Figures, Outcome
from tests.simulation.plan import Plan


def held(plan: Plan, seed: int, faults: Sequence[Fault] | None = None, *, keep_story: bool = False) -> Outcome:
    """Everything held."""
    put = plan.messages * plan.producers
    return Outcome(
        seed=seed,
        plan=plan.name,
        ok=True,
        violations=[],
        total={"attempted": put, "acknowledged": put, "duplicated": 1},
        receives_per_hour_empty=None,
        coverage={"rare thing": seed % 2, "unheard-of thing": 0},
        trace_sha256=f"{seed:064x}",
        virtual_s=360.0,
        steps=10,
        story=["    0.000000 Phase name=faults", "    9.000000 Phase name=end"] if keep_story else [],
        figures=Figures(
            bound_s=116.0,
            worst_gap_s={"crash": float(seed % 50)},
            calm_receives=0 if plan.store == "own" else 60,
            calm_s=3600.0,
            restarts=len(faults or ()),
            checked={"I1": 1},
        ),
    )


def fails(plan: Plan, seed: int, faults: Sequence[Fault] | None = None, *, keep_story: bool = False) -> Outcome:
    """Seeds from 3 on lose a message if, and only if, a worker crashes."""
    given = draw_faults(plan, Kernel(seed).chance("faults")) if faults is None else faults
    outcome = held(plan, seed, faults, keep_story=keep_story)
    if seed < 3 or not any(fault.kind == "crash" for fault in given):
        return outcome
    return msgspec.structs.replace(outcome, ok=False, violations=["lost: 1 of 3 acknowledged messages"])


def breaks(plan: Plan, seed: int, faults: Sequence[Fault] | None = None, *, keep_story: bool = False) -> Outcome:
    """Seed 1 breaks the simulation itself."""
    if seed == 1:
        sys.stdout.write("noise on standard output\n")
        raise RuntimeError("a defect of the simulation")
    return held(plan, seed, faults, keep_story=keep_story)


def dies(plan: Plan, seed: int, faults: Sequence[Fault] | None = None, *, keep_story: bool = False) -> Outcome:
    """Seed 2 takes its process along."""
    if seed == 2:
        os._exit(9)
    return held(plan, seed, faults, keep_story=keep_story)


def hangs(plan: Plan, seed: int, faults: Sequence[Fault] | None = None, *, keep_story: bool = False) -> Outcome:
    """Seed 1 never ends."""
    if seed == 1:
        sys.stderr.write("hanging\n")
        sys.stderr.flush()
        threading.Event().wait()
    return held(plan, seed, faults, keep_story=keep_story)


def never_restarts(
    plan: Plan, seed: int, faults: Sequence[Fault] | None = None, *, keep_story: bool = False
) -> Outcome:
    """Everything held, and I6 had nothing to check."""
    outcome = held(plan, seed, faults, keep_story=keep_story)
    return msgspec.structs.replace(
        outcome, figures=msgspec.structs.replace(outcome.figures, checked={"I1": 1, "I6": 0})
    )


def sees_nothing(plan: Plan, seed: int, faults: Sequence[Fault] | None = None, *, keep_story: bool = False) -> Outcome:
    """Ends at once: nothing was violated, because nothing was looked at."""
    outcome = held(plan, seed, faults, keep_story=keep_story)
    figures = msgspec.structs.replace(outcome.figures, checked={"I1": 0, "I2": 0})
    return msgspec.structs.replace(outcome, steps=0, virtual_s=0.0, figures=figures)
