"""A listener over all partitions: everything is handled, burials meet in one place, and what is idle stays idle."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from bridge import Bridge, PartitionedQueue, Partitions, Publisher, PublishingQueue
from bridge.contract.errors import BadInput
from bridge.core.settings import Periods
from bridge.service.bridge import BridgeSettings
from listeners import Bury, Listener, Message, Pool, Share
from tests.listeners.rig import Store, listening, settled
from tests.support.sim_loop import pass_time, simulated

SIXTEEN = Partitions("billing/orders", 16)


class CountingStore(Store):
    """A store elsewhere, with its receives by queue."""

    def __init__(self) -> None:
        super().__init__()
        self.by_queue: Counter[str] = Counter()

    async def receive(self, queue, limit=1, visibility_s=30.0, *, source=None):  # type: ignore[no-untyped-def]
        self.by_queue[queue] += 1
        return await super().receive(queue, limit, visibility_s, source=source)


async def nothing(message: Message) -> None:
    """Handle a message."""


def handled(listener: Listener) -> int:
    """Return what a listener has handled, of all queues."""
    return sum(figures.handled for figures in listener.state().queues.values())


async def until(true: Callable[[], bool]) -> None:
    """Wait in virtual time."""
    async with asyncio.timeout(3600):
        while not true():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("queue", ["billing/orders:4", Partitions("billing/orders", 4), ["billing/orders:4"]])
@simulated
async def test_one_session_serves_all_partitions(queue: str | Partitions | list[str]) -> None:
    """By text, by name or in a list; the message says which partition it came from."""
    seen: list[tuple[str, str]] = []

    async def see(message: Message) -> None:
        seen.append((message.queue, message.text()))

    async with Bridge() as bridge:
        orders = PartitionedQueue(bridge.store, "billing/orders:4")
        async with listening(bridge, see, queue, bridge=bridge) as listener:
            placed = [await orders.put([f"{number}"]) for number in range(8)]
            await until(lambda: len(seen) == 8)
            assert sorted(seen) == sorted((one.queue, f"{number}") for number, (one,) in enumerate(placed))
            assert set(listener.state().queues) == set(orders.queues)
            assert listener.state().sessions == 1


@simulated
async def test_all_partitions_bury_in_one_place() -> None:
    """One supervisor hears of each, at the logical queue's poison queue; told another one, that is it."""

    async def curse(message: Message) -> None:
        raise Bury("no such customer")

    for given, poison in ((None, "billing/orders-poison"), ("bad", "billing/bad")):
        async with Bridge() as bridge:
            orders = PartitionedQueue(bridge.store, "billing/orders:4")
            async with (
                listening(bridge, curse, "billing/orders:4", bridge=bridge, poison_queue=given),
                listening(bridge, nothing, poison, bridge=bridge) as supervisor,
            ):
                for number in range(4):
                    await orders.put([f"{number}"])
                await settled(supervisor, 4, queue=poison)
            await pass_time(1)
            assert set(await bridge.store.queues()) == {*orders.queues, poison}


@simulated
async def test_a_partition_listened_to_by_its_own_name_buries_beside_itself() -> None:
    """Only who says that it is a part of something gets the whole's poison queue."""

    async def curse(message: Message) -> None:
        raise Bury("no such customer")

    async with Bridge() as bridge:
        async with listening(bridge, curse, ["billing/orders-p0", "sales/orders:2"], bridge=bridge) as listener:
            assert listener.queues == ["billing/orders-p0", "sales/orders-p0", "sales/orders-p1"]
            for queue in listener.queues:
                await bridge.store.put(queue, ["x"])
            for queue in listener.queues:
                await settled(listener, 1, "buried", queue)
        poisoned = {queue for queue in await bridge.store.queues() if queue.endswith("poison")}
        assert poisoned == {"billing/orders-p0-poison", "sales/orders-poison"}


def test_what_comes_twice_is_refused() -> None:
    """A partition that is named beside its whole would be served twice."""
    with pytest.raises(BadInput, match="none twice"):
        Listener("http://127.0.0.1:1", ["billing/orders:4", "billing/orders-p3"], nothing)
    with pytest.raises(BadInput, match="account/queue"):
        Listener("http://127.0.0.1:1", "billing/orders*4", nothing)


@simulated
async def test_a_hundred_partitions_of_the_longest_name_fit_one_session() -> None:
    """The hello and every heartbeat name all of them, within a frame."""
    whole = Partitions(f"{'a' * 80}/{'b' * 52}", 100)
    async with Bridge() as bridge, listening(bridge, nothing, whole, bridge=bridge) as listener:
        placed = await PartitionedQueue(bridge.store, whole).put([b"x"] * 100, key="one")
        await settled(listener, 100, queue=placed[0].queue)
        await pass_time(60)
        assert listener.state().session
        assert listener.state().sessions == 1


@simulated
async def test_sixteen_idle_partitions_of_the_bridge_s_own_cost_nothing() -> None:
    """Own queues: not one receive in hours, however many partitions and listeners there are."""
    async with Bridge() as bridge:
        orders = PartitionedQueue(bridge.store, SIXTEEN)
        await orders.create()
        async with listening(bridge, nothing, SIXTEEN, bridge=bridge) as one:
            async with listening(bridge, nothing, SIXTEEN, bridge=bridge):
                await pass_time(4 * 3600)
                received = [bridge.describe(queue) for queue in orders.queues]
                assert all(described is not None for described in received)
                assert sum(described.receives.total for described in received if described is not None) == 0
            # The count would see them: work is received where it was put, and nowhere else.
            (placed,) = await orders.put([b"x"])
            await settled(one, 1, queue=placed.queue)


