"""All rows of the fault catalogue."""

from __future__ import annotations

import re

from tests.chaos import brokers, clocks, clusters, network, processes, resources, scaled
from tests.chaos.row import Row

ROWS = sorted(
    (row for room in (processes, network, brokers, resources, clocks, clusters, scaled) for row in room.ROWS),
    key=lambda row: [part.zfill(3) for part in re.findall(r"[a-z]|[0-9]+", row.number)],
)
"""In the order of their numbers."""


def chosen(numbers: str) -> list[Row]:
    """Return the rows named, separated by commas (``F10`` names F10a, F10b ...); all for none. Raises `ValueError`."""
    found: list[Row] = []
    for number in numbers.upper().split(",") if numbers else ():
        rows = [row for row in ROWS if number in (row.number.upper(), row.number.upper().rstrip("ABCDEFGH"))]
        if not rows:
            raise ValueError(f"no such fault: {number}")
        found += rows
    return found or list(ROWS)
