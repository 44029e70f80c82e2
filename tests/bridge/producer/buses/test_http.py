"""The HTTP bus, against the real web server and against servers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from bridge.contract.errors import BadInput, BusUnavailable, Closed, QueuebellError
from bridge.contract.event import CloudQueueWorkDetected, encode_events
from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.producer.buses.http import HttpBus
from bridge.producer.publisher import BlockingPublisher, Publisher
from bridge.service.bridge import Bridge
from tests.bridge.queues.scripted_server import ScriptedServer
from tests.support.processes import free_port

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


async def test_triggers_reach_the_bridge() -> None:
    """The asynchronous publisher and its blocking twin both bring their triggers over HTTP."""
    async with Bridge() as bridge, WebServer(bridge, WebSettings(port=0)) as web:
        async with Publisher(web.url) as publisher:
            await publisher.publish("a", "q", 2)
        twin = BlockingPublisher(web.url + "/")
        twin.publish("a", "q")
        assert await asyncio.to_thread(twin.close) == []
        state = bridge.describe("a/q")
    assert state.triggers == 2


async def test_a_bridge_that_comes_later_gets_what_is_owed() -> None:
    """P4: a bridge that is away when the publish happens gets it once it is there."""
    port = free_port()
    async with Bridge() as bridge:
        async with Publisher(f"http://127.0.0.1:{port}", close_timeout=20.0) as publisher:
            await publisher.publish("a", "q")
            while publisher.state().failures == 0:
                await asyncio.sleep(0.001)
            async with WebServer(bridge, WebSettings(port=port)):
                assert await publisher.close() == []
        state = bridge.describe("a/q")
    assert state.triggers == 1


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\n\r\n{}", None),
        (b"HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\n\r\n", BusUnavailable),
        (b'HTTP/1.1 503 Unavailable\r\nContent-Length: 19\r\n\r\n{"code":"draining"}', BusUnavailable),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", BusUnavailable),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", BusUnavailable),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", BusUnavailable),
        (b'HTTP/1.1 400 Bad\r\nContent-Length: 22\r\n\r\n{"code":"bad_trigger"}', BadInput),
        (b"HTTP/1.1 400 Bad\r\nContent-Length: 4\r\n\r\n\xff\xfe{}", BusUnavailable),  # of no bridge: it is kept
        (b"HTTP/1.1 202 Acc", BusUnavailable),
        (b"", BusUnavailable),
        (b"SSH-2.0-OpenSSH\r\n\r\n", BusUnavailable),
    ],
)
async def test_answers_are_understood(answer: bytes, error: type[Exception] | None) -> None:
    """Only 202 is an acknowledgement; what another try may mend is BusUnavailable, and redirects are not followed."""
    async with answering(answer) as url:
        bus = HttpBus(url)
        try:
            if error is None:
                await bus.publish([EVENT])
            else:
                with pytest.raises(error):
                    await bus.publish([EVENT])
        finally:
            await bus.close()


async def test_a_bridge_that_lets_nobody_in_is_quoted() -> None:
    """It says which verb is not granted on which queue; the trigger is kept, as the grant may still come."""
    body = b'{"code":"forbidden","detail":"\'ring\' is not granted on a/q"}'
    async with answering(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)) as url:
        bus = HttpBus(url)
        with pytest.raises(BusUnavailable, match=r"answered 403 forbidden: 'ring' is not granted on a/q$"):
            await bus.publish([EVENT])
        await bus.close()


async def test_a_refused_connection_is_one_clear_line() -> None:
    """The error names the address and the system's reason."""
    bus = HttpBus("http://127.0.0.1:9")
    with pytest.raises(BusUnavailable, match=r"no bridge answers at http://127\.0\.0\.1:9: .*[Rr]efused"):
        await bus.publish([EVENT])
    await bus.close()
    with pytest.raises(Closed, match="the bus is closed"):
        await bus.publish([EVENT])


async def test_what_answers_and_is_no_bridge_is_named() -> None:
    """With its address and what it said; a key that cannot be had is told in its own words, and nothing is sent."""
    async with answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as url:
        bus = HttpBus(url)
        with pytest.raises(BusUnavailable, match=f"{url} is no bridge: it answers 404"):
            await bus.publish([EVENT])
        await bus.close()

    def no_key() -> str:
        raise RuntimeError("the vault is sealed")

    bus = HttpBus(url, api_key=no_key)
    with pytest.raises(BusUnavailable, match="api_key: no key is available"):
        await bus.publish([EVENT])
    await bus.close()


async def test_what_is_sent_goes_over_one_connection_with_its_key() -> None:
    """As JSON, to the bridge's own path; a cookie that a proxy sets is not sent back."""
    noted: list[tuple[str, str, str | None, str | None, str, int]] = []

    def taking(request: web.Request, body: bytes) -> web.Response:
        peer = request.transport.get_extra_info("peername")[1]  # type: ignore[union-attr]
        kind, key, cookie = (request.headers.get(name) for name in ("Content-Type", "Authorization", "Cookie"))
        noted.append((request.method, request.path, kind, key, body.decode(), peer))
        assert cookie is None
        return web.Response(status=202, headers={"Set-Cookie": "a=b"})

    async with ScriptedServer(taking) as server:
        bus = HttpBus(server.url, api_key="qb_secret")
        for _ in range(2):
            await bus.publish([EVENT])
        await bus.close()
        await bus.close()
    expected = ("POST", "/v1/triggers", "application/json", "Bearer qb_secret", encode_events([EVENT]).decode())
    assert [said[:5] for said in noted] == [expected] * 2
    assert len({peer for *_, peer in noted}) == 1


@pytest.mark.parametrize(
    ("status", "said", "error", "text", "code"),
    [
        (400, '{"code":"bad_trigger","detail":"no queue"}', BadInput, "no queue", "bad_trigger"),
        (413, '{"code":"too_large"}', BadInput, "the bridge refused it: 413", "too_large"),
        (415, '{"code":"bad_json","detail":"not JSON"}', BadInput, "not JSON", "bad_json"),
        (503, '{"code":"draining"}', BusUnavailable, "the bridge at URL answered 503 draining", "draining"),
        (502, "", BusUnavailable, "the bridge at URL answered 502", "internal"),
        (
            403, '{"code":"forbidden","detail":"x"}',
            BusUnavailable, "the bridge at URL answered 403 forbidden: x", "forbidden",
        ),
        (
            418, "[1]",
            BusUnavailable, "what answers at URL is no bridge: it answers 418, and not as one does", "internal",
        ),
    ],
)  # fmt: skip
async def test_an_answer_is_told_with_its_code(
    status: int, said: str, error: type[QueuebellError], text: str, code: str
) -> None:
    """What the bridge says of it goes on; of an answer without words its number does."""
    async with ScriptedServer(lambda request, body: web.Response(status=status, text=said)) as server:
        bus = HttpBus(server.url)
        with pytest.raises(error) as caught:
            await bus.publish([EVENT])
        assert str(caught.value) == text.replace("URL", server.url)
        assert caught.value.code == code  # type: ignore[attr-defined]
        await bus.close()
