"""What the demo came to: everything it measured, and every promise that did not hold."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from queuebell.demo.bill import Bill
from queuebell.demo.report import Report


class BurstTime(msgspec.Struct, frozen=True):
    """One burst: its files, put to first handler in milliseconds, first put to last result in seconds."""

    files: int
    first_handler_ms: float
    seconds: float


class Outcome(msgspec.Struct, frozen=True):
    """The end of one run; ``faults`` is empty if and only if all held."""

    ok: bool
    faults: list[str]
    python: str
    workers: int
    processes: list[int]
    """How many worker processes there were, one after the other."""
    killed_worker: int
    bursts: list[BurstTime]
    files_put: int
    probes_put: int
    lost: int
    duplicates: int
    later_attempts: int
    equal: bool
    differing: list[str]
    report: Report
    direct: Report
    bill: Bill


def faults_of(
    *,
    put: int,
    lost: int,
    unknown: int,
    differing: Sequence[str],
    totals_equal: bool,
    receives_while_quiet: int,
    poisoned: int,
    processes: Sequence[int],
    ends: Sequence[str],
) -> list[str]:
    """Say in plain sentences which of the demo's promises were broken."""
    faults = []
    if lost:
        faults.append(f"{lost:,} of {put:,} items have no result")
    if unknown:
        faults.append(f"{unknown:,} results belong to no item that was put")
    if differing:
        faults.append(f"{len(differing):,} files differ from the direct analysis, the first is {differing[0]}")
    elif not totals_equal:
        faults.append("the report differs from the direct one although no file does")
    if receives_while_quiet:
        faults.append(f"{receives_while_quiet:,} receives while it was quiet, where there should be none")
    if poisoned:
        faults.append(f"{poisoned:,} messages were buried as poison")
    if processes[0] or processes[-1]:
        faults.append(f"{processes[0]} worker processes ran before any work, and {processes[-1]} were left after it")
    return [*faults, *ends]
