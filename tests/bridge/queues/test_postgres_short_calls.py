"""The short statements: a full batch behind a mark, and deletes that are all right."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.contract.errors import StoreUnavailable
from bridge.queues.base import Claim, Depth, Settlement
from bridge.queues.postgres import sql as postgres_sql
from bridge.queues.postgres.connections import PostgresConnections
from bridge.queues.postgres.store import PostgresStore
from tests.bridge.queues.postgres_rig import QUEUE, new, schema, server, store, url
from tests.support.postgres import execute

__all__ = ["schema", "server", "store", "url"]
pytestmark = pytest.mark.system


async def test_behind_a_mark_full_batches_count_less_and_short_ones_all(url: str, store: PostgresStore) -> None:
    """From the second full batch on 8 batches are counted; the first that is not full is exact again."""
    await execute(url, "INSERT INTO queuebell_messages (queue, text) SELECT $1, '' FROM generate_series(1, 100)", QUEUE)
    await store.receive(QUEUE, 10)
    assert (await store.receive(QUEUE, 1)).depth == Depth(postgres_sql.COUNTED_ON, 1)
    assert (await store.receive(QUEUE, 32)).depth == Depth(57, 32)
    await store.receive(QUEUE, 32)
    last = await store.receive(QUEUE, 32, 60)
    assert (len(last.messages), last.depth, last.blocked) == (25, Depth(0, 100), False)
    assert last.next_visible_in_ms is not None
    assert last.next_visible_in_ms <= 30_000


async def test_a_mark_does_not_look_past_a_pause(store: PostgresStore) -> None:
    """A pause counts at once, and what is there counts as hidden."""
    await store.put(QUEUE, new(b"1", b"2", b"3"))
    await store.receive(QUEUE, 1)
    await store.pause(QUEUE)
    received = await store.receive(QUEUE, 1)
    assert (received.messages, received.depth) == ([], Depth(0, 3))


async def test_what_a_broken_second_look_had_taken_is_handed_out(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages leased behind a mark are not lost to their leases because the look from the beginning fails."""
    await store.put(QUEUE, new(b"1", b"2", b"3"))
    await store.receive(QUEUE, 1)
    with monkeypatch.context() as patch:
        fail(patch, postgres_sql.RECEIVE)
        received = await store.receive(QUEUE, 3)
    assert [message.body for message in received.messages] == [b"2", b"3"]
    assert received.depth == Depth(1, 2), "it must not pass for the proof that nothing is left"
    with monkeypatch.context() as patch:
        fail(patch, postgres_sql.RECEIVE)
        with pytest.raises(StoreUnavailable):
            await store.receive(QUEUE, 3)


async def test_a_settlement_half_done_says_what_is_done(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first statement deleted something and the second fails, only the rest is to be tried again."""
    await store.put(QUEUE, new(b"1", b"2"))
    one, two = (await store.receive(QUEUE, 2)).messages
    wrong = Claim(two.id, "0" * 32)
    with monkeypatch.context() as patch:
        fail(patch, postgres_sql.SETTLE)
        with pytest.raises(StoreUnavailable):
            await store.settle(QUEUE, Settlement(delete=[wrong]))
        settled = await store.settle(QUEUE, Settlement(delete=[wrong, Claim(one.id, one.pop_receipt), wrong]))
        assert [(one.ok, one.code) for one in settled.delete] == [
            (False, "storage_unavailable"), (True, None), (False, "storage_unavailable"),
        ]  # fmt: skip
    assert await store.depth(QUEUE) == Depth(0, 1)


async def test_deletes_compare_each_receipt_with_its_own_message(store: PostgresStore) -> None:
    """Receipts that belong to other messages of the same call delete nothing; a right one beside them does."""
    await store.put(QUEUE, new(b"1", b"2", b"3"))
    one, two, three = (await store.receive(QUEUE, 3)).messages
    swapped = [Claim(one.id, two.pop_receipt), Claim(two.id, one.pop_receipt)]
    settled = await store.settle(QUEUE, Settlement(delete=[*swapped, Claim(three.id, three.pop_receipt)]))
    assert [(one.ok, one.code) for one in settled.delete] == [
        (False, "pop_receipt_mismatch"), (False, "pop_receipt_mismatch"), (True, None),
    ]  # fmt: skip
    assert await store.depth(QUEUE) == Depth(0, 2)


def fail(patch: pytest.MonkeyPatch, statement: str) -> None:
    """Close the way to the database for one statement."""
    there = PostgresConnections.fetch

    async def fetch(connections: PostgresConnections, sql: str, *rest: Any) -> list[Any]:
        if sql == statement:
            raise StoreUnavailable("the database cannot be reached")
        return await there(connections, sql, *rest)

    patch.setattr(PostgresConnections, "fetch", fetch)
