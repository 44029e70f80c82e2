"""The six numbers of a long run, from the notes of its processes: one byte for each message, whatever their number."""

from __future__ import annotations

import array
from collections import defaultdict
from pathlib import Path

from tests.chaos.bulk_producer import RECORD
from tests.chaos.tally import TotalQueue

SHIFT = 40
LOW = (1 << SHIFT) - 1
ATTEMPTED, ACKNOWLEDGED, HANDLED = 1, 2, 4


class BulkTally:
    """Reads the notes in ``folder``: ``attempted-N`` and ``acknowledged-N`` of producers, ``handled-N`` of workers.

    A last record that is not whole was being written when its process was killed, and counts as not written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def acknowledged(self, number: int) -> int:
        """Return how many messages of one producer were acknowledged."""
        return sum(count for _, count in self._records(f"acknowledged-{number}"))

    def handled(self) -> int:
        """Return how often messages were handled, as the sizes of the notes say."""
        return sum(file.stat().st_size // 8 for file in self._folder.glob("handled-*"))

    def total(self) -> TotalQueue:
        """Sum up."""
        marks: dict[int, bytearray] = defaultdict(bytearray)
        for name, mark in (("attempted", ATTEMPTED), ("acknowledged", ACKNOWLEDGED)):
            for file in sorted(self._folder.glob(f"{name}-*")):
                for first, count in self._records(file.name):
                    flags, at = marks[first >> SHIFT], first & LOW
                    if len(flags) < at + count:
                        flags.extend(bytes(at + count - len(flags)))
                    for index in range(at, at + count):
                        flags[index] |= mark
        duplicated = 0
        strangers: set[int] = set()
        for file in sorted(self._folder.glob("handled-*")):
            data = file.read_bytes()
            for number in array.array("Q", data[: len(data) // 8 * 8]):
                flags, at = marks.get(number >> SHIFT, bytearray()), number & LOW
                if at >= len(flags) or not flags[at] & ATTEMPTED:
                    strangers.add(number)
                elif flags[at] & HANDLED:
                    duplicated += 1
                else:
                    flags[at] |= HANDLED
        counts = [0] * 8
        for flags in marks.values():
            for value in range(8):
                counts[value] += flags.count(value)
        return TotalQueue(
            attempted=sum(counts[1:]),
            acknowledged=sum(counts[value] for value in range(8) if value & ACKNOWLEDGED),
            lost=sum(counts[value] for value in range(8) if value & ACKNOWLEDGED and not value & HANDLED),
            duplicated=duplicated,
            recovered=sum(counts[value] for value in range(8) if value & HANDLED and not value & ACKNOWLEDGED),
            unexpected=len(strangers),
        )

    def _records(self, name: str) -> list[tuple[int, int]]:
        file = self._folder / name
        data = file.read_bytes() if file.exists() else b""
        return [(first, count) for first, count in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size])]
