"""The one clock of a store (O2): it drives SQL and timers, and never goes back."""

from __future__ import annotations

from collections.abc import Callable


class StoreClock:
    """Milliseconds since the epoch: the wall clock at start, or the newest time in the file, plus elapsed time.

    ``clock`` gives monotonic seconds; ``start_ms`` is where this run begins. A wall clock that is set later moves
    nothing.
    """

    __slots__ = ("_clock", "_newest", "_origin", "_start_us")

    def __init__(self, clock: Callable[[], float], start_ms: int) -> None:
        self._clock = clock
        self._origin = clock()
        self._start_us = start_ms * 1000
        self._newest = self._start_us

    def read(self) -> int:
        """Return now in whole milliseconds, rounded down: what is due at this time is due indeed."""
        # By microseconds, since 0.005 s x 1000 may be a little less than 5 and would round down to 4.
        us = self._start_us + round((self._clock() - self._origin) * 1e6)
        self._newest = max(self._newest, us)
        return self._newest // 1000

    def read_up(self) -> int:
        """Return the newest time read, rounded up: what is counted from here is never a tick early (B2)."""
        return -(-self._newest // 1000)
