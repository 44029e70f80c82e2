"""What a run over a queue holds meanwhile: renewed in time and given back, at the same cost for each message."""

from __future__ import annotations

import datetime

import pytest

from bridge.contract.burial import Burial, write_burial
from bridge.producer.held_leases import HeldLeases
from bridge.producer.replaying import Choice, Replaying
from bridge.queues.base import NOT_DONE, NewMessage, QueueStore, Settled, Settlement, Settling
from bridge.queues.embedded.memory import MemoryStore
from tests.support.growth import counted

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


@pytest.mark.parametrize("discard", [False, True])
@pytest.mark.parametrize("choice", [{"reason": "price"}, {"ids": frozenset({"none"})}])
async def test_a_run_costs_the_same_for_each_message(choice: dict[str, object], discard: bool) -> None:
    """None matches, so that all are held: steps of Python for each message, of 128 and of 1,280."""
    each: list[float] = []
    for size in (128, 1280):
        async with MemoryStore(f"held-{size}-{discard}-{len(choice)}") as store:
            await filled(store, size)
            replaying = Replaying(
                store,
                store,
                POISON,
                Choice(discard=discard, **choice),
                size,
                clock=Clock(),  # type: ignore[arg-type]
            )
            with counted() as work:
                done = await replaying.run()
            assert (done.moved, done.stay) == (0, 0)
            depth = await store.depth(POISON)
            assert depth is not None
            assert (depth.visible, depth.invisible) == (size, 0)
            each.append(work.steps / size)
    assert each[1] < 1.2 * each[0]


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


async def test_only_what_is_half_over_is_renewed() -> None:
    """The oldest first, each once, also where one of them was let go."""
    async with Tells("half") as store:
        await filled(store, 96)
        clock = Clock()
        held = HeldLeases(store, POISON, 300, clock)
        first = await held.receive(32)
        clock.now += 100
        await held.receive(32)
        await held.renew()
        assert store.extended == []
        held.pop(first[3].id)
        clock.now += 60
        await held.renew()
        assert store.extended == [31]
        clock.now += 100
        await held.renew()
        assert store.extended == [31, 32]
        await held.renew()
        assert store.extended == [31, 32]


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
