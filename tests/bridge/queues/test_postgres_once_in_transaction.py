"""Puts under a key within a transaction of the caller's: what its commit, its rollback and others' make of them.

| put once in a transaction x | |
|---|---|
| commit, rollback, savepoint, by each driver | here |
| another transaction's, of the same key: waits, and goes by its end | here |
| read only, autocommit, time-out, odd schema names, create=False | here |
| partitions, a publishing queue | here |
| first put on a new queue by several at once | here |
"""

from __future__ import annotations

import asyncio
from typing import Any, Literal
from urllib.parse import quote

import asyncpg
import pytest

from bridge.contract.errors import BadInput, NotPrepared, QueueNotFound, StoreUnavailable
from bridge.producer.partitions import PartitionedQueue
from bridge.producer.publisher import Publisher
from bridge.producer.publishing_queue import PublishingQueue
from bridge.queues.base import Depth, NewMessage, PutReceipt
from bridge.queues.postgres.schema import init
from bridge.queues.postgres.store import PostgresStore
from bridge.queues.postgres.transaction import put_in_transaction, put_once_in_transaction
from tests.bridge.queues.postgres_rig import QUEUE, schema, server, store, url
from tests.support.buses import RecordingBus
from tests.support.postgres import PostgresServer, execute, init_as
from tests.support.processes import until
from tests.support.transactions import OPENERS, Awaited, Blocking, Opener, by_asyncpg, by_psycopg

__all__ = ["schema", "server", "store", "url"]
pytestmark = pytest.mark.system
each_driver = pytest.mark.parametrize("opened", OPENERS, ids=lambda opener: opener.__name__.removeprefix("by_"))
KEY = "order-7"


@pytest.fixture(autouse=True)
def beside_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Django block in a test, where a loop runs; a program of Django's has none there."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


async def put_once(
    caller: Awaited, store: PostgresStore, body: str | bytes | NewMessage, *, key: str = KEY, **more: bool
) -> PutReceipt | None:
    if isinstance(caller, Blocking):
        return put_once_in_transaction(caller.connection, QUEUE, key, body, **more)
    return await store.put_once(QUEUE, key, body, connection=caller.connection, **more)


async def bodies(store: PostgresStore) -> list[bytes]:
    return [] if await store.depth(QUEUE) is None else [m.body for m in (await store.receive(QUEUE, 32)).messages]


async def waits(url: str) -> bool:
    return bool(await execute(url, "SELECT FROM pg_locks WHERE NOT granted"))


@each_driver
async def test_a_commit_keeps_the_key_and_a_rollback_forgets_it(
    server: PostgresServer, schema: str, url: str, store: PostgresStore, opened: Opener
) -> None:
    """By each driver, in its own kind of transaction; within it the key is known at once, and to nobody else."""
    body = bytes(range(256)) + b"%s :p1 $1 \\"
    async with opened(server, schema) as caller:
        assert await put_once(caller, store, body) is not None
        assert await put_once(caller, store, body) is None
        with pytest.raises(BadInput) as refused:
            await put_once(caller, store, "other")
        assert refused.value.code == "message_conflict"
        await caller.end(commit=False)
    assert await store.queues() == []
    assert await execute(url, "SELECT FROM queuebell_once") == []
    async with opened(server, schema) as caller:
        receipt = await put_once(caller, store, NewMessage(body, visible_after_ms=1))
        assert receipt is not None
        assert receipt.visible_in_ms == 1
        await caller.end(commit=True)
    assert await store.put_once(QUEUE, KEY, body) is None
    message = (await store.receive(QUEUE, 32)).messages[0]
    assert (message.id, message.body, message.key) == (receipt.id, body, KEY)
    async with opened(server, schema) as caller:
        assert await put_once(caller, store, body) is None
        await caller.end(commit=True)


