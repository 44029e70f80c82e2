"""What is taken for granted of aiohttp's insides, one test for each, with both of its parsers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from bridge.queues.aiohttp_private.client import try_once
from bridge.queues.aiohttp_private.server import Fault, HttpProtocol, Inbox, Socket
from tests.support.web import Client, request

pytestmark = [pytest.mark.asyncio, pytest.mark.usefixtures("parser")]


class Watched(HttpProtocol):
    """A connection that writes down what it hears."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, access_log=None, **options)
        self.heard: list[str] = []
        self.looks: list[tuple[Any, ...]] = []

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.looks.append((self.parsed, self.busy, self.resting, self.queued))

    def request_begins(self) -> None:
        self.heard.append("begins")

    def request_ended(self) -> None:
        self.heard.append("ended")

    def handle_error(self, request: Any, status: int = 500, exc: Any = None, message: Any = None) -> Any:
        self.heard.append(f"fault {status} {type(exc).__name__}")
        return web.Response(status=status)


class Site:
    """A server of such connections, and what its handler does."""

    def __init__(self) -> None:
        self.made: list[Watched] = []
        self.port = 0
        self.keepalive_timeout = 75.0
        self.answer = asyncio.Event()
        self.asked = asyncio.Event()
        self.server = web.Server(self.handle)

    def make(self) -> Watched:
        loop = asyncio.get_running_loop()
        self.made.append(Watched(self.server, loop=loop, keepalive_timeout=self.keepalive_timeout))
        return self.made[-1]

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.set()
        await self.answer.wait()
        return web.Response(body=await request.read())

    async def client(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        while not (self.made and self.made[-1].resting):
            await asyncio.sleep(0)
        return client


@pytest_asyncio.fixture
async def site() -> AsyncIterator[Site]:
    made = Site()
    listening = await asyncio.get_running_loop().create_server(made.make, "127.0.0.1", 0)
    made.port = listening.sockets[0].getsockname()[1]
    yield made
    listening.close()
    await made.server.shutdown(1.0)


async def test_what_is_asked_of_a_connection_is_so(site: Site) -> None:
    """It rests before a request and after its answer, and is busy between; each request is counted as it is parsed."""
    client = await site.client()
    (connection,) = site.made
    assert (connection.parsed, connection.busy, connection.resting, connection.ends) == (0, False, True, False)
    await client.send(request("GET", "/"))
    await site.asked.wait()
    assert connection.looks == [(1, True, False, True)]
    assert (connection.busy, connection.resting, connection.queued) == (True, False, False)
    await client.send(request("GET", "/second"))
    while connection.parsed < 2:
        await asyncio.sleep(0)
    head, _ = connection.newest
    assert [(place, waiting.path) for place, waiting in connection.heads()] == [(0, "/second")]
    assert not isinstance(head, Fault) and head.path == "/second"
    site.answer.set()
    assert [(await client.reply()).status for _ in range(2)] == [200, 200]
    while not connection.resting:
        await asyncio.sleep(0)
    assert connection.heard == ["begins", "ended"] * 2 and not connection.upgraded
    await client.close()


async def test_a_request_that_waits_can_be_spoilt(site: Site) -> None:
    """Its place is told as a fault, with the words given, and no handler sees it."""
    client = await site.client()
    (connection,) = site.made
    await client.send(request("GET", "/"))
    await site.asked.wait()
    await client.send(request("GET", "/second"))
    while not connection.queued:
        await asyncio.sleep(0)
    connection.spoil(0, Fault(431, KeyError("ours"), ""))
    site.answer.set()
    assert [(await client.reply()).status for _ in range(2)] == [200, 431]
    assert "fault 431 KeyError" in connection.heard
    await client.close()


async def test_what_the_parser_refuses_is_a_fault(site: Site) -> None:
    """With its status, and counted like any request."""
    client = await site.client()
    await client.send(b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n")
    assert (await client.reply()).status == 400
    assert site.made[0].parsed == 1 and site.made[0].heard[1].startswith("fault 400")
    await client.close()


async def test_it_ends_after_the_request_under_way(site: Site) -> None:
    """Where it is told to: the answer is whole, and nothing comes after it."""
    client = await site.client()
    await client.send(request("GET", "/"))
    await site.asked.wait()
    site.made[0].end_after_this()
    assert site.made[0].ends
    site.answer.set()
    assert (await client.reply()).status == 200
    assert await client.rest() == b""
    await client.close()


async def test_one_that_is_kept_open_ends_when_nothing_comes(site: Site) -> None:
    """As after any answer; before its first request nothing else would end it. Until then it serves."""
    kept = await site.client()
    site.made[0].keep_open()
    for _ in range(5):
        await asyncio.sleep(0)
    assert site.made[0].resting
    await kept.close()
    site.made.clear()
    site.keepalive_timeout = 0.05
    client = await site.client()
    site.made[0].keep_open()
    assert await client.rest() == b""
    await client.close()


async def test_a_reader_that_is_slow_is_waited_for(site: Site) -> None:
    """Until writing goes on, or the peer is gone."""
    client = await site.client()
    (connection,) = site.made
    await connection.drained()
    connection.pause_writing()
    assert connection.writing_paused and not connection.resting
    waiting = asyncio.create_task(connection.drained(), name="waits")
    await asyncio.sleep(0)
    connection.resume_writing()
    await waiting
    connection.transport.abort()  # type: ignore[union-attr]
    await client.rest()
    with pytest.raises(ConnectionResetError):
        await connection.drained()
    await client.close()


async def test_texts_of_a_websocket_are_heard_as_they_are_parsed(site: Site) -> None:
    """Without a turn of the loop; what came before anybody heard stays in the inbox."""
    heard: list[str] = []
    socket = Socket(protocols=("p",), max_msg_size=100)

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        await socket.prepare(request)
        first = await socket.receive()
        assert first.data == "first" and socket.inbox.empty and isinstance(socket.inbox, Inbox)
        socket.inbox.hear = heard.append
        await socket.send_str(first.data)
        await socket.receive()
        return socket

    site.server.request_handler = serve  # type: ignore[assignment]
    async with aiohttp.ClientSession() as session:
        async with session.ws_connect(f"http://127.0.0.1:{site.port}/", protocols=("p",)) as ws:
            await ws.send_str("first")
            assert (await ws.receive()).data == "first"
            assert site.made[0].upgraded and ws.protocol == "p"
            await ws.send_str("second")
            await ws.send_bytes(b"x")
            await ws.receive()
    assert heard == ["second"]


async def test_a_client_asks_once() -> None:
    """Where a kept connection is dropped before the answer, a GET is not sent again."""
    asked = 0

    async def drop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        for answer in (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b""):
            await reader.readuntil(b"\r\n\r\n")
            asked += 1
            writer.write(answer)
        writer.close()

    async with await asyncio.start_server(drop, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
        async with aiohttp.ClientSession() as session:
            try_once(session)
            async with session.get(url) as answer:
                assert answer.status == 200
            with pytest.raises(aiohttp.ClientError):
                await session.get(url)
    assert asked == 2
