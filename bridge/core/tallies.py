"""What scalers tell of their workers: starts, failures, and ends by reason, counted once however often it is said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bridge.contract.wire import TALLIED
from bridge.core.levels import Levels
from bridge.observe.facts import Fact, WorkersTallied

TELLERS_MAX: Final = 10_000
STEP_MAX: Final = 1_000_000
"""The most that one heartbeat adds to a count: whoever claims more is broken, and must not spoil the sums."""


class Tallies:
    """Remembers the levels of each instance and queue, and returns as facts what is new in them.

    Beyond 10,000 such pairs the one that was silent longest is forgotten, and counted anew should it come back.
    """

    def __init__(self) -> None:
        self.levels: Levels[str, dict[str, int]] = Levels(dict[str, dict[str, int]], TELLERS_MAX)

    def told(self, instance: str, queue: str, levels: Mapping[str, int]) -> list[Fact]:
        """Take the levels of one heartbeat; words that this version does not know are ignored."""
        known = self.levels.get(instance, queue) or {}
        self.levels.keep(instance, queue, known)
        news: list[Fact] = []
        for what in TALLIED:
            more = levels.get(what, 0) - known.get(what, 0)
            if more > 0:
                known[what] = levels[what]
                news.append(WorkersTallied(queue, what, min(more, STEP_MAX)))
        return news
