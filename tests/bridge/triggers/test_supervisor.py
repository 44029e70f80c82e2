"""One supervised connection, against a broker that fails in every way, in virtual time."""

from __future__ import annotations

import asyncio

from queuebell.bridge.brokers.base import Broker
from queuebell.bridge.triggers.supervisor import SupervisedConnection
from tests.support.memory_broker import MemoryBroker, MemoryServer
from tests.support.sim_loop import pass_time, simulated


@simulated
async def test_a_client_that_raises_what_it_does_not_promise_is_replaced() -> None:
    """While connecting, probing and closing, and where it must not raise at all."""
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
