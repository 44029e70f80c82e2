"""Receives by wake source: what listeners tell of those that the bridge cannot see, and what their queues found.

A listener repeats levels, since it met this boot; what is new in them is counted. Late and repeated heartbeats add
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bridge.contract.names import POISON_SUFFIX
from bridge.contract.sources import UNANNOUNCED, WAKE_SOURCES
from bridge.contract.wire import BuriedCount, StoreDepth
from bridge.core.ledger import Counted, CountedBuried, Debt
from bridge.core.levels import Levels
from bridge.observe.facts import Fact, ReceivesTold, Unannounced

TELLERS_MAX: Final = 100_000
WHOLE_S: Final = 60.0
"""For so long a bare number does not take the place of a count that told more."""
STEP_MAX: Final = 1_000_000
"""The most that one heartbeat adds to a count; a listener that claims more is broken, and must not spoil the sums."""


class Receives:
    """Counts receives into debts, and remembers the levels of each instance and queue that ever told of any.

    Beyond 100,000 such pairs, and beyond 4 MiB of lost instances, the one that was silent longest is forgotten. From
    then on the first levels of a pair that is not known only say where its counts begin: too little is counted rather
    than the same again and again.
    """

    def __init__(self) -> None:
        self.levels: Levels[str, dict[str, tuple[int, int]]] = Levels(
            dict[str, dict[str, tuple[int, int]]], TELLERS_MAX
        )

    def told(
        self, instance: str, debt: Debt, levels: Mapping[str, tuple[int, int]], *, announced: bool = False
    ) -> list[Fact]:
        """Take the levels of one heartbeat, count what is new in them, and return it as facts.

        Where work was ``announced`` meanwhile, a look that nobody asked for may have come before the trigger of what it
        found: then `UNANNOUNCED` is not counted.
        """
        found_known = self.levels.get(instance, debt.queue)
        base = self.levels.forgot and found_known is None
        known = {} if found_known is None else found_known
        self.levels.keep(instance, debt.queue, known)
        news: list[Fact] = []
        for source in (*WAKE_SOURCES, UNANNOUNCED):
            level = levels.get(source)
            if level is None:
                continue
            was = known.get(source, (0, 0))
            found, empty = max(0, level[0] - was[0]), max(0, level[1] - was[1])
            if found or empty:
                known[source] = (was[0] + found, was[1] + empty)
                if base:
                    continue
                found, empty = min(found, STEP_MAX), min(empty, STEP_MAX)
                if source == UNANNOUNCED:
                    if not announced:
                        debt.unannounced += found
                        news.append(Unannounced(debt.queue, found))
                    continue
                count_found(debt, source, found)
                debt.receives += found + empty
                debt.empty += empty
                news.append(ReceivesTold(debt.queue, source, found, empty))
        return news


def count_depth(debt: Debt, depth: StoreDepth, now: float) -> None:
    """Keep the newest count of a queue elsewhere; heartbeats of several listeners come in any order.

    A bare number, as a scaler counts it, does not hide for a while what was told beside another.
    """
    at, before = now - depth.age_ms / 1000, debt.counted
    bare = depth.leased is None and depth.delayed is None and depth.oldest_ms is None and depth.visible > 0
    if before is not None and bare and before.whole and at < before.at + WHOLE_S:
        return
    if before is None or at >= before.at:
        oldest_at = None if depth.oldest_ms is None or not depth.visible else at - depth.oldest_ms / 1000
        debt.counted = Counted(
            depth.visible, depth.invisible, at, depth.at_least, depth.leased, depth.delayed, oldest_at
        )


def count_buried(debt: Debt, buried: BuriedCount, now: float) -> None:
    """Keep the newest count of a queue's poison queue, likewise."""
    at = now - buried.age_ms / 1000
    if debt.buried is None or at >= debt.buried.at:
        debt.buried = CountedBuried(buried.queue or debt.queue + POISON_SUFFIX, buried.messages, at)


def count_triggers(debt: Debt, now: float, bus: str, count: int) -> None:
    """Count triggers, by the bus that they came by."""
    debt.triggers += count
    debt.buses = {**debt.buses, bus: debt.buses.get(bus, 0) + count}
    debt.triggered_at = now


def count_found(debt: Debt, source: str, found: int) -> None:
    """Count receives that found work, by what made their listener look."""
    if found:
        debt.wake_sources = {**debt.wake_sources, source: debt.wake_sources.get(source, 0) + found}


def was_announced(debt: Debt, now: float, within_s: float) -> bool:
    """Say whether what a listener told of just now may be work that was announced.

    It was where a trigger, a delay or a lease marked the queue and is not settled yet, or did so within ``within_s``: a
    put that a look meets before its trigger came, and a heartbeat that tells of it some seconds later.
    """
    return now - debt.announced_at <= within_s or (debt.dirty and debt.announced_at >= debt.marked_at)
