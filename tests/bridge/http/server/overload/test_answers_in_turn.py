"""What answers are made of is bounded before it is read: large receives and peeks take turns, and all are served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from bridge.http.server.overload import answer_room
from bridge.http.server.overload.answer_room import SMALL_BYTES, AnswerRoom, Share
from bridge.queues.base import BODY_BYTES_MAX, NewMessage
from bridge.queues.embedded.engine import Engine
from bridge.queues.embedded.file import open_memory
from bridge.queues.embedded.terms import Grant, NoRoom
from tests.support.azure import ACCOUNT, Front, messages, serving_azure
from tests.support.web import Served, serving

MIB = 1 << 20
LARGE = SMALL_BYTES + 1
QUEUE = "/v1/queues/billing/orders"


def room_of(size: int) -> AnswerRoom:
    """A room at a time that stands still."""
    return AnswerRoom(lambda: 5.0, size)


class Store:
    """What reads so many bytes where there is room, as a store does; ``asked`` counts how often it was."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked = 0

    async def read(self, share: Share) -> int:
        """Read."""
        self.asked += 1
        if not share.take(self.size):
            raise NoRoom(self.size)
        return self.size


class Peer:
    """A connection that is never looked at."""

    def unread(self) -> int:
        """Not asked for."""
        raise AssertionError

    def cut_off(self) -> None:
        """Not asked for."""
        raise AssertionError


def test_what_is_being_made_is_counted() -> None:
    """More is taken instead of what was there, small ones always go, and what nobody waits for gets nothing."""
    room = room_of(4 * LARGE)
    first, second = room.share(), room.share()
    assert first.take(3 * LARGE)
    assert not second.take(2 * LARGE)
    assert (second.held, room.making) == (0, 3 * LARGE)
    first.keep(LARGE)
    assert second.take(2 * LARGE)
    assert second.take(3 * LARGE), "instead of what it has"
    assert not second.take(4 * LARGE)
    assert room.making == LARGE, "it has none then"
    small = room.share()
    assert first.take(4 * LARGE)
    assert small.take(SMALL_BYTES)
    with small:
        pass
    assert not small.take(1)
    first.leave()
    first.leave()
    assert room.making == 0
    assert second.take(9 * LARGE), "alone, what is larger than all there is goes"


def test_what_is_kept_after_leaving_is_not_counted() -> None:
    """The store's thread may be between taking and keeping when nobody waits for the answer any more."""
    room = room_of(4 * LARGE)
    share = room.share()
    assert share.take(3 * LARGE)
    share.leave()
    share.keep(LARGE)
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


async def test_a_reader_looked_at_again_gives_no_more_than_it_took() -> None:
    """What it still has not taken is not given to who waits meanwhile."""
    room, reader = room_of(4 * LARGE), Peer()
    room.hold(reader, 2 * LARGE)
    holding = room.share()
    assert holding.take(LARGE)
    store = Store(2 * LARGE)
    with room.share() as share:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            group.create_task(share.reading(lambda: store.read(share)), name="waits")
            while not store.asked:
                await asyncio.sleep(0)
            room.hold(reader, 2 * LARGE - 1)
            held, counted = share.held, room.taken + room.making
            room.hold(reader, LARGE)
        assert (held, counted) == (0, 3 * LARGE - 1)
        assert (share.held, room.taken + room.making) == (2 * LARGE, room.size)


