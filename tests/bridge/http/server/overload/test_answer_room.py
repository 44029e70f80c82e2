"""What clients leave unread is bounded: large answers are refused past it, small ones go, and nothing is taken."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import socket
from collections.abc import Callable
from typing import Any

import pytest

from bridge.http.api.native import PEEK_BYTES_MAX
from bridge.http.azure.messages import PEEK_CHARS_MAX
from bridge.http.server.connection import ConnectionServer
from bridge.http.server.overload import answer_room
from bridge.http.server.overload.answer_room import SLOW_AFTER_S, SLOW_BYTES_S, SMALL_BYTES, UNREAD_BYTES, AnswerRoom
from bridge.queues.base import NewMessage
from tests.support.azure import ACCOUNT, Front, fault, messages, serving_azure, signed_headers
from tests.support.certificates import self_signed
from tests.support.web import Client, Served, request, serving

QUEUE = "/v1/queues/billing/orders"
LARGE = SMALL_BYTES + 1
SIZE = 4 * LARGE


class Peer:
    """A connection with so much unread."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.gone = False

    def unread(self) -> int:
        """Tell it."""
        return self.left

    def cut_off(self) -> None:
        """Go."""
        self.gone = True


class Clock:
    """Time as the test says."""

    def __init__(self) -> None:
        self.now = 5.0

    def __call__(self) -> float:
        return self.now


def test_large_answers_are_bounded_and_small_ones_always_go() -> None:
    """Counted from when they were not taken until they were, or until the connection has gone."""
    room = AnswerRoom(Clock(), SIZE)
    peers = [Peer(LARGE) for _ in range(4)]
    for peer in peers:
        assert room.fits(LARGE)
        room.hold(peer, LARGE)
    assert not room.fits(LARGE)
    assert room.fits(SMALL_BYTES)
    room.hold(Peer(SMALL_BYTES), SMALL_BYTES)
    room.release(peers[0])
    room.release(peers[0])
    assert room.taken == 3 * LARGE + SMALL_BYTES
    assert not room.fits(LARGE)
    room.release(peers[1])
    assert room.fits(LARGE)


def test_what_is_larger_than_all_there_is_goes_alone() -> None:
    """Otherwise it would never."""
    room, peer = AnswerRoom(Clock(), SIZE), Peer(1)
    assert room.fits(2 * SIZE)
    room.hold(peer, 1)
    assert not room.fits(2 * SIZE)


def test_slow_readers_are_cut_off_where_there_is_no_room() -> None:
    """Those looked at longest ago first; who takes enough stays, and is counted for what it has left."""
    clock = Clock()
    room = AnswerRoom(clock, SIZE)
    steady, slow, new = Peer(2 * LARGE), Peer(LARGE), Peer(LARGE)
    room.hold(steady, 2 * LARGE)
    room.hold(slow, LARGE)
    clock.now += 1.0
    room.hold(new, LARGE)
    assert not room.fits(LARGE)
    assert not slow.gone, "it is too early to tell"
    clock.now += SLOW_AFTER_S - 1.0
    took = int(SLOW_AFTER_S * SLOW_BYTES_S)
    steady.left -= took
    assert room.fits(LARGE)
    assert (steady.gone, slow.gone, new.gone) == (False, False, False), "what it took is room enough"
    room.hold(Peer(took), took)
    assert room.fits(LARGE)
    assert (steady.gone, slow.gone, new.gone) == (False, True, False)
    # What it took before does not count for what it does afterwards.
    room.hold(Peer(LARGE), LARGE)
    clock.now += SLOW_AFTER_S
    assert room.fits(SIZE)
    assert steady.gone
    assert new.gone


def full(server: ConnectionServer, patch: pytest.MonkeyPatch) -> tuple[AnswerRoom, Peer]:
    """Have all the room of a server taken by one that could not be told to be slow yet; the size is as documented."""
    room, peer = server.unread, Peer(UNREAD_BYTES)
    patch.setattr(answer_room, "SLOW_AFTER_S", 600.0)
    room.hold(peer, UNREAD_BYTES)
    assert not room.fits(LARGE)
    return room, peer


async def answers(served: Served) -> list[tuple[int, str]]:
    """Look at a queue and receive from it, and return what the refusals say."""
    refused = []
    for reply in (await served.ask("GET", QUEUE + "/peek"), await served.call("receive", {"max": 3})):
        assert (reply.status, reply.code) == (503, "too_many_requests")
        refused.append((reply.status, reply.headers["retry-after"]))
    return refused


