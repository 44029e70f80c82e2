"""The counts that a listener makes beside its receives: requests of their own, which nothing waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from bridge.contract.errors import QueuebellError, QueueNotFound
from bridge.queues.base import Counts, QueueStore, Received
from listeners.core.counting import Counting

log = logging.getLogger("queuebell.listener")


class StoreCounts:
    """Counts one queue and its poison queue when `Counting` says so; a count that fails is not repeated for it."""

    def __init__(self, queue: str, store: QueueStore, rules: Counting) -> None:
        self.rules = rules
        self._queue = queue
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def beside(self, answer: Received, source: str, *, own: bool, sessions: int, call_s: float) -> None:
        """Take what a receive told, and begin the counts that are worth it; ``own`` queues the bridge counts itself."""
        now = self._loop.time()
        if not own:
            told, depth, whole = answer.counts, answer.depth, answer.counts is not None
            if answer.messages and not whole:
                self.rules.took()
            if told is None and depth is not None:
                none = 0 if self._store.capabilities.exact_depth and not depth.invisible else None
                told = Counts(depth.visible, depth.invisible, answer.depth_is_least, leased=none, delayed=none)
            if told is not None:
                self.rules.answered(told, now, whole=whole)
            if answer.messages and not whole and self.rules.worth(now, sessions):
                self._spawn(partial(self._count, call_s), "count")
        self._perhaps_buried(self.rules.worth_burying(source, now, own=own), call_s)

    def buried(self, *, own: bool, call_s: float) -> None:
        """Hear that a message was buried, or replayed."""
        self.rules.buries()
        self._perhaps_buried(self.rules.worth_burying("", self._loop.time(), own=own), call_s)

    async def close(self) -> None:
        """End the counts under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _perhaps_buried(self, graves: str | None, call_s: float) -> None:
        if graves is not None:
            self._spawn(partial(self._count_buried, graves, call_s), "count-buried")

    def _spawn(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        task = self._loop.create_task(self._quietly(work), name=f"{name}[{self._queue}]")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (QueuebellError, TimeoutError) as error:
            log.debug("%s: a count failed, and is not repeated: %s", self._queue, error)
        except Exception:
            log.exception("%s: a count broke", self._queue)

    async def _count(self, call_s: float) -> None:
        began = self._loop.time()
        try:
            async with asyncio.timeout(call_s):
                counts = await self._store.counts(self._queue)
        except QueueNotFound:
            counts = None
        self.rules.counted(counts, began)

    async def _count_buried(self, graves: str, call_s: float) -> None:
        try:
            async with asyncio.timeout(call_s):
                counts = await self._store.counts(graves)
        except QueueNotFound:
            counts = None
        self.rules.buried(0 if counts is None else counts.visible + counts.invisible, self._loop.time())
