"""The comparison as lines of text: a table and a chart, none wider than 100 columns. Pure."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Final

from queuebell.cost.comparison import Comparison

BAR: Final = 44
"""Columns of the longest bar."""


def tell(comparison: Comparison) -> list[str]:
    """Lay out all of it."""
    return [
        *tell_day(comparison),
        "",
        *tell_table(comparison),
        "",
        *tell_chart(comparison),
        "",
        *tell_paper(comparison),
    ]


def tell_day(comparison: Comparison) -> list[str]:
    """Say what was simulated."""
    day = comparison.day
    sizes = sorted(burst.items for burst in day.bursts)
    tariff = f"${comparison.tariff.price} for {comparison.tariff.per:,} transactions"
    bursts = f"{day.items:,} messages in {len(sizes)} bursts of {sizes[0]:,} to {sizes[-1]:,}"
    return [
        f"{comparison.threads} dequeue threads through a day of {day.length_s / 3600:g} h, {bursts},",
        f"handled in {day.handler_s:.3f} s on average; {tariff}; seed {comparison.seed}.",
    ]


def tell_table(comparison: Comparison) -> list[str]:
    """Lay out transactions and money, and then latency."""
    cost: list[tuple[str, ...]] = [
        ("policy", "listeners", "puts", "receives", "of these empty", "deletes", "$ a month", "for waiting")
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
                dollars(row.month),
                dollars(row.waiting_month),
            )
        )
        times = (one.latency.p50_s, one.latency.p99_s, one.latency.max_s, one.first.p50_s, one.first.max_s)
        wait.append((one.policy, *(seconds(time) if one.latency.count else "-" for time in times)))
    return [*_columns(cost), "", *_columns(wait)]


def tell_chart(comparison: Comparison) -> list[str]:
    """Draw the empty receives of a day as bars on a logarithmic scale."""
    most = max(row.outcome.misses for row in comparison.rows)
    lines = ["empty receives a day (a logarithmic scale: each step of the scale is ten times as many)"]
    for row in comparison.rows:
        misses = row.outcome.misses
        bar = "#" * max(1 if misses else 0, round(BAR * log_share(misses, most)))
        lines.append(f"  {row.outcome.title:<34} {bar:<{BAR}} {misses:>12,}")
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