async def test_a_delay_and_a_time_to_live_may_be_given_beside_the_body(
    server: PostgresServer, schema: str, url: str, store: PostgresStore
) -> None:
    """Where the connection blocks: of one under a key, and of all that have none of their own."""
    async with by_psycopg(server, schema) as caller:
        given: dict[str, Any] = {"visible_after_ms": 60_000, "ttl_s": 120, "schema": schema}
        once = put_once_in_transaction(caller.connection, QUEUE, KEY, "one", **given)
        (plain,) = put_in_transaction(caller.connection, QUEUE, ["two"], **given)
        assert once is not None and once.visible_in_ms == plain.visible_in_ms == 60_000
        await caller.end(commit=True)
    seconds = "SELECT extract(epoch FROM {} - inserted_at)::int FROM queuebell_messages"
    assert await execute(url, seconds.format("visible_at")) == [(60,), (60,)]
    assert await execute(url, seconds.format("expires_at")) == [(120,), (120,)]


@each_driver
async def test_a_savepoint_takes_its_key_back(
    server: PostgresServer, schema: str, store: PostgresStore, opened: Opener
) -> None:
    """What was put within it may be put again after it, in the same transaction."""
    async with opened(server, schema) as caller:
        await put_once(caller, store, "stays", key="first")
        await caller.execute("SAVEPOINT here")
        assert await put_once(caller, store, "one") is not None
        await caller.execute("ROLLBACK TO SAVEPOINT here")
        assert await put_once(caller, store, "other") is not None
        await caller.end(commit=True)
    assert await bodies(store) == [b"stays", b"other"]


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.parametrize("second", ["a store", "a transaction"])
async def test_another_put_of_the_key_waits_for_the_end(
    server: PostgresServer, schema: str, url: str, store: PostgresStore, end: str, second: str
) -> None:
    """And goes by it: nothing where it was committed, the message where it was not. Other keys wait for nobody."""
    async with by_asyncpg(server, schema) as first, by_asyncpg(server, schema) as other:
        await put_once(first, store, "one")
        asked = store.put_once(QUEUE, KEY, "one") if second == "a store" else put_once(other, store, "one")
        putting = asyncio.create_task(asked, name="putting")
        await until(lambda: waits(url), "it waits")
        assert await store.put_once(QUEUE, "another", "two") is not None
        await first.end(commit=end == "commit")
        assert (await putting is None) is (end == "commit")
        await other.end(commit=True)
    assert sorted(await bodies(store)) == [b"one", b"two"]


@pytest.mark.parametrize("isolation", ["repeatable_read", "serializable"])
async def test_a_transaction_of_an_older_snapshot_doubles_nothing(
    server: PostgresServer, schema: str, store: PostgresStore, isolation: Literal["repeatable_read", "serializable"]
) -> None:
    """It cannot see what was put since it began: it fails, worth doing again, and never puts a second one."""
    async with by_asyncpg(server, schema, begin=False) as caller:
        connection: asyncpg.Connection[Any] = caller.connection
        transaction = connection.transaction(isolation=isolation)
        await transaction.start()
        await connection.execute("SELECT FROM queuebell_once")
        assert await store.put_once(QUEUE, KEY, "one") is not None
        with pytest.raises(StoreUnavailable, match="rolled back"):
            await store.put_once(QUEUE, KEY, "one", connection=connection)
        await transaction.rollback()
        async with connection.transaction(isolation=isolation):
            assert await store.put_once(QUEUE, KEY, "one", connection=connection) is None
    assert await bodies(store) == [b"one"]


@each_driver
async def test_a_queue_that_is_missing_is_told_and_the_transaction_goes_on(
    server: PostgresServer, schema: str, store: PostgresStore, opened: Opener
) -> None:
    """With ``create`` False; in autocommit it is that which is told. A queue made within the transaction is there."""
    more = {"create": False}

    async def put(caller: Awaited) -> object:
        if isinstance(caller, Blocking):
            return put_in_transaction(caller.connection, QUEUE, ["two"], create=False)
        return await store.put(QUEUE, ["two"], connection=caller.connection, create=False)

    async with opened(server, schema) as caller:
        for _ in range(2):
            with pytest.raises(QueueNotFound, match="nothing was put"):
                await put_once(caller, store, "one", **more)
            with pytest.raises(QueueNotFound, match="nothing was put"):
                await put(caller)
        await caller.execute(f"INSERT INTO queuebell_queues (name) VALUES ('{QUEUE}')")
        assert await put_once(caller, store, "one", **more) is not None
        assert await put(caller)
        await caller.end(commit=True)
    assert sorted(await bodies(store)) == [b"one", b"two"]
    await store.delete(QUEUE)
    async with opened(server, schema, begin=False) as caller:
        for refused in (put_once(caller, store, "one", **more), put(caller), put_once(caller, store, "one")):
            with pytest.raises(BadInput) as error:
                await refused
            assert error.value.code == "no_transaction"
    assert await store.queues() == []