async def test_native_door_refuses_large_answers_and_takes_nothing(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    """Neither a lease nor a count of it is left of a receive that was refused; everything small goes on."""
    store = served.bridge.store
    await store.put("billing/orders", [NewMessage(b"x" * 40_000)] * 3)
    room, peer = full(served.server.connections, monkeypatch)
    assert await answers(served) == [(503, "2")] * 2
    # Escaped it is six times as long.
    await store.clear("billing/orders")
    await store.put("billing/orders", [NewMessage(b"\x01" * 20_000)])
    assert await answers(served) == [(503, "2")] * 2
    depth = await store.depth("billing/orders")
    assert (depth.visible, depth.invisible) == (1, 0)
    await store.put("billing/small", [NewMessage(b"x" * 60_000)])
    held = (await served.call("receive", {"max": 3}, "billing/small")).json["messages"][0]
    claim = {"id": held["id"], "pop_receipt": held["pop_receipt"]}
    assert (await served.call("settle", {"delete": [claim]}, "billing/small")).status == 200
    assert (await served.ask("GET", "/livez")).status == 200
    room.release(peer)
    (taken,) = (await served.call("receive", {"max": 3})).json["messages"]
    assert taken["dequeue_count"] == 1


async def test_azure_door_refuses_large_answers_and_takes_nothing(
    monkeypatch: pytest.MonkeyPatch, front: Front
) -> None:
    """As the native one does, by its own words."""
    await front.ask("PUT", "/orders")
    for _ in range(2):
        await front.put("orders", "x" * 40_000)
    room, peer = full(front.server.connections, monkeypatch)
    for more in ("", "&peekonly=true"):
        reply = await front.ask("GET", f"/orders/messages?numofmessages=32{more}")
        assert fault(reply) == (503, "ServerBusy")
        assert reply.headers["retry-after"] == "1"
    depth = await front.bridge.store.depth(f"{ACCOUNT}/orders")
    assert (depth.visible, depth.invisible) == (2, 0)
    assert len(await front.get("orders")) == 1
    room.release(peer)
    assert [message.count for message in await front.get("orders", "?numofmessages=32")] == [1]


async def test_any_other_large_answer_is_refused_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """At both doors, and the connection goes on."""
    async with serving() as served, serving_azure() as front:
        full(served.server.connections, monkeypatch)
        full(front.server.connections, monkeypatch)
        assert (await served.ask("GET", "/v1/queues")).status == 200
        monkeypatch.setattr(answer_room, "SMALL_BYTES", 10)
        async with served.client() as client:
            for _ in range(2):
                await client.send(request("GET", "/v1/queues"))
                reply = await client.reply()
                assert (reply.status, reply.code, reply.headers["retry-after"]) == (503, "too_many_requests", "2")
            await client.send(request("HEAD", "/v1/queues"))
            assert (await client.reply(head_only=True)).status == 200
        assert fault(await front.ask("GET", "?comp=list")) == (503, "ServerBusy")


async def test_peek_of_much_that_has_to_be_escaped_is_cut_short() -> None:
    """Fewer messages come than were asked for, but one at least, at both doors."""
    async with serving() as served, serving_azure(served.bridge) as front:
        store = served.bridge.store
        await store.put("billing/orders", [NewMessage(b"\x01" * 65_536)] * 32)
        reply = await served.ask("GET", QUEUE + "/peek")
        found = len(reply.json["messages"])
        assert PEEK_BYTES_MAX - 6 * 65_536 - 1000 < len(reply.body) < PEEK_BYTES_MAX + 100
        assert found == 10
        await store.put(f"{ACCOUNT}/orders", [NewMessage(b"&" * 65_536)] * 32)
        reply = await front.ask("GET", "/orders/messages?peekonly=true&numofmessages=32")
        assert PEEK_CHARS_MAX - 5 * 65_536 - 1000 < len(reply.body) < PEEK_CHARS_MAX + 200
        assert len(messages(reply)) == 12


async def test_what_a_client_does_not_read_is_counted_until_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And cut off where others need the room; its answer is kept in memory once."""
    async with serving(write_timeout=600.0) as served, contextlib.AsyncExitStack() as stack:
        await served.bridge.store.put("billing/orders", [NewMessage(b"x" * 65_000)] * 32)
        server = served.server.connections
        room, loop = server.unread, asyncio.get_running_loop()
        socks = []
        for _ in range(2):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", served.server.port))
            before = room.taken
            # More than what the kernel keeps for it.
            await loop.sock_sendall(sock, request("GET", QUEUE + "/peek") * 8)
            async with asyncio.timeout(100):
                while room.taken == before:
                    assert (await served.ask("GET", "/livez")).status == 200
            socks.append(sock)
        assert sum(each.unread() for each in server.open) == room.taken > LARGE
        left, right = socks
        left.close()
        async with asyncio.timeout(100):
            while len([each for each in server.open if each.unread()]) > 1:
                await served.ask("GET", "/livez")
        assert sum(each.unread() for each in server.open) == room.taken
        room.size = room.taken
        # Whoever has not taken all is slow from now on.
        monkeypatch.setattr(answer_room, "SLOW_AFTER_S", 0.0)
        monkeypatch.setattr(answer_room, "SLOW_BYTES_S", 1 << 40)
        assert (await served.ask("GET", QUEUE + "/peek")).status == 200
        async with asyncio.timeout(100):
            with contextlib.suppress(ConnectionError):
                while await loop.sock_recv(right, 1 << 20):
                    pass
        assert room.taken == 0


def signed(front: Front, path: str) -> bytes:
    """Put a signed request together."""
    target = f"/{ACCOUNT}{path}"
    headers = {"Host": "127.0.0.1", **signed_headers("GET", target, b"", {}, front.wall())}
    return request("GET", target, **headers)


async def test_what_a_client_does_not_read_is_counted_over_tls(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """In both layers; who takes some of it is not slow, who took all is idle, and who takes nothing is cut off."""
    tls, trust = self_signed(tmp_path)
    async with serving_azure(tls=tls) as front, asyncio.timeout(300):
        await front.bridge.store.put(f"{ACCOUNT}/orders", [NewMessage(b"x" * 65_000)] * 32)
        server = front.server.connections
        room, loop = server.unread, asyncio.get_running_loop()
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await loop.sock_connect(sock, ("127.0.0.1", front.server.port))
        # The client's side reads no further than its buffers, the kernel keeps little for the server's.
        opened = asyncio.open_connection(sock=sock, ssl=trust, server_hostname="127.0.0.1", limit=8192)
        client = Client(*await opened)
        await client.send(signed(front, "/orders?comp=metadata"))
        await client.reply()
        (connection,) = server.open
        connection.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        checks: list[Callable[[], None]] = []
        call_later = loop.call_later

        def noted(delay: float, callback: Callable[..., None], *args: Any) -> asyncio.TimerHandle:
            if delay == connection.settings.write_timeout:
                checks.append(callback)
            return call_later(delay, callback, *args)

        monkeypatch.setattr(loop, "call_later", noted)

        await client.send(signed(front, "/orders/messages?peekonly=true&numofmessages=32"))
        while not room.taken:
            await asyncio.sleep(0)
        assert 2_000_000 < room.taken == connection.unread()
        assert not connection.idle
        assert connection.transport.get_write_buffer_size() == 0, "it lies below"

        before = room.taken
        monkeypatch.setattr(answer_room, "SLOW_AFTER_S", 0.0)
        head = (await client.reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].split()[0])
        await client.reader.readexactly(1_000_000)
        room.size = before
        assert room.fits(LARGE), "what it took is room enough"
        assert room.taken == connection.unread() < before
        # As if its time-out were over: it moves, and is looked at again.
        checks[0]()
        assert (len(checks), connection.transport.is_closing()) == (2, False)
        await client.reader.readexactly(length - 1_000_000)
        while not connection.idle:
            await asyncio.sleep(0)
        assert (room.taken, connection.unread(), connection.writing_paused) == (0, 0, False)

        await client.send(signed(front, "/orders/messages?peekonly=true&numofmessages=32"))
        while not room.taken:
            await asyncio.sleep(0)
        room.size = room.taken
        monkeypatch.setattr(answer_room, "SLOW_BYTES_S", 1 << 40)
        assert room.fits(LARGE)
        while server.open:
            await asyncio.sleep(0)
        assert room.taken == 0
        await client.close()
