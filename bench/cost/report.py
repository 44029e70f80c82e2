"""The comparison as lines of text: a table and a chart, none wider than 100 columns. Pure."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final

from bench.cost.comparison import Comparison

BAR: Final = 44
"""Columns of the longest bar."""


def tell(comparison: Comparison) -> list[str]:
    """Lay out all of it."""
    return [
        *tell_day(comparison),
        "",
        *tell_table(comparison),
        "",
        *tell_processes(comparison),
        *tell_chart(comparison),
        "",
        *tell_paper(comparison),
    ]


def tell_day(comparison: Comparison) -> list[str]:
    """Say what was simulated."""
    day = comparison.day
    sizes = sorted(burst.items for burst in day.bursts)
    tariff = f"${comparison.tariff.price} for {comparison.tariff.per:,} transactions"
    hour = f"${comparison.tariff.process_hour} for an hour of a process, which starts in {day.start_s:g} s"
    bursts = f"{day.items:,} messages in {len(sizes)} bursts of {sizes[0]:,} to {sizes[-1]:,}"
    return [
        f"{comparison.threads} dequeue threads through a day of {day.length_s / 3600:g} h, {bursts},",
        f"handled in {day.handler_s:.3f} s on average; {tariff},",
        f"{hour}; seed {comparison.seed}.",
    ]


def tell_table(comparison: Comparison) -> list[str]:
    """Lay out transactions and money, and then latency."""
    cost: list[tuple[str, ...]] = [
        ("policy", "listeners", "puts", "receives", "empty", "deletes", "counts", "$ a month", "for waiting")
    ]
    wait: list[tuple[str, ...]] = [("visible to received", "p50", "p99", "max", "first: p50", "first: max")]
    for row in comparison.rows:
        one = row.outcome
        cost.append(
            (
                one.policy,
                f"{one.listeners:,}",
                f"{one.puts:,}",
                f"{one.hits + one.misses:,}",
                f"{one.misses:,}",
                f"{one.deletes:,}",
                f"{one.counts:,}",
                dollars(row.month),
                dollars(row.waiting_month),
            )
        )
        times = (one.latency.p50_s, one.latency.p99_s, one.latency.max_s, one.first.p50_s, one.first.max_s)
        wait.append((one.policy, *(seconds(time) if one.latency.count else "-" for time in times)))
    return [*_columns(cost), "", *_columns(wait)]


def tell_processes(comparison: Comparison) -> list[str]:
    """Set workers that are always there beside those that are started from zero, where each has several slots."""
    rows = sorted((row for row in comparison.rows if row.outcome.slots > 1), key=lambda row: row.outcome.from_zero)
    if not rows:
        return []
    ones = [row.outcome for row in rows]
    table: list[tuple[str, ...]] = [
        ("", *("from zero" if one.from_zero else "always-on" for one in ones)),
        ("worker processes", *(one.policy for one in ones)),
        ("most at once", *(f"{one.listeners:,}" for one in ones)),
        ("started", *(f"{one.starts:,}" if one.from_zero else "-" for one in ones)),
        ("hours", *(f"{one.process_s / 3600:,.1f}" for one in ones)),
        ("$ a month", *(dollars(row.process_month) for row in rows)),
        ("transactions, $", *(dollars(row.month) for row in rows)),
        ("both, $ a month", *(dollars(row.process_month + row.month) for row in rows)),
        ("first: p50", *(seconds(one.first.p50_s) if one.first.count else "-" for one in ones)),
    ]
    return [*(line.rstrip() for line in _columns(table)), ""]


def tell_chart(comparison: Comparison) -> list[str]:
    """Draw the empty receives and the counts of a day as bars on a logarithmic scale."""
    most = max(row.outcome.waiting for row in comparison.rows)
    lines = ["empty receives and counts a day (a logarithmic scale: each step is ten times as many)"]
    for row in comparison.rows:
        waiting = row.outcome.waiting
        bar = "#" * max(1 if waiting else 0, round(BAR * log_share(waiting, most)))
        lines.append(f"  {row.outcome.title:<34} {bar:<{BAR}} {waiting:>12,}")
    return lines


def tell_paper(comparison: Comparison) -> list[str]:
    """Set the white paper's figures beside ours."""
    paper = comparison.paper
    agrees = "the same" if paper.agrees else "NOT the same"
    return [
        "the white paper's thread that polls each second through 22 idle hours, at the paper's own price:",
        f"  the paper  {paper.paper_receives:>7,} empty receives a day, ${paper.paper_dollars} a month",
        f"  here       {paper.receives:>7,} empty receives a day, {dollars(paper.dollars)} a month: {agrees}",
        f"  the paper's customer has 200 such threads: {dollars(paper.dollars * 200)} a month",
    ]


def log_share(value: int, most: int) -> float:
    """Return how far ``value`` reaches towards ``most`` on a logarithmic scale from 0 (which is none) to 1."""
    return math.log10(1 + value) / math.log10(1 + most) if most else 0.0


def dollars(amount: Decimal) -> str:
    """Write dollars to the cent."""
    return f"${amount:,.2f}"


def seconds(time: float) -> str:
    """Write a time with three digits that count."""
    if time >= 60:
        return f"{time / 60:.1f} min"
    return f"{time:.2f} s" if time >= 1 else f"{time * 1000:.1f} ms"


def _columns(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(widths[0]) if not column else cell.rjust(widths[column]) for column, cell in enumerate(row)
        )
        for row in rows
    ]
