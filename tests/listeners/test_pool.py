"""Queues that share a pool, through the real listener, in virtual time: the bound, the parts, room and its frames."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from queuebell.bridge.contract.errors import BadInput, ConfigurationError
from queuebell.bridge.contract.partitioning import expand
from queuebell.bridge.contract.wire import ListenerHeartbeat, More
from queuebell.command.listen_settings import ListenSettings, pool_of
from queuebell.listeners import PULL_ONLY, Listener, Message, Pool, Share
from tests.listeners.rig import Store, listening
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


def test_what_cannot_be_is_refused() -> None:
    """Two numbers of slots, more reserved than there are, another event loop; each leaves the pool as it was."""
    with pytest.raises(BadInput, match="concurrency: a pool has its size"):
        Listener("memory:x", BULK, Work(), bridge=PULL_ONLY, pool=Pool(), concurrency=4)
    with pytest.raises(BadInput, match="size is a whole number from 1"):
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
    with pytest.raises((ConfigurationError, BadInput), match=said):
        pool_of(ListenSettings(**wrong), expand([BULK, URGENT]))
