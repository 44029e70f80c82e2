"""Sessions with a bridge in the same process."""

from __future__ import annotations

import asyncio

from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.service.bridge import Bridge
from queuebell.listeners import Message
from tests.listeners.rig import QUEUE, listening, settled


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
