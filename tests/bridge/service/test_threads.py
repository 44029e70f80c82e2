"""A bridge, its store and a publisher called from a thread that is not theirs: refused, with what to call instead."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from bridge import BlockingPublisher, Bridge, NewMessage, Publisher, WrongThread
from bridge.contract.event import CloudQueueWorkDetected
from bridge.producer.buses.memory import MemoryBus

QUEUE = "billing/orders"
EVENT = CloudQueueWorkDetected("billing", "orders")
ELSEWHERE = {
    "trigger": lambda bridge: bridge.trigger([EVENT], bus="here"),
    "trigger in a loop": lambda bridge: asyncio.run(MemoryBus(bridge).publish([EVENT])),
    "gap": lambda bridge: bridge.gap(),
    "put": lambda bridge: asyncio.run(bridge.store.put(QUEUE, [NewMessage(b"x")])),
    "receive": lambda bridge: asyncio.run(bridge.store.receive(QUEUE)),
}


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("kept", [False, True], ids=["memory", "file"])
async def test_a_bridge_belongs_to_its_thread(name: str, kept: bool, tmp_path: Path) -> None:
    """Nothing is done elsewhere; handed over as the error says, all works."""
    call: Callable[[Bridge], object] = ELSEWHERE[name]
    async with Bridge(tmp_path if kept else None) as bridge:
        with pytest.raises(WrongThread, match=r"asyncio\.run_coroutine_threadsafe"):
            await asyncio.to_thread(call, bridge)
        assert not bridge.bell.ledger.find(QUEUE)
        loop = asyncio.get_running_loop()

        def put() -> None:
            asyncio.run_coroutine_threadsafe(bridge.store.put(QUEUE, [NewMessage(b"x")]), loop).result()

        await asyncio.to_thread(put)
        assert bridge.bell.ledger.find(QUEUE)


async def test_a_publisher_belongs_to_the_thread_of_its_first_publish() -> None:
    """What comes from another one is not owed."""
    async with Bridge() as bridge, Publisher(bridge) as publisher:
        await publisher.publish(QUEUE)
        with pytest.raises(WrongThread, match="BlockingPublisher"):
            await asyncio.to_thread(lambda: asyncio.run(publisher.publish(QUEUE)))
    assert publisher.state().sent == 1


async def test_a_blocking_publisher_that_does_not_know_the_loop_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Made in another thread, it learns its own loop as the bridge's: it keeps what it owes, and warns once."""
    async with Bridge() as bridge:

        def publish() -> int:
            publisher = BlockingPublisher(bridge, close_timeout=0.1)
            publisher.publish(QUEUE)
            return len(publisher.close())

        with caplog.at_level(logging.WARNING):
            assert await asyncio.to_thread(publish) == 1
        assert not bridge.bell.ledger.find(QUEUE)
    said = [each.message for each in caplog.records if "belongs to the event loop of another thread" in each.message]
    assert len(said) == 1
