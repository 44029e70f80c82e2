"""A client of another system, opened by the first call that needs it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, TypeVar

from bridge.contract.errors import Closed

C = TypeVar("C")


class LazyClient(Generic[C]):
    """What ``open_`` gives, entered once; ``what`` (the store) is said to be closed after `close`."""

    def __init__(self, open_: Callable[[], AbstractAsyncContextManager[C]], what: str = "the store") -> None:
        self._open = open_
        self._what = what
        self._stack = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._client: C | None = None
        self.closed = False

    def check_open(self) -> None:
        """Raise `Closed` after `close`, also for a call that was under way."""
        if self.closed:
            raise Closed(f"{self._what} is closed")

    async def client(self) -> C:
        """Return the client. Raises `Closed`, and what opening raises."""
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
