"""Queuebell's ends over NATS: a worker that notes wakes and handlers, a producer that notes publishes.

``python -m bench.brokered work NATS STORE``, ``put NATS STORE`` (bench.role).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

from bench.ours import Fleet
from bench.role import obey
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.names import split_reference
from queuebell.bridge.contract.wire import DownFrame, UpFrame, Wake
from queuebell.bridge.producer.buses import open_bus
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import NewMessage
from queuebell.listeners.handler import Message
from queuebell.listeners.listener import Listener
from queuebell.listeners.session.brokered import BrokeredChannel
from queuebell.listeners.session.channel import Link

QUEUE = "bench/hop"
WITHIN_S = 20.0


class Noted:
    """When each wake and each handler came, by the number that its trigger carried as trace."""

    def __init__(self) -> None:
        self.wake: dict[str, int] = {}
        self.handler: dict[str, int] = {}
        self.more = asyncio.Event()

    async def take(self, count: int) -> dict[str, dict[str, int]]:
        """Wait for so many of both, and forget them."""
        async with asyncio.timeout(WITHIN_S):
            while len(self.wake) < count or len(self.handler) < count:
                self.more.clear()
                await self.more.wait()
        taken = {"wake": self.wake, "handler": self.handler}
        self.wake, self.handler = {}, {}
        return taken


class NotingLink:
    """A link that notes when the listener takes a wake from it."""

    def __init__(self, link: Link, noted: Noted) -> None:
        self._link = link
        self._noted = noted

    def send(self, frame: UpFrame) -> None:
        """Send a frame."""
        self._link.send(frame)

    def hand_over(self, hear: Callable[[Wake], None]) -> None:
        """Do nothing: they come by `receive`."""

    async def receive(self) -> DownFrame:
        """Wait for a frame."""
        frame = await self._link.receive()
        if isinstance(frame, Wake) and frame.traceparent is not None:
            self._noted.wake.setdefault(frame.traceparent, time.monotonic_ns())
            self._noted.more.set()
        return frame

    async def close(self) -> None:
        """End the link."""
        await self._link.close()


class NotingChannel:
    """A channel whose links note; made before the listener whose instance it needs."""

    def __init__(self, url: str, noted: Noted) -> None:
        self._url = url
        self._noted = noted
        self.instance = ""

    async def connect(self) -> Link:
        """Open a link."""
        return NotingLink(await BrokeredChannel(self._url, self.instance).connect(), self._noted)

    async def close(self) -> None:
        """Nothing is held between links."""


async def work(nats: str, store: str) -> None:
    """One worker on the session over NATS."""
    noted = Noted()

    async def handle(message: Message) -> None:
        noted.handler.setdefault(str(bytes(message.body), "ascii"), time.monotonic_ns())
        noted.more.set()

    channel: Any = NotingChannel(nats, noted)
    listener = Listener(store, QUEUE, handle, bridge=channel, handle_signals=False)
    channel.instance = listener.instance
    fleet = Fleet([listener])
    await fleet.begin()
    await obey({"take": noted.take})
    await fleet.end()


async def put(nats: str, store: str) -> None:
    """Put a message, then publish its trigger, one at a time."""
    queue, bus = open_store(store), open_bus(nats)
    await queue.create(QUEUE)
    done = 0

    async def one(count: int, pace_ms: float) -> dict[str, int]:
        nonlocal done
        published: dict[str, int] = {}
        for _ in range(count):
            done += 1
            await queue.put(QUEUE, [NewMessage(str(done).encode())])
            event = CloudQueueWorkDetected(*split_reference(QUEUE), traceparent=str(done))
            published[str(done)] = time.monotonic_ns()
            await bus.publish([event])
            await asyncio.sleep(pace_ms / 1000)
        return published

    await obey({"put": one})
    await bus.close()
    await queue.close()


if __name__ == "__main__":
    asyncio.run({"work": work, "put": put}[sys.argv[1]](*sys.argv[2:]))
