"""What a command holds of a queue that it looks through: short leases, renewed, and given back as if never taken."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from bridge.contract.errors import UnknownOutcome
from bridge.queues.base import BATCH_MAX, Extend, QueueStore, Release, Settled, Settlement, StoredMessage, check_settled

SHARED_LEASE_S: Final = 30.0
"""Where a longer one would be every worker's from then on: what a listener asks for by default."""
CALL_S: Final = 60.0
"""How long one call may take, and no more than a quarter of a lease: a put and a delete are done within half of one."""

T = TypeVar("T")


class HeldLeases:
    """The leases of one command on one queue, of ``lease_s`` seconds where each has its own, by the clock it is given.

    A command that is killed leaves what it holds for no longer than that.
    """

    def __init__(self, store: QueueStore, queue: str, lease_s: float, clock: Callable[[], float]) -> None:
        self.lease_s = lease_s if store.capabilities.own_leases else min(lease_s, SHARED_LEASE_S)
        self._store = store
        self._queue = queue
        self._clock = clock
        self._call_s = min(CALL_S, self.lease_s / 4)
        # In the order in which their leases end: each is as long, and one that is renewed goes to the end.
        self._held: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._retry_at = -math.inf

    def __contains__(self, id_: str) -> bool:
        return id_ in self._held

    def receipt(self, id_: str) -> str:
        """Return the newest receipt of a message that is held."""
        return self._held[id_][0]

    def pop(self, id_: str) -> str:
        """Let go of a message that is settled otherwise, and return its newest receipt."""
        return self._held.pop(id_)[0]

    async def receive(self, limit: int) -> list[StoredMessage]:
        """Take messages and hold them."""
        began = self._clock()
        messages = (await self.in_time(self._store.receive(self._queue, limit, self.lease_s))).messages
        for message in messages:
            self._held[message.id] = (message.pop_receipt, began + self.lease_s)
        return messages

    async def renew(self) -> None:
        """Lengthen the leases of all that is held, so that nobody takes it, this command neither.

        Costs nothing while no lease is half over. What the store could not lengthen is tried again a twentieth of a
        lease later, while its lease lasts.
        """
        now = self._clock()
        if now < self._retry_at:
            return
        half_over = itertools.takewhile(lambda one: one[1][1] - now < self.lease_s / 2, self._held.items())
        old = [(id_, receipt) for id_, (receipt, _) in half_over]
        for start in range(0, len(old), BATCH_MAX):
            part = old[start : start + BATCH_MAX]
            extend = [Extend(id_, receipt, self.lease_s) for id_, receipt in part]
            settled = (await self.in_time(self._store.settle(self._queue, Settlement(extend=extend)))).extend
            for (id_, receipt), one in zip(part, settled, strict=True):
                if one.ok:
                    self._held[id_] = (one.pop_receipt or receipt, now + self.lease_s)
                    self._held.move_to_end(id_)
                elif not one.open or self._held[id_][1] <= now:
                    del self._held[id_]
                else:
                    self._retry_at = now + self.lease_s / 20

    async def give_back(self) -> None:
        """Release all that is held; it was only looked at, so that it costs no attempt where the store can say so."""
        uncounted = self._store.capabilities.uncounted_release
        told: list[Settled] = []
        while self._held:
            release = [
                Release(id_, receipt, uncounted=uncounted)
                for id_, (receipt, _) in itertools.islice(self._held.items(), BATCH_MAX)
            ]
            settled = (await self.in_time(self._store.settle(self._queue, Settlement(release=release)))).release
            told += settled
            for each in release:
                del self._held[each.id]
        check_settled(self._queue, told)

    async def in_time(self, call: Awaitable[T]) -> T:
        """Wait for a call, but not for ever. Raises `UnknownOutcome` where it does not end in time."""
        try:
            async with asyncio.timeout(self._call_s):
                return await call
        except TimeoutError as error:
            raise UnknownOutcome(f"the store has not answered within {self._call_s:g} s") from error
