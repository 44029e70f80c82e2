"""Connections of a store: few, kept for a while, and none used again after a call whose end is not known."""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from bridge.contract.errors import Closed, QueuebellError

IDLE_S: Final = 60.0
"""How long a connection is kept that nobody used; the newest used is used first, so that the others grow old."""


class Connections(abc.ABC):
    """At most ``size`` connections; calls beyond that wait their turn. A call takes one and gives it back."""

    def __init__(self, size: int) -> None:
        self._turns = asyncio.Semaphore(size)
        self._idle: list[tuple[Any, float]] = []
        self._busy: set[Any] = set()
        self._ageing: asyncio.TimerHandle | None = None
        self._closed = False

    async def use(self, within_s: float, call: Callable[[Any], Awaitable[Any]]) -> Any:
        """Return what ``call`` makes of a connection; never twice (L6). Raises what `_explained` makes of a failure."""
        connection, sound = None, False
        try:
            async with asyncio.timeout(within_s), self._turns:
                connection = await self._take()
                answer = await call(connection)
                sound = True
                return answer
        except QueuebellError:
            raise
        except Exception as error:
            if self._closed:
                raise Closed("the store was closed") from error
            ours, sound = self._explained(error, connected=connection is not None)
            raise ours from error
        finally:
            if connection is not None:
                self._give_back(connection, sound)

    def _open(self) -> Iterator[Any]:
        """Return the connections that there are, idle and busy."""
        yield from self._busy
        yield from (connection for connection, _ in self._idle)

    @abc.abstractmethod
    def _explained(self, error: Exception, *, connected: bool) -> tuple[QueuebellError, bool]:
        """Return our error for a failed call, and whether its connection can be used again."""

    @abc.abstractmethod
    async def _connect(self) -> Any:
        """Return a new connection; what fails leaves nothing open."""

    @abc.abstractmethod
    def _usable(self, connection: Any) -> bool:
        """Say whether a kept connection is still open, and still the right one."""

    @abc.abstractmethod
    def _end(self, connection: Any) -> None:
        """Close a connection without waiting for what is still to be sent; the caller may be no task."""

    async def close(self) -> None:
        """Let go of all; calls under way fail as `Closed`. May be called twice."""
        self._closed = True
        if self._ageing is not None:
            self._ageing.cancel()
        self._end_idle()
        for connection in list(self._busy):
            self._end(connection)

    async def _take(self) -> Any:
        self._check_open()
        while self._idle:
            connection, _ = self._idle.pop()
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
        loop = asyncio.get_running_loop()
        self._idle.append((connection, loop.time()))
        if self._ageing is None:
            self._ageing = loop.call_later(IDLE_S, self._age)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    def _end_idle(self) -> None:
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            self._end(connection)

    def _age(self) -> None:
        loop = asyncio.get_running_loop()
        self._ageing = None
        limit = loop.time() - IDLE_S
        # Appended in the order of their last use: the oldest come first.
        while self._idle and self._idle[0][1] <= limit:
            self._end(self._idle.pop(0)[0])
        if self._idle and not self._closed:
            self._ageing = loop.call_at(self._idle[0][1] + IDLE_S, self._age)
