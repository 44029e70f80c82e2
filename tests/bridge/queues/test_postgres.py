"""What only a database does: locks of others, plain INSERTs, schemas, connections that break."""

from __future__ import annotations

import asyncio
import datetime
import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from bridge.brokers.postgres.access import PostgresAccess
from bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    QueueNotFound,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)
from bridge.queues import open_store
from bridge.queues.base import Claim, Counts, Depth, NewMessage, Release, Settlement, digest_of
from bridge.queues.postgres import sql as postgres_sql
from bridge.queues.postgres.connections import SCHEMA_VERSION, SESSION, PostgresConnections
from bridge.queues.postgres.marks import MARK_S, PostgresMarks
from bridge.queues.postgres.schema import init
from bridge.queues.postgres.store import PostgresStore
from tests.bridge.queues.postgres_rig import QUEUE, new, schema, server, store, url
from tests.support.postgres import PostgresServer, execute, init_as, let_pass_in
from tests.support.processes import until
from tests.support.tcp_proxy import TcpProxy

__all__ = ["schema", "server", "store", "url"]
pytestmark = pytest.mark.system


async def test_what_others_have_locked_blocks_the_proof(url: str, store: PostgresStore) -> None:
    """An empty answer beside a locked visible message proves nothing, and says so; without the lock it does."""
    await store.put(QUEUE, new(b"one"))
    stranger = await PostgresAccess(url).connect()
    try:
        async with stranger.transaction():
            await stranger.execute("SELECT FROM queuebell_messages FOR UPDATE")
            received = await store.receive(QUEUE, 2)
            assert (received.messages, received.blocked, received.depth) == ([], True, Depth(1, 0))
    finally:
        await stranger.close()
    received = await store.receive(QUEUE, 2)
    assert (len(received.messages), received.blocked, received.depth) == (1, False, Depth(0, 1))
    received = await store.receive(QUEUE, 2)
    assert (received.messages, received.blocked) == ([], False)


async def test_a_full_batch_is_not_blocked(store: PostgresStore) -> None:
    """More than was asked for is no lock."""
    await store.put(QUEUE, new(b"one", b"two"))
    received = await store.receive(QUEUE, 1)
    assert (received.blocked, received.depth) == (False, Depth(1, 1))


async def test_a_plain_insert_is_a_message(url: str, store: PostgresStore) -> None:
    """A row that SQL put there is received, makes its queue, and is found by every question."""
    await execute(url, "INSERT INTO queuebell_messages (queue, text) VALUES ($1, 'plain')", QUEUE)
    await execute(url, "SELECT queuebell_put('billing/other', 'text')")
    assert await store.queues() == [QUEUE, "billing/other"]
    assert await store.queues(after="billing/a", prefix="billing/or") == [QUEUE]
    assert await store.depth(QUEUE) == Depth(1, 0)
    (held,) = (await store.receive(QUEUE)).messages
    assert held.body == b"plain"
    assert (await store.settle(QUEUE, Settlement(delete=[Claim(held.id, held.pop_receipt)]))).delete[0].ok
    assert (await store.receive("billing/other")).messages[0].body == b"text"
    # The function makes the queue, and the INSERT alone did not.
    with pytest.raises(QueueNotFound):
        await store.receive(QUEUE)


async def test_a_put_that_crosses_a_delete_is_not_lost(url: str, store: PostgresStore) -> None:
    """A queue is deleted while a put to it is not yet committed: the message is there afterwards, with its queue."""
    await store.create(QUEUE)
    stranger = await PostgresAccess(url).connect()
    try:
        async with stranger.transaction():
            await stranger.execute("SELECT queuebell_put($1, 'crossing'::text)", QUEUE)
            await store.delete(QUEUE)
            assert await store.depth(QUEUE) is None
    finally:
        await stranger.close()
    assert [message.body for message in (await store.receive(QUEUE)).messages] == [b"crossing"]


