"""Sessions with a bridge in the same process."""

from __future__ import annotations

import asyncio

import pytest

from bridge.contract.errors import ChannelLost
from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.wire import Hello, Subscription, Welcome
from bridge.queues.base import NewMessage
from bridge.queues.embedded.memory import MemoryStore
from bridge.service.bridge import Bridge
from listeners import Bury, Message
from listeners.session.channels.local import LocalChannel
from tests.listeners.rig import POISON, QUEUE, listening, settled


async def test_a_session_opens_and_ends() -> None:
    """Hello, welcome, and a lost channel once either side has closed."""
    async with Bridge() as bridge:
        channel = LocalChannel(bridge)
        link = await channel.connect()
        link.send(Hello("a" * 32, "test", [Subscription(QUEUE, 1, own=True)]))
        assert isinstance(await link.receive(), Welcome)
        await link.close()
        await link.close()
        with pytest.raises(ChannelLost):
            await link.receive()
        await channel.close()


async def test_a_put_through_the_bridges_store_wakes_without_a_receive() -> None:
    """The listener's store is the bridge itself: an own queue, whose puts carry their messages."""
    async with Bridge() as bridge:
        seen: list[bytes] = []

        async def handle(message: Message) -> None:
            seen.append(message.body)

        async with listening(bridge, handle, bridge=bridge) as listener:
            while not listener.state().session:
                await asyncio.sleep(0)
            await bridge.store.put(QUEUE, [NewMessage(b"x")])
            await settled(listener, 1)
            assert listener.state().queues[QUEUE].total_receives == 0
        assert seen == [b"x"]


async def test_a_burial_wakes_the_supervisor() -> None:
    """On an own store the put rings by itself; on another the listener triggers the poison queue."""
    elsewhere = MemoryStore("poison-elsewhere")
    async with Bridge() as bridge:
        for store, chosen in ((bridge.store, bridge), (elsewhere, elsewhere)):
            found = asyncio.Event()

            async def bury(message: Message) -> None:
                raise Bury("no")

            async def supervise(message: Message, found: asyncio.Event = found) -> None:
                found.set()

            async with (
                listening(chosen, bury, bridge=bridge) as worker,
                listening(chosen, supervise, POISON, bridge=bridge) as supervisor,
            ):
                while not (worker.state().session and supervisor.state().session):
                    await asyncio.sleep(0)
                await store.put(QUEUE, [NewMessage(b"x")])
                if store is elsewhere:
                    bridge.trigger([CloudQueueWorkDetected(*QUEUE.split("/"))], bus="test")
                async with asyncio.timeout(100):
                    await found.wait()
                assert supervisor.state().queues[POISON].wake_sources == {"trigger": 1}
    await elsewhere.close()
