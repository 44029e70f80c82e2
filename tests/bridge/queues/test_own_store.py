"""What all own stores share: any call may be the first one, a closed store refuses, and a receive nobody hears."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from queuebell.bridge.contract.errors import BadInput, Closed
from queuebell.bridge.queues import limits
from queuebell.bridge.queues.base import BODY_BYTES_MAX, Claim, Depth, NewMessage, Settled, Settlement
from queuebell.bridge.queues.embedded.sqlite import SqliteStore
from queuebell.bridge.queues.embedded.state import Backlog, Grant, GrantResult
from queuebell.bridge.queues.embedded.store import EmbeddedStore, MemoryStore
from queuebell.bridge.queues.served import NoRoom
from tests.bridge.queues.clocks import Counter, FakeClock
from tests.bridge.queues.ears import Ear

Q = "billing/orders"
EMPTY = "billing/empty"
OTHER = "other/queue"
META = {"k": "v"}
Store = MemoryStore | SqliteStore
Make = Callable[[], Store]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest_asyncio.fixture(params=["memory", "sqlite"])
async def make(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Make]:
    """What makes stores, not opened, over one place; each is closed at the end."""
    made: list[Store] = []
    name = uuid.uuid4().hex

    def build() -> Store:
        if request.param == "memory":
            made.append(MemoryStore(name, clock=clock, wall=clock.wall))
        else:
            made.append(SqliteStore(tmp_path / "queue.db", synchronous="NORMAL", clock=clock, wall=clock.wall))
        return made[-1]

    async with contextlib.AsyncExitStack() as keep:
        if request.param == "memory":
            await keep.enter_async_context(MemoryStore(name, clock=clock, wall=clock.wall))
        yield build
        for store in made:
            await store.close()


async def filled(make: Make) -> tuple[Store, Claim]:
    """Return a store that was not opened, over one message leased for 30 s and two to take; and that lease."""
    before = make()
    await before.create(Q, META)
    await before.create(EMPTY)
    await before.create(OTHER)
    await before.put(Q, [NewMessage(b"leased"), NewMessage(b"one"), NewMessage(b"two")])
    (leased,) = (await before.receive(Q, 1, 30.0)).messages
    await before.close()
    return make(), Claim(leased.id, leased.pop_receipt)


async def bodies(store: Store) -> list[bytes]:
    return [message.body for message in await store.peek(Q)]


class Room:
    """Room for so many bytes, and what was asked of it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept = -1

    def take(self, size: int) -> bool:
        return size <= self.size

    def shrink(self, size: int) -> None:
        self.kept = size


# Each takes a store that may not be open yet, and a lease of its first message. -------------------------------------
async def put(store: Store, claim: Claim) -> Any:
    receipts = await store.put(Q, [NewMessage(b"three"), NewMessage(b"late", 5000)])
    return [receipt.visible_in_ms for receipt in receipts], await bodies(store)


async def put_once(store: Store, claim: Claim) -> Any:
    first = await store.put_once(Q, "k", NewMessage(b"three"))
    again = await store.put_once(Q, "k", NewMessage(b"three"))
    with pytest.raises(BadInput):
        await store.put_once(Q, "k", NewMessage(b"four"))
    keys = [message.key for message in await store.peek(Q)]
    return first is None, again, await bodies(store), keys, store.remembered


async def put_existing(store: Store, claim: Claim) -> Any:
    stamped = await store.put_existing(Q, [NewMessage(b"three")])
    return len(stamped.answer), await bodies(store)


async def receive(store: Store, claim: Claim) -> Any:
    room = Room(BODY_BYTES_MAX)
    received = await store.receive(Q, 1, 5.0, source="poll", room=room)
    return [message.body for message in received.messages], room.kept, received.next_visible_in_ms


async def receive_without_room(store: Store, claim: Claim) -> Any:
    with pytest.raises(NoRoom):
        await store.receive(Q, 2, 5.0, room=Room(5))
    return await bodies(store)


async def receive_stamped(store: Store, claim: Claim) -> Any:
    room = Room(BODY_BYTES_MAX)
    received, now_ms, up_ms = await store.receive_stamped(Q, 1, 5.0, source="poll", room=room)
    return [message.body for message in received.messages], room.kept, received.next_visible_in_ms, up_ms - now_ms


