"""What clients leave unread is bounded: large answers are refused past it, small ones go, and nothing is taken."""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from queuebell.bridge.http.api.queues import PEEK_BYTES_MAX
from queuebell.bridge.http.azure.messages import PEEK_CHARS_MAX
from queuebell.bridge.http.server import memory_bounds as rooms
from queuebell.bridge.http.server.connection import ConnectionServer
from queuebell.bridge.http.server.memory_bounds import (
    ROOM_BYTES,
    SMALL_BYTES,
    AnswerMemory,
    AnswerReservation,
    BodyMemory,
)
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.queues.served import NoRoom
from tests.support.azure import ACCOUNT, messages, serving_azure
from tests.support.web import JSON, Client, Served, request, serving

QUEUE = "/v1/queues/billing/orders"
LARGE = SMALL_BYTES + 1


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


def full(server: ConnectionServer, patch: pytest.MonkeyPatch) -> tuple[AnswerMemory, Peer]:
    """Have all the room of a server taken by one that could not be told to be slow yet; the size is as documented."""
    room, peer = server.unread, Peer(ROOM_BYTES)
    patch.setattr(rooms, "SLOW_AFTER_S", 600.0)
    room.hold(peer, ROOM_BYTES)
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
        monkeypatch.setattr(rooms, "SLOW_AFTER_S", 0.0)
        monkeypatch.setattr(rooms, "SLOW_BYTES_S", 1 << 40)
        assert (await served.ask("GET", QUEUE + "/peek")).status == 200
        async with asyncio.timeout(100):
            with contextlib.suppress(ConnectionError):
                while await loop.sock_recv(right, 1 << 20):
                    pass
        assert room.taken == 0


def room_of(size: int) -> AnswerMemory:
    """A room at a time that stands still."""
    return AnswerMemory(lambda: 5.0, size)


class Store:
    """What reads so many bytes where there is room, as a store does; ``asked`` counts how often it was."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked = 0

    async def read(self, share: AnswerReservation) -> int:
        """Read."""
        self.asked += 1
        if not share.take(self.size):
            raise NoRoom(self.size)
        return self.size


def test_what_is_kept_after_leaving_is_not_counted() -> None:
    """The store's thread may be between taking and keeping when nobody waits for the answer any more."""
    room = room_of(4 * LARGE)
    share = room.share()
    assert share.take(3 * LARGE)
    share.leave()
    share.shrink(LARGE)
    assert (share.held, room.making) == (0, 0)


async def test_large_answers_take_turns_in_the_order_of_asking() -> None:
    """Each is asked for again when there is room for it, and who is cancelled meanwhile holds nobody up."""
    room = room_of(4 * LARGE)
    holding = room.share()
    assert holding.take(4 * LARGE)
    done: list[int] = []
    store = Store(3 * LARGE)

    async def ask(number: int) -> None:
        with room.share() as share:
            await share.reading(lambda: store.read(share))
            done.append(number)

    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(number), name=f"ask {number}") for number in range(4)]
        while store.asked < 4:
            await asyncio.sleep(0)
        tasks[1].cancel()
        holding.leave()
    assert done == [0, 2, 3]
    assert (store.asked, room.making) == (7, 0)


SETTLE = "/v1/queues/a/q/settle"
LARGE_BODY_ROOM = 2 * SMALL_BYTES


def room_of_body_room(served: Served) -> BodyMemory:
    return served.server.connections.room


async def slow(stack: contextlib.AsyncExitStack, served: Served, **announced: str) -> Client:
    """Begin a large body that does not come to its end."""
    client = await stack.enter_async_context(served.client())
    start = (
        b"%x\r\n" % LARGE_BODY_ROOM + b" " * (LARGE_BODY_ROOM - 10) if "Transfer_Encoding" in announced else b" " * 10
    )
    await client.send(request("POST", SETTLE, None, media=JSON, **announced) + start)
    return client


@pytest.mark.usefixtures("parser")
async def test_no_wait_for_room_is_endless() -> None:
    """What finds no room in time is refused by name and may come again; what holds it is ended by the same time."""
    async with serving(body_timeout=0.2, linger=0.05) as served, contextlib.AsyncExitStack() as stack:
        room = room_of_body_room(served)
        room.size = LARGE_BODY_ROOM
        room.free = 0
        waiting = await slow(stack, served, Content_Length=str(LARGE_BODY_ROOM))
        refused = await waiting.reply()
        assert (refused.status, refused.code) == (503, "too_many_requests")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("5", "close")
        assert room.waiting == 0
        room.give_back(LARGE_BODY_ROOM)
        late = await (await slow(stack, served, Content_Length=str(LARGE_BODY_ROOM))).reply()
        assert (late.status, late.code) == (408, "request_timeout")
        assert room.free == LARGE_BODY_ROOM


async def test_room_is_given_in_order_and_never_twice() -> None:
    """First come, first served, also where a later one would fit; whoever stops waiting has taken nothing."""
    room = BodyMemory(10)
    assert await room.take(50) == 10, "what is larger than all there is takes all"
    order: list[str] = []

    async def ask(name: str, size: int) -> None:
        await room.take(size)
        order.append(name)

    asked = [asyncio.create_task(ask(name, size), name=name) for name, size in (("a", 8), ("b", 4), ("c", 2), ("d", 4))]
    await asyncio.sleep(0)
    assert room.waiting == 4
    room.give_back(4)
    await asyncio.sleep(0)
    assert order == [], "the first one waits for its whole size"
    asked[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked[0]
    await asked[1]
    assert (order, room.free, room.waiting) == (["b"], 0, 2)
    room.give_back(6)
    # Given, and cancelled before it could take note.
    asked[2].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked[2]
    await asked[3]
    assert (order, room.free, room.waiting) == (["b", "d"], 2, 0)
    room.give_back(8)
    assert room.free == 10
