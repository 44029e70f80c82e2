"""One supervised connection, against a broker that fails in every way, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bridge.brokers.base import Broker
from bridge.contract.errors import ConfigurationError
from bridge.observe.facts import BusDown, BusUp, Fact
from bridge.triggers.supervisor import Supervised
from tests.support.memory_broker import MemoryBroker, MemoryServer
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
        self.supervised = Supervised(
            self._open, "nats", self.up, self.gap, on_down=self._down, tell=self.facts.append, draw=lambda: 0.5
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
async def test_started_before_its_broker_it_waits_for_it() -> None:
    """As long as it takes, told once, and up within the longest pause after the broker is there."""
    server = MemoryServer()
    server.refusing = True
    async with supervised(server) as bus:
        await pass_time(3600)
        assert not bus.ready
        assert [type(fact) for fact in bus.facts] == [BusDown]
        assert server.attempts > 1000
        server.refusing = False
        await pass_time(5)
        assert bus.ready
        assert bus.gaps == 1
        assert [type(fact) for fact in bus.facts] == [BusDown, BusUp]
    assert not server.connections


@simulated
async def test_a_killed_broker_is_left_at_once_and_found_again() -> None:
    """Each connection is a fresh one with its own subscriptions, and each return is a gap."""
    server = MemoryServer()
    async with supervised(server) as bus:
        for number in range(1, 6):
            await pass_time(20)
            assert len(bus.ups) == number
            assert bus.downs == number - 1
            server.kill()
        await pass_time(20)
        assert len({id(broker) for broker in bus.ups}) == 6
        assert bus.gaps == 6
        assert len(bus.facts) == 11


@simulated
async def test_a_deaf_connection_is_torn_down_and_unready_within_ten_seconds() -> None:
    """Nothing but its own message that comes back tells that a connection lives."""
    server = MemoryServer()
    async with supervised(server) as bus:
        await pass_time(7.3)
        server.deaf = True
        await pass_time(9.99)
        assert not bus.ready
        assert bus.downs >= 1
        server.deaf = False
        await pass_time(10)
        assert bus.ready


@simulated
async def test_dropped_messages_are_a_gap() -> None:
    """Found within a probe's period, while the connection goes on."""
    server = MemoryServer()
    async with supervised(server) as bus:
        await pass_time(1)
        bus.brokers[-1].dropped = 7
        await pass_time(5)
        assert bus.gaps == 2
        await pass_time(50)
        assert bus.gaps == 2
        assert bus.downs == 0


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
    bus = Supervised(lambda: next(brokers), "nats", up, lambda: None)
    await bus.start()
    await pass_time(60)
    assert bus.check()[0]
    assert [type(broker).__name__ for broker in ups] == ["Late", "Odd", "MemoryBroker"]
    await bus.stop()


@simulated
async def test_wrong_credentials_are_tried_again_slowly_and_told_once() -> None:
    """The bridge and its other buses go on."""
    server = MemoryServer()
    tries: list[float] = []

    class Refused(MemoryBroker):
        async def connect(self, **_: object) -> None:
            tries.append(asyncio.get_running_loop().time())
            raise ConfigurationError("broker: not authorized")

    facts: list[Fact] = []

    async def up(broker: Broker) -> None: ...

    bus = Supervised(lambda: Refused(server), "mqtt", up, lambda: None, tell=facts.append)
    await bus.start()
    await pass_time(52)
    assert [round(late - early, 3) for early, late in itertools.pairwise(tries)] == [5.0] * 10
    assert facts == [BusDown("mqtt", "memory://broker", "broker: not authorized")]
    assert bus.check() == (False, "memory://broker: broker: not authorized, for 52 s")
    await bus.stop()
    await bus.stop()


class Stubborn(MemoryBroker):
    """Swallows one cancellation while it connects, as nats-py does while it flushes."""

    async def connect(self, **more: object) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.server.refusing = False
        await super().connect()


@simulated
async def test_a_swallowed_cancellation_does_not_keep_it_from_stopping() -> None:
    """The stop asks again until the task has ended."""
    server = MemoryServer()
    bus = Bus(server)
    bus.supervised = Supervised(lambda: Stubborn(server), "nats", bus.up, bus.gap)
    await bus.supervised.start()
    await pass_time(1.0)
    async with asyncio.timeout(200.0):
        await bus.supervised.stop()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "bus[nats]"]
