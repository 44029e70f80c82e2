"""What the embedded store answers to wrong claims, to several settlements at once, and where only delays remain."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from bridge.contract.errors import QueueNotFound
from bridge.queues.base import Claim, Extend, NewMessage, Release, Settlement
from bridge.queues.embedded.file import open_file
from bridge.queues.embedded.memory import MemoryStore
from bridge.queues.embedded.sqlite import SqliteStore
from bridge.queues.embedded.state import State
from tests.bridge.queues.clocks import FakeClock

QUEUE = "billing/orders"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest_asyncio.fixture(params=["memory", "file"])
async def store(request: pytest.FixtureRequest, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Any]:
    made: Any = (
        MemoryStore(tmp_path.name, clock=clock, wall=clock.wall)
        if request.param == "memory"
        else SqliteStore(tmp_path / "queue.db", clock=clock, wall=clock.wall)
    )
    async with made:
        yield made


@pytest.mark.parametrize("wrong", ["id", "receipt", "both"])
async def test_a_claim_that_cannot_be_one_settles_nothing(store: Any, wrong: str) -> None:
    """It is answered by a code, whatever is asked of it, and the message beside it is settled all the same."""
    await store.put(QUEUE, ["one", "two"])
    one, two = (await store.receive(QUEUE, 2, 30.0)).messages
    id_ = "no id" if wrong in ("id", "both") else one.id
    receipt = "no receipt" if wrong in ("receipt", "both") else one.pop_receipt
    settled = await store.settle(
        QUEUE,
        Settlement(
            delete=[Claim(id_, receipt), Claim(two.id, two.pop_receipt)],
            extend=[Extend(id_, receipt, 60.0)],
            release=[Release(id_, receipt)],
        ),
    )
    codes = {settled.delete[0].code, settled.extend[0].code, settled.release[0].code}
    assert codes <= {"message_not_found", "pop_receipt_mismatch"} and settled.delete[1].ok
    counts = await store.counts(QUEUE)
    assert (counts.visible, counts.leased, counts.delayed) == (0, 1, 0)


async def test_several_delayed_messages_are_deleted_at_once(store: Any, clock: FakeClock) -> None:
    """By their receipts; what is left is counted, and comes at its time."""
    receipts = await store.put(QUEUE, [NewMessage(b"%d" % number, visible_after_ms=5000) for number in range(4)])
    other = await store.put("billing/other", [NewMessage(b"x", visible_after_ms=5000)])
    gone = await store.settle(QUEUE, Settlement(delete=[Claim(each.id, each.pop_receipt) for each in receipts[:3]]))
    assert [each.ok for each in gone.delete] == [True] * 3
    counts = await store.counts(QUEUE)
    assert (counts.visible, counts.leased, counts.delayed) == (0, 0, 1)
    assert (await store.counts("billing/other")).delayed == len(other)
    await clock.let_pass(5.0)
    assert [message.body for message in (await store.receive(QUEUE, 4, 30.0)).messages] == [b"3"]


async def test_a_receive_tells_the_next_delay_apart_from_the_next_lease(store: Any, clock: FakeClock) -> None:
    """A bridge wakes for the end of a delay, while a lease that ends is its worker's until then."""
    await store.put(QUEUE, ["leased"])
    await store.receive(QUEUE, 1, 10.0)
    empty = await store.receive(QUEUE, 1, 10.0)
    assert (empty.next_visible_in_ms, empty.next_delayed_in_ms) == (10_000, None)
    await store.put(QUEUE, [NewMessage("later", visible_after_ms=60_000)])
    empty = await store.receive(QUEUE, 1, 10.0)
    assert (empty.next_visible_in_ms, empty.next_delayed_in_ms) == (10_000, 60_000)
    assert (empty.depth.visible, empty.depth.invisible) == (0, 2) and empty.boot == store.boot is not None
    await clock.let_pass(20.0)
    full = await store.receive(QUEUE, 1, 10.0)
    assert (full.next_visible_in_ms, full.next_delayed_in_ms) == (10_000, 40_000)


async def test_expired_messages_are_gone_from_every_count(store: Any, clock: FakeClock) -> None:
    """Visible, leased or delayed: the one that has no end stays."""
    await store.put(QUEUE, [NewMessage("visible", ttl_s=10), NewMessage("leased", ttl_s=10)])
    await store.put(QUEUE, [NewMessage("delayed", visible_after_ms=5000, ttl_s=10), NewMessage("stays")])
    await store.receive(QUEUE, 1, 600.0)
    await clock.let_pass(10.0)
    assert [message.body for message in (await store.receive(QUEUE, 32, 30.0)).messages] == [b"stays"]
    counts = await store.counts(QUEUE)
    assert (counts.visible, counts.invisible, counts.leased, counts.delayed) == (0, 1, 1, 0)
    shown = await store.browse(QUEUE, 32)
    assert shown.messages == []


async def test_what_is_shown_has_its_headers_and_its_times(store: Any, clock: FakeClock) -> None:
    """As a receive has them, and without a receipt."""
    await store.put(QUEUE, [NewMessage("one", headers={"tenant": "acme"}, ttl_s=100), NewMessage("two")])
    shown = (await store.browse(QUEUE, 32)).messages
    taken = (await store.receive(QUEUE, 32, 30.0)).messages
    for seen, had in zip(shown, taken, strict=True):
        assert (seen.id, seen.body, seen.headers, seen.inserted_at, seen.expires_at) == (
            had.id, had.body, had.headers, had.inserted_at, had.expires_at,
        )  # fmt: skip
        assert seen.pop_receipt == "" and abs(seen.inserted_at.timestamp() - clock.wall()) < 1.0
    assert shown[0].headers == {"tenant": "acme"}


async def test_a_queue_that_is_missing_is_named_by_its_code_and_words(store: Any) -> None:
    """A put that makes none says so."""
    with pytest.raises(QueueNotFound, match=f"there is no queue {QUEUE}, and nothing was put"):
        await store.put(QUEUE, ["one"], create=False)


async def test_a_rollback_after_a_start_takes_nothing_back_that_the_file_holds(
    tmp_path: Path, clock: FakeClock
) -> None:
    """A full disk at the first commit: delayed messages stay delayed, and are not taken for leased ones."""
    async with SqliteStore(tmp_path / "queue.db", clock=clock, wall=clock.wall) as store:
        await store.put(QUEUE, [NewMessage("later", 60_000)])
    connection, lock = open_file(tmp_path / "queue.db")
    try:
        state = State(connection, clock, clock.wall, None, 600_000)
        queue = state.queues[QUEUE]
        due = queue.delayed.earliest()
        assert due is not None
        state.rollback()
        assert queue.delayed.earliest() == due
    finally:
        connection.close()
        lock.release()