async def receive_stamped_without_room(store: Store, claim: Claim) -> Any:
    with pytest.raises(NoRoom):
        await store.receive_stamped(Q, 2, 5.0, room=Room(5))
    return await bodies(store)


async def settle(store: Store, claim: Claim) -> Any:
    settling = await store.settle(Q, Settlement(delete=[claim]))
    return settling.delete, await store.depth(Q)


async def update(store: Store, claim: Claim) -> Any:
    settled, _, _ = await store.update(Q, claim, 0, b"changed")
    return settled.ok, sorted(await bodies(store))


async def peek(store: Store, claim: Claim) -> Any:
    room = Room(BODY_BYTES_MAX)
    return [message.body for message in await store.peek(Q, 1, room=room)], room.kept


async def peek_without_room(store: Store, claim: Claim) -> Any:
    with pytest.raises(NoRoom):
        await store.peek(Q, 2, room=Room(5))
    return await bodies(store)


async def depth(store: Store, claim: Claim) -> Any:
    return await store.depth(Q), await store.depth("billing/none")


async def clear(store: Store, claim: Claim) -> Any:
    await store.clear(Q)
    return await store.depth(Q), await store.queues()


async def pause(store: Store, claim: Claim) -> Any:
    await store.pause(Q)
    paused = await store.depth(Q)
    await store.pause(Q, False)
    return paused, await store.depth(Q)


async def create(store: Store, claim: Claim) -> Any:
    new = await store.create("billing/new", {"n": "w"}), (await store.metadata_and_depth("billing/new"))[0]
    return new, await store.create(Q), (await store.metadata_and_depth(Q))[0]


async def metadata(store: Store, claim: Claim) -> Any:
    return (await store.metadata_and_depth(Q))[0]


async def delete(store: Store, claim: Claim) -> Any:
    await store.delete(Q)
    return await store.queues()


async def queues(store: Store, claim: Claim) -> Any:
    told = [await store.queues("billing/")]
    return [*told, await store.queues("", EMPTY, 1), await store.queues(limit=2), await store.queues("b", Q)]


async def listing(store: Store, claim: Claim) -> Any:
    told = [await store.listing("billing/")]
    return [*told, await store.listing("", EMPTY, 1), await store.listing(limit=1), await store.listing("b", Q)]


async def create_alike(store: Store, claim: Claim) -> Any:
    return [await store.create_alike(name, META) for name in (Q, EMPTY, "billing/new")], (
        await store.metadata_and_depth(EMPTY)
    )[0]


async def replace_metadata(store: Store, claim: Claim) -> Any:
    await store.replace_metadata(Q, {"n": "w"})
    return (await store.metadata_and_depth(Q))[0]


async def remove(store: Store, claim: Claim) -> Any:
    await store.remove(Q)
    return await store.queues()


async def metadata_and_depth(store: Store, claim: Claim) -> Any:
    return await store.metadata_and_depth(Q)


TWO = [b"one", b"two"]
TOLD: list[tuple[Callable[[Store, Claim], Awaitable[Any]], Any]] = [
    (put, ([0, 5000], [*TWO, b"three"])),
    (put_once, (False, None, [*TWO, b"three"], [None, None, "k"], 1)),
    (put_existing, (1, [*TWO, b"three"])),
    (receive, ([b"one"], 3, 5000)),
    (receive_without_room, TWO),
    (receive_stamped, ([b"one"], 3, 5000, 0)),
    (receive_stamped_without_room, TWO),
    (settle, ([Settled(True)], Depth(2, 0))),
    (update, (True, [b"changed", *TWO])),
    (peek, ([b"one"], 3)),
    (peek_without_room, TWO),
    (depth, (Depth(2, 1), None)),
    (clear, (Depth(0, 0), [EMPTY, Q, OTHER])),
    (pause, (Depth(0, 3), Depth(2, 1))),
    (create, ((True, {"n": "w"}), False, META)),
    (metadata, META),
    (delete, [EMPTY, OTHER]),
    (queues, [[EMPTY, Q], [Q], [EMPTY, Q], []]),
    (listing, [[(EMPTY, {}), (Q, META)], [(Q, META)], [(EMPTY, {})], []]),
    (create_alike, ([False, None, True], {})),
    (replace_metadata, {"n": "w"}),
    (remove, [EMPTY, OTHER]),
    (metadata_and_depth, (META, Depth(2, 1))),
]


