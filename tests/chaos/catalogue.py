"""All rows of the fault catalogue."""

from __future__ import annotations

import re

from tests.chaos import brokers, clocks, clusters, handlers, network, processes, resources, scaled
from tests.chaos.row import Row


def _order(row: Row) -> tuple[int, str]:
    match = re.fullmatch(r"F(\d+)(\w?)", row.number)
    assert match is not None, row.number
    return int(match[1]), match[2]


ROWS = tuple(
    sorted(
        (
            row
            for room in (processes, network, brokers, resources, clocks, handlers, clusters, scaled)
            for row in room.ROWS
        ),
        key=_order,
    )
)
"""In the order of their numbers."""


def chosen(numbers: str | None) -> list[Row]:
    """Return the rows named, separated by commas (``F10`` names F10a, F10b ...); all for None. Raises `ValueError`."""
    if not numbers:
        return list(ROWS)
    wanted = [number.strip().upper() for number in numbers.split(",")]
    found: list[Row] = []
    for number in wanted:
        rows = [row for row in ROWS if number in (row.number.upper(), row.number.upper().rstrip("ABCDEFGH"))]
        if not rows:
            raise ValueError(f"no such fault: {number}")
        found += rows
    return found
