"""A feed: a listener whose handler passes its message to taskiq and waits for the outcome."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from taskiq import AckableMessage

from queuebell.frameworks.taskiq.delivery import Delivery
from queuebell.listeners.handler import Message
from queuebell.listeners.listener import Listener

log = logging.getLogger("queuebell.taskiq")

IDLE_S: Final = 1.0
"""A warning is logged if a message waits longer than this for taskiq."""


class Feed:
    """One `listen`: a listener, and its messages from their receipt until taskiq has finished them."""

    def __init__(self, queue: str, concurrency: int, make: Callable[[Callable[[Message], object]], Listener]) -> None:
        self._queue = queue
        self._concurrency = concurrency
        self._deliveries: set[Delivery] = set()
        self._arrived: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self._closed = False
        self._told = False
        self._loop = asyncio.get_running_loop()
        self._listener = make(self._handle)
        self._stopping: asyncio.Task[None] | None = None
        self.running = self._loop.create_task(self._listener.run(), name=f"taskiq-listener[{queue}]")
        self.running.add_done_callback(lambda _: self._arrived.put_nowait(None))

    async def next(self) -> AckableMessage | None:
        """Wait for the next message; None once the listener has ended. Raises the listener's error."""
        asked = self._loop.time()
        while (delivery := await self._arrived.get()) is not None:
            if not delivery.settled.done():  # its lease was not lost meanwhile
                if asked - delivery.arrived > IDLE_S and not self._told:
                    self._tell_idle(asked - delivery.arrived)
                return delivery.hand_over()
        self.running.result()
        return None

    def close(self) -> None:
        """Receive no more, and release the messages that taskiq has not taken."""
        if not self._closed:
            self._closed = True
            self._stopping = self._loop.create_task(self._listener.stop(), name=f"taskiq-listener-stop[{self._queue}]")
            self._give_back(delivery for delivery in self._deliveries if not delivery.handed)

    async def end(self) -> None:
        """Release all unacknowledged messages, and wait until the listener has settled; if cancelled, do not wait."""
        self.close()
        self._give_back(self._deliveries)
        ending = [task for task in (self.running, self._stopping) if task is not None]
        try:
            await asyncio.wait(ending)
        except asyncio.CancelledError:
            self.running.cancel()
            await asyncio.wait(ending)
            raise
        if not self.running.cancelled() and (error := self.running.exception()) is not None:
            log.error("%s: the listener broke: %s", self._queue, error)

    async def _handle(self, message: Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        delivery = Delivery(message, task, self._loop)
        self._deliveries.add(delivery)
        self._arrived.put_nowait(delivery)
        if self._closed:
            delivery.give_back()
        try:
            failure = await delivery.settled
        finally:
            self._deliveries.discard(delivery)
        if failure is not None:
            raise failure

    def _give_back(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in [*deliveries]:
            delivery.give_back()

    def _tell_idle(self, seconds: float) -> None:
        self._told = True
        runs = sum(delivery.handed for delivery in self._deliveries) + 1
        log.warning(
            "%s: a task waited for %.0f s in this process, where taskiq runs %d at once while up to %d are received:"
            " another worker could have had it. Make `concurrency` of QueuebellBroker %d, as --max-async-tasks is",
            self._queue,
            seconds,
            runs,
            self._concurrency,
            runs,
        )
