"""Plays runs in as many processes as the machine has cores."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from tests.simulation.fault import Fault
from tests.simulation.outcome import Outcome
from tests.simulation.plan import Plan
from tests.simulation.run import run

RUNS_OF_A_PROCESS: Final = 200
"""A process is replaced after so many runs, so that a long campaign does not grow."""


class Job(msgspec.Struct, frozen=True):
    """One run to play; ``faults`` None draws them from the seed."""

    plan: Plan
    seed: int
    faults: list[Fault] | None = None


class Played(msgspec.Struct, frozen=True):
    """A job and its outcome, or the traceback of an exception in the simulator itself."""

    job: Job
    outcome: Outcome | None
    broken: str = ""


def play_one(job: Job) -> Played:
    """Play one run in this process."""
    try:
        return Played(job, run(job.plan, job.seed, job.faults))
    except Exception:
        return Played(job, None, traceback.format_exc())


def play(jobs: Iterable[Job], processes: int) -> Iterator[Played]:
    """Play the runs in ``processes`` processes, and yield each as it ends, in any order."""
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=RUNS_OF_A_PROCESS) as pool:
        yield from pool.imap_unordered(play_one, jobs)
