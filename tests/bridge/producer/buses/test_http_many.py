"""The HTTP bus at several equal bridges: a trigger is marked by the first that takes it."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest
from aiohttp import web

from bridge.contract.errors import BadInput, BusUnavailable
from bridge.contract.event import CloudQueueWorkDetected
from bridge.producer.buses import http as bus_module
from bridge.producer.buses.http import HttpBus
from bridge.producer.publisher import BlockingPublisher, Publisher
from tests.bridge.queues.scripted_server import Answering, ScriptedServer
from tests.bridge.queues.test_http_many import hanging_up, refusing, strange
from tests.support.processes import free_port
from tests.support.web import serving

EVENT = CloudQueueWorkDetected("a", "q", id="1", source="test")


def taking(request: web.Request, body: bytes) -> web.Response:
    """Mark."""
    return web.json_response({"accepted": 1}, status=202)


async def published(first: object, *events: CloudQueueWorkDetected) -> tuple[ScriptedServer, ScriptedServer]:
    """Publish twice to one that answers so and to one that takes it, begun with the former."""
    one, two = ScriptedServer(first), ScriptedServer(taking)  # type: ignore[arg-type]
    async with one, two:
        bus = HttpBus(f"{one.url},{two.url}", draw=lambda: 0.999)
        await bus.publish(events or [EVENT])
        await bus.publish(events or [EVENT])
        await bus.close()
    return one, two


@pytest.mark.parametrize(
    "first",
    [
        refusing(503, "draining", Retry_After="5"), refusing(429, "too_many_requests"), refusing(500, "internal"),
        hanging_up, strange,
    ],
)  # fmt: skip
async def test_a_trigger_goes_on_to_the_next(first: object) -> None:
    """Also where nobody knows whether it was marked: its id makes a second mark harmless."""
    one, two = await published(first)
    assert (len(one.asked), len(two.asked)) == (1, 2)


async def test_a_bridge_that_is_gone_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """At once, and with one line in the log; all gone, and it is told where was asked."""
    caplog.set_level(logging.INFO, "queuebell.publisher")
    async with ScriptedServer(taking) as two:
        async with ScriptedServer(taking) as one:
            bus = HttpBus(f"{one.url},{two.url}", draw=lambda: 0.999)
            await bus.publish([EVENT])
        for _ in range(3):
            await bus.publish([EVENT])
        assert (len(one.asked), len(two.asked)) == (1, 3)
        (said,) = caplog.messages
        assert one.url in said and two.url in said
    with pytest.raises(BusUnavailable, match="no bridge answers at"):
        await bus.publish([EVENT])
    await bus.close()


async def test_what_is_refused_for_itself_is_refused_everywhere() -> None:
    """A trigger that is none; a key that is unknown waits for the publisher's next try, which goes elsewhere."""
    async with ScriptedServer(refusing(400, "bad_trigger")) as one, ScriptedServer(taking) as two:
        bus = HttpBus(f"{one.url},{two.url}", draw=lambda: 0.999)
        for _ in range(2):
            with pytest.raises(BadInput):
                await bus.publish([EVENT])
        assert (len(one.asked), len(two.asked)) == (2, 0)
        await bus.close()
    async with ScriptedServer(refusing(401, "unauthenticated")) as one, ScriptedServer(taking) as two:
        bus = HttpBus(f"{one.url},{two.url}", draw=lambda: 0.999)
        with pytest.raises(BusUnavailable, match="answered 401"):
            await bus.publish([EVENT])
        assert two.asked == []
        await bus.publish([EVENT])
        assert (len(one.asked), len(two.asked)) == (1, 1)
        await bus.close()


