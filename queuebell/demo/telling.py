"""The report, the bill and the verdict as lines of text, none wider than 80 columns. Pure."""

from __future__ import annotations

from typing import Final

from queuebell.demo.bill import Bill
from queuebell.demo.outcome import Outcome
from queuebell.demo.report import Report

WIDTH: Final = 80
COURSE: Final = 50


def tell_report(report: Report) -> list[str]:
    """Lay out the report."""
    faults = [f"{report.unparsed:,} do not parse"] if report.unparsed else []
    faults += [f"{report.unreadable:,} cannot be read"] if report.unreadable else []
    rows = [
        ("source files", report.files, "of these " + ", ".join(faults) if faults else ""),
        ("lines", report.lines, f"of these {report.code_lines:,} are code"),
        ("functions", report.functions, ""),
        ("classes", report.classes, ""),
        ("imports", report.imports, ""),
    ]
    lines = [f"  {name:<17}{count:>11,}   {note}".rstrip() for name, count, note in rows]
    longest = report.longest
    if longest is not None:
        lines.append(f"  {'longest function':<17}{longest.lines:>11,}   lines: {_shorten(longest.name, 40)}")
        lines.append(" " * 33 + _shorten(f"{longest.path}:{longest.line}", WIDTH - 33))
    return lines


def tell_bill(bill: Bill) -> list[str]:
    """Lay out the bill beside what polling each second costs."""
    polling, wake = bill.polling, bill.wake
    head = f"  {'':<34}{'woken':>14}{'polling each second':>28}"
    rows = [
        ("messages", f"{bill.messages:,}", ""),
        ("triggers", f"{bill.triggers:,}", ""),
        ("wakes", f"{bill.wakes:,}", ""),
        ("seconds of worker processes", f"{bill.process_s:,.1f}", f"{polling.process_s:,.1f}"),
        ("receives", f"{bill.receives:,}", f"{polling.receives:,} and more"),
        ("  of these empty", f"{bill.receives_empty:,}", f"{polling.while_quiet:,} and more"),
        (f"  while quiet ({bill.quiet_seconds:.1f} s)", f"{bill.receives_while_quiet:,}", f"{polling.while_quiet:,}"),
        ("put to handler start, p50", f"{wake.p50_ms:.1f} ms", f"{polling.mean_wait_ms:.0f} ms"),
        ("put to handler start, p99", f"{wake.p99_ms:.1f} ms", f"{polling.p99_wait_ms:.0f} ms"),
    ]
    if not bill.receives_while_quiet:
        rows += [
            ("receives in a quiet month", "0", f"{polling.quiet_month_receives:,}"),
            ("  as the white paper priced them*", "$0.00", f"${polling.quiet_month_dollars:,.2f}"),
        ]
    foot = [] if bill.receives_while_quiet else ["  * $0.01 for 10,000 storage transactions"]
    return [head, *(f"  {name:<34}{ours:>14}{theirs:>28}".rstrip() for name, ours, theirs in rows), *foot]


def tell_verdict(outcome: Outcome) -> list[str]:
    """Say what held, or what did not."""
    if not outcome.ok:
        return ["Not all of it held:", *(f"  {fault}" for fault in outcome.faults)]
    bill, items = outcome.bill, outcome.files_put + outcome.probes_put
    twice = f"{outcome.duplicates:,} results came twice and counted once" if outcome.duplicates else "no result"
    return [
        f"  equal     all {outcome.report.files:,} files are as the direct analysis has them",
        f"  lost      none of {items:,} items, although worker {outcome.killed_worker} was killed with -9",
        f"  twice     {twice}",
        f"  zero      {shown(outcome.processes)} worker processes",
        f"  quiet     {bill.receives_while_quiet} receives in {bill.quiet_seconds:.1f} s of quiet",
    ]


def shown(course: list[int]) -> str:
    """Write a course of numbers in `COURSE` columns at most: of a long one beginning and end, and its highest."""
    whole = " -> ".join(map(str, course))
    return (
        whole if len(whole) <= COURSE else " -> ".join(map(str, [*course[:3], "...", max(course), "...", *course[-3:]]))
    )


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else "..." + text[3 - width :]
