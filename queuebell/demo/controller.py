"""The process controller: takes the results off their queue and counts every item once.

Queues deliver at least once. A worker that dies between putting its result and deleting its item leaves an item that
another does again, so that a result may come twice; the first one counts and the second is only counted as such.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from queuebell.demo.analysis import FileFacts
from queuebell.demo.work import FileAnalysed, ProbeSeen, WorkResult


class Account:
    """What has come in: pure, one entry for each item, whatever the order and however often results come."""

    def __init__(self) -> None:
        self.facts: dict[int, FileFacts] = {}
        """By item id."""
        self.probe_latencies_ns: list[int] = []
        self.burst_starts: list[tuple[int, int]] = []
        """For each file item, when it was put and when its handler began."""
        self.duplicates = 0
        self.later_attempts = 0
        """Results that are not of their item's first attempt: another worker had begun it before."""
        self.last_worker: int | None = None
        self.results = 0
        self._probes: set[int] = set()

    @property
    def items(self) -> int:
        """Items that have a result."""
        return len(self.facts) + len(self._probes)

    def enter(self, result: WorkResult) -> bool:
        """Count a result, once per item; say whether it was new."""
        self.results += 1
        self.last_worker = result.worker
        self.later_attempts += result.attempt > 1
        if result.id in self.facts or result.id in self._probes:
            self.duplicates += 1
            return False
        match result:
            case FileAnalysed():
                self.facts[result.id] = result.facts
                self.burst_starts.append((result.put_ns, result.started_ns))
            case ProbeSeen():
                self._probes.add(result.id)
                self.probe_latencies_ns.append(result.started_ns - result.put_ns)
        return True


class Controller:
    """The account, and a way to wait for it."""

    def __init__(self, on_entry: Callable[[Account], None]) -> None:
        self.account = Account()
        self._on_entry = on_entry
        self._changed = asyncio.Event()
        self._last_entry = time.monotonic()

    def enter(self, result: WorkResult) -> None:
        """Enter one result."""
        self.account.enter(result)
        self._last_entry = time.monotonic()
        self._on_entry(self.account)
        self._changed.set()

    async def has(self, items: int, *, patience: float) -> None:
        """Wait until ``items`` items have a result; raises `TimeoutError` after ``patience`` seconds without any."""
        self._last_entry = time.monotonic()
        while self.account.items < items:
            self._changed.clear()
            left = self._last_entry + patience - time.monotonic()
            async with asyncio.timeout(max(left, 0.0)):
                await self._changed.wait()
