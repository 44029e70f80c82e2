"""A measured figure, its target, and the arithmetic of samples."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import msgspec


class Figure(msgspec.Struct, frozen=True):
    """One line of the results; ``met`` is None where there is no target."""

    name: str
    value: str
    target: str = ""
    met: bool | None = None


class Report(msgspec.Struct):
    """What one measurement found; ``notes`` say how it was measured and what else was seen."""

    title: str
    figures: list[Figure] = []
    notes: list[str] = []

    def tell(self, name: str, value: str) -> None:
        """Add a figure without a target."""
        self.figures.append(Figure(name, value))

    def at_most(self, name: str, value: float, limit: float, form: str = "{:.2f}") -> None:
        """Add a figure that is to be ``limit`` or less."""
        self.figures.append(Figure(name, form.format(value), f"<= {form.format(limit)}", value <= limit))

    def at_least(self, name: str, value: float, limit: float, form: str = "{:.2f}") -> None:
        """Add a figure that is to be ``limit`` or more."""
        self.figures.append(Figure(name, form.format(value), f">= {form.format(limit)}", value >= limit))


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the sample that ``share`` (0 to 1) of all are not above (nearest rank)."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median_ratio(ours: Sequence[float], beside: Sequence[float]) -> float:
    """Return the median, over rounds, of ours divided by what ran beside it in that round.

    A round in which nothing ran beside it counts as infinite.
    """
    return statistics.median(a / b if b else math.inf for a, b in zip(ours, beside, strict=True))