async def test_what_the_function_refuses(url: str, store: PostgresStore) -> None:
    """A name that is no reference and a body that is too long are refused where they are put."""
    import asyncpg

    for statement in (
        "SELECT queuebell_put('no reference', 'x'::text)",
        "INSERT INTO queuebell_messages (queue, text) VALUES ('billing', 'x')",
        "SELECT queuebell_put('a/b', repeat('x', 65537))",
    ):
        with pytest.raises(asyncpg.CheckViolationError):
            await execute(url, statement)
    assert await store.queues() == []


async def test_expired_rows_leave_the_table(url: str, store: PostgresStore) -> None:
    """What has expired is removed by the next receive, leased or not."""
    await store.put(QUEUE, [NewMessage(b"short", ttl_s=1), NewMessage(b"leased", ttl_s=1), NewMessage(b"stays")])
    await store.receive(QUEUE, 1)
    await let_pass_in(url)(1.0)
    await store.receive(QUEUE, 1)
    assert [row["body"] for row in await execute(url, "SELECT body FROM queuebell_messages")] == [b"stays"]


async def test_depth_beside_a_receive_is_bounded(url: str, store: PostgresStore) -> None:
    """A receive counts 32 of its batches at most, a question for the depth counts all."""
    await execute(url, "INSERT INTO queuebell_messages (queue, text) SELECT $1, '' FROM generate_series(1, 100)", QUEUE)
    assert (await store.receive(QUEUE, 1)).depth == Depth(postgres_sql.COUNTED, 1)
    assert await store.depth(QUEUE) == Depth(99, 1)


