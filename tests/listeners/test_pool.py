"""Queues that share a pool, through the real listener, in virtual time: the bound, the parts, room and its frames."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from bridge.contract.bounds import STORE_CALL_S
from bridge.contract.errors import BadInput, ConfigurationError, StoreUnavailable
from bridge.contract.partitioning import expand
from bridge.contract.wire import ListenerHeartbeat, More, Room
from listeners import PULL_ONLY, Listener, Message, Pool, Share, batch
from queuebell.command.listen_settings import ListenSettings, load, pool_of
from tests.listeners.rig import Store, hanging, listening, settled
from tests.support.fake_bridge import FakeBridge
from tests.support.sim_loop import pass_time, simulate, simulated

URGENT, BULK = "billing/urgent", "billing/bulk"


class Work:
    """A handler that counts who runs, and ends when the test says so, or after ``seconds``."""

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self.running: Counter[str] = Counter()
        self.most = 0
        self.order: list[str] = []
        self.slots: Counter[str] = Counter()
        self._ends: dict[str, list[asyncio.Event]] = {}

    async def __call__(self, message: Message) -> None:
        queue = message.queue
        self.order.append(queue)
        self.running[queue] += 1
        self.most = max(self.most, self.running.total())
        try:
            if self.seconds is not None:
                # Not all alike, or all would end in one moment.
                await asyncio.sleep(self.seconds * (0.5 + int(message.body) % 10 / 10))
            else:
                end = asyncio.Event()
                self._ends.setdefault(queue, []).append(end)
                await end.wait()
        finally:
            self.running[queue] -= 1

    def end(self, queue: str, count: int = 1) -> None:
        for _ in range(count):
            self._ends[queue].pop(0).set()

    async def watch(self, seconds: int) -> None:
        """Add up who had slots, ten times a second."""
        for _ in range(10 * seconds):
            await pass_time(0.1)
            self.slots.update(self.running)


async def fill(store: Store, queue: str, count: int) -> None:
    for first in range(0, count, 32):
        await store.fill(*(b"%d" % number for number in range(first, min(count, first + 32))), queue=queue)


async def until(work: Work, running: dict[str, int]) -> None:
    async with asyncio.timeout(60):
        while +work.running != Counter(running):
            await asyncio.sleep(0.01)


@simulated
async def test_slots_approach_the_weights() -> None:
    """Two queues full of work: never more than the pool's slots at once, four in five of them for the heavier."""
    store, work = Store(), Work(seconds=1.0)
    pool = Pool(10, {URGENT: Share(weight=4)})
    await fill(store, BULK, 400)
    async with listening(store, work, [BULK, URGENT], pool=pool):
        await until(work, {BULK: 10})
        await fill(store, URGENT, 800)
        await pass_time(40)
        await work.watch(50)
    assert work.most == 10
    assert work.slots[URGENT] / 500 == pytest.approx(8, abs=0.5)
    assert work.slots[BULK] / 500 == pytest.approx(2, abs=0.5)


