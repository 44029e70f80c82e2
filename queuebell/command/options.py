"""Numbers on a command line, refused in plain words where they cannot be."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def number(least: int, most: int) -> Callable[[str], int]:
    """Return what argparse reads a whole number from ``least`` to ``most`` with."""

    def number(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {least:,} to {most:,}")
        return value

    return number


def seconds(least: float, most: float) -> Callable[[str], float]:
    """Return what argparse reads seconds from ``least`` to ``most`` with."""

    def seconds(text: str) -> float:
        value = float(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"must be {least:g} to {most:g}")
        return value

    return seconds
