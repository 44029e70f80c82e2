"""The in-process bus, against a bridge that runs here and one that refuses."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from bridge.contract.errors import BadInput, BusUnavailable, Closed
from bridge.contract.event import CloudQueueWorkDetected
from bridge.producer.buses.memory import MemoryBus
from bridge.producer.publisher import BlockingPublisher, Publisher
from bridge.service.bridge import Bridge

EVENT = CloudQueueWorkDetected("a", "q")


class Noting:
    """A bridge that notes by which bus a trigger came, and in which thread."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, str, int]] = []

    def trigger(self, events: Sequence[CloudQueueWorkDetected], *, bus: str) -> int:
        self.noted += [(event.queue, bus, threading.get_ident()) for event in events]
        return len(events)


async def test_a_bridge_is_called_in_its_own_loop_alone() -> None:
    """At once by who is there, from another loop by a task; one that learns its loop keeps to it."""
    bridge, here = Noting(), threading.get_ident()
    bus = MemoryBus(bridge)
    publishing = bus.publish([EVENT])
    with pytest.raises(StopIteration):
        publishing.send(None)
    await asyncio.to_thread(asyncio.run, bus.publish([EVENT, EVENT]))
    assert bridge.noted == [("a/q", "memory", here)] * 3
    learned = await asyncio.to_thread(MemoryBus, bridge)
    await learned.publish([EVENT])
    await asyncio.to_thread(asyncio.run, learned.publish([EVENT]))
    given = await asyncio.to_thread(MemoryBus, bridge, asyncio.get_running_loop())
    await asyncio.to_thread(asyncio.run, given.publish([EVENT]))
    assert bridge.noted == [("a/q", "memory", here)] * 6
    ended = asyncio.new_event_loop()
    ended.close()
    with pytest.raises(BusUnavailable, match=r"^the bridge's event loop has ended$"):
        await MemoryBus(bridge, ended).publish([EVENT])


class Refusing:
    """A bridge that refuses with one code."""

    def __init__(self, code: str) -> None:
        self.code = code

    def trigger(self, events: Sequence[CloudQueueWorkDetected], *, bus: str) -> int:
        raise BadInput(self.code, "no")


async def test_a_publisher_marks_a_bridge_of_this_process() -> None:
    """B1: the trigger is counted by the bridge before the publisher has left."""
    async with Bridge() as bridge:
        async with Publisher(bridge) as publisher:
            await publisher.publish("a", "q", 2)
        state = bridge.describe("a/q")
    assert state.triggers == 1


async def test_the_blocking_twin_reaches_a_bridge_of_this_process() -> None:
    """A thread of its own hands triggers to the bridge's loop."""
    async with Bridge() as bridge:
        publisher = BlockingPublisher(bridge)
        await asyncio.to_thread(publisher.publish, "a", "q")
        assert await asyncio.to_thread(publisher.close) == []
        state = bridge.describe("a/q")
    assert state.triggers == 1


@pytest.mark.parametrize(
    "code", ["draining", "too_many_queues", "too_many_requests", "storage_unavailable", "internal"]
)
async def test_what_passes_is_worth_another_try(code: str) -> None:
    """A bridge that is stopping or full is a bus that is away, not a wrong trigger."""
    with pytest.raises(BusUnavailable, match=rf"^the bridge did not take it: {code}$"):
        await MemoryBus(Refusing(code)).publish([EVENT])


async def test_what_does_not_pass_is_told() -> None:
    """A wrong trigger is refused for good."""
    with pytest.raises(BadInput):
        await MemoryBus(Refusing("bad_trigger")).publish([EVENT])


async def test_a_closed_bus_says_so() -> None:
    """Using it after close raises Closed."""
    bus = MemoryBus(Refusing("x"))
    await bus.close()
    with pytest.raises(Closed, match=r"^the bus is closed$"):
        await bus.publish([EVENT])


async def test_a_stopped_bridge_is_away() -> None:
    """A publish to a bridge that was stopped, or not started yet, fails as a bus does."""
    with pytest.raises(BusUnavailable, match=r"^the bridge was not started$"):
        await MemoryBus(Bridge()).publish([EVENT])
    bridge = Bridge()
    async with bridge:
        bus = MemoryBus(bridge)
    with pytest.raises(BusUnavailable, match=r"^the bridge did not take it: draining$"):
        await bus.publish([EVENT])