@each_driver
async def test_a_transaction_that_takes_no_writes_is_told_as_such(
    server: PostgresServer, schema: str, store: PostgresStore, opened: Opener
) -> None:
    """READ ONLY is the caller's to mend, and worth no other try; the transaction is as it was."""
    async with opened(server, schema) as caller:
        await caller.execute("SET TRANSACTION READ ONLY")
        for refused in (put_once(caller, store, "one"), caller.put(store, QUEUE, ["one"])):
            with pytest.raises(BadInput, match="READ ONLY") as error:
                await refused
            assert error.value.code == "read_only"
        await caller.execute("SELECT 1")
        await caller.end(commit=True)
    assert await store.queues() == []


async def test_the_drivers_own_time_out_is_told_as_such(
    server: PostgresServer, schema: str, url: str, store: PostgresStore
) -> None:
    """asyncpg's ``command_timeout`` ends the statement, not the connection."""
    await store.put_once(QUEUE, "before", "one")
    connection = await asyncpg.connect(server.url(), server_settings={"search_path": schema}, command_timeout=0.3)
    try:
        async with by_asyncpg(server, schema) as locker:
            transaction = connection.transaction()
            await transaction.start()
            await locker.execute("LOCK TABLE queuebell_messages IN EXCLUSIVE MODE")
            with pytest.raises(StoreUnavailable, match="command_timeout"):
                await store.put(QUEUE, ["two"], connection=connection)
            await locker.end(commit=False)
        await transaction.rollback()
        async with connection.transaction():
            await store.put(QUEUE, ["three"], connection=connection)
    finally:
        await connection.close()
    assert await bodies(store) == [b"one", b"three"]


@each_driver
async def test_a_schema_whose_name_looks_like_placeholders(server: PostgresServer, opened: Opener) -> None:
    """A quoted name has none, whatever stands in it, and however the driver writes its own."""
    name = f'odd$1 :p2 %s \\:p4 "$5" {opened.__name__}'
    home = server.url(search_path=quote('"' + name.replace('"', '""') + '"'))
    await init(home)
    async with PostgresStore(home) as store:
        async with opened(server, "public") as caller:
            if isinstance(caller, Blocking):
                put_in_transaction(caller.connection, QUEUE, ["$1 :p1"], schema=name)
                assert put_once_in_transaction(caller.connection, QUEUE, KEY, "two", schema=name) is not None
                assert put_once_in_transaction(caller.connection, QUEUE, KEY, "two", schema=name) is None
            else:
                await caller.put(store, QUEUE, ["$1 :p1"])
                assert await put_once(caller, store, "two") is not None
                assert await put_once(caller, store, "two") is None
            await caller.end(commit=True)
        assert await bodies(store) == [b"$1 :p1", b"two"]


@each_driver
async def test_the_first_put_on_a_new_queue_holds_up_no_other(
    server: PostgresServer, schema: str, url: str, store: PostgresStore, opened: Opener
) -> None:
    """While its transaction is open others put there, by every way, and it is there for them; committed or not."""
    async with opened(server, schema) as caller, by_psycopg(server, schema) as other:
        await caller.put(store, QUEUE, ["first"])
        await put_once(caller, store, "first once")
        await store.put(QUEUE, ["two"])
        assert await store.exists(QUEUE)
        await store.put(QUEUE, ["three"], create=False)
        await store.put_once(QUEUE, "another", "four")
        await other.put(store, QUEUE, ["five"])
        await execute(url, "SELECT queuebell_put($1, $2::text)", QUEUE, "six")
        await other.end(commit=True)
        await caller.end(commit=False)
    assert sorted(await bodies(store)) == [b"five", b"four", b"six", b"three", b"two"]
    await store.put(QUEUE, ["seven"])
    await store.clear(QUEUE)
    assert await store.queues() == [QUEUE]
    assert await store.exists(QUEUE)


