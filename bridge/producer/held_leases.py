"""`HeldLeases`: the leases of a command that goes through a queue, renewed in time and released uncounted."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from queuebell.bridge.contract.errors import UnknownOutcome
from queuebell.bridge.queues.base import (
    BATCH_MAX,
    Extend,
    QueueStore,
    Release,
    Settled,
    Settlement,
    StoredMessage,
    check_settled,
)

SHARED_LEASE_S: Final = 30.0
"""The listeners' default, for a store where one lease time holds for all receivers."""
CALL_S: Final = 60.0
"""The longest time of one call, and at most a quarter of a lease, so that a put and a delete fit in half of one."""

T = TypeVar("T")


class HeldLeases:
    """The leases of one command on one queue, each ``lease_s`` seconds long if the store has own leases.

    The messages of a killed command become visible after that time. ``clock`` returns seconds.
    """

    def __init__(self, store: QueueStore, queue: str, lease_s: float, clock: Callable[[], float]) -> None:
        self.lease_s = lease_s if store.capabilities.own_leases else min(lease_s, SHARED_LEASE_S)
        self._store = store
        self._queue = queue
        self._clock = clock
        self._call_s = min(CALL_S, self.lease_s / 4)
        # In the order in which the leases end: all are of the same length, and a renewed one moves to the end.
        self._held: OrderedDict[str, tuple[str, float]] = OrderedDict()
        self._retry_at = -math.inf

    def __contains__(self, id_: str) -> bool:
        return id_ in self._held

    def receipt(self, id_: str) -> str:
        """Return the newest receipt of a held message."""
        return self._held[id_][0]

    def pop(self, id_: str) -> str:
        """Remove a message that the caller settles, and return its newest receipt."""
        return self._held.pop(id_)[0]

    async def receive(self, limit: int) -> list[StoredMessage]:
        """Receive messages and hold their leases."""
        began = self._clock()
        messages = (await self.in_time(self._store.receive(self._queue, limit, self.lease_s))).messages
        for message in messages:
            self._held[message.id] = (message.pop_receipt, began + self.lease_s)
        return messages

    async def renew(self) -> None:
        """Renew the leases that are half over.

        A lease that the store could not extend is retried after a twentieth of its length, until it ends.
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

    async def release_all(self) -> None:
        """Release all held messages, without counting an attempt if the store supports that."""
        uncounted = self._store.capabilities.uncounted_release
        outcomes: list[Settled] = []
        while self._held:
            release = [
                Release(id_, receipt, uncounted=uncounted)
                for id_, (receipt, _) in itertools.islice(self._held.items(), BATCH_MAX)
            ]
            settled = (await self.in_time(self._store.settle(self._queue, Settlement(release=release)))).release
            outcomes += settled
            for each in release:
                del self._held[each.id]
        check_settled(self._queue, outcomes)

    async def in_time(self, call: Awaitable[T]) -> T:
        """Await a call of the store; raises `UnknownOutcome` if it does not end in time."""
        try:
            async with asyncio.timeout(self._call_s):
                return await call
        except TimeoutError as error:
            raise UnknownOutcome(f"the store has not answered within {self._call_s:g} s") from error
