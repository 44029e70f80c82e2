"""The producer's half over a broker: acknowledged by the bridge, told when nobody is there, connected anew."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from bridge.brokers import SCHEMES
from bridge.brokers.base import Incoming
from bridge.contract.errors import Closed, ConfigurationError
from bridge.contract.event import CloudQueueWorkDetected, decode_events
from bridge.producer.buses import open_bus
from bridge.producer.buses.brokered import BrokerBus
from bridge.producer.buses.http import HttpBus
from bridge.producer.buses.mqtt import MqttBus
from bridge.producer.buses.nats import NatsBus
from tests.support.memory_broker import SERVERS, MemoryBroker, MemoryServer
from tests.support.sim_loop import pass_time, simulated

EVENT = CloudQueueWorkDetected("billing", "orders", 3, id="1", source="s")
_names = itertools.count()


class Place:
    """A broker, and a bridge on it that answers after its mark."""

    def __init__(self, kind: str = "nats") -> None:
        self.server = MemoryServer(kind)
        self.url = f"mem://bus{next(_names)}"
        SERVERS[self.url.partition("://")[2]] = self.server
        self.marked: list[CloudQueueWorkDetected] = []
        self.answering = True
        self.broker: MemoryBroker | None = None

    async def bridge(self) -> None:
        self.broker = self.server.broker()
        await self.broker.connect()
        await self.broker.subscribe(("queuebell", "trigger", "*", "*"), self._hear, at_least_once=True)

    def _hear(self, incoming: Incoming) -> None:
        self.marked += decode_events(incoming.payload)
        if incoming.reply_to is not None and self.answering:
            self.broker.publish(incoming.reply_to, b"")


@pytest.fixture(autouse=True)
def scheme(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(SCHEMES, "mem", ("tests.support.memory_broker", "NamedBroker"))
    yield
    SERVERS.clear()


def test_addresses_choose_the_bus_and_load_no_library() -> None:
    """And a wrong one is told when the bus is made, without what it may hold."""
    assert isinstance(open_bus("nats://user:secret@host?prefix=site7"), NatsBus)
    assert isinstance(open_bus("tls://host:4222"), NatsBus)
    assert isinstance(open_bus("mqtt://host"), MqttBus)
    assert isinstance(open_bus("mqtts://host"), MqttBus)
    for url in ("nats://", "nats://user:secret@host/path", "mqtt://host?secret=1", "nats://host?prefix=a.b"):
        with pytest.raises(ConfigurationError) as refused:
            open_bus(url)
        assert "secret" not in str(refused.value)
    for url in ("nats://host", "mqtt://host"):
        with pytest.raises(ConfigurationError, match="api_key: is for http"):
            open_bus(url, "secret")
    assert isinstance(open_bus("https://host", "secret"), HttpBus)


@pytest.mark.parametrize("kind", ["nats", "mqtt"])
@simulated
async def test_many_events_are_acknowledged_together(kind: str) -> None:
    """More than one window of them, over one connection."""
    place = Place(kind)
    await place.bridge()
    bus = BrokerBus(place.url)
    events = [CloudQueueWorkDetected("billing", f"q{number}") for number in range(1000)]
    await bus.publish(events)
    await bus.publish([EVENT])
    assert place.server.attempts == 2
    await pass_time(1)
    assert place.marked == [*events, EVENT]
    await bus.close()
    await bus.close()
    with pytest.raises(Closed, match="the bus is closed"):
        await bus.publish([EVENT])
