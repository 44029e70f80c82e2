"""Count queues in external stores for KEDA; counts are shared, cached for some seconds and limited in number."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from queuebell.bridge.contract.errors import QueuebellError
from queuebell.bridge.queues.base import Counts, Depth, QueueStore

log = logging.getLogger("queuebell.keda")

FRESH_S: Final = 5.0
"""Lifetime of a count: a poll of KEDA asks twice, and each of its replicas polls."""
AT_ONCE: Final = 8
COUNT_S: Final = 10.0
"""Timeout of a count, with its wait for the semaphore."""
KEPT: Final = 10_000

Key = tuple[str, str | None]
"""The queue, and the name of its store; None is the store behind this bridge's queue API."""


class Count(msgspec.Struct, frozen=True):
    """The result of a count, or its failure."""

    at: float
    failed: bool = False
    visible: int = 0
    invisible: int = 0
    paused: bool = False
    lapsed: bool = False
    leased: int | None = None
    """None if the store does not distinguish leased from delayed messages."""


class KedaCounts:
    """Counts queues in ``stores``, and passes each newly counted queue to ``on_count``.

    A failed count is cached for `FRESH_S` too. Belongs to its event loop.
    """

    def __init__(
        self, stores: Mapping[str | None, QueueStore], now: Callable[[], float], on_count: Callable[[str], None]
    ) -> None:
        self.stores = stores
        self.made = 0
        """Calls of stores since the start, including failed ones."""
        self._now = now
        self._on_count = on_count
        self._cached: OrderedDict[Key, Count] = OrderedDict()
        self._running: dict[Key, asyncio.Task[Count]] = {}
        self._semaphore = asyncio.Semaphore(AT_ONCE)

    def newest(self, key: Key) -> Count | None:
        """Return the newest count of any age, or None."""
        return self._cached.get(key)

    def renew(self, key: Key) -> asyncio.Task[Count] | None:
        """Start a count and return its task, which never fails; return None if there is a fresh one."""
        task = self._running.get(key)
        if task is None:
            cached = self._cached.get(key)
            if cached is not None and self._now() - cached.at < FRESH_S:
                return None
            task = self._running[key] = asyncio.create_task(self._count(key), name=f"count {key[0]} for KEDA")
        return task

    async def fresh(self, key: Key) -> Count:
        """Return a fresh count; a cancelled caller does not cancel it."""
        task = self.renew(key)
        return self._cached[key] if task is None else await asyncio.shield(task)

    async def stop(self) -> None:
        """Cancel counts in progress; their owner closes the stores."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _count(self, key: Key) -> Count:
        try:
            count = await self._call_store(key)
            before = self._cached.pop(key, None)
            self._cached[key] = count
            if len(self._cached) > KEPT:
                self._cached.popitem(last=False)
            if count.failed and not (before is not None and before.failed):
                log.warning("cannot count %s for KEDA; its pods stay as they are", key[0])
        finally:
            del self._running[key]
        self._on_count(key[0])
        return count

    async def _call_store(self, key: Key) -> Count:
        queue, store = key[0], self.stores[key[1]]
        able = store.capabilities
        try:
            async with asyncio.timeout(COUNT_S), self._semaphore:
                self.made += 1
                counts = await store.counts(queue) if able.counts_leased else None
                leased = None if counts is None else counts.leased
                depth: Counts | Depth | None = counts
                if not able.counts_leased or (counts is not None and counts.at_least):
                    # The count may be capped, but the metric needs the whole number.
                    depth = await store.depth(queue)
                if depth is None:
                    # The queue does not exist before its first put.
                    return Count(self._now())
                paused = bool(depth.invisible) and able.pause and await store.paused(queue)
        except (QueuebellError, TimeoutError, OSError) as error:
            log.debug("counting %s failed: %s", queue, error)
            return Count(self._now(), failed=True)
        return Count(self._now(), False, depth.visible, depth.invisible, paused, able.zero_depth, leased)
