"""The in-process bus: triggers go straight into a bridge that runs in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from bridge.contract.errors import BadInput, BusUnavailable, Closed
from bridge.contract.event import CloudQueueWorkDetected

# Refusals that pass: the same trigger may be taken later.
_TRANSIENT = frozenset({"draining", "too_many_queues", "too_many_requests", "storage_unavailable", "internal"})


class Triggerable(Protocol):
    """What this bus needs of a bridge."""

    def trigger(self, events: Sequence[CloudQueueWorkDetected], *, bus: str) -> int:
        """Mark the queues of ``events`` before returning (B1) and return how many were accepted."""
        ...


class MemoryBus:
    """Carries triggers to a `Bridge` of this process.

    Made within the bridge's event loop, or handed that loop; it may then be used from other loops too.
    """

    def __init__(self, bridge: Triggerable, home: asyncio.AbstractEventLoop | None = None) -> None:
        self._bridge = bridge
        self._home = home
        self._closed = False
        if home is None:
            try:
                self._home = asyncio.get_running_loop()
            except RuntimeError:
                self._home = None  # learned from the first publish

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Mark at once. Raises as `Bus.publish` does."""
        if self._closed:
            raise Closed("the bus is closed")
        here = asyncio.get_running_loop()
        if self._home is None:
            self._home = here
        if self._home is here:
            self._trigger(events)
            return
        there = self._over_there(events)
        try:
            crossing = asyncio.run_coroutine_threadsafe(there, self._home)
        except RuntimeError:
            there.close()
            raise BusUnavailable("the bridge's event loop has ended") from None
        await asyncio.wrap_future(crossing)

    async def close(self) -> None:
        """Take no more triggers; the bridge goes on."""
        self._closed = True

    async def _over_there(self, events: Sequence[CloudQueueWorkDetected]) -> None:
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
