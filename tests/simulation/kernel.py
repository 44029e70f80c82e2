"""One virtual time for everything, and the order in which things happen in it.

What happens is a callback at a time; what is due at the same time happens in the order in which it was asked for. All
chance comes from one seed, split by name, so that one more draw in one place moves nothing elsewhere.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any


class Kernel:
    """The clock of a run: ``now`` is true time in seconds since its beginning."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.steps = 0
        self.over = False
        """Set when the run was judged: what happens after that is tidying up, and is heard by nobody."""
        self.defects: list[str] = []
        """Failures of callbacks and tasks that nobody answers for: each is a defect of the code under test."""
        self._seed = seed
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._asked = 0

    def chance(self, name: str) -> random.Random:
        """Return the source of chance of this name; the same name always begins anew."""
        return random.Random(f"{self._seed}/{name}")

    def at(self, when: float, callback: Callable[..., None], *arguments: Any) -> None:
        self._asked += 1
        heapq.heappush(self._heap, (when if when > self.now else self.now, self._asked, callback, arguments))

    def after(self, seconds: float, callback: Callable[..., None], *arguments: Any) -> None:
        self.at(self.now + seconds, callback, *arguments)

    def run(self, until: float, done: Callable[[], bool] | None = None) -> bool:
        """Let time pass to ``until``, or until ``done`` says so, which it is asked whenever time moves."""
        heap, pop = self._heap, heapq.heappop
        while heap and heap[0][0] <= until:
            when, _, callback, arguments = pop(heap)
            if when > self.now:
                if done is not None and done():
                    heapq.heappush(heap, (when, 0, callback, arguments))
                    return True
                self.now = when
            self.steps += 1
            callback(*arguments)
        self.now = max(self.now, until)
        return done is not None and done()

    def forget(self) -> None:
        self._heap.clear()
