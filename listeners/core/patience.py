"""How long to wait for a server that is weak: longer each time it did not answer, with a pause in between."""

from __future__ import annotations

from typing import Final

from bridge.contract.backoff import Draw, FullJitter

PAUSE_FIRST_S: Final = 0.2
PAUSE_CAP_S: Final = 30.0
LONGER_MAX: Final = 4.0


class Patience:
    """The time-outs and pauses of one call that is repeated until it succeeds.

    ``seconds`` is what the next try may take: ``first``, doubled after each try that timed out, four-fold at most.
    """

    __slots__ = ("_backoff", "_first", "seconds")

    def __init__(self, first: float) -> None:
        self.seconds = self._first = first
        self._backoff = FullJitter(PAUSE_FIRST_S, PAUSE_CAP_S)

    def miss(self, draw: Draw, *, timed_out: bool) -> float:
        """Count a try that failed and return the seconds to wait before the next."""
        if timed_out:
            self.seconds = min(self.seconds * 2, self._first * LONGER_MAX)
        return self._backoff.miss(draw)