@simulated
async def test_urgent_work_has_the_next_slots() -> None:
    """It says `more` for want of a slot, takes each one that bulk leaves, and bulk has what is reserved for it."""
    store, work, bridge = Store(), Work(), FakeBridge()
    pool = Pool(3, {BULK: Share(priority=1, reserved=1)})
    async with listening(store, work, [URGENT, BULK], pool=pool, bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        free = {queue: figures.free for queue, figures in listener.state().queues.items()}
        await fill(store, BULK, 9)
        bridge.wake(BULK, 9)
        await until(work, {BULK: 3})
        await fill(store, URGENT, 9)
        bridge.wake(URGENT, 9)
        await bridge.until(More, 2)
        assert {frame.queue for frame in bridge.of(More)} == {URGENT, BULK}
        assert free == {URGENT: 2, BULK: 3}
        state = listener.state().pool
        assert (state.size, state.running, state.receiving, state.free) == (3, 3, 0, 0)
        assert [(place.queue, place.running, place.waiting) for place in state.places] == [
            (URGENT, 0, True),
            (BULK, 3, False),
        ]
        work.end(BULK)
        await until(work, {BULK: 2, URGENT: 1})
        work.end(BULK)
        await until(work, {BULK: 1, URGENT: 2})
        work.end(BULK)
        await settled(listener, 3, queue=BULK)
        await until(work, {BULK: 1, URGENT: 2})
        work.end(URGENT)
        await settled(listener, 1, queue=URGENT)
        await until(work, {BULK: 1, URGENT: 2})


@simulated
async def test_room_is_told_when_another_queue_makes_it() -> None:
    """A heartbeat said that there is no room; a handler of another queue ends, and the bridge hears `room` at once."""
    store, work, bridge = Store(), Work(), FakeBridge()
    bridge.covered_age_ms = 0
    async with listening(store, work, [URGENT, BULK], pool=Pool(2), bridge=bridge):
        await bridge.until(ListenerHeartbeat)
        await fill(store, BULK, 2)
        bridge.wake(BULK, 2)
        await until(work, {BULK: 2})
        bridge.beats.clear()
        (beat,) = await bridge.until(ListenerHeartbeat)
        assert beat.queues[URGENT].free == 0
        assert not [frame for frame in bridge.of(Room) if frame.queue == URGENT]
        work.end(BULK)
        while not (rooms := [frame for frame in bridge.of(Room) if frame.queue == URGENT]):
            await asyncio.sleep(0.01)
        assert [frame.free for frame in rooms] == [1]
        assert len(bridge.beats) == 1, "not with the next heartbeat"


@pytest.mark.parametrize("count", [0, 1, 2])
@simulated
async def test_a_wake_waits_for_the_look_of_another_queue(count: int) -> None:
    """One look has reserved all slots: the other queue has its turn, or says `more` once handlers have them all."""
    store, work, bridge = Store(), Work(), FakeBridge()
    bridge.covered_age_ms = 0
    async with listening(store, work, [URGENT, BULK], pool=Pool(2), bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        if count:
            await fill(store, BULK, count)
        store.receiving.append(lambda: pass_time(0.5))
        bridge.wake(BULK, 1)
        await pass_time(0.1)
        bridge.wake(URGENT, 1)
        await pass_time(0.1)
        assert store.receives == 1
        assert not bridge.of(More), "the receive in flight may find nothing"
        await pass_time(0.4)
        told = [frame.queue for frame in bridge.of(More)]
        assert (URGENT in told) == (count == 2)
        assert listener.state().queues[URGENT].total_receives == (count < 2)
        if count == 2:
            work.end(BULK)
            while not listener.state().queues[URGENT].total_receives:
                await asyncio.sleep(0.01)


@simulated
async def test_slots_that_flicker_are_not_told_of() -> None:
    """A hundred messages of one queue through a full pool: of the other, told of once a heartbeat at most."""
    store, work, bridge = Store(), Work(seconds=1.0), FakeBridge()
    bridge.covered_age_ms = 0
    async with listening(store, work, [URGENT, BULK], pool=Pool(2), bridge=bridge) as listener:
        await bridge.until(ListenerHeartbeat)
        await fill(store, BULK, 100)
        bridge.wake(BULK, 100)
        await settled(listener, 100, queue=BULK)
        told = [frame for frame in bridge.frames if getattr(frame, "queue", "") == URGENT]
        assert 1 <= len(told) <= len(bridge.beats) + 1
        assert len(bridge.beats) < 20


@simulated
async def test_wakes_bring_no_messages() -> None:
    """A bridge that leases messages for one queue's room cannot know that another's took it: none is asked for."""
    for pool, accepts in ((None, ["messages"]), (Pool(2), None)):
        store, bridge = Store(), FakeBridge()
        bridge.store = store
        async with listening(store, Work(), [URGENT, BULK], pool=pool, bridge=bridge):
            await bridge.until(ListenerHeartbeat)
            assert (bridge.hellos[-1].accept or None) == accepts
            assert [sub.own for sub in bridge.hellos[-1].queues] == [True, True]
            assert len(bridge.hellos) == 1


@simulated
async def test_one_pool_for_several_listeners() -> None:
    """Two stores and two handlers share the slots; who stops leaves his to the other, and starts nothing more."""
    pool = Pool(4, {BULK: Share(limit=3)})
    first, second, one, two = Store(), Store(), Work(), Work()
    await fill(first, BULK, 8)
    await fill(second, URGENT, 8)
    async with listening(second, two, URGENT, pool=pool) as other:
        async with listening(first, one, BULK, pool=pool, grace=0.0) as listener:
            await until(two, {URGENT: 4})
            two.end(URGENT)
            await until(one, {BULK: 1})
            two.end(URGENT, 2)
            await until(one, {BULK: 2})
            assert one.running.total() + two.running.total() == 4
            state = listener.state().pool
            assert state == other.state().pool
            assert [place.limit for place in state.places] == [None, 3]
        await until(two, {URGENT: 4})
        assert pool.figures().running == 4
    assert pool.figures().places == []
    assert pool.figures().free == 4


@pytest.mark.parametrize("size", [1, 3])
@simulated
async def test_a_silent_store_holds_up_a_sound_one_for_one_look(size: int) -> None:
    """Thirty queues of a store that answers nothing share slots with one whose store does: R, and not thirty R."""
    silent, sound, work, bridge, other = Store(), Store(), Work(seconds=0.01), FakeBridge(), FakeBridge()
    silent.receiving += [hanging()] * 1000
    pool, clock = Pool(size), asyncio.get_running_loop().time
    names = [f"media/q{number}" for number in range(30)]
    async with (
        listening(silent, work, names, pool=pool, bridge=bridge),
        listening(sound, work, URGENT, pool=pool, bridge=other) as listener,
    ):
        await bridge.until(ListenerHeartbeat)
        await other.until(ListenerHeartbeat)
        waited: list[float] = []
        for number in range(20):
            for name in names:
                bridge.wake(name, 1)
            await pass_time(0.3 + number * 0.7)
            before = clock()
            await fill(sound, URGENT, 1)
            other.wake(URGENT, 1)
            await settled(listener, number + 1, queue=URGENT)
            waited.append(clock() - before)
    assert silent.receives > 20, "it is looked at all the while"
    assert max(waited) < STORE_CALL_S + 0.1


@pytest.mark.parametrize("pool", [True, False])
@simulated
async def test_a_look_at_the_state_takes_no_room_away(pool: bool) -> None:
    """Settlements that pile up count against the slots; whoever asks how things stand meanwhile changes nothing."""
    store, work = Store(), Work(seconds=0.01)
    await fill(store, BULK, 20)
    slots: dict[str, Any] = {"pool": Pool(1)} if pool else {"concurrency": 1}
    async with listening(store, work, BULK, **slots) as listener:

        async def fail() -> None:
            await pass_time(1.0)
            raise StoreUnavailable("away")

        async def answer() -> None:
            listener.state()

        store.settling += [fail, answer]
        await settled(listener, 20, queue=BULK)
        assert asyncio.get_running_loop().time() < 1060.0


@simulated
async def test_a_batch_takes_a_slot_for_each_message() -> None:
    """Batch handlers share the same slots."""
    store, sizes, end = Store(), [], asyncio.Event()

    @batch
    async def handle(messages: list[Message]) -> None:
        sizes.append(len(messages))
        await end.wait()

    await fill(store, BULK, 9)
    await fill(store, URGENT, 9)
    async with listening(store, handle, [BULK, URGENT], pool=Pool(6)) as listener:
        while not (state := listener.state().pool) or state.running < 6:
            await asyncio.sleep(0.01)
        assert sum(sizes) == 6
        end.set()
        await settled(listener, 9, queue=BULK)
        await settled(listener, 9, queue=URGENT)


@simulated
async def test_a_logical_queue_shares_with_each_partition() -> None:
    """A share by the logical name is that of each partition; one by a partition's own name wins."""
    pool = Pool(8, {"billing/orders": Share(weight=3), "billing/orders-p1": Share(weight=5)})
    async with listening(Store(), Work(), ["billing/orders:3", BULK], pool=pool):
        await pass_time(0.1)
        assert [place.weight for place in pool.figures().places] == [3, 5, 3, 1]


def test_what_cannot_be_is_refused() -> None:
    """Two numbers of slots, more reserved than there are, another event loop; each leaves the pool as it was."""
    with pytest.raises(BadInput, match="concurrency: a pool has its size"):
        Listener("memory:x", BULK, Work(), bridge=PULL_ONLY, pool=Pool(), concurrency=4)
    with pytest.raises(BadInput, match="size is from 1"):
        Pool(0)
    with pytest.raises(BadInput, match="more slots are reserved"):
        Pool(1, {BULK: Share(reserved=2)})
    pool = Pool(2, {BULK: Share(reserved=2)})

    async def late() -> None:
        with pytest.raises(BadInput, match=URGENT):
            await Listener(Store(), [BULK, URGENT], Work(), bridge=PULL_ONLY, pool=pool, handle_signals=False).run()
        assert pool.figures().places == []

    simulate(late())

    async def elsewhere() -> None:
        with pytest.raises(ConfigurationError, match="another event loop"):
            pool.join(URGENT, lambda: None, lambda: None)

    async def here() -> None:
        place = pool.join(BULK, lambda: None, lambda: None)
        await asyncio.to_thread(simulate, elsewhere())
        pool.leave(place)

    asyncio.run(here())
    simulate(late())


def test_settings_make_a_pool() -> None:
    """From a file, the environment or options; logical names of partitioned queues count too."""
    assert pool_of(ListenSettings(), expand([BULK])) is None
    options = {"pool": "8", "pool_weight": f"{BULK}=2, billing/orders=3", "pool_limit": f"{BULK}=4"}
    environment = {"QUEUEBELL_POOL_PRIORITY": f"{BULK}=1", "QUEUEBELL_POOL_RESERVED": f"{URGENT}=1"}
    settings = load(None, environment=environment, options=options)
    pool = pool_of(settings, expand([BULK, URGENT, "billing/orders:2"]))
    assert pool.size == 8
    assert pool.shares == {
        BULK: Share(weight=2, priority=1, limit=4),
        URGENT: Share(reserved=1),
        "billing/orders": Share(weight=3),
    }


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"pool_weight": (f"{BULK}=2",)}, "pool_weight: needs pool"),
        ({"pool": 2, "concurrency": 2}, "concurrency: with a pool"),
        ({"pool": 2, "pool_limit": ("billing/else=2",)}, "pool_limit: this listener has no queue billing/else"),
        ({"pool": 2, "pool_limit": (BULK,)}, "pool_limit: is ACCOUNT/QUEUE=NUMBER"),
        ({"pool": 2, "pool_limit": (f"{BULK}=-1",)}, "pool_limit: is ACCOUNT/QUEUE=NUMBER"),
        ({"pool": 2, "pool_limit": (f"{BULK}=1", f"{BULK}=2")}, "is named twice"),
        ({"pool": 2, "pool_limit": (f"{BULK}=0",)}, "limit is a number of slots"),
    ],
)
def test_settings_that_make_none_are_refused(wrong: dict[str, Any], said: str) -> None:
    """Each names its key, or what would be right."""
    with pytest.raises((ConfigurationError, BadInput), match=said):
        pool_of(ListenSettings(**wrong), expand([BULK, URGENT]))
