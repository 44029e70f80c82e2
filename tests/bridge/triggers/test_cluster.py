"""B16: what one bridge was told by HTTP, all bridges on its brokers hear, and nobody hears itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.observe.facts import Fact, OwedDropped
from queuebell.bridge.observe.metrics import Metrics
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.service.channels.brokered import BrokeredSessions
from queuebell.bridge.triggers.attachment import Attachment
from queuebell.bridge.triggers.republishing import Republisher
from tests.support.memory_broker import MemoryServer

EVENT = CloudQueueWorkDetected("billing", "orders", 3)


@asynccontextmanager
async def bridged(*servers: MemoryServer, republish: bool = True) -> AsyncIterator[Bridge]:
    """Run a bridge on all of these brokers."""
    names = [f"{server.kind}-{number}" for number, server in enumerate(servers)]
    async with Bridge() as bridge:
        sessions = BrokeredSessions(bridge, "queuebell")
        buses = [
            Attachment(
                bridge, server.broker, name, server.kind,
                prefix="queuebell", sessions=sessions, announcer=None, brokers=names, republish=republish,
            )
            for server, name in zip(servers, names, strict=True)
        ]  # fmt: skip
        for bus in buses:
            await bus.start()
        while not all(bus.check()[0] for bus in buses):
            await asyncio.sleep(0)
        try:
            yield bridge
        finally:
            for bus in buses:
                await bus.stop()


async def rest() -> None:
    """Let everything that is on its way arrive."""
    for _ in range(20):
        await asyncio.sleep(0)


def triggers(bridge: Bridge) -> int:
    state = bridge.describe("billing/orders")
    return 0 if state is None else state.triggers


async def test_a_trigger_by_http_is_marked_once_by_every_bridge() -> None:
    """Over two brokers that both bridges share, with or without an id: the second copy and the echo are ignored."""
    nats, mqtt = MemoryServer("nats"), MemoryServer("mqtt")
    async with bridged(nats, mqtt) as one, bridged(nats, mqtt) as other:
        for number, event in enumerate((EVENT, CloudQueueWorkDetected("billing", "orders", id="7", source="shop"))):
            one.trigger([event], bus="http")
            await rest()
            assert triggers(one) == number + 1
            assert triggers(other) == number + 1
        said = [payload for topic, payload in nats.log if topic[1] == "trigger"]
        assert len(said) == 2, "nothing was sent back and forth"
        assert b'"payload_size":3' in said[0]
        assert b'"id":"7","source":"shop"' in said[1]


async def test_what_is_owed_beyond_its_bound_is_counted_and_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Of five queues two fit: the three oldest are dropped with one log line; triggers of one queue count as one."""
    monkeypatch.setattr("queuebell.bridge.triggers.republishing.WAITING_MAX", 2)
    facts: list[Fact] = []
    republisher = Republisher("a" * 32, "queuebell", ["nats"], lambda: 0.0, facts.append)
    for queue in ("a", "b", "c", "d", "e", "e"):
        republisher.republish([CloudQueueWorkDetected("billing", f"{queue}{queue}{queue}")], "http")
    assert republisher.waiting == 2
    assert facts == [OwedDropped(f"billing/{name}") for name in ("aaa", "bbb", "ccc")]
    (line,) = caplog.records
    assert "is dropped" in line.getMessage() and vars(line)["queue"] == "billing/aaa"
    metrics = Metrics()
    for fact in facts:
        metrics(fact)
    assert b"queuebell_cluster_owed_dropped_total 3.0" in metrics.render()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(50):
        while not true():
            await asyncio.sleep(0.01)
    await rest()


def due_in(bridge: Bridge) -> list[float]:
    """In how many seconds work is due at a bridge, as it was told."""
    work = bridge.scheduler.pending.find("billing/orders")
    return [] if work is None else [at - bridge.now() for times in work.due.values() for at, _ in times.all()]


async def test_c6_what_went_into_a_connection_that_was_dead_is_told_again() -> None:
    """The broker accepted it and delivered nothing. Triggers with an echo are not sent again."""
    nats = MemoryServer("nats")
    async with bridged(nats) as one, bridged(nats) as other:
        one.trigger([EVENT], bus="http")
        await rest()
        assert triggers(other) == 1
        ours = nats.connections[0]
        ours.publish = lambda *_, **__: True  # type: ignore[method-assign]
        one.trigger([EVENT], bus="http")
        one.trigger([EVENT], bus="http")
        await rest()
        assert triggers(other) == 1
        ours.die()
        await until(lambda: triggers(other) > 1)
        assert triggers(other) == 2, "of one queue one is enough"


@pytest.mark.parametrize("dead", [False, True])
async def test_c6_what_is_for_later_hides_nothing_that_is_for_now_and_is_not_told_late(dead: bool) -> None:
    """Each due time is kept, minus the outage (B2)."""
    nats = MemoryServer("nats")
    async with bridged(nats) as one, bridged(nats) as other:
        ours = nats.connections[0]
        ours.publish = lambda *_, **__: dead  # type: ignore[method-assign]
        for later_ms in (0, 3_600_000, 60_000):
            one.trigger([CloudQueueWorkDetected("billing", "orders", not_before_ms=later_ms)], bus="http")
        await rest()
        loop = asyncio.get_running_loop()
        began = loop.time()
        while loop.time() - began < 0.3:
            await asyncio.sleep(0.01)
        ours.die()
        await until(lambda: triggers(other) == 3)
        assert [round(each) for each in sorted(due_in(other))] == [60, 3600]
        assert min(due_in(other)) <= 59.9
        work = other.scheduler.pending.find("billing/orders")
        assert work is not None and work.dirty