async def test_what_shows_up_late_before_a_mark_is_found(
    url: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put that is committed after later ones were taken is in the next short batch, or when the mark has aged."""
    mark = PostgresMarks.mark

    def a_second_later(marks: PostgresMarks, queue: str, now: float) -> datetime.datetime | None:
        return mark(marks, queue, now + MARK_S)

    await store.create(QUEUE)
    slow = await PostgresAccess(url).connect()
    try:
        for aged in (False, True):
            transaction = slow.transaction()
            await transaction.start()
            await slow.execute("SELECT queuebell_put($1, 'late'::text)", QUEUE)
            await store.put(QUEUE, new(b"1", b"2", b"3", b"4"))
            assert [m.body for m in (await store.receive(QUEUE, 2)).messages] == [b"1", b"2"]
            await transaction.commit()
            if aged:
                with monkeypatch.context() as patch:
                    patch.setattr(PostgresMarks, "mark", a_second_later)
                    received = await store.receive(QUEUE, 2)
                assert [m.body for m in received.messages] == [b"late", b"3"]
            else:
                received = await store.receive(QUEUE, 3)
                assert [m.body for m in received.messages] == [b"late", b"3", b"4"]
            await store.clear(QUEUE)
    finally:
        await slow.close()


async def test_behind_a_mark_a_full_batch_never_says_that_nothing_is_left(url: str, store: PostgresStore) -> None:
    """What was committed late lies before the mark, uncounted: a depth of 0 would cover the trigger for it (L8)."""
    await store.create(QUEUE)
    slow = await PostgresAccess(url).connect()
    try:
        transaction = slow.transaction()
        await transaction.start()
        await slow.execute("SELECT queuebell_put($1, 'late'::text)", QUEUE)
        await store.put(QUEUE, new(b"1", b"2"))
        received = await store.receive(QUEUE, 1)
        assert ([m.body for m in received.messages], received.depth) == ([b"1"], Depth(1, 1))
        await transaction.commit()
    finally:
        await slow.close()
    received = await store.receive(QUEUE, 1)
    assert [m.body for m in received.messages] == [b"2"], "the look went on from the mark"
    assert (received.depth, received.blocked) == (Depth(1, 1), False)
    await store.put(QUEUE, new(b"3"))
    found = [(await store.receive(QUEUE, 1)).messages[0].body for _ in range(2)]
    assert found == [b"late", b"3"], "and the next one looks from the beginning"


async def test_a_mark_passes_by_what_is_gone(url: str, store: PostgresStore) -> None:
    """With a mark a receive reads a part of the pages that it reads without, behind a long row of deleted messages."""
    await execute(url, "ALTER TABLE queuebell_messages SET (autovacuum_enabled = false)")
    keeper = await PostgresAccess(url).connect()
    connection = await PostgresAccess(url).connect(settings=SESSION)
    try:
        many = "INSERT INTO queuebell_messages (queue, text) SELECT $1, '' FROM generate_series(1, 40000)"
        await execute(url, many, QUEUE)
        # Whoever still sees the deleted keeps their entries where they are, as the time until a vacuum would.
        await keeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await keeper.fetch("SELECT count(*) FROM queuebell_messages")
        await execute(url, "DELETE FROM queuebell_messages")
        await execute(url, many, QUEUE)
        ((since,),) = await execute(url, "SELECT min(visible_at) FROM queuebell_messages")
        read = []
        for statement, mark in ((postgres_sql.RECEIVE, (None, None)), (postgres_sql.RECEIVE_ON, (since,))):
            ((plan,),) = await connection.fetch(
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + statement, QUEUE, 32, 1000, *mark
            )
            read.append(json.loads(plan)[0]["Plan"]["Shared Hit Blocks"])
    finally:
        await connection.close()
        await keeper.close()
    assert read[1] * 2 < read[0], read


async def test_older_tables_are_migrated_with_all_that_is_in_them(url: str, store: PostgresStore) -> None:
    """What stood in the tables of an older schema stands in the newer ones, and is refused and given out alike."""
    old = url.replace("search_path=", "search_path=old_")
    await init_as(old, 1)
    await execute(old, "SELECT queuebell_put($1, 'kept'::text)", QUEUE)
    assert (await init(old))[:1] == [f"tables migrated from schema 1 to {SCHEMA_VERSION}"]
    checks = (
        "SELECT pg_get_constraintdef(oid) AS said FROM pg_constraint "
        "WHERE contype = 'c' AND connamespace = current_schema()::regnamespace ORDER BY said"
    )
    of_old, of_new = [[row["said"] for row in await execute(there, checks)] for there in (old, url)]
    assert of_old == of_new
    assert of_old
    async with PostgresStore(old) as migrated:
        assert [message.body for message in (await migrated.receive(QUEUE)).messages] == [b"kept"]


@pytest.mark.parametrize(
    "name",
    ["", "/", "a/", "/b", "a/b/c", "a b/c", "-a/b", "a/_b", "a/b\n", "a" * 81 + "/b", "a/" + "b" * 81, "\u00e4/b"],
)
async def test_a_name_that_is_no_reference_is_refused_by_the_table(url: str, store: PostgresStore, name: str) -> None:
    """The table's own check is that of references, letter by letter and to the length."""
    import asyncpg

    for table, column in (("queuebell_messages", "queue, text"), ("queuebell_queues", "name, metadata")):
        with pytest.raises(asyncpg.CheckViolationError):
            await execute(url, f"INSERT INTO {table} ({column}) VALUES ($1, '{{}}')", name)
    await store.put("a" * 80 + "/" + "b" * 80, new(b"longest"))


@pytest.mark.parametrize("upkeep", ["ANALYZE", "VACUUM", "VACUUM ANALYZE"])
@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
async def test_no_plan_reads_a_whole_queue(url: str, store: PostgresStore, mode: str, upkeep: str) -> None:
    """Also where the planner believes the table to be empty, messages are found by id or by time, never one by one."""
    await execute(url, "ALTER TABLE queuebell_messages SET (autovacuum_enabled = false)")
    await store.put(QUEUE, new(b"gone"))
    await store.clear(QUEUE)
    await execute(url, f"{upkeep} queuebell_messages")
    nobody = uuid.uuid4()
    connection = await PostgresAccess(url).connect(settings={**SESSION, "plan_cache_mode": mode})
    try:
        for statement, args, scans in (
            (postgres_sql.RECEIVE, (QUEUE, 32, 1000, None, None), 7),
            (postgres_sql.RECEIVE_ON, (QUEUE, 32, 1000, datetime.datetime.now(datetime.UTC)), 3),
            (postgres_sql.DELETE_HELD, (QUEUE, "1", str(nobody)), 1),
            (postgres_sql.SETTLE, (QUEUE, [1], [nobody], [2], [nobody], [5], [None], [1, 2], [1]), 3),
            (postgres_sql.PEEK, (QUEUE, 32), 1),
        ):
            ((plan,),) = await connection.fetch("EXPLAIN (FORMAT JSON) " + statement, *args)
            looks = [
                node for node in nodes(json.loads(plan)[0]["Plan"])
                if node.get("Relation Name") == "queuebell_messages" and "Scan" in node["Node Type"]
            ]  # fmt: skip
            found = [look.get("Index Cond", "") for look in looks]
            # By id in any other index is from end to end.
            by_id = [look["Index Name"] for look in looks if look.get("Index Cond", "").startswith("(id = ANY")]
            assert set(by_id) <= {"queuebell_messages_pkey"}
            assert by_id or statement is postgres_sql.PEEK
            # The question whether a queue has any message at all stops at the first.
            bad = [cond for cond in found if not re.search(r"\bid\b|visible_at|expires_at", cond)]
            assert len(bad) <= ("EXISTS" in statement), bad
            assert len(found) >= scans
    finally:
        await connection.close()


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All nodes of a plan."""
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


async def test_one_message_in_many_claims(store: PostgresStore) -> None:
    """Claims of one settlement act as if one came after the other, whichever lists they stand in."""
    await store.put(QUEUE, new(b"a", b"b"))
    a, b = (await store.receive(QUEUE, 2)).messages
    settling = await store.settle(
        QUEUE,
        Settlement(
            delete=[Claim(a.id, a.pop_receipt)],
            release=[Release(a.id, a.pop_receipt), Release(b.id, b.pop_receipt), Release(b.id, b.pop_receipt)],
        ),
    )
    assert [item.ok for item in settling.delete] == [True]
    assert [item.code for item in settling.release] == ["message_not_found", None, "pop_receipt_mismatch"]


async def test_a_database_without_tables_says_what_to_do(url: str, server: PostgresServer) -> None:
    """Nothing is made unasked; the error names the command."""
    async with PostgresStore(server.url(search_path="nowhere")) as store:
        with pytest.raises(ConfigurationError, match="queuebell queue init"):
            await store.receive(QUEUE)


async def test_init_makes_migrates_and_refuses(url: str) -> None:
    """Made once, nothing to do the second time; an older schema is not used and a newer one not touched."""
    schema = url.partition("search_path=")[2]
    both = f"{url},public"
    assert await init(both) == [f'schema "{schema}" made', f"tables of schema {SCHEMA_VERSION} made"]
    assert await init(both) == await init(url) == []
    assert await init(url, notify=True, prefix="shop") == ["every put notifies the channel shop"]
    assert await init(url, notify=False) == ["puts notify nobody"]
    await execute(url, "UPDATE queuebell_schema SET version = 99")
    with pytest.raises(ConfigurationError, match="newer version"):
        await init(url)
    async with PostgresStore(url) as store:
        with pytest.raises(ConfigurationError, match="newer version"):
            await store.put(QUEUE, new(b"x"))
        await execute(url, "UPDATE queuebell_schema SET version = 0")
        with pytest.raises(ConfigurationError, match="queuebell queue init"):
            await store.put(QUEUE, new(b"x"))


async def test_what_init_may_not_do_is_said(url: str, server: PostgresServer) -> None:
    """A server that is not there was not asked; one that refuses has changed nothing."""
    await init(url)
    who = f"u{uuid.uuid4().hex}"
    await execute(url, f"CREATE ROLE {who} LOGIN")
    with pytest.raises(StoreError, match="this user may not do that"):
        await init(url.replace("postgres@", f"{who}@").replace("search_path=", "search_path=other_"))
    server.stop("fast")
    try:
        with pytest.raises(StoreUnavailable) as failed:
            await init(url)
    finally:
        server.start()
    assert type(failed.value) is StoreUnavailable


async def test_a_paused_queue_says_beside_a_receive_what_is_leased_and_delayed(store: PostgresStore) -> None:
    """As `counts` does: a bridge that looks at it needs no second question."""
    await store.put(QUEUE, new(b"1", b"2", b"3"))
    await store.put(QUEUE, [NewMessage(b"later", visible_after_ms=60_000)])
    await store.receive(QUEUE, 1)
    await store.pause(QUEUE)
    received = await store.receive(QUEUE, 5)
    assert received.counts == await store.counts(QUEUE) == Counts(0, 4, leased=1, delayed=1)
    assert (received.depth, received.next_visible_in_ms, received.blocked) == (Depth(0, 4), None, False)


async def test_many_may_init_at_once(url: str) -> None:
    """Of many that make the tables one does, and none fails."""
    done = await asyncio.gather(*(init(url, notify=True) for _ in range(5)))
    assert sum(f"tables of schema {SCHEMA_VERSION} made" in lines for lines in done) == 1


async def test_a_broken_connection_is_told_and_replaced(url: str, store: PostgresStore) -> None:
    """A server that ends our connections costs one call at most; what was put is there."""
    await store.put(QUEUE, new(b"safe"))
    await execute(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname IS NOT NULL",
    )
    try:
        received = await store.receive(QUEUE)
    except UnknownOutcome:
        received = await store.receive(QUEUE)
    assert [message.body for message in received.messages] == [b"safe"]


async def test_a_stopped_server_is_unreachable_and_comes_back(
    url: str, store: PostgresStore, server: PostgresServer
) -> None:
    """While it is down every call says that nothing happened; after a crash what was acknowledged is there."""
    await store.put(QUEUE, new(b"safe"))
    server.stop("immediate")
    try:
        with pytest.raises(StoreUnavailable) as failed:
            await store.put(QUEUE, new(b"lost"))
        if type(failed.value) is UnknownOutcome:  # the old connection had not been seen to end
            with pytest.raises(StoreUnavailable):
                await store.put(QUEUE, new(b"lost"))
    finally:
        server.start()
    assert [message.body for message in (await store.receive(QUEUE, 32)).messages] == [b"safe"]


async def test_a_hanging_server_ends_a_call_with_its_outcome_open(
    url: str, store: PostgresStore, server: PostgresServer
) -> None:
    """A call that is not answered in time may have been carried out; its connection is not used again."""
    await store.put(QUEUE, new(b"one"))
    async with PostgresStore(url, timeout=2.0) as hasty:
        await hasty.depth(QUEUE)
        server.pause()
        try:
            with pytest.raises(UnknownOutcome):
                await hasty.receive(QUEUE)
        finally:
            server.resume()
    found = await store.depth(QUEUE)
    assert found.visible + found.invisible == 1


async def test_a_connection_cut_off_is_not_used_again(url: str, store: PostgresStore) -> None:
    """One call after another shares a connection; after one that was cancelled in the middle there is a new one."""
    connections = PostgresConnections(PostgresAccess(url), 1)

    async def backend() -> int:
        (row,) = await connections.fetch("SELECT pg_backend_pid() AS pid", (), 5.0)
        return int(row["pid"])

    try:
        first = await backend()
        assert await backend() == first
        task = asyncio.create_task(connections.fetch("SELECT pg_sleep(30)", (), 5.0), name="cut off")
        await until(lambda: sleeping(url), "it is under way")
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert await backend() != first
        with pytest.raises(StoreError):
            await connections.fetch("SELECT nonsense", (), 5.0)
        second = await backend()
        with pytest.raises(UnknownOutcome):
            await connections.fetch("SELECT pg_sleep(30)", (), 0.05)
        assert await backend() != second
    finally:
        await connections.close()


async def sleeping(url: str) -> bool:
    return bool(await execute(url, "SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep'"))


async def test_connections_are_bounded(url: str, store: PostgresStore) -> None:
    """As many calls as there are share as many connections as were allowed."""
    async with open_store(url + "&pool_size=2") as narrow:
        await narrow.create(QUEUE)
        before = {row["pid"] for row in await execute(url, "SELECT pid FROM pg_stat_activity")}
        await asyncio.gather(*(narrow.depth(QUEUE) for _ in range(20)))
        rows = await execute(
            url, "SELECT pid FROM pg_stat_activity WHERE datname IS NOT NULL AND pid <> pg_backend_pid()"
        )
        assert len({row["pid"] for row in rows} - before) <= 1


async def test_many_messages_under_keys_are_one_request(url: str, store: PostgresStore) -> None:
    """Each is put once, in order, beside `put_once` too; another body under a known key is told, and not put."""
    given = [(f"key-{number}", NewMessage(b"%d" % number)) for number in range(store.capabilities.call_max)]
    assert await store.put_once(QUEUE, "key-1", NewMessage(b"1")) is not None
    assert await store.put_each_once(QUEUE, given) == len(given) - 1
    assert await store.put_each_once(QUEUE, given) == 0
    assert await store.put_once(QUEUE, "key-2", NewMessage(b"2")) is None
    assert [message.body for message in (await store.receive(QUEUE, 4)).messages] == [b"1", b"0", b"2", b"3"]
    twice = [("new", NewMessage(b"new", visible_after_ms=60_000)), ("new", NewMessage(b"new")), given[0]]
    assert await store.put_each_once(QUEUE, twice) == 1, "also where one statement names it twice"
    with pytest.raises(BadInput) as refused:
        await store.put_each_once(QUEUE, [given[0], ("key-1", NewMessage(b"other"))])
    assert refused.value.code == "message_conflict"
    for wrong in ([], [*given, ("more", NewMessage(b""))], [("no key", NewMessage(b""))]):
        with pytest.raises(BadInput):
            await store.put_each_once(QUEUE, wrong)
    assert await store.depth(QUEUE) == Depth(len(given) - 4, 5)
    await store.clear(QUEUE)
    assert await store.put_each_once(QUEUE, given[:2]) == 2


async def test_a_server_says_who_it_is_by_any_address(
    server: PostgresServer, url: str, schema: str, store: PostgresStore
) -> None:
    """C8: what `initdb` drew, which a dump does not carry; whoever may not ask is told nothing."""
    ((number,),) = await execute(url, "SELECT system_identifier FROM pg_control_system()")
    mine = await store.identity()
    assert mine == digest_of("postgres", str(number))
    async with TcpProxy(server.port) as proxy, PostgresStore(url.replace(f":{server.port}", f":{proxy.port}")) as alias:
        assert alias.fingerprint(QUEUE) != store.fingerprint(QUEUE)
        assert await alias.identity() == mine
    who = f"u{uuid.uuid4().hex}"
    await execute(url, f"CREATE ROLE {who} LOGIN")
    await execute(url, f"GRANT USAGE ON SCHEMA {schema} TO {who}")
    await execute(url, f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {who}")
    await execute(url, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    try:
        async with PostgresStore(url.replace("postgres@", f"{who}@")) as restricted:
            assert await restricted.identity() is None
            assert await restricted.queues() == []
    finally:
        await execute(url, "GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")