async def test_a_closed_store_does_nothing(make: Make) -> None:
    store, claim = await filled(make)
    await store.close()
    for call in [call for call, _ in TOLD if "room" not in call.__name__]:
        with pytest.raises(Closed, match="the store is closed"):
            await call(store, claim)


async def test_what_is_told_between_calls_needs_an_open_store(make: Make) -> None:
    """A bridge may let time pass or take back before it opened its store: nothing happens; a number is not known."""
    store, claim = await filled(make)
    store.refresh(Q)
    store.reclaim(Q, [claim])
    assert store.remembered == 0
    with pytest.raises(Closed, match="not open"):
        store.number(Q)
    assert await store.depth(Q) == Depth(2, 1)
    assert store.number("billing/none") is None
    assert store.number(Q)
    await store.close()
    store.refresh(Q)
    store.reclaim(Q, [claim])
    with pytest.raises(Closed, match="the store is closed"):
        store.number(Q)


LONG = "x" * 9000
NOT_THERE = Claim("1", "1")
FAR = 604_800
REFUSED: list[tuple[str, Callable[[Store], Any]]] = [
    ("put", lambda store: store.put("orders", [NewMessage(b"x")])),
    ("put of nothing", lambda store: store.put(Q, [])),
    ("put of 33", lambda store: store.put(Q, [NewMessage(b"x")] * 33)),
    ("put_once", lambda store: store.put_once("orders", "k", NewMessage(b"x"))),
    ("put_once, key", lambda store: store.put_once(Q, "", NewMessage(b"x"))),
    ("put_once, body", lambda store: store.put_once(Q, "k", NewMessage(b"x" * (BODY_BYTES_MAX + 1)))),
    ("put_existing", lambda store: store.put_existing("orders", [NewMessage(b"x")])),
    ("receive", lambda store: store.receive("orders")),
    ("receive of 33", lambda store: store.receive(Q, 33)),
    ("receive for nothing", lambda store: store.receive(Q, 1, 0)),
    ("receive for long", lambda store: store.receive(Q, 1, FAR + 0.001)),
    ("receive, source", lambda store: store.receive(Q, source="whim")),
    ("receive_stamped", lambda store: store.receive_stamped("orders")),
    ("receive_stamped of 33", lambda store: store.receive_stamped(Q, 33)),
    ("receive_stamped for nothing", lambda store: store.receive_stamped(Q, 1, 0)),
    ("receive_stamped, source", lambda store: store.receive_stamped(Q, source="whim")),
    ("settle", lambda store: store.settle("orders", Settlement())),
    ("settle of 33", lambda store: store.settle(Q, Settlement(delete=[NOT_THERE] * 33))),
    ("update", lambda store: store.update("orders", NOT_THERE, 1)),
    ("update for long", lambda store: store.update(Q, NOT_THERE, FAR + 0.001)),
    ("update to before", lambda store: store.update(Q, NOT_THERE, -1)),
    ("update, body", lambda store: store.update(Q, NOT_THERE, 0, b"x" * (BODY_BYTES_MAX + 1))),
    ("peek", lambda store: store.peek("orders")),
    ("peek of 33", lambda store: store.peek(Q, 33)),
    ("depth", lambda store: store.depth("orders")),
    ("clear", lambda store: store.clear("orders")),
    ("pause", lambda store: store.pause("orders")),
    ("create", lambda store: store.create("orders")),
    ("create, metadata", lambda store: store.create(Q, {"k": LONG})),
    ("delete", lambda store: store.delete("orders")),
    ("queues, prefix", lambda store: store.queues("ü")),
    ("queues, after", lambda store: store.queues("", "ü")),
    ("queues, none", lambda store: store.queues(limit=0)),
    ("queues, too many", lambda store: store.queues(limit=10_001)),
    ("listing, prefix", lambda store: store.listing("ü")),
    ("listing, after", lambda store: store.listing("", "ü")),
    ("listing, none", lambda store: store.listing(limit=0)),
    ("create_alike", lambda store: store.create_alike("orders", META)),
    ("create_alike, metadata", lambda store: store.create_alike(Q, {"k": LONG})),
    ("replace_metadata", lambda store: store.replace_metadata("orders", META)),
    ("replace_metadata, metadata", lambda store: store.replace_metadata(Q, {"k": LONG})),
    ("remove", lambda store: store.remove("orders")),
    ("metadata_and_depth", lambda store: store.metadata_and_depth("orders")),
]


