"""Connections of stores: a pool shared by all stores of one address, and a client that is opened by its first use.

A connection is not used again after a call whose outcome is unknown.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Hashable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Generic, TypeVar

from queuebell.bridge.contract.errors import Closed, Overloaded, QueuebellError

IDLE_S: Final = 60.0
"""How long an unused connection is kept; the most recently used is used first, so that the others age."""


class _Pool:
    """The connections of one address on one event loop."""

    def __init__(self, size: int) -> None:
        self.turns = asyncio.Semaphore(size)
        self.idle: list[tuple[Any, float]] = []
        self.ageing: asyncio.TimerHandle | None = None
        self.users = 0


_pools: dict[tuple[asyncio.AbstractEventLoop, Hashable], _Pool] = {}


class Connections(abc.ABC):
    """A pool of at most ``size`` connections; further calls wait.

    Pools with the same ``key`` in this process share their connections on an event loop; None shares with no other.
    """

    def __init__(self, size: int, key: Hashable = None) -> None:
        self._size, self._key = size, key
        self._pool: _Pool | None = None
        self._busy: set[Any] = set()
        self._closed = False

    def stop_sharing(self) -> None:
        """Stop sharing connections with other pools."""
        self._leave()
        self._key = None

    async def use(self, within_s: float, call: Callable[[Any], Awaitable[Any]]) -> Any:
        """Return the result of ``call`` with a connection; never retries (L6). A failure raises as `_explained` says.

        Raises `Overloaded` if no connection became free in time; then no request was sent.
        """
        connection, sound, in_turn = None, False, False
        try:
            async with asyncio.timeout(within_s), self._join().turns:
                in_turn = True
                connection = await self._take()
                answer = await call(connection)
                sound = True
                return answer
        except QueuebellError:
            raise
        except Exception as error:
            if self._closed:
                raise Closed("the store was closed") from error
            if not in_turn:
                raise Overloaded(
                    f"all {self._size} connections to the store were in use for {within_s:g} s; nothing was sent. "
                    "Try again, or increase pool_size"
                ) from error
            ours, sound = self._explained(error, connected=connection is not None)
            raise ours from error
        finally:
            if connection is not None:
                self._give_back(connection, sound)

    def _open(self) -> Iterator[Any]:
        """Return all connections, idle and busy."""
        yield from self._busy
        if self._pool is not None:
            yield from (connection for connection, _ in self._pool.idle)

    def _join(self) -> _Pool:
        if self._pool is None:
            self._check_open()
            self._pool = _Pool(self._size)
            if self._key is not None:
                for place in [place for place in _pools if place[0].is_closed()]:
                    del _pools[place]
                self._pool = _pools.setdefault((asyncio.get_running_loop(), self._key), self._pool)
            self._pool.users += 1
        return self._pool

    def _leave(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        pool.users -= 1
        if not pool.users:
            if pool.ageing is not None:
                pool.ageing.cancel()
            for place in [place for place, each in _pools.items() if each is pool]:
                del _pools[place]
            self._end_all(pool)

    @abc.abstractmethod
    def _explained(self, error: Exception, *, connected: bool) -> tuple[QueuebellError, bool]:
        """Return the error to raise for a failed call, and whether its connection can be used again."""

    @abc.abstractmethod
    async def _connect(self) -> Any:
        """Return a new connection; a failure leaves nothing open."""

    @abc.abstractmethod
    def _usable(self, connection: Any) -> bool:
        """Return whether a kept connection is still open and suitable."""

    @abc.abstractmethod
    def _end(self, connection: Any) -> None:
        """Close a connection without flushing it; the caller may not be a task."""

    async def close(self) -> None:
        """Close all connections; calls in progress fail with `Closed`. May be called twice."""
        self._closed = True
        self._leave()
        for connection in list(self._busy):
            self._end(connection)

    async def _take(self) -> Any:
        pool = self._join()
        while pool.idle:
            connection, _ = pool.idle.pop()
            if self._usable(connection):
                self._busy.add(connection)
                return connection
            self._end(connection)
        connection = await self._connect()
        try:
            self._check_open()
        except Closed:
            self._end(connection)
            raise
        self._busy.add(connection)
        return connection

    def _give_back(self, connection: Any, sound: bool) -> None:
        self._busy.discard(connection)
        if not sound or self._closed or not self._usable(connection):
            self._end(connection)
            return
        pool = self._join()
        pool.idle.append((connection, asyncio.get_running_loop().time()))
        self._age_later(pool)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    def _end_idle(self) -> None:
        if self._pool is not None:
            self._end_all(self._pool)

    def _end_all(self, pool: _Pool) -> None:
        idle, pool.idle = pool.idle, []
        for connection, _ in idle:
            self._end(connection)

    def _age_later(self, pool: _Pool) -> None:
        if pool.ageing is None and pool.idle:
            # Ordered by last use: the oldest come first.
            pool.ageing = asyncio.get_running_loop().call_at(pool.idle[0][1] + IDLE_S, self._age, pool)

    def _age(self, pool: _Pool) -> None:
        pool.ageing = None
        limit = asyncio.get_running_loop().time() - IDLE_S
        while pool.idle and pool.idle[0][1] <= limit:
            self._end(pool.idle.pop(0)[0])
        self._age_later(pool)


C = TypeVar("C")


class LazyClient(Generic[C]):
    """Opens a client by its first use; ``what`` names the owner in errors after `close`."""

    def __init__(self, open_: Callable[[], AbstractAsyncContextManager[C]], what: str = "the store") -> None:
        self._open = open_
        self._what = what
        self._stack = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._client: C | None = None
        self.closed = False

    def check_open(self) -> None:
        """Raise `Closed` after `close`."""
        if self.closed:
            raise Closed(f"{self._what} is closed")

    async def client(self) -> C:
        """Return the client, opened once. Raises `Closed`, and errors of opening."""
        self.check_open()
        if self._client is None:
            async with self._opening:
                self.check_open()
                if self._client is None:
                    self._client = await self._stack.enter_async_context(self._open())
        return self._client

    async def close(self) -> None:
        """Close the client, if there is one; may be called twice."""
        self.closed = True
        async with self._opening:
            self._client = None
            await self._stack.aclose()
