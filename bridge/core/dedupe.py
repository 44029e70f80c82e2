"""Copies of one trigger on several buses are one mark (B13), and nothing else is dropped."""

from __future__ import annotations

from collections import OrderedDict

from bridge.contract.cluster import Name

REMEMBER_S = 300.0
REMEMBER_MAX = 100_000


class Duplicates:
    """Remembers which publishes were marked in this boot: for 5 minutes, or 100,000 of them.

    A copy is dropped only if it carries source and id, the first was marked for the same queue and due time, and this
    one came by another bus or as a broker's redelivery. The same id again on the same bus is a producer's own re-send
    after an unknown outcome, and is marked again (I7: a duplicate only adds a receive).
    """

    __slots__ = ("_limit", "_period", "_seen")

    def __init__(self, period_s: float = REMEMBER_S, limit: int = REMEMBER_MAX) -> None:
        self._seen: OrderedDict[Name, tuple[str, int, str, float]] = OrderedDict()
        self._period = period_s
        self._limit = limit

    def __len__(self) -> int:
        return len(self._seen)

    def is_copy(
        self,
        now: float,
        name: Name | None,
        queue: str,
        not_before_ms: int,
        bus: str,
        redelivered: bool,
    ) -> bool:
        """Say whether this trigger is a copy of one that was marked."""
        if name is None:
            return False
        first = self._seen.get(name)
        if first is None or now - first[3] > self._period:
            return False
        return first[0] == queue and first[1] == not_before_ms and (first[2] != bus or redelivered)

    def marked(self, now: float, name: Name | None, queue: str, not_before_ms: int, bus: str) -> bool:
        """Remember a mark, in the same tick as the mark; whether its name was not known before."""
        if name is None:
            return False
        first = name not in self._seen
        if first:
            self._seen[name] = (queue, not_before_ms, bus, now)
        while self._seen and (len(self._seen) > self._limit or now - next(iter(self._seen.values()))[3] > self._period):
            self._seen.popitem(last=False)
        return first
