"""As many messages a call as this store takes: each gets what was asked for it, and none costs more for its company."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.brokers.postgres.access import PostgresAccess
from bridge.queues.base import Claim, Extend, NewMessage, Release, Settlement
from bridge.queues.postgres import sql as postgres_sql
from bridge.queues.postgres.connections import SESSION
from bridge.queues.postgres.sql import BATCH_MAX
from bridge.queues.postgres.store import PostgresStore
from tests.bridge.queues.postgres_rig import QUEUE, schema, server, store, url
from tests.support.postgres import execute

__all__ = ["schema", "server", "store", "url"]
pytestmark = pytest.mark.system


async def test_each_message_of_a_settlement_gets_its_own(url: str, store: PostgresStore) -> None:
    """Lease, delay and body are those of the very message, whatever the order in which they were named."""
    await store.put(QUEUE, [NewMessage(b"%03d" % number) for number in range(BATCH_MAX)])
    held = (await store.receive(QUEUE, BATCH_MAX, 30)).messages
    assert [message.body for message in held] == [b"%03d" % number for number in range(BATCH_MAX)]
    deleted, released, extended = held[0::3], held[1::3], held[2::3][::-1]
    settled = await store.settle(
        QUEUE,
        Settlement(
            delete=[Claim(one.id, one.pop_receipt) for one in deleted],
            release=[Release(one.id, one.pop_receipt, 1_000_000 + int(one.body) * 1000) for one in released],
            extend=[
                Extend(one.id, one.pop_receipt, 2000 + int(one.body), None if int(one.body) % 2 else b"new " + one.body)
                for one in extended
            ],
        ),
    )
    assert all(one.ok for one in (*settled.delete, *settled.release, *settled.extend))
    rows = await execute(
        url,
        "SELECT id, receipt, body, round(extract(epoch FROM visible_at - min(visible_at) OVER ()))::int AS after "
        "FROM queuebell_messages",
    )
    found = {f"{row['id']:016x}": (row["after"], row["body"]) for row in rows}
    first = 1000 + 1  # the earliest of all is the release of number 1
    wanted = {one.id: (1000 + int(one.body) - first, one.body) for one in released}
    for one in extended:
        number = int(one.body)
        wanted[one.id] = (2000 + number - first, one.body if number % 2 else b"new " + one.body)
    assert found == wanted
    receipts = {f"{row['id']:016x}": row["receipt"].hex for row in rows}
    assert [one.pop_receipt for one in settled.extend] == [receipts[one.id] for one in extended]


async def test_no_message_is_compared_with_all_others(url: str, store: PostgresStore) -> None:
    """A plan made for an empty table joins row by row: a batch eight times as large would cost 64 times as much."""
    await execute(url, "VACUUM ANALYZE queuebell_messages")
    connection = await PostgresAccess(url).connect(settings=SESSION)
    try:
        await store.put(QUEUE, [NewMessage(b"x")] * BATCH_MAX)
        assert await busiest(connection, postgres_sql.RECEIVE, QUEUE, BATCH_MAX, 30_000, None, None) <= 4 * BATCH_MAX
        rows = await execute(url, "SELECT id, receipt FROM queuebell_messages WHERE attempts = 1 ORDER BY id")
        assert len(rows) == BATCH_MAX
        ids, receipts = [row["id"] for row in rows], [row["receipt"] for row in rows]
        moves = (ids, receipts, [1000] * BATCH_MAX, [None] * BATCH_MAX)
        most = await busiest(connection, postgres_sql.SETTLE, QUEUE, [], [], *moves, ids, [1] * BATCH_MAX)
        assert most <= 4 * BATCH_MAX
        assert not await execute(url, "SELECT FROM queuebell_messages WHERE receipt = ANY($1::uuid[])", receipts)
    finally:
        await connection.close()


async def busiest(connection: Any, statement: str, *args: object) -> int:
    """Carry out a statement, and return the most rows that one node of its plan gave or dropped."""
    ((plan,),) = await connection.fetch("EXPLAIN (ANALYZE, FORMAT JSON) " + statement, *args)
    return max(_work(node) for node in _nodes(json.loads(plan)[0]["Plan"]))


def _work(node: dict[str, Any]) -> int:
    dropped = sum(count for name, count in node.items() if name.startswith("Rows Removed by"))
    return int((node["Actual Rows"] + dropped) * node["Actual Loops"])


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from _nodes(child)
