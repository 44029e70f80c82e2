"""The WebSocket channel, against the bridge's real web server and against peers that misbehave."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from bridge.contract.errors import ChannelLost
from bridge.contract.wire import Bye, Hello, Subscription, Welcome
from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.queues.base import NewMessage
from bridge.service.bridge import Bridge
from listeners.session.channels.websocket import WebSocketChannel
from tests.bridge.queues.scripted_server import Answering, ScriptedServer
from tests.bridge.queues.test_http_many import refusing, strange
from tests.listeners.rig import QUEUE
from tests.support.processes import free_port

HELLO = Hello("a" * 32, "test", [Subscription(QUEUE, 1, own=True)])


@asynccontextmanager
async def peer(speak: Callable[[web.WebSocketResponse], Awaitable[None]]) -> AsyncIterator[str]:
    """Serve sessions that do as told; yields the URL."""

    async def session(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("queuebell.v1",))
        await socket.prepare(request)
        await speak(socket)
        return socket

    app = web.Application()
    app.router.add_get("/v1/sessions", session)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


KILLED_AT_ONCE = """
import asyncio, os, sys
from listeners import Listener

async def handle(message):
    os._exit(9)

asyncio.run(Listener(sys.argv[1], "billing/orders", handle, bridge=sys.argv[1]).run())
"""


async def test_a_handler_that_ends_the_process_at_once_costs_an_attempt() -> None:
    """O7: `started` has left before the handler of a carried message takes its very first step."""
    async with Bridge() as bridge, WebServer(bridge, WebSettings(port=0)) as server:
        worker = await asyncio.create_subprocess_exec(sys.executable, "-c", KILLED_AT_ONCE, server.url)
        try:
            while not bridge.listeners():
                await asyncio.sleep(0.01)
            await bridge.store.put(QUEUE, [NewMessage(b"x")])
            assert await worker.wait() == 9
        finally:
            if worker.returncode is None:
                worker.kill()
        while not (found := await bridge.store.peek(QUEUE)):
            await asyncio.sleep(0.01)
        assert [message.dequeue_count for message in found] == [1]


async def test_frames_travel_both_ways_in_order() -> None:
    """A hello brings a welcome; after a bye is confirmed the link is lost, and closing twice is harmless."""
    async with Bridge() as bridge, WebServer(bridge, WebSettings(port=0)) as server:
        channel = WebSocketChannel(server.url + "/")
        link = await channel.connect()
        link.send(HELLO)
        welcome = await link.receive()
        assert isinstance(welcome, Welcome)
        assert welcome.boot == bridge.boot
        link.send(Bye())
        assert isinstance(await link.receive(), Bye)
        with pytest.raises(ChannelLost):
            await link.receive()
        link.send(HELLO)
        await link.close()
        await link.close()
        await channel.close()
        await channel.close()


@pytest.mark.parametrize("frame", ["{", '{"type": "welcome"}', "[]", '{"type": "wake", "gen": "x"}'])
async def test_a_frame_that_cannot_be_read_ends_the_link(frame: str) -> None:
    """Better a new session than half an understanding."""

    async def talk(socket: web.WebSocketResponse) -> None:
        await socket.send_str(frame)
        await socket.receive()

    async with peer(talk) as url:
        channel = WebSocketChannel(url)
        link = await channel.connect()
        with pytest.raises(ChannelLost, match="cannot be read"):
            await link.receive()
        await link.close()
        await channel.close()


async def silent(socket: web.WebSocketResponse) -> None:
    """Let a session in, and say nothing."""
    await socket.receive()


@pytest.mark.parametrize(
    ("first", "goes_on"),
    [
        (None, True), (strange, True), (refusing(503, "draining"), True), (refusing(429, "too_many_requests"), True),
        (refusing(401, "unauthenticated"), False), (refusing(403, "forbidden"), False),
        (refusing(421, "unknown_host"), False),
    ],
)  # fmt: skip
async def test_who_lets_nobody_in_is_passed_over_and_a_refusal_is_told(
    first: Answering | None, goes_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, or with the next attempt where an equal bridge would say the same; the reason names the address."""
    async with ScriptedServer(first or strange) as server, peer(silent) as good:
        url = server.url if first is not None else f"http://127.0.0.1:{free_port()}"
        channel = WebSocketChannel(f"{url},{good}", draw=lambda: 0.999)
        assert str(channel) == f"{url},{good.removeprefix('http://')}"
        if not goes_on:
            with pytest.raises(ChannelLost, match=url):
                await channel.connect()
        link = await channel.connect()
        assert str(link) == good and len(server.asked) == (first is not None)
        await link.close()
        await channel.close()
