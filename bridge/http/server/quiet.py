"""Log lines about hostile input, and about faults: one of each a second at most, with the number of those left out."""

from __future__ import annotations

import logging
from collections.abc import Callable

from bridge.contract.throttle import Throttle


class QuietLog:
    """Writes one line of a kind in ``period`` seconds of ``clock`` at most and counts what it keeps back.

    The texts are ours: nothing that came in is ever written.
    """

    def __init__(self, logger: logging.Logger, clock: Callable[[], float], period: float = 1.0) -> None:
        self._logger = logger
        self._clock = clock
        self._warnings = Throttle(period)
        # Of their own: a flood from outside must not hide what is wrong with us.
        self._faults = Throttle(period)

    def warn(self, text: str) -> None:
        """Write ``text``, or count it."""
        self._write(self._warnings, logging.WARNING, text, None)

    def fault(self, text: str, error: BaseException) -> None:
        """Write ``text`` with the traceback of a fault of our own, or count it."""
        self._write(self._faults, logging.ERROR, text, error)

    def _write(self, throttle: Throttle, level: int, text: str, error: BaseException | None) -> None:
        more = throttle.passes(self._clock())
        if more is not None:
            self._logger.log(level, "%s%s", text, f" (and {more} more like it)" if more else "", exc_info=error)
