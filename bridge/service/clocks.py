"""Detect that the machine was suspended, by comparing two clocks, and report it to the scheduler (B15)."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Callable
from typing import Final

from queuebell.bridge.observe.facts import LoopLagged
from queuebell.bridge.observe.swallowed import swallowing
from queuebell.bridge.service.runner import Runner

PairOfClocks = Callable[[], tuple[float, float] | None]
"""Reads, at one moment, the clock that is frozen during a suspend and the one that runs; None if it could not."""

_TIGHT_S: Final = 0.001
_TRIES: Final = 3
_NAMES: Final = {
    "linux": ("CLOCK_MONOTONIC", "CLOCK_BOOTTIME"),
    # Here "monotonic" includes sleep, and asyncio uses the other clock.
    "darwin": ("CLOCK_UPTIME_RAW", "CLOCK_MONOTONIC"),
}


def system_clocks(platform: str = sys.platform) -> PairOfClocks | None:
    """Return this system's pair of clocks; None if it has none, so that suspends go unnoticed."""
    frozen, running = (getattr(time, name, None) for name in _NAMES.get(platform, ("", "")))
    if frozen is None or running is None:
        return None
    return paired(functools.partial(time.clock_gettime, frozen), functools.partial(time.clock_gettime, running))


def paired(frozen: Callable[[], float], running: Callable[[], float]) -> PairOfClocks:
    """Return a function that reads both clocks at one moment; a delay between them would look like a suspend."""
    apart: float | None = None

    def read() -> tuple[float, float] | None:
        nonlocal apart
        before, between = frozen(), running()
        if apart is not None and between - before <= apart + _TIGHT_S:
            # Fast path, as this runs before every frame: the difference has not grown.
            return before, between
        for _ in range(_TRIES):
            if frozen() - before <= _TIGHT_S:
                apart = between - before
                return before, between
            before, between = frozen(), running()
        return None

    return read


class Suspends:
    """Reports suspends of the machine to the scheduler."""

    def __init__(self, bridge: Runner, clocks: PairOfClocks | None) -> None:
        self._bridge = bridge
        self._clocks = clocks
        self._watch = SuspendWatch()

    @property
    def noticed(self) -> bool:
        """Whether suspends can be detected."""
        return self._clocks is not None

    def notice(self) -> float:
        """Return the seconds of a new suspend, or 0; every queue in an external store is then checked once."""
        read = None
        scheduler = self._bridge.scheduler
        if self._clocks is not None:
            with swallowing("the clocks that detect a suspend"):
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
    """Compares a clock that is frozen during a suspend with one that runs.

    Only the growth of their difference matters. A lagging event loop or a stopped process does not change it.
    """

    __slots__ = ("_behind",)

    def __init__(self) -> None:
        self._behind: float | None = None

    def observe(self, monotonic: float, boottime: float, allowed_s: float) -> float:
        """Return the seconds the machine slept since the last report; 0 for ``allowed_s`` or less.

        Short sleeps add up, as each may have lost a trigger.
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
    """Emits `LoopLagged` and checks for a suspend, once a second; an async context manager.

    A lagging loop is only counted: checking all queues on overload would add to it. The bridge checks for a suspend
    before every frame anyway; this finds one that no frame follows.
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