@pytest.mark.parametrize("call", [call for _, call in REFUSED], ids=[name for name, _ in REFUSED])
async def test_what_cannot_be_is_refused_before_anything_is_opened(
    tmp_path: Path, call: Callable[[Store], Any]
) -> None:
    """A reference that is none, a number out of range, too long a body: the file is not even made."""
    store = SqliteStore(tmp_path / "queue.db")
    with pytest.raises(BadInput):
        await call(store)
    assert list(tmp_path.iterdir()) == []
    await store.close()


async def test_a_store_closed_in_the_turn_of_its_opening_says_so(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call opens it and finds it closed by another: it is told that, as by any closed store."""
    store = make()
    opened = store.open

    async def open_and_lose() -> None:
        await opened()
        await store.close()

    monkeypatch.setattr(store, "open", open_and_lose)
    with pytest.raises(Closed, match="the store is closed"):
        await store.depth(Q)


# What nobody hears any more ------------------------------------------------------------------------------------------
Ask = Callable[[Store], "asyncio.Future[Any]"]
ASKS: list[tuple[str, Ask]] = [
    ("receive", lambda store: asyncio.create_task(store.receive(Q, 2, 30.0), name="receive")),
    ("receive_stamped", lambda store: asyncio.create_task(store.receive_stamped(Q, 2, 30.0), name="receive")),
]


@pytest.mark.parametrize("turns", range(4))
@pytest.mark.parametrize("ask", [ask for _, ask in ASKS], ids=[name for name, _ in ASKS])
async def test_what_a_cancelled_receive_brings_is_taken_back(make: Make, ask: Ask, turns: int) -> None:
    """Whenever its caller goes: the messages are there for the next, as if nobody had been handed them."""
    store, _ = await filled(make)
    await store.open()
    asked = ask(store)
    for _ in range(turns):
        await asyncio.sleep(0)
    if not asked.cancel():
        # It was quicker, so that its caller has the messages.
        assert await store.depth(Q) == Depth(0, 3)
        return
    await asyncio.wait([asked])
    async with asyncio.timeout(60):
        while await store.depth(Q) != Depth(2, 1):
            await asyncio.sleep(0)
    assert [message.dequeue_count for message in (await store.receive(Q, 2, 30.0)).messages] == [1, 1]


BOOT = "ab" * 16


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest_asyncio.fixture(params=["memory", "sqlite"])
async def store(
    request: pytest.FixtureRequest, clock: FakeClock, ear: Ear, tmp_path: Path
) -> AsyncIterator[EmbeddedStore]:
    made: EmbeddedStore
    if request.param == "memory":
        made = MemoryStore(uuid.uuid4().hex, boot=BOOT, clock=clock, wall=clock.wall, receipts=Counter())
    else:
        made = SqliteStore(tmp_path / "queue.db", boot=BOOT, clock=clock, wall=clock.wall, receipts=Counter())
    made.observe(ear)
    await made.open()
    yield made
    await made.close()


def one(body: bytes = b"x", delay_ms: int = 0, ttl_s: int = -1) -> list[NewMessage]:
    return [NewMessage(body, delay_ms, ttl_s)]


async def test_each_commit_tells_the_level(store: EmbeddedStore, ear: Ear, clock: FakeClock) -> None:
    """Put, receive and an empty receive are each told, as of their place in the writer's order."""
    await store.put(Q, [NewMessage(b"a"), NewMessage(b"b", 500)])
    await store.receive(Q, 1, 2.0)
    await store.receive(Q, 1, 2.0)
    assert ear.backlogs == [
        Backlog(Q, True, 1, 1, True, 2, 0, 0, 500, leased=0, delayed=1, oldest_ms=0),
        Backlog(Q, True, 0, 2, False, 0, 1, 0, 500, leased=1, delayed=1),
        Backlog(Q, True, 0, 2, False, 0, 1, 1, 500, leased=1, delayed=1),
    ]
    clock.now += 0.5
    received = await store.receive(Q, 5, 2.0)
    assert received.boot == BOOT
    # What came due since the last look made it rise, although it is taken again within the same commit.
    assert ear.backlogs[-1] == Backlog(Q, True, 0, 2, True, 0, 1, 0, 1500, leased=2)


async def test_told_before_acknowledged(store: EmbeddedStore, ear: Ear) -> None:
    """The bridge marks before the producer hears of it (B1)."""
    heard: list[int] = []
    task = asyncio.create_task(store.put(Q, one()), name="put")
    task.add_done_callback(lambda _: heard.append(len(ear.backlogs)))
    await task
    await asyncio.sleep(0)
    assert heard == [1]


async def test_reread_lets_time_pass(store: EmbeddedStore, ear: Ear, clock: FakeClock) -> None:
    """A due timer re-reads: too early it tells the rest, in time that it rose (O3)."""
    await store.put(Q, one(delay_ms=100))
    clock.now += 0.099
    store.refresh(Q)
    assert await ear.next_backlog() == Backlog(Q, True, 0, 1, False, 0, 0, 0, 1, delayed=1)
    clock.now += 0.001
    store.refresh(Q)
    assert await ear.next_backlog() == Backlog(Q, True, 1, 0, True, 0, 0, 0, None, oldest_ms=0)
    store.refresh("billing/unknown")
    assert await ear.next_backlog() == Backlog("billing/unknown", False, 0, 0, False, 0, 0, 0, None)


async def test_metadata_can_be_read(store: EmbeddedStore) -> None:
    """What `create` was given last, for the endpoint that shows it."""
    assert isinstance(store, MemoryStore | SqliteStore)
    await store.create(Q, {"a": "ü"})
    await store.create(Q)
    assert (await store.metadata_and_depth(Q))[0] == {"a": "ü"}
    await store.create(Q, {})
    assert (await store.metadata_and_depth(Q))[0] == {}
    for wrong in ({"a": 1}, {"a": "\ud800"}, {"a": "x" * limits.METADATA_BYTES_MAX}):
        with pytest.raises(BadInput):
            await store.create(Q, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("once", [False, True], ids=["put", "put_once"])
async def test_a_grant_of_a_put_that_is_refused_late_names_its_queue(
    make: Make, monkeypatch: pytest.MonkeyPatch, once: bool
) -> None:
    """Where the engine refuses, the bridge that granted is told which queue came to nothing, and what is visible."""
    store, _ = await filled(make)
    ear = Ear()
    store.observe(ear)
    await store.put_once(Q, "k", NewMessage(b"three"))
    queue, visible = (Q, 3) if once else ("billing/many", 0)
    monkeypatch.setattr("queuebell.bridge.queues.embedded.state.QUEUES_MAX", 3)
    ear.next_grant = Grant("s", 1, 2.0)
    with pytest.raises(BadInput):
        await (store.put_once(queue, "k", NewMessage(b"x")) if once else store.put(queue, [NewMessage(b"x")]))
    assert ear.handed == [GrantResult(queue, "s", [], visible)]


@pytest.mark.parametrize("opened", [False, True], ids=["first call", "open"])
@pytest.mark.parametrize(("call", "told"), TOLD, ids=[call.__name__ for call, _ in TOLD])
async def test_any_call_may_be_the_first(
    make: Make, call: Callable[[Store, Claim], Awaitable[Any]], told: Any, opened: bool
) -> None:
    """A store that nobody has opened does by itself what an open one does, and answers the same."""
    store, claim = await filled(make)
    if opened:
        await store.open()
    assert await call(store, claim) == told


async def test_observers_hear_of_a_receive_outside_of_its_caller(make: Make) -> None:
    """Also of one that finds nothing and is answered in memory: an observer may call the store again."""
    store, _ = await filled(make)

    class Outside(Ear):
        callers: ClassVar[list[object]] = []

        def committed(self, backlogs: Sequence[Backlog], handed: Sequence[GrantResult]) -> None:
            self.callers.append(asyncio.current_task())
            super().committed(backlogs, handed)

    await store.clear(Q)
    ear = Outside()
    store.observe(ear)
    for _ in range(3):
        assert (await store.receive(Q)).messages == []
        await store.put(Q, [NewMessage(b"x")])
        await store.clear(Q)
    assert len(ear.callers) >= 9 and set(ear.callers) == {None}
