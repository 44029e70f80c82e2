"""Whatever is stopped or closed has one end: whoever asks for it waits for that, and nobody cuts it short."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import Awaitable, Callable, Sequence

import pytest

from bridge.contract.errors import BusUnavailable
from bridge.contract.event import CloudQueueWorkDetected
from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.http.webhooks import shell
from bridge.http.webhooks.deliver import Courier
from bridge.http.webhooks.shell import Webhooks
from bridge.producer.publisher import BlockingPublisher, Publisher
from bridge.queues.embedded.memory import MemoryStore
from bridge.service.bridge import Bridge
from bridge.triggers.supervisor import Supervised
from tests.support.hooks import hook
from tests.support.memory_broker import MemoryBroker, MemoryServer


class Gate:
    """Something that ends when the test lets it, and says that it began and ended."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.let = asyncio.Event()
        self.ended = False
        self.times = 0

    async def end(self) -> None:
        self.times += 1
        self.begun.set()
        await self.let.wait()
        self.ended = True


class SlowStore(MemoryStore):
    """A store that takes its time to close."""

    def __init__(self, gate: Gate) -> None:
        super().__init__("slow", boot="0" * 32)
        self._gate = gate

    async def close(self) -> None:
        await self._gate.end()
        await super().close()


class SlowBroker(MemoryBroker):
    """A connection that takes its time to close."""

    gate: Gate

    async def close(self) -> None:
        await self.gate.end()
        await super().close()


class SlowBus:
    """A bus that takes its time to close, and may fail then."""

    def __init__(self, gate: Gate, error: Exception | None = None, *, deaf: bool = False) -> None:
        self._gate, self._error, self.deaf = gate, error, deaf
        self.sent: list[CloudQueueWorkDetected] = []

    async def publish(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        if self.deaf:
            raise BusUnavailable("nobody there")
        self.sent += events

    async def close(self) -> None:
        await self._gate.end()
        if self._error is not None:
            raise self._error


Stop = Callable[[], Awaitable[object]]


async def a_bridge(gate: Gate) -> Stop:
    bridge = Bridge(store=SlowStore(gate))
    await bridge.start()
    return bridge.stop


async def a_publisher(gate: Gate) -> Stop:
    return Publisher(SlowBus(gate)).close


async def a_web_server(gate: Gate) -> Stop:
    bridge = Bridge()
    await bridge.start()
    server = WebServer(bridge, WebSettings(port=0))
    await server.start()
    server.connections.shutdown = lambda timeout=None: gate.end()  # type: ignore[method-assign]
    return server.stop


async def webhooks(gate: Gate) -> Stop:
    class SlowCourier(Courier):
        async def close(self) -> None:
            await gate.end()

    bridge = Bridge()
    await bridge.start()
    hooks = Webhooks(bridge, [hook("http://127.0.0.1:9/")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shell, "Courier", SlowCourier)
        await hooks.start()
    return hooks.stop


async def a_supervised_connection(gate: Gate) -> Stop:
    up = asyncio.Event()

    async def is_up(broker: SlowBroker) -> None:
        up.set()

    def factory() -> SlowBroker:
        made = SlowBroker(server)
        made.gate = gate
        return made

    server = MemoryServer()
    supervised = Supervised(factory, "bus", is_up, lambda: None)
    await supervised.start()
    await up.wait()
    return supervised.stop


THINGS = [a_bridge, a_publisher, a_web_server, webhooks, a_supervised_connection]
THING = pytest.mark.parametrize("thing", THINGS, ids=lambda thing: thing.__name__)


async def calling(stop: Stop) -> object:
    return await stop()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@THING
@pytest.mark.parametrize("callers", [2, 3])
async def test_all_callers_return_at_the_end(thing: Callable[[Gate], Awaitable[Stop]], callers: int) -> None:
    """None returns before, and the thing is ended once."""
    gate = Gate()
    stop = await thing(gate)
    calls = [asyncio.create_task(calling(stop), name="caller") for _ in range(callers)]
    await gate.begun.wait()
    await turns()
    assert [call.done() for call in calls] == [False] * callers
    gate.let.set()
    await asyncio.gather(*calls)
    assert (gate.ended, gate.times) == (True, 1)
    await stop()
    assert gate.times == 1


@THING
async def test_a_first_caller_that_is_cancelled_leaves_the_end_to_the_second(
    thing: Callable[[Gate], Awaitable[Stop]],
) -> None:
    """What was begun is brought to its end, and the second waits for it."""
    gate = Gate()
    stop = await thing(gate)
    first = asyncio.create_task(calling(stop), name="caller")
    await gate.begun.wait()
    second = asyncio.create_task(calling(stop), name="caller")
    await turns()
    first.cancel()
    await asyncio.wait([first])
    assert first.cancelled()
    await turns()
    assert not second.done()
    gate.let.set()
    await second
    assert (gate.ended, gate.times) == (True, 1)


async def test_a_bus_that_fails_when_closed_leaves_nobody_waiting(caplog: pytest.LogCaptureFixture) -> None:
    """Both callers are told what was not sent; the failure is in the log."""
    gate = Gate()
    gate.let.set()
    publisher = Publisher(SlowBus(gate, RuntimeError("half closed"), deaf=True), close_timeout=0.05)
    await publisher.publish("a", "b", 3)
    first, second = (asyncio.create_task(publisher.close(), name="caller") for _ in range(2))
    async with asyncio.timeout(60):
        unsent = [await first, await second, await publisher.close()]
    assert [[event.payload_size for event in each] for each in unsent] == [[3]] * 3
    assert publisher.state().unsent == 1
    assert "a bus failed when it was closed" in caplog.text


async def test_a_blocking_publisher_tells_what_was_unsent_of_such_a_bus_too() -> None:
    """Its thread ends, and so does whoever waits for it."""
    gate = Gate()
    gate.let.set()
    publisher = BlockingPublisher(SlowBus(gate, RuntimeError("half closed"), deaf=True), close_timeout=0.05)
    publisher.publish("a", "b")
    async with asyncio.timeout(60):
        unsent = await asyncio.gather(*(asyncio.to_thread(publisher.close) for _ in range(2)))
    assert [len(each) for each in unsent] == [1, 1]


async def test_a_cancelled_close_gives_up_sending_only_for_itself() -> None:
    """The second caller still has what is owed sent; where nobody waits any more, it is given up, and closed."""
    gate = Gate()
    gate.let.set()
    bus = SlowBus(gate, deaf=True)
    publisher = Publisher(bus, close_timeout=60.0)
    await publisher.publish("a", "b")
    first, second = (asyncio.create_task(publisher.close(), name="caller") for _ in range(2))
    await turns()
    first.cancel()
    await asyncio.wait([first])
    bus.deaf = False
    assert await second == []
    assert len(bus.sent) == 1

    bus = SlowBus(gate, deaf=True)
    publisher = Publisher(bus, close_timeout=60.0)
    await publisher.publish("a", "b")
    only = asyncio.create_task(publisher.close(), name="caller")
    await turns()
    gate.ended = False
    only.cancel()
    await asyncio.wait([only])
    assert only.cancelled()
    assert gate.ended
    assert len(await publisher.close()) == 1


async def test_a_second_stop_of_a_bridge_finds_the_file_closed(tmp_path: pathlib.Path) -> None:
    """The directory may be taken by another bridge as soon as any call of `stop` has returned."""
    bridge = Bridge(tmp_path)
    await bridge.start()
    first = asyncio.create_task(bridge.stop(), name="caller")
    await asyncio.sleep(0)
    await bridge.stop()
    async with Bridge(tmp_path):
        pass
    await first