async def test_a_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what is unread leaves no room at once, where others take too long after a while; it holds nobody up."""
    room = room_of(4 * LARGE)
    store = Store(4 * LARGE)
    holding = room.share()
    assert holding.take(LARGE)
    monkeypatch.setattr(answer_room, "WAIT_S", 0.01)
    with room.share() as share:
        with pytest.raises(NoRoom):
            await share.reading(lambda: store.read(share))
    assert room.making == LARGE
    room.taken = LARGE
    with room.share() as share:
        with pytest.raises(NoRoom):
            await share.reading(lambda: store.read(share))
    monkeypatch.undo()
    room.taken = 0
    with room.share() as share:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            waiting = group.create_task(share.reading(lambda: store.read(share)), name="waits")
            while store.asked < 3:
                await asyncio.sleep(0)
            holding.leave()
        assert waiting.result() == share.held == 4 * LARGE


class Watched:
    """A room of 5 MiB whose most is kept, also of what the engine has read for it."""

    def __init__(self, room: AnswerRoom, patch: pytest.MonkeyPatch) -> None:
        self.most = 0
        room.size = 5 * MIB
        keep, leave = Share.keep, Share.leave
        watched = self
        shares: dict[Share, int] = {}

        def keeping(self: Share, size: int) -> None:
            shares[self] = size
            watched.most = max(watched.most, sum(shares.values()))
            keep(self, size)

        def leaving(self: Share) -> None:
            shares.pop(self, None)
            leave(self)

        patch.setattr(Share, "keep", keeping)
        patch.setattr(Share, "leave", leaving)


async def native_receive(served: Served, _: Front) -> tuple[int, int]:
    """Receive 32 at the native door."""
    reply = await served.call("receive", {"max": 32})
    return reply.status, len(reply.json["messages"])


async def native_peek(served: Served, _: Front) -> tuple[int, int]:
    """Look at 32 there."""
    reply = await served.ask("GET", QUEUE + "/peek")
    return reply.status, len(reply.json["messages"])


async def azure_peek(_: Served, front: Front) -> tuple[int, int]:
    """Look at 32 at the Azure endpoint."""
    reply = await front.ask("GET", "/orders/messages?peekonly=true&numofmessages=32")
    return reply.status, len(messages(reply))


async def azure_receive(_: Served, front: Front) -> tuple[int, int]:
    """Receive 32 there."""
    reply = await front.ask("GET", "/orders/messages?numofmessages=32")
    return reply.status, len(messages(reply))


@pytest.mark.parametrize("ask", [native_receive, native_peek, azure_peek, azure_receive])
async def test_many_large_answers_at_once(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Served, Front], Awaitable[tuple[int, int]]]
) -> None:
    """Twenty readers of 2 MiB share 5 MiB: all of them are served in the end, and at no moment is more held."""
    async with serving() as served, serving_azure(served.bridge) as front, asyncio.timeout(50):
        for queue in ("billing/orders", f"{ACCOUNT}/orders"):
            for _ in range(20):
                await served.bridge.store.put(queue, [NewMessage(b"x" * 65_536)] * 32)
        server = served.server.connections if ask in (native_receive, native_peek) else front.server.connections
        watched = Watched(server.unread, monkeypatch)
        answers = await asyncio.gather(*(ask(served, front) for _ in range(20)))
        assert answers == [(200, 32)] * 20
        assert 4 * MIB <= watched.most <= 5 * MIB
        assert server.unread.making == 0


async def test_small_messages_need_no_turn(monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
    """Batches of small messages go side by side, whatever they might have been."""
    room = served.server.connections.unread
    room.size = MIB
    for _ in range(50):
        await served.bridge.store.put("billing/orders", [NewMessage(b"x" * 100)] * 32)

    async def never(*_: object) -> None:
        raise AssertionError("it waited")

    monkeypatch.setattr(AnswerRoom, "_turn", never)
    replies = await asyncio.gather(*(served.call("receive", {"max": 32}) for _ in range(50)))
    assert [(reply.status, len(reply.json["messages"])) for reply in replies] == [(200, 32)] * 50
    assert room.making == 0


async def test_a_receive_that_nobody_waits_for_takes_nothing(served: Served) -> None:
    """Its share was left before the store came to it."""
    store = served.bridge.store
    await store.put("a/q", [NewMessage(b"x")])
    with room_of(MIB).share() as share:
        pass
    with pytest.raises(NoRoom):
        await store.receive("a/q", 1, 30.0, room=share)
    depth = await store.depth("a/q")
    assert (depth.visible, depth.invisible) == (1, 0)


def test_a_wake_reads_no_more_than_it_can_carry() -> None:
    """Of a backlog that is larger nothing is taken for it, and it is received instead."""
    with contextlib.closing(open_memory()) as file:
        engine = Engine(file, clock=lambda: 5.0, wall=lambda: 1e9, receipts=lambda: 1, boot="0" * 32)
        engine.state.tick()
        engine.put("a/q", [NewMessage(b"x" * BODY_BYTES_MAX)] * 8, None)
        for limit, taken in ((8, 0), (1, 1)):
            engine.put("a/q", [NewMessage(b"y")], Grant("session", limit, 2.0))
            (handed,) = engine.state.take_handed()
            assert len(handed.messages) == taken
