"""What a run over a queue holds meanwhile: renewed in time and given back, at the same cost for each message."""

from __future__ import annotations

import asyncio
import datetime

import msgspec
import pytest

from bridge.contract.burial import Burial, write_burial
from bridge.contract.errors import UnknownOutcome
from bridge.producer.held_leases import CALL_S, SHARED_LEASE_S, HeldLeases
from bridge.queues.base import BATCH_MAX, NOT_DONE, NewMessage, QueueStore, Settled, Settlement, Settling
from bridge.queues.embedded.memory import MemoryStore
from tests.bridge.queues.clocks import FakeClock
from tests.listeners.rig import Store
from tests.support.sim_loop import simulated

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
    """Not by each call, but a twentieth of a lease later, until it is over: then it is let go."""
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


QUEUE = "billing/orders-poison"


class Sharing(Store):
    """A store whose leases all last as long as the longest that was ever asked for."""

    capabilities = msgspec.structs.replace(Store.capabilities, own_leases=False)


@pytest.mark.parametrize(
    ("store", "asked", "lease_s", "call_s"),
    [
        (Store, 600.0, 600.0, CALL_S),
        (Store, 60.0, 60.0, 15.0),
        (Sharing, 600.0, SHARED_LEASE_S, SHARED_LEASE_S / 4),
        (Sharing, 10.0, 10.0, 2.5),
    ],
)
@simulated
async def test_a_lease_is_no_longer_than_others_bear_and_a_call_ends_within_it(
    store: type[Store], asked: float, lease_s: float, call_s: float
) -> None:
    """Where leases are shared a long one would be every worker's; a call has a quarter of it, and a minute at most."""
    loop = asyncio.get_running_loop()
    held = HeldLeases(store(), QUEUE, asked, loop.time)
    assert held.lease_s == lease_s
    began = loop.time()
    with pytest.raises(UnknownOutcome, match=f"within {call_s:g} s"):
        await held.in_time(asyncio.Event().wait())
    assert loop.time() - began == pytest.approx(call_s)


@simulated
async def test_leases_are_renewed_in_their_second_half_and_given_back_uncounted() -> None:
    """Whatever is held stays held however long the look takes, and afterwards nobody sees that it was taken."""
    clock = FakeClock()
    store: QueueStore = Store()
    for start in range(0, 40, BATCH_MAX):
        await store.put(QUEUE, [b"%d" % number for number in range(start, min(40, start + BATCH_MAX))])
    held = HeldLeases(store, QUEUE, 20.0, clock)
    ids = [message.id for _ in range(2) for message in await held.receive(BATCH_MAX)]
    first = {id_: held.receipt(id_) for id_ in ids}
    await clock.let_pass(10.0)
    await held.renew()
    assert {id_: held.receipt(id_) for id_ in ids} == first
    await clock.let_pass(0.1)
    await held.renew()
    assert all(held.receipt(id_) != first[id_] for id_ in ids)
    gone = held.pop(ids[0])
    assert gone and ids[0] not in held and ids[1] in held
    await held.give_back()
    assert not any(id_ in held for id_ in ids)
    found = (await store.receive(QUEUE, BATCH_MAX, 30.0)).messages
    assert len(found) == BATCH_MAX and {message.dequeue_count for message in found} == {1}
