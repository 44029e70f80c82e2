"""One supervised connection, against a broker that fails in every way, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from bridge.brokers import SCHEMES
from bridge.brokers.base import Broker
from bridge.observe.facts import Fact
from bridge.triggers.supervisor import SupervisedConnection
from tests.support.memory_broker import SERVERS, MemoryBroker, MemoryServer
from tests.support.sim_loop import pass_time, simulated


class Bus:
    """A supervised bus and everything it told."""

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self.brokers: list[MemoryBroker] = []
        self.ups: list[Broker] = []
        self.downs = 0
        self.gaps = 0
        self.facts: list[Fact] = []
        self.supervised = SupervisedConnection(
            self._open, "nats", self.up, self.gap, on_down=self._down, emit=self.facts.append, draw=lambda: 0.5
        )

    def gap(self) -> None:
        """Count a gap."""
        self.gaps += 1

    def _open(self) -> Broker:
        self.brokers.append(self.server.broker())
        return self.brokers[-1]

    async def up(self, broker: Broker) -> None:
        self.ups.append(broker)

    def _down(self) -> None:
        self.downs += 1

    @property
    def ready(self) -> bool:
        return self.supervised.check()[0]


@asynccontextmanager
async def supervised(server: MemoryServer) -> AsyncIterator[Bus]:
    bus = Bus(server)
    await bus.supervised.start()
    try:
        yield bus
    finally:
        await bus.supervised.stop()


@simulated
async def test_a_client_that_raises_what_it_does_not_promise_is_replaced() -> None:
    """In connecting, probing, closing, and where it must not raise at all."""
    server = MemoryServer()

    class Faulty(MemoryBroker):
        async def connect(self, **_: object) -> None:
            raise ZeroDivisionError

        async def close(self) -> None:
            raise ZeroDivisionError

    class Late(MemoryBroker):
        async def probe(self) -> float:
            raise ZeroDivisionError

        async def close(self) -> None:
            await super().close()
            await asyncio.get_running_loop().create_future()

    class Odd(MemoryBroker):
        async def broken(self) -> str:
            await pass_time(1)
            raise ZeroDivisionError

    kinds = [Faulty, Late, Odd, MemoryBroker, MemoryBroker, MemoryBroker]
    ups: list[Broker] = []

    async def up(broker: Broker) -> None:
        ups.append(broker)

    # The first is asked for its address only.
    brokers = iter([MemoryBroker(server), *(kind(server) for kind in kinds)])
    bus = SupervisedConnection(lambda: next(brokers), "nats", up, lambda: None)
    await bus.start()
    await pass_time(60)
    assert bus.check()[0]
    assert [type(broker).__name__ for broker in ups] == ["Late", "Odd", "MemoryBroker"]
    await bus.stop()


@pytest.fixture(autouse=True)
def scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``nats://one`` and ``mqtt://two`` be brokers in memory."""
    for name in ("nats", "mqtt"):
        monkeypatch.setitem(SCHEMES, name, ("tests.support.memory_broker", "NamedBroker"))
    monkeypatch.setattr("tests.support.memory_broker.SERVERS", SERVERS)
    SERVERS.clear()
    SERVERS.update(one=MemoryServer("nats"), two=MemoryServer("mqtt"), three=MemoryServer("nats"))
