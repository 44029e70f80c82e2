"""The application's database as a relay sees it, the thread of a blocking driver, and notifications of commits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol, TypeVar

from queuebell.bridge.contract.errors import Unsupported
from queuebell.bridge.producer.outbox.table import CHANNEL, Execute, Place

LISTEN = f"LISTEN {CHANNEL}"

T = TypeVar("T")


class Link(Protocol):
    """One connection with a transaction, which is rolled back unless it is committed."""

    async def call(self, work: Callable[[Execute], T], *, commit: bool = False) -> T:
        """Call ``work`` with the function that executes statements; raises what the driver raises.

        With ``commit`` it commits in the same step, so no lock waits for the event loop.
        """


class OutboxDatabase(Protocol):
    """The location of an outbox, and connections to it."""

    @property
    def place(self) -> Place:
        """The table."""

    def connect(self) -> AbstractAsyncContextManager[Link]:
        """Open a connection, or take one of a pool."""

    def listen(self, on_commit: Callable[[], None]) -> AbstractAsyncContextManager[asyncio.Future[None]]:
        """Listen on a separate connection while the block lasts; the future is done once that connection is lost.

        Raises `Unsupported` for a driver without notifications.
        """

    async def close(self) -> None:
        """Close what the caller does not own."""


class BlockingLink(Protocol):
    """One connection with blocking calls, all from one thread."""

    def execute(self, statement: str, given: Any) -> list[tuple[Any, ...]]:
        """Execute one statement."""

    def commit(self) -> None:
        """Commit."""

    def listen(self) -> Any:
        """Commit `LISTEN` and return the driver's connection, which leaves its pool and has no other user."""

    def close(self) -> None:
        """Roll back and release the connection."""


class BlockingDatabase:
    """An `OutboxDatabase` over blocking connections, in one thread; all callables run there.

    ``open_link`` opens a connection, ``open_listener`` one to listen on; ``end`` closes what they keep open.
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
    async def listen(self, on_commit: Callable[[], None]) -> AsyncIterator[asyncio.Future[None]]:
        """Listen on another connection."""
        async with self._opened(self._open_listener) as link:
            async with notifications(await self._run(link.listen), on_commit) as lost:
                yield lost

    async def close(self) -> None:
        """End the thread."""
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
        """Call ``work`` in the thread; it cannot be interrupted, so a cancellation is raised once it is done."""
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await asyncio.wait({done})
            if not done.cancelled():
                done.exception()  # retrieved, so that asyncio does not log it
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


# Notifications of commits -----------------------------------------------------------------------------------------


@asynccontextmanager
async def notifications(driver: Any, on_commit: Callable[[], None]) -> AsyncIterator[asyncio.Future[None]]:
    """Call ``on_commit`` on each NOTIFY, without polling; the future is done once the connection is lost.

    ``driver`` is a connection of asyncpg or psycopg 3 (either kind) that committed `LISTEN` and has no other user.
    Raises `Unsupported` for another driver.
    """
    loop = asyncio.get_running_loop()
    lost: asyncio.Future[None] = loop.create_future()

    def lose(*_: object) -> None:
        if not lost.done():
            lost.set_result(None)

    kind = type(driver).__module__.partition(".")[0]
    if kind == "asyncpg":
        driver.add_termination_listener(lose)
        await driver.add_listener(CHANNEL, lambda *_: on_commit())
        yield lost
        return
    if kind != "psycopg":
        raise Unsupported(f"{kind}: this driver does not support LISTEN; asyncpg and psycopg 3 do")
    socket = driver.fileno()

    def readable() -> None:
        try:
            driver.pgconn.consume_input()
            while driver.pgconn.notifies():
                pass
        except Exception:  # noqa: BLE001 - whatever the driver raises, the connection is unusable
            loop.remove_reader(socket)
            lose()
        on_commit()

    loop.add_reader(socket, readable)
    try:
        yield lost
    finally:
        loop.remove_reader(socket)


_relays: set[Callable[[], object]] = set()


def on_local_commit(notify: Callable[[], object]) -> Callable[[], None]:
    """Call ``notify`` on each `notify_relays`, from any thread; return a function that ends that."""
    _relays.add(notify)
    return lambda: _relays.discard(notify)


def notify_relays(*_: object) -> None:
    """Have every relay of this process read now: for databases without notifications. Callable from any thread.

    It never raises, because it is called during a commit, and ignores its arguments.
    """
    for notify in tuple(_relays):
        try:
            notify()
        except RuntimeError:  # its event loop was closed before the relay was left
            _relays.discard(notify)
