"""One connection that a bus makes when it is first used, and anew after a break.

Trying again is the publisher's business: a failure is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from bridge.brokers.base import Broker
from bridge.brokers.postgres.broker import PostgresBroker
from bridge.contract.errors import BusUnavailable, Closed, ConfigurationError

CLOSE_S: Final = 3.0


C = TypeVar("C", bound=Broker | PostgresBroker)


class ConnectedBus(Generic[C]):
    """A bus over one such connection."""

    def __init__(self, make: Callable[[], C]) -> None:
        self._make = make
        self._held: C | None = None
        self._broken: asyncio.Task[str] | None = None
        self._connecting = asyncio.Lock()
        self._closed = False

    async def close(self) -> None:
        """Close the connection; may be called twice."""
        self._closed = True
        async with self._connecting:
            await self._let_go()

    async def _connect(self, made: C) -> None:
        await made.connect()

    async def _connected(self) -> C:
        async with self._connecting:
            if self._closed:
                raise Closed("the bus is closed")
            if self._held is not None and self._broken is not None and not self._broken.done():
                return self._held
            await self._let_go()
            made = self._held = self._make()
            try:
                await self._connect(made)
            except ConfigurationError as error:
                # The other side may be set right while we run; the publisher keeps what is owed.
                await self._let_go()
                raise BusUnavailable(str(error)) from error
            except BaseException:
                await self._let_go()
                raise
            self._broken = asyncio.create_task(made.broken(), name="publisher's connection")
            return made

    async def _let_go(self) -> None:
        held, self._held = self._held, None
        broken, self._broken = self._broken, None
        if broken is not None:
            broken.cancel()
            await asyncio.wait([broken])
        if held is not None:
            try:
                async with asyncio.timeout(CLOSE_S):
                    await held.close()
            except TimeoutError:
                pass  # half-open, and its client does not let go: it is left
