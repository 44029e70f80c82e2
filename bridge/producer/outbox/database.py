"""The database that a relay reads its outbox from, as the relay sees it, and one whose calls block."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeVar

from bridge.producer.outbox.hearing import hearing
from bridge.producer.outbox.statements import Execute, Place

T = TypeVar("T")
Ring = Callable[[], None]


class Link(Protocol):
    """One connection with a transaction, which is rolled back where it is not committed."""

    async def call(self, work: Callable[[Execute], T], *, commit: bool = False) -> T:
        """Do something with what carries out statements; raises what the driver raises.

        With ``commit`` it ends with the transaction, and no lock waits for the event loop in between.
        """
        ...


class OutboxDatabase(Protocol):
    """Where an outbox is, and how to get there."""

    @property
    def place(self) -> Place:
        """What is read there."""
        ...

    def connect(self) -> AbstractAsyncContextManager[Link]:
        """Open a connection, or take one of a pool."""
        ...

    def listen(self, ring: Ring) -> AbstractAsyncContextManager[asyncio.Future[None]]:
        """Listen on a connection of its own, as long as the block lasts, and give what is done once that is lost.

        Raises `Unsupported` for a driver that cannot be listened on.
        """
        ...

    async def close(self) -> None:
        """Let go of what is not the caller's."""
        ...


class BlockingLink(Protocol):
    """One connection whose calls block; all of them come from one thread."""

    def execute(self, statement: str, given: Any) -> list[tuple[Any, ...]]:
        """Carry out one statement."""
        ...

    def commit(self) -> None:
        """Commit."""
        ...

    def listen(self) -> Any:
        """Commit `LISTEN`, and return the driver's own connection, which is nobody else's from now on, nor a pool's."""
        ...

    def close(self) -> None:
        """Roll back what is not committed, and let go of it."""
        ...


class BlockingDatabase:
    """Connections that block, in a thread of their own; all that is given is called there.

    ``open_link`` makes one, ``open_listener`` one to listen on; ``end`` lets go of what they keep.
    """

    def __init__(
        self,
        place: Place,
        open_link: Callable[[], BlockingLink],
        *,
        open_listener: Callable[[], BlockingLink] | None = None,
        end: Callable[[], None] = lambda: None,
    ) -> None:
        self.place = place
        self._open, self._open_listener, self._end = open_link, open_listener or open_link, end
        self._thread = ThreadPoolExecutor(1, "queuebell-outbox")

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Link]:
        """Open a connection in the thread."""
        async with self._opened(self._open) as link:
            yield _Threaded(self._run, link)

    @asynccontextmanager
    async def listen(self, ring: Ring) -> AsyncIterator[asyncio.Future[None]]:
        """Listen on another connection."""
        async with self._opened(self._open_listener) as link:
            async with hearing(await self._run(link.listen), ring) as lost:
                yield lost

    async def close(self) -> None:
        """End the thread, which has nothing else to do any more."""
        await self._run(self._end)
        self._thread.shutdown(wait=False)

    @asynccontextmanager
    async def _opened(self, open_link: Callable[[], BlockingLink]) -> AsyncIterator[BlockingLink]:
        opened: list[BlockingLink] = []
        try:
            await self._run(lambda: opened.append(open_link()))
            yield opened[0]
        finally:
            for link in opened:
                await self._run(link.close)

    async def _run(self, work: Callable[[], T]) -> T:
        """Do something in the thread; a cancellation comes through once it is done, for it cannot be interrupted."""
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait({done})
            if not done.cancelled():
                done.exception()  # seen
            raise


class _Threaded:
    def __init__(self, run: Callable[[Callable[[], Any]], Any], link: BlockingLink) -> None:
        self._run, self._link = run, link

    async def call(self, work: Callable[[Execute], T], *, commit: bool = False) -> T:
        def called() -> T:
            result = work(self._link.execute)
            if commit:
                self._link.commit()
            return result

        result: T = await self._run(called)
        return result
