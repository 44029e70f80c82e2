"""The written form of a run: bench/RESULTS.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.figures import Report

_VERDICTS = {True: "met", False: "**missed**", None: ""}


def write(
    path: Path, machine: Sequence[tuple[str, str]], reports: Sequence[Report], command: Sequence[str], seconds: float
) -> None:
    """Write all reports, with the machine, the date and the command."""
    lines = [
        "# Figures",
        "",
        f"Written by `{' '.join(command)}` (`make bench`) in {seconds:.0f} s. Do not edit: run it again.",
        "What is compared ran beside in the same run, in turns: read the ratios, not the rates of this machine.",
        "",
        "| machine | |",
        "|---|---|",
        *(f"| {name} | {text} |" for name, text in machine),
    ]
    for report in reports:
        lines += ["", f"## {report.title}", "", "| figure | measured | target | |", "|---|---|---|---|"]
        lines += [f"| {f.name} | {f.value} | {f.target} | {_VERDICTS[f.met]} |" for f in report.figures]
        lines += [line for note in report.notes for line in ("", note)]
    path.write_text("\n".join(lines) + "\n", "utf-8")
