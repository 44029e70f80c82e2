"""How long the leases of JetStream's consumers last: never shorter than asked for, whoever else changes them.

``ack_wait`` belongs to the consumer and so to all who receive. What is known of it here may be old: another worker may
have lengthened it, and whoever manages the server may have changed anything. So a consumer is read anew before it is
changed, and where messages are leased by it, it is read anew from time to time.

A consumer that is gone is made anew by a receive, and by nothing else: the leases of the old one are gone with it, and
a new one that has not got so far leaves their acknowledgements without an answer, where none at all refuses them.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from typing import Final

from bridge.contract.errors import QueueNotFound, StoreError
from bridge.queues.jetstream.api import ConsumerGone, ConsumerState, JetStreamApi
from bridge.queues.jetstream.names import Names

LOOK_AGAIN_S: Final = 60.0
"""When what is known of a consumer is read anew, once messages are leased by it; a quiet queue costs nothing."""
DOUBT_S: Final = 1.0
"""The same where a lease may have been lost, or where two may have lengthened at the same moment."""
GLANCE_S: Final = 1.0
"""How long that may take: the messages are leased already, and whoever asked for them waits."""
PUT_OFF_S: Final = 10.0
"""When a look that failed is tried again: a server that is silent about consumers must not hold up every receive."""
DEFAULT_LEASE_S: Final = 30.0


class _Known:
    """A consumer as it was read, and when; when a look at it failed since."""

    __slots__ = ("at", "doubted", "failed_at", "state")

    def __init__(self, state: ConsumerState, *, doubted: bool) -> None:
        self.state = state
        self.at = monotonic()
        self.doubted = doubted
        self.failed_at: float | None = None

    def due(self, *, lost: bool) -> bool:
        """Say whether it is to be read anew."""
        now = monotonic()
        if self.failed_at is not None and now - self.failed_at < PUT_OFF_S:
            return False
        return now - self.at >= (DOUBT_S if lost or self.doubted else LOOK_AGAIN_S)


class Leases:
    """The consumers of one store as they are known here, by stream."""

    def __init__(self, api: JetStreamApi) -> None:
        self._api = api
        self._known: dict[str, _Known] = {}

    def forget(self, names: Names) -> None:
        """Have the consumer read anew at the next call, and made by the next receive where it is missing."""
        self._known.pop(names.stream, None)

    async def consumer(self, names: Names, lease_s: float) -> ConsumerState:
        """Return the consumer, made where it is missing, with leases of at least ``lease_s``."""
        known = self._known.get(names.stream)
        if known is not None:
            try:
                return await self._long_enough(names, known.state, lease_s)
            except (ConsumerGone, QueueNotFound):
                self.forget(names)
        state = await self._read(names)
        if state is None:
            state = await self._api.make_consumer(names, lease_s or DEFAULT_LEASE_S)
            self._known[names.stream] = _Known(state, doubted=False)
        return await self._long_enough(names, state, lease_s)

    async def hold(self, names: Names, lease_s: float) -> None:
        """Have the leases that were given out last at least ``lease_s``.

        Raises `QueueNotFound` where nothing is known of the queue and it is not there. What was known and is gone is
        forgotten: each acknowledgement is told of it.
        """
        known = self._known.get(names.stream)
        state = await self._read(names) if known is None else known.state
        if state is None:
            return
        try:
            await self._long_enough(names, state, lease_s)
        except (ConsumerGone, QueueNotFound):
            self.forget(names)

    async def look_again(self, names: Names, lease_s: float, *, lost: bool = False) -> None:
        """Read the consumer anew if that is due; ``lost`` says that a lease may have ended too early.

        Leases that are too short by then are lengthened, those given out too. What fails here is tried again after
        `PUT_OFF_S`.
        """
        known = self._known.get(names.stream)
        if known is None or not known.due(lost=lost):
            return
        try:
            async with asyncio.timeout(GLANCE_S):
                state = await self._read(names)
                if state is not None:
                    await self._long_enough(names, state, lease_s)
        except (ConsumerGone, QueueNotFound):
            self.forget(names)
        except (StoreError, TimeoutError):
            known.failed_at = monotonic()

    async def _read(self, names: Names) -> ConsumerState | None:
        state = await self._api.consumer(names)
        if state is None:
            self.forget(names)
        else:
            self._known[names.stream] = _Known(state, doubted=False)
        return state

    async def _long_enough(self, names: Names, state: ConsumerState, lease_s: float) -> ConsumerState:
        if state.ack_wait_s < lease_s:
            state = await self._api.lengthen(names, lease_s)
            # The server has no way to change it only if it is as it was read: another may write a shorter one now.
            self._known[names.stream] = _Known(state, doubted=True)
        return state
