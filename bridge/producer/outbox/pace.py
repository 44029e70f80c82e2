"""When a relay looks into its outbox again, and which queues it leaves alone meanwhile; pure.

A queue whose put failed rests by a jittered back-off, 30 s at most, or as long as its store asks. Others go on.
All times are seconds of one monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bridge.contract.backoff import Draw, RandomExponential

REST_S_MAX: Final = 30.0
BUSY_S: Final = 1.0
"""Where another relay is at work: it may be killed before it comes to what rang here."""


class Pace:
    """The rests of one relay."""

    __slots__ = ("_backoffs", "_until")

    def __init__(self) -> None:
        self._backoffs: dict[str, RandomExponential] = {}
        self._until: dict[str, float] = {}

    def failed(self, what: str, now: float, draw: Draw, asked_s: float | None = None) -> None:
        """Let a queue rest after a failure; ``asked_s`` is for how long at least its store wants to be left alone."""
        pause = self._backoffs.setdefault(what, RandomExponential(0.1, REST_S_MAX)).miss(draw)
        self._until[what] = now + (asked_s or 0.0) + pause

    def worked(self, what: str) -> None:
        """Forget its failures."""
        self._backoffs.pop(what, None)
        self._until.pop(what, None)

    def resting(self, now: float) -> list[str]:
        """Return the queues that are left alone now."""
        return sorted(what for what, until in self._until.items() if until > now)

    def keep(self, now: float, waiting: Iterable[str]) -> None:
        """Forget every queue that neither rests nor has anything that waits."""
        gone = self._until.keys() - set(waiting) - set(self.resting(now))
        for what in gone:
            self.worked(what)

    def next_look(self, now: float, idle_s: float, *, busy: bool = False) -> float:
        """Return when to look again if nothing rings: after ``idle_s``, or sooner where a rest ends.

        ``busy`` says that another relay was at work.
        """
        ends = [until for until in self._until.values() if until > now]
        return min([now + (min(BUSY_S, idle_s) if busy else idle_s), *ends])
