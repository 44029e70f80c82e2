"""Complaints about one connection: a line now and then with a count, however often something goes wrong."""

from __future__ import annotations

import logging
import time

_log = logging.getLogger("queuebell.broker")
EVERY_S = 10.0


class Complaints:
    """Logs each kind of complaint at most once in 10 s and says how many were kept back.

    nats-py's own error callback wrote 630,000 lines in seconds where a consumer was slow.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._kinds: dict[str, tuple[float, int]] = {}

    def tell(self, kind: str, detail: object, error: BaseException | None = None) -> None:
        """Complain; ``error`` brings its traceback along. ``detail`` must hold nothing secret."""
        now = time.monotonic()
        last, held = self._kinds.get(kind, (-EVERY_S, 0))
        if now - last < EVERY_S:
            self._kinds[kind] = (last, held + 1)
            return
        self._kinds[kind] = (now, 0)
        more = f" ({held} more since the last such line)" if held else ""
        _log.warning("%s: %s: %s%s", self._address, kind, detail, more, exc_info=error)
