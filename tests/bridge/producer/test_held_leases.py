"""What a run over a queue holds meanwhile: renewed in time and given back, at the same cost for each message."""

from __future__ import annotations

import datetime

from queuebell.bridge.contract.burial import Burial, write_burial
from queuebell.bridge.producer.held_leases import HeldLeases
from queuebell.bridge.queues.base import NOT_DONE, NewMessage, QueueStore, Settled, Settlement, Settling
from queuebell.bridge.queues.embedded.store import MemoryStore

POISON = "pay/orders-poison"
NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)


class Clock:
    """A time that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def filled(store: QueueStore, size: int) -> None:
    """Bury so many messages."""
    burial = Burial("pay/orders", "17", NOON, NOON, "no such customer", 5)
    body = write_burial(burial, b"order", 65_536)
    assert body is not None
    for _ in range(size // 32):
        await store.put(POISON, [NewMessage(body)] * 32)


class Tells(MemoryStore):
    """Counts what is extended, and refuses to while it is ``tight``."""

    tight = False

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.extended: list[int] = []

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        if settlement.extend:
            self.extended.append(len(settlement.extend))
            if self.tight:
                return Settling([], [], [Settled(False, code=NOT_DONE)] * len(settlement.extend))
        return await super().settle(queue, settlement)


async def test_what_could_not_be_renewed_is_tried_again_later() -> None:
    """A twentieth of a lease later, not on each call, until the lease ends: then it is dropped."""
    async with Tells("tight") as store:
        await filled(store, 32)
        clock = Clock()
        held = HeldLeases(store, POISON, 300, clock)
        (one, *_) = await held.receive(32)
        store.tight = True
        clock.now += 151
        for _ in range(3):
            await held.renew()
        assert store.extended == [32]
        clock.now += 15
        await held.renew()
        assert (store.extended, one.id in held) == ([32, 32], True)
        clock.now += 140
        await held.renew()
        assert one.id not in held