async def test_partitions_join_a_transaction(
    server: PostgresServer, schema: str, url: str, store: PostgresStore
) -> None:
    """By key, in turn and once: a rollback leaves none of them, and the commit has all in their order."""
    queue = PartitionedQueue(store, "billing/orders:3")
    pairs = [(f"customer {number % 5}", f"{number}") for number in range(40)]
    for commit in (False, True):
        async with by_asyncpg(server, schema) as caller:
            keyed = await queue.put_keyed(pairs, connection=caller.connection)
            in_turn = await queue.put([str(n) for n in range(70)], connection=caller.connection)
            assert await queue.put_once("customer 1", KEY, "once", connection=caller.connection)
            assert await queue.put_once("customer 1", KEY, "once", connection=caller.connection) is None
            assert await queue.depth() is None
            await caller.end(commit=commit)
        assert await queue.depth() == (Depth(111, 0) if commit else None)
        assert queue.state().put == dict.fromkeys(queue.queues, 0)
    assert [placed.queue for placed in keyed] == [queue.partitions.of(key) for key, _ in pairs]
    assert len({placed.queue for placed in in_turn}) == 3
    rows = await execute(url, "SELECT id, queue FROM queuebell_messages")
    assert {(f"{row['id']:016x}", row["queue"]) for row in rows} >= {
        (placed.receipt.id, placed.queue) for placed in (*keyed, *in_turn)
    }


async def test_partitions_are_asked_for_as_one(server: PostgresServer, schema: str, store: PostgresStore) -> None:
    """Where one is there the others are made; where none is, nothing is put, in a transaction or without."""
    queue = PartitionedQueue(store, "billing/orders:3")
    async with by_asyncpg(server, schema) as caller:
        for more in ({}, {"connection": caller.connection}):
            with pytest.raises(QueueNotFound, match="billing/orders:3"):
                await queue.put(["one"], key="k", create=False, **more)
            with pytest.raises(QueueNotFound):
                await queue.put_keyed([("k", "one")], create=False, **more)
            with pytest.raises(QueueNotFound):
                await queue.put_once("k", KEY, "one", create=False, **more)
        assert not await queue.exists()
        await store.create(queue.queues[2])
        for key in "abcdef":
            await queue.put(["one"], key=key, create=False)
        await queue.put_keyed([(key, "two") for key in "abcdef"], create=False, connection=caller.connection)
        await caller.end(commit=True)
    assert await queue.depth() == Depth(12, 0)


async def test_a_publishing_queue_leaves_the_ringing_to_the_commit(
    server: PostgresServer, schema: str, store: PostgresStore
) -> None:
    """One try in the transaction, and no trigger from here."""
    bus = RecordingBus()
    async with Publisher(bus) as publisher, by_asyncpg(server, schema) as caller:
        queue = PublishingQueue(store, publisher)
        with pytest.raises(QueueNotFound):
            await queue.put_once(QUEUE, KEY, "one", connection=caller.connection, create=False)
        with pytest.raises(QueueNotFound):
            await queue.put(QUEUE, ["one"], create=False)
        assert await queue.put_once(QUEUE, KEY, "one", connection=caller.connection) is not None
        assert await queue.put_once(QUEUE, KEY, "one", connection=caller.connection) is None
        await caller.end(commit=True)
    assert not bus.taken
    assert await bodies(store) == [b"one"]


async def test_tables_of_the_schema_before_are_refused_and_migrated(url: str) -> None:
    """They have no keys: a clear line first, and the messages that stand are there after `queue init`."""
    await init_as(url, 3)
    await execute(url, "SELECT queuebell_put($1, $2::text)", QUEUE, "old")
    async with PostgresStore(url) as store:
        with pytest.raises(NotPrepared, match="schema 3, and 5 is needed"):
            await store.put_once(QUEUE, KEY, "one")
        assert await init(url) == ["tables migrated from schema 3 to 5"]
        assert await store.put_once(QUEUE, KEY, "one", create=False) is not None
        assert [message.key for message in await store.peek(QUEUE)] == [None, KEY]


async def test_who_comes_from_an_older_schema_is_told_of_each_change(url: str) -> None:
    """What plain INSERTs name since schema 3 is said once, at the migration that changes it."""
    await init_as(url, 2)
    migrated, plain = await init(url)
    assert migrated == "tables migrated from schema 2 to 5"
    assert "text or bytes" in plain
    assert await init(url) == []
