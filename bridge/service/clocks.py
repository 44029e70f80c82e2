"""The pair of clocks that shows a suspend, where the system has one, and who tells the rules (B15)."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Callable
from typing import Final

from bridge.observe.facts import LoopLagged
from bridge.observe.swallowed import swallowing
from bridge.service.runner import Runner

PairOfClocks = Callable[[], tuple[float, float] | None]
"""Reads the clock that stands still while suspended and the one that does not, at one moment; None if it could not."""

_TIGHT_S: Final = 0.001
_TRIES: Final = 3
_NAMES: Final = {
    "linux": ("CLOCK_MONOTONIC", "CLOCK_BOOTTIME"),
    # Here "monotonic" counts sleep, and asyncio's own clock is the other one.
    "darwin": ("CLOCK_UPTIME_RAW", "CLOCK_MONOTONIC"),
}


def system_clocks(platform: str = sys.platform) -> PairOfClocks | None:
    """Return the pair of this system, or None where it has none: then a suspend goes unnoticed."""
    still, running = (getattr(time, name, None) for name in _NAMES.get(platform, ("", "")))
    if still is None or running is None:
        return None
    return paired(functools.partial(time.clock_gettime, still), functools.partial(time.clock_gettime, running))


def paired(still: Callable[[], float], running: Callable[[], float]) -> PairOfClocks:
    """Read two clocks as one moment: again where something came between, for that would look like a suspend."""
    apart: float | None = None

    def read() -> tuple[float, float] | None:
        nonlocal apart
        before, between = still(), running()
        if apart is not None and between - before <= apart + _TIGHT_S:
            # As it was: nothing came between that matters, and this is asked before every frame.
            return before, between
        for _ in range(_TRIES):
            if still() - before <= _TIGHT_S:
                apart = between - before
                return before, between
            before, between = still(), running()
        return None

    return read


class Suspends:
    """Tells the rules that the machine slept."""

    def __init__(self, bridge: Runner, clocks: PairOfClocks | None) -> None:
        self._bridge = bridge
        self._clocks = clocks
        self._watch = SuspendWatch()

    @property
    def noticed(self) -> bool:
        """Whether there are clocks that show a suspend."""
        return self._clocks is not None

    def notice(self) -> float:
        """Compare the clocks; after a suspend every queue elsewhere is looked at once. Return its seconds, or 0."""
        read = None
        scheduler = self._bridge.scheduler
        if self._clocks is not None:
            with swallowing("the clocks that show a suspend"):
                read = self._clocks()
        if scheduler.coordinator is not None:
            scheduler.coordinator.watch(read, there=self._clocks is not None)
        if read is None:
            return 0.0
        slept = self._watch.observe(*read, scheduler.sessions.heartbeat_s)
        if slept:
            scheduler.suspended(self._bridge.now(), slept)
            self._bridge.drive()
        return slept


class SuspendWatch:
    """Compares a clock that stands still while the machine is suspended with one that does not.

    Both come from outside, read at the same moment; only how their difference grows matters. An event loop that lags
    or a process that is stopped changes neither, and is no gap.
    """

    __slots__ = ("_behind",)

    def __init__(self) -> None:
        self._behind: float | None = None

    def observe(self, monotonic: float, boottime: float, allowed_s: float) -> float:
        """Return for how many seconds the machine slept since it was told so last; 0 for ``allowed_s`` or less.

        Short sleeps add up until they are worth a gap: each of them may have lost a trigger.
        """
        behind = boottime - monotonic
        if self._behind is None or behind < self._behind:
            self._behind = behind
            return 0.0
        slept = behind - self._behind
        if slept <= allowed_s:
            return 0.0
        self._behind = behind
        return slept


EVERY_S: Final = 1.0


class LoopWatch:
    """Once a second tells `LoopLagged` and asks the bridge to compare its clocks; an async context manager.

    A loop that lags is counted and nothing else is done: to mark all queues on overload would feed the overload. The
    bridge compares its clocks before every frame anyway; this finds a suspend that nobody follows with a frame.
    """

    def __init__(self, bridge: Runner) -> None:
        self._bridge = bridge
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopWatch:
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="loop-watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._bridge.emit(LoopLagged(max(0.0, loop.time() - due)))
            self._bridge.notice_suspend()
