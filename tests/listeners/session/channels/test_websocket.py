"""The WebSocket channel, against the bridge's real web server and against peers that misbehave."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import ClientConnectionResetError, WSMsgType, web
from aiohttp.http import WebSocketWriter

from bridge.contract.errors import ChannelLost, ConfigurationError
from bridge.contract.wire import Bye, Hello, Started, Subscription, Welcome, decode_up
from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.queues import open_store
from bridge.queues.base import NewMessage
from bridge.service.bridge import Bridge
from listeners import Message
from listeners.session.channels.websocket import WebSocketChannel
from tests.listeners.rig import QUEUE, listening, settled

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


async def test_put_to_handler_over_the_network() -> None:
    """The whole way: a put through the queue service wakes a worker, whose URL makes the queue an own one."""
    async with Bridge() as bridge, WebServer(bridge, WebSettings(port=0)) as server:
        producer = open_store(server.url)
        seen: list[tuple[str, str]] = []

        async def handle(message: Message) -> None:
            seen.append((message.text(), message.wake_source))

        async with listening(server.url, handle, bridge=server.url) as listener:
            while not listener.state().session:
                await asyncio.sleep(0.01)
            for number in range(3):
                await producer.put(QUEUE, [NewMessage(b"%d" % number)])
                await settled(listener, number + 1)
            figures = listener.state().queues[QUEUE]
            assert (figures.carried, figures.total_receives) == (3, 0)
        assert seen == [("0", "trigger"), ("1", "trigger"), ("2", "trigger")]
        assert bridge.listeners() == []
        await producer.close()


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


async def test_closing_sends_what_was_handed_over() -> None:
    """The last frames before a close arrive, in order."""
    heard: list[object] = []
    over = asyncio.Event()

    async def listen(socket: web.WebSocketResponse) -> None:
        async for message in socket:
            heard.append(decode_up(message.data))
        over.set()

    async with peer(listen) as url:
        channel = WebSocketChannel(url)
        link = await channel.connect()
        frames = [Started(QUEUE, "b" * 32, number) for number in range(100)]
        for frame in frames:
            link.send(frame)
        await link.close()
        await over.wait()
        assert heard == frames
        await channel.close()


async def test_a_cancelled_receive_loses_nothing() -> None:
    """The frame that comes afterwards is still there."""
    speak = asyncio.Event()

    async def talk(socket: web.WebSocketResponse) -> None:
        await speak.wait()
        await socket.send_str('{"type": "drain"}')
        await socket.send_str('{"type": "something newer"}')
        await socket.send_str('{"type": "bye"}')
        await socket.receive()

    async with peer(talk) as url:
        channel = WebSocketChannel(url)
        link = await channel.connect()
        waiting = asyncio.create_task(link.receive(), name="receive")
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        speak.set()
        assert type(await link.receive()).__name__ == "Drain"
        assert isinstance(await link.receive(), Bye), "a type that this version does not know is passed over"
        await link.close()
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


async def test_why_it_was_closed_is_told_though_the_reply_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS the close frame and the end of the connection come at once: aiohttp has 1006 then, and not 4401."""

    async def cannot(*_: object, **__: object) -> None:
        raise ClientConnectionResetError("Cannot write to closing transport")

    async def revoke(socket: web.WebSocketResponse) -> None:
        await socket.send_frame((4401).to_bytes(2, "big"), WSMsgType.CLOSE)
        await socket.receive()

    monkeypatch.setattr(WebSocketWriter, "close", cannot)
    async with peer(revoke) as url:
        channel = WebSocketChannel(url)
        link = await channel.connect()
        with pytest.raises(ChannelLost, match="knows no such key"):
            await link.receive()
        await link.close()
        await channel.close()


async def test_a_bridge_that_is_not_there_is_a_lost_channel() -> None:
    """Refused connections and answers that are no sessions are worth another try."""

    async def hang_up(socket: web.WebSocketResponse) -> None:
        await socket.close()

    async with peer(hang_up) as url:
        channel = WebSocketChannel(url)
        link = await channel.connect()
        with pytest.raises(ChannelLost, match="closed"):
            await link.receive()
        await link.close()
        await channel.close()
        with pytest.raises(ConfigurationError, match="path"):
            WebSocketChannel(url + "/nowhere")
    channel = WebSocketChannel(url)
    with pytest.raises(ChannelLost):
        await channel.connect()
    await channel.close()


def test_a_url_of_another_kind_is_refused() -> None:
    """By an error that names the setting."""
    for url in ("ws://x", "http://", "x"):
        with pytest.raises(ConfigurationError, match="bridge"):
            WebSocketChannel(url)
