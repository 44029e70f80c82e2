"""Workers that the bridge rejected lately: they have no session, so no list of sessions shows them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

KEPT_MAX: Final = 256
"""Rejections remembered; the one that was repeated longest ago makes room."""
RECENT_S: Final = 90.0
"""How long one is shown. A rejected worker tries again every 30 s at most, so one that still runs stays shown."""


class Rejection(msgspec.Struct):
    """One worker that was rejected at one queue for one reason; times are of the rules' clock."""

    queue: str
    """"" where the bridge could not read which queues the worker asked for."""
    listener: str
    code: str
    why: str
    first_at: float
    last_at: float
    instance: str
    """Of the worker that was rejected last."""
    count: int = 1

    def describe(self, now: float) -> str:
        """Return in one line which worker is rejected, why, and how often."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return (
            f"the bridge rejected {self.listener or 'a worker'} {times}, last {max(0.0, now - self.last_at):.0f} s "
            f"ago: {self.why}"
        )


class Rejections:
    """The rejections of one boot, bounded."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, str], Rejection] = OrderedDict()

    def add(self, now: float, queues: Iterable[str], listener: str, code: str, why: str, *, instance: str = "") -> None:
        """Note that a worker was rejected, and so at each of its queues, if they are known."""
        for queue in tuple(queues) or ("",):
            key = queue, listener, code
            known = self._kept.get(key)
            if known is None or now - known.last_at > RECENT_S:
                self._kept[key] = Rejection(queue, listener, code, why, now, now, instance)
            else:
                known.count, known.why, known.last_at, known.instance = known.count + 1, why, now, instance
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)

    def accepted(self, instance: str) -> None:
        """Forget what was held against a worker that the bridge has accepted."""
        for key in [key for key, each in self._kept.items() if each.instance == instance]:
            del self._kept[key]

    def recent(self, now: float) -> list[Rejection]:
        """Return those that still count, by queue; what is older is forgotten."""
        while self._kept and now - next(iter(self._kept.values())).last_at > RECENT_S:
            self._kept.popitem(last=False)
        return sorted(self._kept.values(), key=lambda each: (each.queue, each.listener, each.code))

    def by_queue(self, now: float) -> dict[str, list[Rejection]]:
        """Return the same, grouped by queue."""
        grouped: dict[str, list[Rejection]] = {}
        for each in self.recent(now):
            grouped.setdefault(each.queue, []).append(each)
        return grouped
