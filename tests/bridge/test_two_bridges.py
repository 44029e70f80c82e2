"""B16: two bridges on one broker each look for themselves, and a trigger costs at most two receives."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bridge.attachment import Attachment
from bridge.channels.brokered import BrokeredSessions
from bridge.core.settings import Periods
from bridge.queue import NewMessage
from bridge.service import Bridge, BridgeSettings
from listeners import Message
from tests.listeners.rig import QUEUE, Store, listening
from tests.support.memory_broker import MemoryServer
from tests.support.sim_loop import pass_time, simulate


@asynccontextmanager
async def bridged(server: MemoryServer, sweep_s: float) -> AsyncIterator[Bridge]:
    """Run a bridge on the broker."""
    async with Bridge(settings=BridgeSettings(periods=Periods(sweep_s=sweep_s))) as bridge:
        bus = Attachment(
            bridge, server.broker, "bus", server.kind,
            prefix="queuebell", sessions=BrokeredSessions(bridge, "queuebell"), announcer=None, brokers=["bus"],
            republish=True,
        )  # fmt: skip
        await bus.start()
        while not bus.check()[0]:
            await asyncio.sleep(0.01)
        try:
            yield bridge
        finally:
            await bus.stop()


async def ignore(message: Message) -> None:
    """Handle nothing."""


def test_a_queue_marked_by_both_costs_two_receives_and_not_more() -> None:
    """With a listener at each bridge and one message: one of them finds it, and each looks once until it is empty."""

    async def life() -> None:
        server, store = MemoryServer(), Store()
        async with bridged(server, 0.0) as one, bridged(server, 0.0) as other:
            async with listening(store, ignore, bridge=one), listening(store, ignore, bridge=other):
                # The queue's birth at both bridges: a look each.
                await pass_time(10)
                assert store.receives == 2
                server.deliver(("queuebell", "trigger", "billing", "orders"), b"")
                await pass_time(10)
                assert store.receives == 4
                await store.put(QUEUE, [NewMessage(b"x")])
                server.deliver(("queuebell", "trigger", "billing", "orders"), b"")
                await pass_time(10)
                # A batch shorter than asked proves on this store that nothing is left: no further look.
                assert store.receives == 6
        await store.close()

    simulate(life())


def test_each_bridge_sweeps_for_its_own_listeners() -> None:
    """R bridges with a session of the queue cost R times the sweeps: 2 x 60 an hour, 2 x 67 at most."""

    async def life() -> None:
        server, store = MemoryServer(), Store()
        async with bridged(server, 60.0) as one, bridged(server, 60.0) as other:
            async with listening(store, ignore, bridge=one), listening(store, ignore, bridge=other):
                await pass_time(10)
                before = store.receives
                await pass_time(3600)
                assert 2 * 54 <= store.receives - before <= 2 * 67
        await store.close()

    simulate(life())
