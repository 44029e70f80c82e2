"""Time that moves only when a test says so."""

from __future__ import annotations

WALL = 1_700_000_000.0


class FakeClock:
    """Monotonic seconds under the test's control."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        """Return a wall clock that goes with it."""
        return WALL + self.now

    async def let_pass(self, seconds: float) -> None:
        """Make time pass."""
        self.now += seconds


class Counter:
    """Receipts that a test can foresee."""

    def __init__(self) -> None:
        self.last = 0

    def __call__(self) -> int:
        self.last += 1
        return self.last
