"""Every broker adapter answers the same questions, and those that its own protocol adds."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from bridge.brokers.base import Broker
from bridge.brokers.mqtt.broker import MqttBroker
from bridge.brokers.nats.broker import NatsBroker
from tests.conformance.broker import BrokerConformance, Opened
from tests.support.brokers import Mosquitto, NatsServer, RealBroker


class Kinds(BrokerConformance):
    """What the subclasses share: brokers of one class at one port, closed in the end."""

    make: Any
    options: ClassVar[dict[str, Any]] = {}

    @pytest.fixture
    def port(self, server: RealBroker) -> int:
        return server.port

    @pytest_asyncio.fixture
    async def opened(self, port: int) -> AsyncIterator[Opened]:
        brokers: list[Broker] = []
        scheme = self.make.kind

        async def make(at: int | None = None, *, connect: bool = True, **options: Any) -> Broker:
            broker: Broker = self.make(f"{scheme}://127.0.0.1:{at or port}", **{**self.options, **options})
            brokers.append(broker)
            if connect:
                await broker.connect()
            return broker

        yield make
        for broker in brokers:
            await broker.close()


class TestNats(Kinds):
    make = NatsBroker

    @pytest_asyncio.fixture
    async def server(self, tmp_path: Path) -> AsyncIterator[RealBroker]:
        async with NatsServer(tmp_path) as server:
            yield server


class TestNatsByMqtt(Kinds):
    """The MQTT listener of nats-server, which speaks 3.1.1 only: the fallback is part of every test."""

    make = MqttBroker
    describes = False
    knows_nobody = False

    @pytest.fixture
    def port(self, server: RealBroker) -> int:
        assert isinstance(server, NatsServer)
        return server.mqtt_port

    @pytest_asyncio.fixture
    async def server(self, tmp_path: Path) -> AsyncIterator[RealBroker]:
        async with NatsServer(tmp_path, mqtt=True) as server:
            yield server


class _Mosquitto(Kinds):
    make = MqttBroker
    lossless = False

    @pytest_asyncio.fixture
    async def server(self, tmp_path: Path) -> AsyncIterator[RealBroker]:
        async with Mosquitto(tmp_path) as server:
            yield server


@pytest.mark.system
class TestMosquitto(_Mosquitto):
    options: ClassVar[dict[str, Any]] = {"version": "5"}


@pytest.mark.system
class TestMosquitto311(_Mosquitto):
    options: ClassVar[dict[str, Any]] = {"version": "3.1.1"}
    describes = False
    knows_nobody = False
