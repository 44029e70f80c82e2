"""Log lines about hostile input: one a second at most, with the number of those left out."""

from __future__ import annotations

import logging
from collections.abc import Callable


class QuietLog:
    """Writes a warning at most once per ``period`` seconds of ``clock`` and counts what it swallows.

    A flood of malformed requests must not become a flood of log lines (error budget of the bad-input table). The
    texts are ours: nothing that came in is ever written.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float], period: float = 1.0) -> None:
        self._logger = logger
        self._clock = clock
        self._period = period
        self._next = float("-inf")
        self._left_out = 0

    def warn(self, text: str) -> None:
        """Write ``text``, or count it."""
        if self._due():
            self._logger.warning("%s%s", text, self._others())

    def fault(self, text: str, error: BaseException) -> None:
        """Write ``text`` with the traceback of a fault of our own, or count it."""
        if self._due():
            self._logger.error("%s%s", text, self._others(), exc_info=error)

    def _due(self) -> bool:
        now = self._clock()
        if now < self._next:
            self._left_out += 1
            return False
        self._next = now + self._period
        return True

    def _others(self) -> str:
        count, self._left_out = self._left_out, 0
        return f" (and {count} more like it)" if count else ""
