"""What the tests of the listener's shell share: a store that can be made to fail, and a running listener."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from queuebell.bridge.contract.burial import Burial, opened, read_burial
from queuebell.bridge.queues.base import NewMessage, Received, Settlement, Settling
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.listeners import PULL_ONLY, Listener
from tests.support.sim_loop import pass_time

QUEUE = "billing/orders"
POISON = "billing/orders-poison"
_numbers = itertools.count()


class Store(MemoryStore):
    """A store in memory on the loop's clock; ``receiving`` and ``settling`` may stand in for a call, or break it."""

    def __init__(self) -> None:
        # Stores of one name share their messages and the first one's clock: here each has its own loop's.
        super().__init__(f"test-{next(_numbers)}", clock=asyncio.get_running_loop().time)
        self.receives = 0
        self.settlements: list[Settlement] = []
        self.receiving: list[Callable[[], Any]] = []
        self.settling: list[Callable[[], Any]] = []

    async def receive(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Received:
        self.receives += 1
        if self.receiving:
            await self.receiving.pop(0)()
        return await super().receive(queue, limit, visibility_s, source=source)

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        self.settlements.append(settlement)
        if self.settling:
            await self.settling.pop(0)()
        return await super().settle(queue, settlement)

    async def fill(self, *bodies: bytes, queue: str = QUEUE) -> None:
        await self.put(queue, [NewMessage(body) for body in bodies])

    async def bodies(self, queue: str) -> list[bytes]:
        """Return the bodies as they were put at first."""
        return [opened(message.body)[1] for message in await self.peek(queue)]

    async def burials(self, queue: str = POISON) -> list[Burial]:
        """Return the facts of what is buried."""
        return [read_burial(message.body)[0] for message in await self.peek(queue)]


def raising(error: Exception) -> Callable[[], Any]:
    """Return a stand-in that fails."""

    async def fail() -> None:
        raise error

    return fail


def hanging(seconds: float = 1e6) -> Callable[[], Any]:
    """Return a stand-in that does not answer."""

    async def hang() -> None:
        await pass_time(seconds)

    return hang


@asynccontextmanager
async def listening(
    store: Any, handler: Callable[[Any], object], queue: str | Sequence[str] = QUEUE, **options: Any
) -> AsyncIterator[Listener]:
    """Run a listener around the block, and stop it after."""
    listener = Listener(store, queue, handler, handle_signals=False, **{"bridge": PULL_ONLY, **options})
    running = asyncio.create_task(listener.run(), name="listener")
    try:
        yield listener
    finally:
        await listener.stop()
        await asyncio.wait([running])
        if not running.cancelled():
            running.result()


async def settled(listener: Listener, count: int, what: str = "handled", queue: str = QUEUE) -> None:
    """Wait in virtual time until a counter has reached ``count``; seen 10 ms later at most, or 1 % of the wait."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.timeout(3600):
        while getattr(listener.state().queues.get(queue), what, 0) < count:
            # Looked at every 10 ms through minutes, the looks were nearly all that a test did.
            await asyncio.sleep(max(0.01, (loop.time() - began) / 100))


async def run_until(
    listening: AbstractAsyncContextManager[Listener], count: int, what: str = "handled", queue: str = QUEUE
) -> None:
    """Run a listener until a counter has reached ``count``, and stop it."""
    async with listening as listener:
        await settled(listener, count, what, queue)
