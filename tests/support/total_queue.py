"""Jepsen's numbers for a queue that was drained: what was lost, what came twice, what nobody put.

One byte a message, so that ten million of them fit into ten megabytes. Ids are whole numbers, counted from 0 for each
producer. Handled means that a handler ended well. The numbers mean something only after everything was drained.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

_ATTEMPTED: Final = 1
_ACKNOWLEDGED: Final = 2
_UNKNOWN: Final = 4
_HANDLED: Final = 8
_AGAIN: Final = 16
_FLAGS: Final = 32
STRANGERS_MAX: Final = 10_000
"""How many ids that no producer ever had are told apart; of more of them only the first so many are counted."""


class Numbers(msgspec.Struct, frozen=True):
    """The six numbers, all of messages.

    ``lost``: acknowledged and never handled. ``duplicated``: handled more than once. ``recovered``: the put's outcome
    was unknown, and the message came out. ``unexpected``: handled though no put of it was attempted.
    """

    attempted: int = 0
    acknowledged: int = 0
    lost: int = 0
    duplicated: int = 0
    recovered: int = 0
    unexpected: int = 0

    def __add__(self, other: Numbers) -> Numbers:
        """Return the numbers of both runs together."""
        return Numbers(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))

    def as_dict(self) -> dict[str, int]:
        """Return the numbers by name, in the order in which they are told."""
        return {name: getattr(self, name) for name in self.__struct_fields__}

    @classmethod
    def of(cls, numbers: Mapping[str, int]) -> Numbers:
        """Take numbers by name; what is absent is 0."""
        return cls(*(numbers.get(name, 0) for name in cls.__struct_fields__))


class TotalQueue:
    """The marks of one run: feed it what producers and handlers know, then ask for `numbers`."""

    __slots__ = ("_marks", "_strangers")

    def __init__(self) -> None:
        self._marks: dict[int, bytearray] = {}
        self._strangers: set[tuple[int, int]] = set()

    def attempt(self, producer: int, first: int, count: int = 1) -> None:
        """A producer begins to put messages ``first`` to ``first + count - 1``; both at least 0."""
        marks = self._marks.setdefault(producer, bytearray())
        missing = first + count - len(marks)
        if missing > 0:
            # In larger steps than asked for, or ten million single puts would copy the array each time.
            marks.extend(bytes(missing + len(marks) // 8))
        for number in range(first, first + count):
            marks[number] |= _ATTEMPTED

    def acknowledge(self, producer: int, first: int, count: int = 1) -> None:
        """The producer was told that they stand; they must have been attempted."""
        self._mark(producer, first, count, _ACKNOWLEDGED)

    def unknown(self, producer: int, first: int, count: int = 1) -> None:
        """The producer cannot know whether they stand; they must have been attempted."""
        self._mark(producer, first, count, _UNKNOWN)

    def handle(self, producer: int, number: int) -> None:
        """A handler ended well with this message."""
        marks = self._marks.get(producer)
        if marks is None or not 0 <= number < len(marks):
            if len(self._strangers) < STRANGERS_MAX:
                self._strangers.add((producer, number))
            return
        mark = marks[number]
        marks[number] = mark | (_AGAIN if mark & _HANDLED else _HANDLED)

    def numbers(self) -> Numbers:
        """Count; takes one pass for each kind of message there can be, not one step for each message."""
        counts = [0] * _FLAGS
        for marks in self._marks.values():
            for flags in range(1, _FLAGS):
                counts[flags] += marks.count(flags)

        def those(wanted: int, unwanted: int = 0) -> int:
            return sum(count for flags, count in enumerate(counts) if flags & wanted == wanted and not flags & unwanted)

        return Numbers(
            attempted=those(_ATTEMPTED),
            acknowledged=those(_ACKNOWLEDGED),
            lost=those(_ACKNOWLEDGED, _HANDLED),
            duplicated=those(_AGAIN),
            recovered=those(_UNKNOWN | _HANDLED, _ACKNOWLEDGED),
            unexpected=those(_HANDLED, _ATTEMPTED) + len(self._strangers),
        )

    def first_lost(self, most: int = 5) -> list[tuple[int, int]]:
        """Return the first lost messages, at most so many, as (producer, number)."""
        found = []
        for producer, marks in sorted(self._marks.items()):
            for number, flags in enumerate(marks):
                if flags & _ACKNOWLEDGED and not flags & _HANDLED:
                    found.append((producer, number))
                    if len(found) >= most:
                        return found
        return found

    def _mark(self, producer: int, first: int, count: int, flag: int) -> None:
        marks = self._marks.get(producer, bytearray())
        for number in range(first, first + count):
            if number >= len(marks) or not marks[number] & _ATTEMPTED:
                raise ValueError(f"message {producer}/{number} was never attempted")
            marks[number] |= flag
