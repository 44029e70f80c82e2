"""The store in memory: shared by name, gone with its last user, the same in every run."""

from __future__ import annotations

import asyncio
import gc

from bridge.queues.base import NewMessage
from bridge.queues.embedded.memory import MemoryStore
from tests.bridge.queues.clocks import Counter, FakeClock
from tests.bridge.queues.ears import Ear
from tests.support.writers import engine_of

Q = "billing/orders"


async def test_one_name_is_one_store() -> None:
    """Stores of one name see each other's messages and are heard by each other's bridge, until the last one closes."""
    producer, bridge, other = MemoryStore("shared"), MemoryStore("shared", boot="ab" * 16), MemoryStore("other")
    ear = Ear()
    await producer.put(Q, [NewMessage(b"x")])
    await bridge.open()
    bridge.observe(ear)
    assert [level.visible for level in bridge.levels()] == [1]
    await producer.put(Q, [NewMessage(b"y")])
    assert [level.visible for level in ear.levels] == [2]
    assert (await producer.receive(Q, 1, 1.0)).boot == "ab" * 16
    assert await other.depth(Q) is None
    assert producer.fingerprint(Q) == bridge.fingerprint(Q) != other.fingerprint(Q)
    await producer.close()
    assert await bridge.depth(Q) is not None
    await bridge.close()
    again = MemoryStore("shared")
    assert await again.depth(Q) is None
    await again.close()
    await other.close()


async def test_close_carries_out_what_was_asked() -> None:
    """A call under way is answered, not dropped."""
    keeper, store = MemoryStore("kept"), MemoryStore("kept")
    await keeper.open()
    await store.open()
    task = asyncio.create_task(store.put(Q, [NewMessage(b"x")]), name="put")
    await asyncio.sleep(0)
    await store.close()
    assert len(await task) == 1
    depth = await keeper.depth(Q)
    assert depth.visible == 1
    await keeper.close()


async def test_a_large_queue_is_cleared_bit_by_bit() -> None:
    """Clearing answers at once; what is left goes in the following turns of the loop."""
    store = MemoryStore("large")
    for _ in range(100):
        await store.put(Q, [NewMessage(b"x")] * 32)
    await store.clear(Q)
    engine = engine_of(store)
    depth = await store.depth(Q)
    assert depth.visible == 0
    while engine.state.garbage:
        await asyncio.sleep(0)
    assert engine.state.execute("SELECT COUNT(*) FROM messages").fetchone() == (0,)
    await store.close()


def test_two_runs_do_the_same() -> None:
    """With time, chance and boot given, nothing differs between two runs on two loops."""

    async def run() -> list[object]:
        clock, ear = FakeClock(), Ear()
        store = MemoryStore("run", boot="ab" * 16, clock=clock, wall=clock.wall, receipts=Counter())
        await store.open()
        store.observe(ear)
        trace: list[object] = [await store.put(Q, [NewMessage(b"x", 5), NewMessage(b"y")])]
        trace.extend(await asyncio.gather(*(store.receive(Q, 1, 0.5) for _ in range(3))))
        clock.now += 0.005
        trace.append(await store.receive(Q, 1, 0.5))
        await store.close()
        return trace + list(ear.levels)

    assert asyncio.run(run()) == asyncio.run(run())
    gc.collect()


async def test_a_store_never_opened_closes() -> None:
    """Nothing was taken, so there is nothing to let go."""
    store = MemoryStore("never")
    store.reread(Q)
    store.reclaim(Q, [])
    assert store.levels() == []
    assert store.failure() is not None
    await store.close()


def test_a_store_left_on_a_closed_loop_holds_up_nobody() -> None:
    """A put is carried out, acknowledged and heard of by those who still listen."""
    left, near, far = MemoryStore("left"), MemoryStore("left"), MemoryStore("left")

    async def leave() -> None:
        await left.open()
        left.observe(Ear())

    async def put() -> tuple[int, int]:
        ear = Ear()
        await near.open()
        near.observe(ear)
        async with asyncio.timeout(10):
            put = await far.put(Q, [NewMessage(b"x")])
        visible = ear.levels[-1].visible
        for store in (left, near, far):
            await store.close()
        return len(put), visible

    asyncio.run(leave())
    assert asyncio.run(put()) == (1, 1)
    gc.collect()
