"""How many dequeue tasks (receives in flight) a depth is worth; bounded by free handler slots above this."""

from __future__ import annotations

from typing import Protocol


class Scaling(Protocol):
    """A rule from the number of messages that wait to the number of dequeue tasks."""

    def tasks(self, depth: int) -> int:
        """Return how many receives may be in flight at once, at least 1, when ``depth`` messages are visible."""
        ...


class DepthScaling:
    """Has as many receives as it takes to carry all at once: ``ceil(depth / batch)``, ``minimum`` to ``maximum``."""

    __slots__ = ("batch", "maximum", "minimum")

    def __init__(self, batch: int = 32, minimum: int = 1, maximum: int = 16) -> None:
        if not (batch >= 1 and 1 <= minimum <= maximum):
            raise ValueError("depth scaling needs batch >= 1 and 1 <= minimum <= maximum")
        self.batch = batch
        self.minimum = minimum
        self.maximum = maximum

    def tasks(self, depth: int) -> int:
        """Return the number of receives, e.g. 4 for a depth of 100 and a batch of 32."""
        return min(self.maximum, max(self.minimum, -(-depth // self.batch)))


class StepScaling:
    """Has receives by steps: below 100 messages 10, below 1000 50, else 100, or as ``steps`` define.

    ``steps`` are pairs (below this depth, so many tasks) in ascending order, ``beyond`` the tasks past the last.
    """

    __slots__ = ("beyond", "steps")

    def __init__(self, steps: tuple[tuple[int, int], ...] = ((100, 10), (1000, 50)), beyond: int = 100) -> None:
        if list(steps) != sorted(steps) or not all(tasks >= 1 for tasks in (*(each for _, each in steps), beyond)):
            raise ValueError("steps are pairs (depth, tasks) in ascending order, each with at least one task")
        self.steps = steps
        self.beyond = beyond

    def tasks(self, depth: int) -> int:
        """Return the number of receives of the first step above ``depth``."""
        for below, tasks in self.steps:
            if depth < below:
                return tasks
        return self.beyond
