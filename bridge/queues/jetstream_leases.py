"""How long the leases of JetStream's consumers last: never shorter than asked for, whoever else changes them.

``ack_wait`` belongs to the consumer and so to all who receive. What is known of it here may be old: another worker may
have lengthened it, and whoever manages the server may have changed anything. So a consumer is read anew before it is
changed, and where messages are leased by it, it is read anew from time to time.
"""

from __future__ import annotations

import asyncio
import contextlib
from time import monotonic
from typing import Final

from bridge.contract.errors import StoreError
from bridge.queues.jetstream_api import ConsumerState, JetStreamApi
from bridge.queues.jetstream_names import Names

LOOK_AGAIN_S: Final = 60.0
"""When what is known of a consumer is read anew, once messages are leased by it; a quiet queue costs nothing."""
DOUBT_S: Final = 1.0
"""The same where a lease may have been lost, or where two may have lengthened at the same moment."""
GLANCE_S: Final = 1.0
"""How long that may take: the messages are leased already, and whoever asked for them waits."""
DEFAULT_LEASE_S: Final = 30.0


class _Known:
    """A consumer as it was read, and when."""

    __slots__ = ("at", "doubted", "state")

    def __init__(self, state: ConsumerState, *, doubted: bool) -> None:
        self.state = state
        self.at = monotonic()
        self.doubted = doubted


class Leases:
    """The consumers of one store as they are known here, by stream."""

    def __init__(self, api: JetStreamApi) -> None:
        self._api = api
        self._known: dict[str, _Known] = {}

    def forget(self, names: Names) -> None:
        """Have the consumer read anew, and made where it is missing, at the next call."""
        self._known.pop(names.stream, None)

    async def consumer(self, names: Names, lease_s: float) -> ConsumerState:
        """Return the consumer, made where it is missing, with leases of at least ``lease_s``."""
        known = self._known.get(names.stream)
        state = await self._read(names, lease_s) if known is None else known.state
        return await self._long_enough(names, state, lease_s)

    async def look_again(self, names: Names, lease_s: float, *, lost: bool = False) -> None:
        """Read the consumer anew if that is due; ``lost`` says that a lease may have ended too early.

        Leases that are too short by then are lengthened, those given out too. What fails here is tried at the next
        call.
        """
        known = self._known.get(names.stream)
        if known is None or monotonic() - known.at < (DOUBT_S if lost or known.doubted else LOOK_AGAIN_S):
            return
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(GLANCE_S):
                await self._long_enough(names, await self._read(names, lease_s), lease_s)

    async def _read(self, names: Names, lease_s: float) -> ConsumerState:
        state = await self._api.consumer(names)
        if state is None:
            state = await self._api.make_consumer(names, lease_s or DEFAULT_LEASE_S)
        self._known[names.stream] = _Known(state, doubted=False)
        return state

    async def _long_enough(self, names: Names, state: ConsumerState, lease_s: float) -> ConsumerState:
        if state.ack_wait_s < lease_s:
            state = await self._api.lengthen(names, lease_s)
            # The server has no way to change it only if it is as it was read: another may write a shorter one now.
            self._known[names.stream] = _Known(state, doubted=True)
        return state
