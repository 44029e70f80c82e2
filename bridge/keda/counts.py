"""Counts of queues that are not in this bridge: one for all who ask, kept for some seconds, few at a time."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from bridge.contract.errors import QueuebellError
from bridge.queues.base import Counts, Depth, QueueStore

log = logging.getLogger("queuebell.keda")

FRESH_S: Final = 5.0
"""A count serves so long: one poll of KEDA asks twice, and each of its replicas polls."""
AT_ONCE: Final = 8
COUNT_S: Final = 10.0
"""So long a count may take, its wait for its turn included."""
KEPT: Final = 10_000

Key = tuple[str, str | None]
"""The queue, and the name of its store; None is the engine behind this bridge's own queue API."""


class Count(msgspec.Struct, frozen=True):
    """What a store counted, or that it could not."""

    at: float
    failed: bool = False
    visible: int = 0
    invisible: int = 0
    paused: bool = False
    lapsed: bool = False
    leased: int | None = None
    """None where the store does not tell what is leased from what is delayed."""


class KedaCounts:
    """Counts in ``stores``; ``heard`` is told the queue whose count is new.

    A count that failed is not tried again before `FRESH_S` either, and says so meanwhile. Belongs to its event loop.
    """

    def __init__(
        self, stores: Mapping[str | None, QueueStore], now: Callable[[], float], heard: Callable[[str], None]
    ) -> None:
        self.stores = stores
        self.made = 0
        """Calls of stores since the start, those that failed among them."""
        self._now = now
        self._heard = heard
        self._kept: OrderedDict[Key, Count] = OrderedDict()
        self._under_way: dict[Key, asyncio.Task[Count]] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    def newest(self, key: Key) -> Count | None:
        """Return the newest count, however old; None where there is none."""
        return self._kept.get(key)

    def renew(self, key: Key) -> asyncio.Task[Count] | None:
        """Have it counted, unless that was done just now: then None. The task never fails."""
        task = self._under_way.get(key)
        if task is None:
            kept = self._kept.get(key)
            if kept is not None and self._now() - kept.at < FRESH_S:
                return None
            task = self._under_way[key] = asyncio.create_task(self._count(key), name=f"count {key[0]} for KEDA")
        return task

    async def fresh(self, key: Key) -> Count:
        """Return a count of the last seconds; whoever stops waiting leaves it to the others."""
        task = self.renew(key)
        return self._kept[key] if task is None else await asyncio.shield(task)

    async def stop(self) -> None:
        """End what is under way; the stores are closed by whoever opened them."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _count(self, key: Key) -> Count:
        try:
            count = await self._asked(key)
            before = self._kept.pop(key, None)
            self._kept[key] = count
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            if count.failed and not (before is not None and before.failed):
                log.warning("%s cannot be counted for KEDA; its pods stay as they are", key[0])
        finally:
            del self._under_way[key]
        self._heard(key[0])
        return count

    async def _asked(self, key: Key) -> Count:
        queue, store = key[0], self.stores[key[1]]
        able = store.capabilities
        try:
            async with asyncio.timeout(COUNT_S), self._turns:
                self.made += 1
                counts = await store.counts(queue) if able.counts_leased else None
                leased = None if counts is None else counts.leased
                depth: Counts | Depth | None = counts
                if not able.counts_leased or (counts is not None and counts.at_least):
                    # A store may count up to a bound only, and a metric is not to stop there.
                    depth = await store.depth(queue)
                if depth is None:
                    # Workers may be started before the first put.
                    return Count(self._now())
                paused = bool(depth.invisible) and able.pause and await store.paused(queue)
        except (QueuebellError, TimeoutError, OSError) as error:
            log.debug("counting %s failed: %s", queue, error)
            return Count(self._now(), failed=True)
        return Count(self._now(), False, depth.visible, depth.invisible, paused, able.zero_depth, leased)
