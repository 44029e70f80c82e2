"""Work counted instead of timed: the steps that Python takes."""

from __future__ import annotations

import asyncio.base_events
import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import msgspec


class Work(msgspec.Struct):
    """What was done: ``steps`` are lines of Python, each turn of a loop or a comprehension one. A loop in C is none."""

    steps: int = 0
    longest: int = 0
    """The most steps of one turn of the event loop."""
    cpu_s: float = 0.0


clock: Callable[[], float] | None = None
"""Where it is set, `counted` reads it and counts nothing: for the bench."""


@contextlib.contextmanager
def counted() -> Iterator[Work]:
    """Count what is done meanwhile on this thread, but for the lines of whoever opens the block."""
    work = Work()
    if clock is not None:
        began = clock()
        yield work
        work.cpu_s = clock() - began
        return
    turn = 0

    def line(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal turn
        if event == "line":
            work.steps += 1
            turn += 1
        return line

    def called(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal turn
        if frame.f_code is run_once:
            work.longest = max(work.longest, turn)
            turn = 0
            return None
        return line(frame, "line", argument)

    run_once = asyncio.base_events.BaseEventLoop._run_once.__code__
    before = sys.gettrace()
    sys.settrace(called)
    try:
        yield work
    finally:
        sys.settrace(before)
        work.longest = max(work.longest, turn)
