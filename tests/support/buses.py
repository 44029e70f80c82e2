"""A bus that records what it is given and fails when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from queuebell.bridge.contract.event import CloudQueueWorkDetected


class RecordingBus:
    """Keeps every batch; ``outcomes`` are raised in turn (None: taken), ``gate`` holds publishes up while cleared."""

    def __init__(self, *outcomes: Exception | None) -> None:
        self.batches: list[list[CloudQueueWorkDetected]] = []
        self.taken: list[CloudQueueWorkDetected] = []
        self.outcomes = list(outcomes)
        self.gate = asyncio.Event()
        self.gate.set()
        self.closed = False
        self.on_publish: Callable[[Sequence[CloudQueueWorkDetected]], None] = lambda _: None
        self._changed = asyncio.Event()

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        self.batches.append(list(events))
        self.on_publish(events)
        self._changed.set()
        await self.gate.wait()
        outcome = self.outcomes.pop(0) if self.outcomes else None
        if outcome is not None:
            raise outcome
        self.taken += events
        self._changed.set()

    async def close(self) -> None:
        self.closed = True

    async def until(self, reached: Callable[[RecordingBus], bool]) -> None:
        """Wait for a state; the test's own time-out bounds it."""
        while not reached(self):
            self._changed.clear()
            await self._changed.wait()
