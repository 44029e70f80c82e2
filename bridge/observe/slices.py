"""Iteration over many queues or sessions in slices, so that other tasks run in between."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterable, Iterator
from typing import Final, TypeVar

SLICE: Final = 200
"""Items of a slice, which take a millisecond or two."""

T = TypeVar("T")

Slices = Generator[None, None, T]
"""A generator that yields after each slice, and returns its result."""


def sliced(items: Iterable[T], size: int = SLICE) -> Iterator[list[T]]:
    """Return the current items in slices."""
    there = list(items)
    return (there[start : start + size] for start in range(0, len(there), size))


def of(value: T) -> Slices[T]:
    """Return a walk of a single slice."""
    yield from ()
    return value


def at_once(walk: Slices[T]) -> T:
    """Run a walk to its end and return its result."""
    while True:
        try:
            next(walk)
        except StopIteration as end:
            found: T = end.value
            return found


async def between_others(walk: Slices[T]) -> T:
    """Run a walk to its end, with turns of the loop in between, and return its result."""
    while True:
        try:
            next(walk)
        except StopIteration as end:
            found: T = end.value
            return found
        await asyncio.sleep(0)
