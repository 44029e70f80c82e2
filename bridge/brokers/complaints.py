"""Complaints about one connection: a line now and then with a count, however often something goes wrong."""

from __future__ import annotations

import logging
import time
from collections import defaultdict

from bridge.contract.throttle import Throttle

_log = logging.getLogger("queuebell.broker")
EVERY_S = 10.0


class Complaints:
    """Logs each kind of complaint at most once in 10 s and says how many were kept back.

    nats-py's own error callback wrote 630,000 lines in seconds where a consumer was slow.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._kinds: defaultdict[str, Throttle] = defaultdict(lambda: Throttle(EVERY_S))

    def tell(self, kind: str, detail: object, error: BaseException | None = None) -> None:
        """Complain; ``error`` brings its traceback along. ``detail`` must hold nothing secret."""
        held = self._kinds[kind].passes(time.monotonic())
        if held is not None:
            more = f" ({held} more since the last such line)" if held else ""
            _log.warning("%s: %s: %s%s", self._address, kind, detail, more, exc_info=error)
