"""The plan and the result of the demo: measurements, broken promises, and both as lines of text. Pure."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from queuebell.demo.analysis import Facts

WORKER: Final = (sys.executable, "-m", "queuebell.demo.worker")


class Plan(msgspec.Struct, frozen=True):
    """What to play: ``files`` of the library, or all, in ``bursts``, each followed by ``quiet_s`` seconds of quiet."""

    workers: int = 4
    bursts: int = 3
    quiet_s: float = 1.2
    files: int | None = None
    worker: Sequence[str] = WORKER


class Outcome(msgspec.Struct, kw_only=True):
    """The measurements of one run. Times are in seconds, latencies in milliseconds."""

    files: int
    put: int
    """Messages put, files and single ones together."""
    missing: int
    """Messages without a result."""
    duplicates: int
    differing: list[str]
    """Files whose facts differ from the direct analysis."""
    totals: Facts
    workers: int
    processes: list[int]
    """The number of worker processes over time."""
    killed: int | None
    """The process that was killed with -9."""
    seconds: float
    process_s: float
    direct_s: float
    quiet_s: float
    quiet_receives: int
    wakes: int
    receives: int
    receives_empty: int
    dead_letters: int
    p50_ms: float
    p99_ms: float

    @property
    def faults(self) -> list[str]:
        """Return each broken promise as a sentence; none if all held."""
        course = self.processes
        found = {
            f"{self.missing:,} of {self.put:,} messages have no result": self.missing,
            f"{len(self.differing):,} files differ from the direct analysis, first {min(self.differing, default='')}": (
                self.differing
            ),
            f"{self.quiet_receives:,} receives while it was quiet; there should be none": self.quiet_receives,
            f"{self.dead_letters:,} messages were dead-lettered": self.dead_letters,
            "no worker was killed": self.killed is None,
            f"{course[0]} workers ran before the work came, and {course[-1]} after it": course[0] or course[-1],
        }
        return [words for words, broken in found.items() if broken]

    def table(self) -> list[str]:
        """Return the result next to polling once a second, in lines of at most 80 columns.

        Polling is reckoned in its favour: every listener polls once a second, all the time, and never in between.
        """
        listeners = self.workers + 1
        month = 30 * 86_400 * listeners
        rows = [
            ("", "Queuebell", "polling each second"),
            ("messages without a result", f"{self.missing:,}", ""),
            ("results that came twice, counted once", f"{self.duplicates:,}", ""),
            ("worker processes", _course(self.processes), f"{self.workers}, always"),
            ("  seconds of them", f"{self.process_s:,.0f}", f"{self.workers * self.seconds:,.0f}"),
            ("wakes", f"{self.wakes:,}", ""),
            ("receives", f"{self.receives:,}", f"{listeners * int(self.seconds):,} and more"),
            (f"  in {self.quiet_s:.1f} s of quiet", f"{self.quiet_receives:,}", f"{listeners * self.quiet_s:,.0f}"),
            ("  in a quiet month", f"{0 if not self.quiet_receives else '-'}", f"{month:,}"),
            ("put to handler, p50", f"{self.p50_ms:.1f} ms", "500 ms"),
            ("put to handler, p99", f"{self.p99_ms:.1f} ms", "990 ms"),
        ]
        return [f"  {name:<38}{ours:>18}{theirs:>22}".rstrip() for name, ours, theirs in rows]


def total(facts: Mapping[str, Facts]) -> Facts:
    """Add up the counts of all files."""
    every = facts.values()
    return Facts(*(sum(getattr(each, name) for each in every) for name in ("lines", "functions", "classes", "imports")))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank percentile, ``share`` from 0 to 1; 0.0 without values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)] if values else 0.0


def _course(numbers: list[int]) -> str:
    return f"{numbers[0]} to {max(numbers)} to {numbers[-1]}"