@simulated
async def test_sixteen_idle_partitions_elsewhere_cost_sixteen_sweeps() -> None:
    """Elsewhere: 60 an hour and partition, 67 at most, of all listeners together; no partition is forgotten."""
    store = CountingStore()
    async with Bridge(settings=BridgeSettings(periods=Periods(sweep_s=60.0))) as bridge:
        async with (
            listening(store, nothing, SIXTEEN, bridge=bridge),
            listening(store, nothing, SIXTEEN, bridge=bridge),
        ):
            await pass_time(100)
            before = Counter(store.by_queue)
            await pass_time(3600)
            counted = store.by_queue - before
            assert set(counted) == set(SIXTEEN.references)
            assert all(53 <= count <= 67 for count in counted.values()), counted
            assert 16 * 57 <= sum(counted.values()) <= 16 * 63
    await store.close()


@simulated
async def test_a_put_elsewhere_wakes_for_its_partition_only() -> None:
    """With a publishing queue each put costs the receives of its own partition."""
    store = CountingStore()
    # No sweep disturbs the count; the dead-man timers come later than it ends.
    async with Bridge(settings=BridgeSettings(periods=Periods(sweep_s=0.0))) as bridge, Publisher(bridge) as bell:
        orders = PartitionedQueue(PublishingQueue(store, bell), SIXTEEN)
        async with listening(store, nothing, SIXTEEN, bridge=bridge) as listener:
            await pass_time(5)
            before = Counter(store.by_queue)
            (placed,) = await orders.put([b"x"])
            await settled(listener, 1, queue=placed.queue)
            await pass_time(5)
            assert set(store.by_queue - before) == {placed.queue}
    await store.close()


@simulated
async def test_growing_and_shrinking_as_documented_loses_nothing() -> None:
    """Listeners first to grow, producers first to shrink: whatever stood in old partitions is handled."""
    numbers = itertools.count()
    bodies: list[str] = []

    async def see(message: Message) -> None:
        await asyncio.sleep(0.05)
        bodies.append(message.text())

    async with Bridge() as bridge:
        store = bridge.store
        four, six = (PartitionedQueue(store, Partitions("billing/orders", count)) for count in (4, 6))

        async def put(orders: PartitionedQueue, count: int = 200) -> None:
            await orders.put_keyed([(f"customer-{number}", f"{number}") for number in itertools.islice(numbers, count)])

        await put(four)  # before any listener: work that waits in old partitions
        async with listening(bridge, see, "billing/orders:6", bridge=bridge):
            await put(four)  # listeners are at six, a producer is still at four
            await put(six)
            await until(lambda: len(bodies) == 600)
            await put(six)
            await put(four)  # shrinking: producers first, while listeners stay at six
            await until(lambda: len(bodies) == 1000)
            depth = await six.depth()
            assert (depth.visible, depth.invisible) == (0, 0)
        async with listening(bridge, see, "billing/orders:4", bridge=bridge):
            await put(four)
            await until(lambda: len(bodies) == 1200)
        assert Counter(bodies) == Counter(str(number) for number in range(1200))


@simulated
async def test_the_wrong_order_leaves_work_and_the_depth_shows_it() -> None:
    """Producers that grow before their listeners put where nobody looks: nothing is lost, and it can be seen."""
    async with Bridge() as bridge:
        six = PartitionedQueue(bridge.store, Partitions("billing/orders", 6))
        async with listening(bridge, nothing, "billing/orders:4", bridge=bridge) as listener:
            await six.put_keyed([(f"customer-{number}", b"x") for number in range(300)])
            await pass_time(300)
            depth = await six.depth()
            assert depth.visible == 300 - handled(listener) > 50
        async with listening(bridge, nothing, "billing/orders:6", bridge=bridge) as listener:
            await until(lambda: handled(listener) == depth.visible)


@pytest.mark.parametrize("pooled", [False, True])
@simulated
async def test_one_at_a_time_for_each_key(pooled: bool) -> None:
    """With one listener and one slot a partition, messages of a key are handled one by one, in the order put."""
    running: Counter[str] = Counter()
    order: dict[str, list[int]] = {}
    most_at_once = 0

    async def see(message: Message) -> None:
        nonlocal most_at_once
        key, _, number = message.text().partition(" ")
        running[key] += 1
        assert running[key] == 1
        most_at_once = max(most_at_once, running.total())
        await asyncio.sleep(0.01)
        order.setdefault(key, []).append(int(number))
        running[key] -= 1

    async with Bridge() as bridge:
        orders = PartitionedQueue(bridge.store, "billing/orders:8")
        slots: dict[str, Any] = {"concurrency": 1}
        if pooled:
            slots = {"pool": Pool(32, {"billing/orders": Share(limit=1)})}
        async with listening(bridge, see, "billing/orders:8", bridge=bridge, **slots) as listener:
            pairs = [(f"k{number % 20}", f"k{number % 20} {number}") for number in range(400)]
            for start in range(0, 400, 40):
                await orders.put_keyed(pairs[start : start + 40])
            await until(lambda: handled(listener) == 400)
    assert all(numbers == sorted(numbers) for numbers in order.values())
    assert most_at_once == 8, "the partitions still go side by side"
