"""What the Azure endpoint asks of an own store beyond the promise of every store."""

from __future__ import annotations

import pathlib
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bridge.contract.errors import BadInput, Closed, QueueNotFound, StoreFull
from bridge.queues.base import Claim, Depth, NewMessage
from bridge.queues.embedded.calls import Call, Commit, Committer
from bridge.queues.embedded.engine import Engine
from bridge.queues.embedded.existing_only import put_existing, receive_stamped
from bridge.queues.embedded.file import open_memory
from bridge.queues.embedded.memory import MemoryStore
from bridge.queues.embedded.own_store import OwnStore
from bridge.queues.embedded.reserve import Reserve
from bridge.queues.embedded.sqlite import SqliteStore
from bridge.queues.embedded.terms import Stamped
from tests.bridge.queues.clocks import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest_asyncio.fixture(params=["memory", "sqlite"])
async def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: pathlib.Path) -> AsyncIterator[OwnStore]:
    made: OwnStore
    if request.param == "memory":
        made = MemoryStore(str(tmp_path), clock=clock, wall=clock.wall)
    else:
        made = SqliteStore(tmp_path / "queue.db", clock=clock, wall=clock.wall)
    async with made:
        yield made


async def test_a_put_makes_no_queue(store: OwnStore) -> None:
    """A put on a queue that is not there is refused, and changes nothing."""
    with pytest.raises(QueueNotFound):
        await store.put_existing("a/q", [NewMessage(b"x")])
    assert await store.queues() == []
    await store.create("a/q")
    (receipt,), now_ms, up_ms = await store.put_existing("a/q", [NewMessage(b"x")])
    assert receipt.visible_in_ms == 0
    assert now_ms <= up_ms <= now_ms + 1
    (found,) = await store.peek("a/q")
    assert round(found.inserted_at.timestamp() * 1000) == now_ms


async def test_a_receive_tells_its_time(store: OwnStore, clock: FakeClock) -> None:
    """What is leased is invisible until the stamp plus the lease, and visible then."""
    await store.create("a/q")
    await store.put("a/q", [NewMessage(b"x")])
    received, _, up_ms = await store.receive_stamped("a/q", 1, 30)
    assert len(received.messages) == 1
    await clock.let_pass(29.999)
    assert (await store.receive("a/q")).messages == []
    await clock.let_pass(0.001)
    again, now_ms, _ = await store.receive_stamped("a/q", 1, 30)
    assert len(again.messages) == 1
    assert now_ms >= up_ms + 30_000


@pytest.mark.parametrize("body", [None, b"new"])
async def test_an_update_to_zero_makes_visible_at_once(store: OwnStore, body: bytes | None) -> None:
    """With a body or without, in one commit, under a new receipt; the old one is void."""
    await store.create("a/q")
    await store.put("a/q", [NewMessage(b"old")])
    (held,) = (await store.receive("a/q")).messages
    settled, _, _ = await store.update("a/q", Claim(held.id, held.pop_receipt), 0, body)
    assert settled.ok
    assert settled.pop_receipt not in (None, held.pop_receipt)
    assert await store.depth("a/q") == Depth(1, 0)
    (again,) = (await store.receive("a/q")).messages
    assert again.body == (body or b"old")
    settled, _, _ = await store.update("a/q", Claim(held.id, held.pop_receipt), 0, body)
    assert (settled.ok, settled.code) == (False, "pop_receipt_mismatch")


async def test_an_update_moves_visibility(store: OwnStore, clock: FakeClock) -> None:
    """It counts from now, and the newest receipt is the one that deletes."""
    await store.create("a/q")
    await store.put("a/q", [NewMessage(b"x")])
    (held,) = (await store.receive("a/q", 1, 5)).messages
    settled, _, _ = await store.update("a/q", Claim(held.id, held.pop_receipt), 60, b"y")
    await clock.let_pass(59)
    assert (await store.receive("a/q")).messages == []
    await clock.let_pass(1.1)
    assert [message.body for message in (await store.receive("a/q")).messages] == [b"y"]
    assert settled.pop_receipt
    with pytest.raises(BadInput):
        await store.update("a/q", Claim(held.id, held.pop_receipt), -1)


async def test_a_queue_is_made_once(store: OwnStore) -> None:
    """New, alike, different: three answers, and metadata that stands is never replaced."""
    assert await store.create_alike("a/q", {"k": "v"}) is True
    assert await store.create_alike("a/q", {"k": "v"}) is False
    assert await store.create_alike("a/q", {}) is None
    assert await store.standing("a/q") == ({"k": "v"}, Depth(0, 0))
    await store.replace_metadata("a/q", {"n": "w"})
    assert await store.listing() == [("a/q", {"n": "w"})]
    await store.remove("a/q")
    for call in (store.remove("a/q"), store.replace_metadata("a/q", {}), store.standing("a/q")):
        with pytest.raises(QueueNotFound):
            await call
    assert await store.listing() == []


class NoRoom(Reserve):
    """A reserve that was given up and cannot be made again."""

    def __init__(self) -> None:
        super().__init__(pathlib.Path("nowhere"))
        self.short = True

    def hold(self) -> bool:
        return False


async def test_a_full_disk_refuses_this_put_too(clock: FakeClock) -> None:
    """While the room set aside is gone, messages can be taken and not put, whichever way the put comes."""
    connection = open_memory()
    engine = Engine(connection, clock=clock, wall=clock.wall, receipts=lambda: 1, boot="0" * 32)
    told: list[Commit] = []
    args = ("a/q", (NewMessage(b"x"),), None)
    Committer(engine, "test").run([Call(engine.put, args, None)], told.append)
    committer = Committer(engine, "test", NoRoom())
    put, take = Call(put_existing, (engine, *args), None), Call(receive_stamped, (engine, "a/q", 1, 1000, None), None)
    committer.run([put, take], told.append)
    assert isinstance(put.error, StoreFull)
    assert take.error is None
    assert isinstance(take.result, Stamped)
    assert len(take.result.answer.messages) == 1
    connection.close()


async def test_a_queue_has_a_number_of_its_own(store: OwnStore) -> None:
    """A clear keeps it, and no queue made in its place has it, even within one millisecond."""
    assert store.made("a/q") is None
    await store.create("a/q")
    first = store.made("a/q")
    await store.put("a/q", [NewMessage(b"x")])
    await store.clear("a/q")
    assert store.made("a/q") == first
    await store.delete("a/q")
    assert store.made("a/q") is None
    await store.put("a/q", [NewMessage(b"x")])
    assert store.made("a/q") not in (None, 0, first)
    await store.close()
    with pytest.raises(Closed):
        store.made("a/q")


async def test_a_queues_own_number_outlives_the_process(tmp_path: pathlib.Path) -> None:
    """It stands in the file, and is not that of the same queue in another file."""
    path = tmp_path / "queue.db"
    async with SqliteStore(path) as store:
        await store.create("a/q")
        first = store.made("a/q")
        await store.put("a/q", [NewMessage(b"x")])
        await store.clear("a/q")
    async with SqliteStore(path) as store:
        assert store.made("a/q") == first
    async with SqliteStore(tmp_path / "other.db") as store:
        await store.create("a/q")
        assert store.made("a/q") != first, "a file that takes the place of another"
