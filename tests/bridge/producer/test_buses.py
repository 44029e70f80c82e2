"""The HTTP bus, against the real web server and against servers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence

import msgspec
import pytest
from aiohttp import web

from queuebell.bridge.contract.errors import BadInput, BusUnavailable, Closed, QueuebellError
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.producer.buses import http as bus_module
from queuebell.bridge.producer.buses.http import HttpBus
from queuebell.bridge.producer.buses.memory import MemoryBus
from queuebell.bridge.producer.publisher import BlockingPublisher, Publisher
from queuebell.bridge.service.bridge import Bridge
from tests.bridge.queues.scripted_server import ScriptedServer
from tests.support.processes import free_port
from tests.support.web import serving

EVENT = CloudQueueWorkDetected("a", "q")


@contextlib.asynccontextmanager
async def answering(raw: bytes) -> AsyncIterator[str]:
    """A server that reads a request and answers these bytes, then closes."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(raw)
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_refused_connection_is_one_clear_line() -> None:
    """The error names the address and the system's reason."""
    bus = HttpBus("http://127.0.0.1:9")
    with pytest.raises(BusUnavailable, match=r"no bridge answers at http://127\.0\.0\.1:9: .*[Rr]efused"):
        await bus.publish([EVENT])
    await bus.close()
    with pytest.raises(Closed, match="the bus is closed"):
        await bus.publish([EVENT])


async def test_what_answers_and_is_no_bridge_is_named() -> None:
    """With its address and status. An unavailable key has its own error, and nothing is sent."""
    async with answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as url:
        bus = HttpBus(url)
        with pytest.raises(BusUnavailable, match=f"{url} is not a bridge: it returned status 404"):
            await bus.publish([EVENT])
        await bus.close()

    def no_key() -> str:
        raise RuntimeError("the vault is sealed")

    bus = HttpBus(url, api_key=no_key)
    with pytest.raises(BusUnavailable, match="api_key: no key is available"):
        await bus.publish([EVENT])
    await bus.close()


@pytest.mark.parametrize(
    ("status", "said", "error", "text", "code"),
    [
        (400, '{"code":"bad_trigger","detail":"no queue"}', BadInput, "no queue", "bad_trigger"),
        (413, '{"code":"too_large"}', BadInput, "the bridge rejected it: 413", "too_large"),
        (415, '{"code":"bad_json","detail":"not JSON"}', BadInput, "not JSON", "bad_json"),
        (503, '{"code":"draining"}', BusUnavailable, "the bridge at URL returned status 503 draining", "draining"),
        (502, "", BusUnavailable, "the bridge at URL returned status 502", "internal"),
        (
            403, '{"code":"forbidden","detail":"x"}',
            BusUnavailable, "the bridge at URL returned status 403 forbidden: x", "forbidden",
        ),
        (
            418, "[1]",
            BusUnavailable, "the server at URL is not a bridge: it returned status 418", "internal",
        ),
    ],
)  # fmt: skip
async def test_an_answer_is_told_with_its_code(
    status: int, said: str, error: type[QueuebellError], text: str, code: str
) -> None:
    """The error has the bridge's code and detail, or else the status."""
    async with ScriptedServer(lambda request, body: web.Response(status=status, text=said)) as server:
        bus = HttpBus(server.url)
        with pytest.raises(error) as caught:
            await bus.publish([EVENT])
        assert str(caught.value) == text.replace("URL", server.url)
        assert caught.value.code == code  # type: ignore[attr-defined]
        await bus.close()


EVENT_HTTP_MANY = CloudQueueWorkDetected("a", "q", id="1", source="test")


def taking(request: web.Request, body: bytes) -> web.Response:
    """Mark."""
    return web.json_response({"accepted": 1}, status=202)


async def test_one_that_hangs_leaves_time_for_the_next_and_delays_count_from_the_publish(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A delay never ends early, whichever bridge accepts it."""
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
        later = msgspec.structs.replace(EVENT_HTTP_MANY, not_before_ms=60_000)
        await bus.publish([later, msgspec.structs.replace(EVENT_HTTP_MANY, not_before_ms=1), EVENT_HTTP_MANY])
        passed_ms = (asyncio.get_running_loop().time() - began) * 1000
        assert passed_ms >= 150
        assert 60_000 - passed_ms <= said[0] <= 60_000 - 150 and said[1:] == [0, 0]
        await bus.close()
    never.set()
    server.close()


async def test_a_publisher_loses_nothing_while_bridges_come_and_go() -> None:
    """P4 over a list, asynchronous and blocking: another bridge accepts the trigger."""
    dead = f"http://127.0.0.1:{free_port()}"
    async with serving() as served:
        async with Publisher([dead, served.server.url]) as publisher:
            await publisher.publish("a/q", count=2)
        twin = BlockingPublisher([served.server.url, dead])
        twin.publish("a/q")
        assert await asyncio.to_thread(twin.close) == []
        assert served.bridge.describe("a/q").triggers == 2


@pytest.mark.parametrize(("try_s", "order"), [(60.0, [1, 1]), (0.0, [1, 2])])
async def test_a_publish_that_is_cancelled_late_goes_to_the_next_one(
    try_s: float, order: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bridge that took longer than a try may take is skipped next time; one that had less time is not."""
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
            publishing = asyncio.create_task(bus.publish([EVENT_HTTP_MANY]), name="publishing")
            beginning = asyncio.create_task(begun.wait(), name="beginning")
            await asyncio.wait({publishing, beginning}, return_when=asyncio.FIRST_COMPLETED)
            publishing.cancel()
            beginning.cancel()
            await asyncio.wait({publishing, beginning})
        await bus.close()
    assert asked == order
    never.set()
    server.close()


class Noting:
    """A bridge that notes by which bus a trigger came, and in which thread."""

    def __init__(self) -> None:
        self.noted: list[tuple[str, str, int]] = []

    def trigger(self, events: Sequence[CloudQueueWorkDetected], *, bus: str) -> int:
        self.noted += [(event.queue, bus, threading.get_ident()) for event in events]
        return len(events)


async def test_a_bridge_is_called_in_its_own_loop_alone() -> None:
    """Directly in that loop, by a task from another one; the first publish sets the loop."""
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


async def test_what_does_not_pass_is_told() -> None:
    with pytest.raises(BadInput):
        await MemoryBus(Refusing("bad_trigger")).publish([EVENT])


async def test_a_closed_bus_says_so() -> None:
    bus = MemoryBus(Refusing("x"))
    await bus.close()
    with pytest.raises(Closed, match=r"^the bus is closed$"):
        await bus.publish([EVENT])


async def test_a_stopped_bridge_is_away() -> None:
    with pytest.raises(BusUnavailable, match=r"^the bridge was not started$"):
        await MemoryBus(Bridge()).publish([EVENT])
    bridge = Bridge()
    async with bridge:
        bus = MemoryBus(bridge)
    with pytest.raises(BusUnavailable, match=r"^the bridge did not accept it: draining$"):
        await bus.publish([EVENT])
