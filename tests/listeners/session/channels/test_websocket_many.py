"""The WebSocket channel to several equal bridges: with one at a time, and which is next."""

from __future__ import annotations

import asyncio
import logging

import pytest
from aiohttp import web

from bridge import Bridge
from bridge.contract.errors import ChannelLost
from listeners import Message
from listeners.session.channels import websocket
from listeners.session.channels.websocket import WebSocketChannel
from tests.bridge.queues.scripted_server import Answering, ScriptedServer
from tests.bridge.queues.test_http_many import refusing, strange
from tests.listeners.rig import QUEUE, Store, listening
from tests.listeners.session.channels.test_websocket import peer
from tests.support.processes import free_port, until
from tests.support.web import serving


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


async def test_each_link_leads_to_the_next_one_and_all_gone_is_told() -> None:
    """Whoever needs another link had better ask another bridge, however the last one ended."""
    async with peer(silent) as one, peer(silent) as two:
        channel = WebSocketChannel(f"{one},{two}", draw=lambda: 0.999)
        for where in (one, two, one):
            link = await channel.connect()
            assert str(link) == where
            await link.close()
            await link.close()
    with pytest.raises(ChannelLost) as told:
        await channel.connect()
    assert one in str(told.value) and two in str(told.value)
    await channel.close()


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


async def test_a_listener_tells_whom_it_is_with(caplog: pytest.LogCaptureFixture) -> None:
    """In its state, and in one line of the log when that changes."""
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
            assert not [line for line in caplog.messages if "is with the bridge" in line]
            boot = urls[first].bridge.boot
            assert listener.state().boot == boot
            urls[first].bridge.end_sessions()
            await until(lambda: listener.state().boot not in (None, boot), "it is with the other one")
            second = listener.state().bridge
            assert second in urls and second != first
            assert [line for line in caplog.messages if "is with the bridge" in line] == [
                f"worker: is with the bridge at {second} now, no more with the one at {first}"
            ]
            assert any(f"the session with the bridge at {first} ended" in line for line in caplog.messages)
        assert listener.state().bridge is None


async def test_a_bridge_of_this_process_has_no_address() -> None:
    """It is told as what it is."""
    store = Store()

    async def handle(message: Message) -> None:
        pass

    async with Bridge() as bridge, listening(store, handle, queue=QUEUE, bridge=bridge) as listener:
        await until(lambda: listener.state().session, "a session stands")
        assert listener.state().bridge == "this process"
