"""A bridge and its configured brokers: names, readiness, raw wakes, and what is refused when it starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from bridge.brokers import SCHEMES
from bridge.contract.errors import ConfigurationError
from bridge.contract.event import CloudQueueWorkDetected
from bridge.service.bridge import Bridge
from bridge.triggers.attachment import Attachments, BusSettings
from tests.support.memory_broker import SERVERS, MemoryServer

EVENT = CloudQueueWorkDetected("billing", "orders", 3)


@pytest.fixture(autouse=True)
def scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``nats://one`` and ``mqtt://two`` be brokers in memory."""
    for name in ("nats", "mqtt"):
        monkeypatch.setitem(SCHEMES, name, ("tests.support.memory_broker", "NamedBroker"))
    monkeypatch.setattr("tests.support.memory_broker.SERVERS", SERVERS)
    SERVERS.clear()
    SERVERS.update(one=MemoryServer("nats"), two=MemoryServer("mqtt"), three=MemoryServer("nats"))


@asynccontextmanager
async def bridged(settings: BusSettings | None = None) -> AsyncIterator[tuple[Bridge, Attachments]]:
    async with Bridge() as bridge:
        async with Attachments(
            bridge, nats=["nats://one", "nats://three"], mqtt=["mqtt://two"], settings=settings
        ) as brokers:
            yield bridge, brokers


async def rest() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_each_bus_has_a_name_and_a_check() -> None:
    """The first of a kind is named for it, others are numbered."""
    async with bridged() as (bridge, brokers):
        assert list(brokers.buses) == ["nats", "nats-2", "mqtt"]
        assert not bridge.readiness().ready, "no bus is ready before it has worked once"
        await rest()
        state = bridge.readiness()
        assert state.ready
        assert {"nats", "nats-2", "mqtt"} <= state.checks.keys()
        assert state.checks["nats-2"].ok


async def test_a_bus_that_is_not_required_does_not_make_the_bridge_unready() -> None:
    """It is shown all the same."""
    SERVERS["three"].refusing = True
    async with bridged(BusSettings(ready_requires=("nats", "mqtt"))) as (bridge, brokers):
        await rest()
        state = bridge.readiness()
        assert state.ready
        assert not state.checks["nats-2"].ok
        assert "not required" in state.checks["nats-2"].detail


async def test_wakes_go_out_raw_and_are_no_triggers() -> None:
    """On each broker, under the queue's own subject; our own intake does not listen there."""
    async with bridged() as (bridge, brokers):
        await rest()
        bridge.trigger([EVENT], bus="http")
        await rest()
        for name in ("one", "two", "three"):
            said = [
                payload for topic, payload in SERVERS[name].log if topic == ("queuebell", "wake", "billing", "orders")
            ]
            assert len(said) == 1
            wake = msgspec.json.decode(said[0])
            assert (wake["type"], wake["queue"], wake["boot"]) == ("wake", "billing/orders", bridge.boot)
            assert (wake["reason"], wake["size"], wake["gen"]) == ("trigger", 3, 1)
        state = bridge.describe("billing/orders")
        assert state.triggers == 1


async def test_the_prefix_is_one_option_for_all_topics() -> None:
    """And of one address, where that is given."""
    settings = BusSettings(prefix="site7", republish=False)
    async with Bridge() as bridge, Attachments(bridge, nats=["nats://one"], settings=settings):
        await rest()
        patterns = {pattern[0] for pattern, _, _ in SERVERS["one"].connections[0].subscriptions}
        assert patterns == {"site7"}
        bridge.trigger([EVENT], bus="http")
        await rest()
        assert [topic[0] for topic, _ in SERVERS["one"].log] == ["site7"]
    async with Bridge() as bridge, Attachments(bridge, nats=["nats://three?prefix=other"], settings=settings):
        await rest()
        assert {pattern[0] for pattern, _, _ in SERVERS["three"].connections[0].subscriptions} == {"other"}


@pytest.mark.parametrize(
    "options",
    [
        {"nats": ["mqtt://one"]},
        {"mqtt": ["nats://one"]},
        {"nats": ["http://one"]},
        {"nats": ["one"]},
        {"settings": BusSettings(prefix="a.b")},
        {"settings": BusSettings(ready_requires=("nats",))},
    ],
)
def test_what_cannot_work_is_refused_at_the_start(options: dict[str, object]) -> None:
    """By an error that names the key."""
    with pytest.raises(ConfigurationError, match=r"nats|mqtt|prefix|ready_requires"):
        Attachments(Bridge(), **options)  # type: ignore[arg-type]


async def test_stopped_twice_it_leaves_nothing() -> None:
    """Neither connections nor subscriptions."""
    async with bridged() as (bridge, brokers):
        await rest()
        await brokers.stop()
        await brokers.stop()
        assert not any(server.connections for server in SERVERS.values())
        before = sum(len(server.log) for server in SERVERS.values())
        bridge.trigger([EVENT], bus="http")
        await rest()
        assert sum(len(server.log) for server in SERVERS.values()) == before
