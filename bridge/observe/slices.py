"""Walks over all that there is, a slice at a time: whoever drives one lets others run between its slices."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator
from typing import Final, TypeVar

SLICE: Final = 200
"""So many queues or sessions take a millisecond or two."""

T = TypeVar("T")

Slices = Generator[None, None, T]
"""A walk that stops after each slice, and returns what it found."""


def sliced(items: Iterable[T], size: int = SLICE) -> Iterator[list[T]]:
    """Return what there is now, slice by slice."""
    there = list(items)
    return (there[start : start + size] for start in range(0, len(there), size))


def of(value: T) -> Slices[T]:
    """Return a walk that is no longer than one slice."""
    yield from ()
    return value


def at_once(walk: Slices[T]) -> T:
    """Walk to the end and return what was found."""
    while True:
        try:
            next(walk)
        except StopIteration as end:
            found: T = end.value
            return found


async def between_others(walk: Slices[T]) -> T:
    """Walk to the end, let others run between the slices, and return what was found."""
    while True:
        try:
            next(walk)
        except StopIteration as end:
            found: T = end.value
            return found
        await asyncio.sleep(0)
