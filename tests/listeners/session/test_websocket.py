"""The WebSocket channel, against the bridge's real web server and against peers that misbehave."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import WSMsgType, web

from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.contract.calls import WINDOW
from queuebell.bridge.contract.errors import ChannelLost, ConfigurationError
from queuebell.bridge.contract.wire import Bye, Hello, Ready, Started, Subscription, Welcome, decode_up, encode_frame
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.service.bridge import Bridge
from queuebell.listeners import Message
from queuebell.listeners.session import websocket
from queuebell.listeners.session.websocket import WebSocketChannel
from tests.bridge.queues.scripted_server import Answering, ScriptedServer
from tests.bridge.queues.test_http_many import refusing, strange
from tests.listeners.rig import QUEUE, Store, listening, settled
from tests.support.access import written
from tests.support.processes import free_port, until
from tests.support.web import serving

HELLO = Hello("a" * 32, "test", [Subscription(QUEUE, 1, own=True)])


@asynccontextmanager
async def peer(speak: Callable[[web.WebSocketResponse], Awaitable[None]]) -> AsyncIterator[str]:
    """Serve sessions that do as told; yields the URL."""

    async def session(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=("queuebell.v2",))
        await socket.prepare(request)
        await socket.send_str(encode_frame(Ready(WINDOW)).decode())
        await socket.receive()  # its hello
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
from queuebell.listeners import Listener

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
        link.send(HELLO)
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
    async with ScriptedServer(first or strange, sessions=True) as server, peer(silent) as good:
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


async def test_a_listener_tells_whom_it_is_with(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "queuebell.listener")
    store = Store()

    async def handle(message: Message) -> None:
        pass

    async with serving() as one, serving() as two:
        urls = {served.server.url: served for served in (one, two)}
        async with listening(store, handle, bridge=list(urls), name="worker") as listener:
            await until(lambda: listener.state().session, "a session stands")
            first = listener.state().bridge
            assert first in urls
            assert not [line for line in caplog.messages if "moved to the bridge" in line]
            boot = urls[first].bridge.boot
            assert listener.state().boot == boot
            urls[first].bridge.end_sessions()
            await until(lambda: listener.state().boot not in (None, boot), "it is with the other one")
            second = listener.state().bridge
            assert second in urls and second != first
            assert [line for line in caplog.messages if "moved to the bridge" in line] == [
                f"worker: moved to the bridge at {second} from the one at {first}"
            ]
            assert any(f"the session with the bridge at {first} ended" in line for line in caplog.messages)
        assert listener.state().bridge is None


async def test_a_key_that_is_refused_is_told_at_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    written(tmp_path / "access.json", {"worker": {"take": ["other/*"]}})
    async with AccessWatch(tmp_path / "access.json") as watch, serving(access=watch) as served:

        async def handle(message: Message) -> None:
            pass

        async with listening(Store(), handle, bridge=served.server.url, name="worker"):
            await until(lambda: "rejects this worker" in caplog.text, "it is told")
    (line,) = [record for record in caplog.records if "rejects this worker" in record.message]
    assert line.levelname == "ERROR" and "QUEUEBELL_API_KEY" in line.message
    assert "no bridge answers at" not in caplog.text


async def test_one_that_hangs_costs_its_share_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 s, shortened here; and an attempt that is given up goes on at the next one."""
    monkeypatch.setattr(websocket, "TRY_S", 0.05)
    never = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await never.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    hanging = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with peer(silent) as good:
        channel = WebSocketChannel(f"{hanging},{good}", draw=lambda: 0.999)
        link = await channel.connect()
        assert str(link) == good
        await link.close()
        await channel.close()
        monkeypatch.setattr(websocket, "TRY_S", 100.0)
        channel = WebSocketChannel(f"{hanging},{good}", draw=lambda: 0.999)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await channel.connect()
        link = await channel.connect()
        assert str(link) == good
        await link.close()
        await channel.close()
    never.set()
    server.close()


async def test_closing_sends_what_was_handed_over() -> None:
    """The last frames before a close arrive, in order."""
    heard: list[object] = []
    over = asyncio.Event()

    async def listen(socket: web.WebSocketResponse) -> None:
        async for message in socket:
            heard.append(decode_up(message.data))
            if isinstance(heard[-1], Bye):
                over.set()

    async with peer(listen) as url:
        channel = WebSocketChannel(url)
        link = await channel.connect()
        link.send(HELLO)
        frames = [Started(QUEUE, "b" * 32, number) for number in range(100)]
        for frame in frames:
            link.send(frame)
        await link.close()
        await over.wait()
        assert heard == [*frames, Bye()]
        await channel.close()


async def test_why_it_was_closed_is_told() -> None:

    async def revoke(socket: web.WebSocketResponse) -> None:
        await socket.send_frame((4401).to_bytes(2, "big"), WSMsgType.CLOSE)
        await socket.receive()

    async with peer(revoke) as url:
        channel = WebSocketChannel(url)
        link = await channel.connect()
        link.send(HELLO)
        with pytest.raises(ChannelLost, match="knows no such key"):
            await link.receive()
        await link.close()
        await channel.close()


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


async def test_a_cancelled_receive_loses_nothing() -> None:
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
        link.send(HELLO)
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


async def test_a_bridge_that_is_not_there_is_a_lost_channel() -> None:
    """Refused connections and answers that are no sessions are worth another try."""

    async def hang_up(socket: web.WebSocketResponse) -> None:
        await socket.close()

    async with peer(hang_up) as url:
        channel = WebSocketChannel(url)
        link = await channel.connect()
        link.send(HELLO)
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
