"""A queue that is paused, seen by a running listener through its bridge."""

from __future__ import annotations

import asyncio
import uuid

from queuebell.bridge.queues.base import Depth, NewMessage
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.service.state.answers import QueueState
from queuebell.listeners import Message
from tests.listeners.rig import QUEUE, listening, settled
from tests.support.sim_loop import elapse, simulated


def figures(bridge: Bridge) -> QueueState:
    """Return how the queue stands for the bridge."""
    described = bridge.describe(QUEUE)
    assert described is not None
    return described


def receives(bridge: Bridge) -> int:
    """Return how many receives the queue has answered."""
    total: int = figures(bridge).receives.total
    return total


def on_the_loops_clock() -> Bridge:
    """Make a bridge whose store's time is the loop's."""
    bridge = Bridge()
    bridge.store = MemoryStore(uuid.uuid4().hex, boot=bridge.boot, clock=asyncio.get_running_loop().time)
    return bridge


@simulated
async def test_a_paused_queue_costs_no_receive_and_a_resumed_one_wakes_at_once() -> None:
    """An hour of puts while it is paused wakes nobody; resumed, all is handled within the same second."""
    handled: list[tuple[bytes, float]] = []
    loop = asyncio.get_running_loop()

    async def handle(message: Message) -> None:
        handled.append((message.body, loop.time()))

    async with on_the_loops_clock() as bridge, listening(bridge, handle, bridge=bridge) as listener:
        await bridge.store.put(QUEUE, [NewMessage(b"before")])
        await settled(listener, 1)
        await bridge.store.pause(QUEUE)
        before, wakes = receives(bridge), figures(bridge).wakes
        for number in range(6):
            await bridge.store.put(QUEUE, [NewMessage(b"%d" % number, visible_after_ms=number * 1000)])
            await elapse(600)
        assert [body for body, _ in handled] == [b"before"]
        assert receives(bridge) == before
        state = figures(bridge)
        assert (state.paused, state.dirty, state.wakes) == (True, False, wakes)
        assert state.depth == Depth(0, 6)
        resumed_at = loop.time()
        await bridge.store.pause(QUEUE, False)
        await settled(listener, 7)
        assert sorted(body for body, _ in handled[1:]) == [b"%d" % number for number in range(6)]
        assert all(at - resumed_at < 1 for _, at in handled[1:])
        assert not figures(bridge).paused
