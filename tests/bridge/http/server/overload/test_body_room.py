"""Large bodies that pass no gate take their turns: memory is bounded, small ones never wait, and every wait ends."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from bridge.http.server.overload.body_room import ROOM_BYTES, SMALL_BYTES, BodyRoom
from tests.support.web import JSON, Client, Served, request, serving

SETTLE = "/v1/queues/a/q/settle"
NOTHING = b'{"delete":[]}'
LARGE = 2 * SMALL_BYTES


def room_of(served: Served) -> BodyRoom:
    return served.server.connections.room


async def until_waiting(served: Served, count: int) -> None:
    """Wait until so many bodies wait for room, by asking for what needs none."""
    async with asyncio.timeout(100):
        while room_of(served).waiting != count:
            assert (await served.ask("GET", "/livez")).status == 200


async def slow(stack: contextlib.AsyncExitStack, served: Served, **announced: str) -> Client:
    """Begin a large body that does not come to its end."""
    client = await stack.enter_async_context(served.client())
    start = b"%x\r\n" % LARGE + b" " * (LARGE - 10) if "Transfer_Encoding" in announced else b" " * 10
    await client.send(request("POST", SETTLE, None, media=JSON, **announced) + start)
    return client


@pytest.mark.parametrize("announced", [{"Content_Length": str(LARGE)}, {"Transfer_Encoding": "chunked"}])
@pytest.mark.usefixtures("parser")
async def test_large_bodies_take_turns_and_small_ones_never_wait(announced: dict[str, str]) -> None:
    """Past the room they wait unread, whether they say their size or grow; the end of one lets the next go on."""
    async with serving(body_timeout=600.0, linger=0.05) as served, contextlib.AsyncExitStack() as stack:
        room = room_of(served)
        room.size = room.free = LARGE
        first = await slow(stack, served, **announced)
        async with asyncio.timeout(100):
            while room.free:
                await served.ask("GET", "/livez")
        whole = await stack.enter_async_context(served.client())
        body = NOTHING + b" " * (LARGE - len(NOTHING))
        sending = asyncio.create_task(whole.send(request("POST", SETTLE, body, media=JSON)), name="send")
        await until_waiting(served, 1)
        small = await served.ask("POST", SETTLE, NOTHING, media=JSON)
        half = await stack.enter_async_context(served.client())
        await half.send(request("POST", SETTLE, NOTHING, media=JSON)[:-5])
        await served.ask("GET", "/livez")
        await half.send(NOTHING[-5:])
        assert (await half.reply()).status == small.status
        await first.close()
        assert (await whole.reply()).status == small.status
        await sending
        async with asyncio.timeout(100):
            while room.free != LARGE:
                await served.ask("GET", "/livez")


@pytest.mark.usefixtures("parser")
async def test_no_wait_for_room_is_endless() -> None:
    """What finds no room in time is refused by name and may come again; what holds it is ended by the same time."""
    async with serving(body_timeout=0.2, linger=0.05) as served, contextlib.AsyncExitStack() as stack:
        room = room_of(served)
        room.size = LARGE
        room.free = 0
        waiting = await slow(stack, served, Content_Length=str(LARGE))
        refused = await waiting.reply()
        assert (refused.status, refused.code) == (503, "too_many_requests")
        assert (refused.headers["retry-after"], refused.headers["connection"]) == ("5", "close")
        assert room.waiting == 0
        room.give_back(LARGE)
        late = await (await slow(stack, served, Content_Length=str(LARGE))).reply()
        assert (late.status, late.code) == (408, "request_timeout")
        assert room.free == LARGE


async def test_every_route_outside_the_gate_takes_room() -> None:
    """Triggers and settlements do; a put has passed its own gate and takes none."""
    async with serving(body_timeout=600.0) as served:
        room = room_of(served)
        assert room.size == ROOM_BYTES
        for path, taken in (("/v1/triggers", LARGE), (SETTLE, LARGE), ("/v1/queues/a/q/messages", 0)):
            async with served.client() as client:
                await client.send(request("POST", path, media=JSON, Content_Length=str(LARGE), Expect="100-continue"))
                async with asyncio.timeout(100):
                    assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                assert room.size - room.free == taken
            async with asyncio.timeout(100):
                while room.free != room.size:
                    await served.ask("GET", "/livez")


async def test_room_is_given_in_order_and_never_twice() -> None:
    """First come, first served, also where a later one would fit; whoever stops waiting has taken nothing."""
    room = BodyRoom(10)
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
