"""The pair of clocks that shows a suspend, where the system has one, and who tells the rules (B15)."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from typing import Final

from bridge.core.suspend import SuspendWatch
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
        bell = self._bridge.bell
        if self._clocks is not None:
            with swallowing("the clocks that show a suspend"):
                read = self._clocks()
        if bell.turns is not None:
            bell.turns.watch(read, there=self._clocks is not None)
        if read is None:
            return 0.0
        slept = self._watch.observe(*read, bell.sessions.heartbeat_s)
        if slept:
            bell.suspended(self._bridge.now(), slept)
            self._bridge.drive()
        return slept
