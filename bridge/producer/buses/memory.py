"""Triggers to a bridge that runs in this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Protocol

from queuebell.bridge.contract.errors import BadInput, BusUnavailable, Closed
from queuebell.bridge.contract.event import CloudQueueWorkDetected

# The same trigger may be accepted later.
_TRANSIENT = frozenset({"draining", "too_many_queues", "too_many_requests", "storage_unavailable", "internal"})


class Triggerable(Protocol):
    """The part of a bridge that this bus needs."""

    def trigger(self, events: Sequence[CloudQueueWorkDetected], *, bus: str) -> int:
        """Mark the queues of ``events`` before returning (B1) and return how many were accepted."""


class MemoryBus:
    """Sends triggers to a `Bridge` of this process.

    Create it within the bridge's event loop, or pass that loop; it can then be used from other loops too.
    """

    def __init__(self, bridge: Triggerable, home: asyncio.AbstractEventLoop | None = None) -> None:
        self._bridge = bridge
        self._home = home
        self._closed = False
        if home is None:
            with contextlib.suppress(RuntimeError):  # without a loop, the first publish sets it
                self._home = asyncio.get_running_loop()

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Mark before returning. Raises as `Bus.publish` does."""
        if self._closed:
            raise Closed("the bus is closed")
        here = asyncio.get_running_loop()
        if self._home is None:
            self._home = here
        if self._home is here:
            self._trigger(events)
            return
        call = self._trigger_there(events)
        try:
            future = asyncio.run_coroutine_threadsafe(call, self._home)
        except RuntimeError:
            call.close()
            raise BusUnavailable("the bridge's event loop has ended") from None
        await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Accept no more triggers; the bridge continues."""
        self._closed = True

    async def _trigger_there(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        self._trigger(events)

    def _trigger(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        try:
            self._bridge.trigger(events, bus="memory")
        except BadInput as error:
            if error.code in _TRANSIENT:
                raise BusUnavailable(f"the bridge did not accept it: {error.code}") from error
            raise
        except Closed as error:
            raise BusUnavailable(str(error)) from error