async def test_one_that_hangs_leaves_time_for_the_next_and_delays_count_from_the_publish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A delay that was to end at one moment ends then, whoever takes it, and never before."""
    monkeypatch.setattr(bus_module, "TRY_S", 0.2)
    monkeypatch.setattr(bus_module, "REQUEST_TIMEOUT_S", 0.4)
    never = asyncio.Event()
    said: list[int] = []

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    def note(request: web.Request, body: bytes) -> web.Response:
        said.extend(event.get("not_before_ms", 0) for event in msgspec.json.decode(body))
        return taking(request, body)

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with ScriptedServer(note) as two:
        bus = HttpBus(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]},{two.url}", draw=lambda: 0.999)
        began = asyncio.get_running_loop().time()
        later = msgspec.structs.replace(EVENT, not_before_ms=60_000)
        await bus.publish([later, msgspec.structs.replace(EVENT, not_before_ms=1), EVENT])
        passed_ms = (asyncio.get_running_loop().time() - began) * 1000
        assert passed_ms >= 150
        assert 60_000 - passed_ms <= said[0] <= 60_000 - 150 and said[1:] == [0, 0]
        await bus.close()
    never.set()
    server.close()


async def test_a_publisher_loses_nothing_while_bridges_come_and_go() -> None:
    """P4 over a list, asynchronous and blocking: what one bridge does not take another one does."""
    dead = f"http://127.0.0.1:{free_port()}"
    async with serving() as served:
        async with Publisher([dead, served.server.url]) as publisher:
            await publisher.publish("a/q", count=2)
        twin = BlockingPublisher([served.server.url, dead])
        twin.publish("a/q")
        assert await asyncio.to_thread(twin.close) == []
        assert served.bridge.describe("a/q").triggers == 2


async def test_a_bridge_may_hear_it_from_the_one_before_as_well() -> None:
    """The one that did not answer may have marked it and told the others: the id says that it is the same (B13)."""
    async with serving() as served:
        async with ScriptedServer(hanging_up) as one:
            bus = HttpBus(f"{one.url},{served.server.url}", draw=lambda: 0.999)
            await bus.publish([EVENT])
            await bus.close()
        gen = served.bridge.describe("a/q").gen
        assert gen
        served.bridge.trigger([EVENT], bus="nats")
        assert served.bridge.describe("a/q").gen == gen


async def test_one_that_asks_to_be_left_alone_is_asked_last() -> None:
    """While the other one failed later, and without a word."""
    order: list[str] = []

    def noting(name: str, answer: Answering) -> Answering:
        return lambda request, body: order.append(name) or answer(request, body)

    away = ScriptedServer(noting("away", refusing(503, "draining", Retry_After="30")))
    gone = ScriptedServer(noting("gone", hanging_up))
    async with away, gone:
        bus = HttpBus(f"{away.url},{gone.url}", draw=lambda: 0.999)
        for _ in range(2):
            with pytest.raises(BusUnavailable):
                await bus.publish([EVENT])
        await bus.close()
    assert order == ["away", "gone", "gone", "away"]


@pytest.mark.parametrize(("try_s", "order"), [(60.0, [1, 1]), (0.0, [1, 2])])
async def test_a_publish_that_is_cancelled_late_goes_to_the_next_one(
    try_s: float, order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bridge that took longer than a try may take is gone; one that was not given that time is not."""
    asked, begun, never = [], asyncio.Event(), asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(1)
        begun.set()
        await never.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    async with ScriptedServer(lambda request, body: asked.append(2) or taking(request, body)) as two:  # type: ignore[func-returns-value]
        bus = HttpBus(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]},{two.url}", draw=lambda: 0.999)
        monkeypatch.setattr(bus_module, "TRY_S", try_s)
        for _ in range(2):
            begun.clear()
            publishing = asyncio.create_task(bus.publish([EVENT]), name="publishing")
            beginning = asyncio.create_task(begun.wait(), name="beginning")
            await asyncio.wait({publishing, beginning}, return_when=asyncio.FIRST_COMPLETED)
            publishing.cancel()
            beginning.cancel()
            await asyncio.wait({publishing, beginning})
        await bus.close()
    assert asked == order
    never.set()
    server.close()
