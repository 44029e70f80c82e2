"""Puts within a transaction of the caller's, by each driver: the commit has them there and rings, nothing else does."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from queuebell.bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    QueueNotFound,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.producer.publisher import Publisher
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import Depth, NewMessage, PutReceipt
from queuebell.bridge.queues.postgres.schema import init
from queuebell.bridge.queues.postgres.store import PostgresStore
from queuebell.bridge.queues.postgres.transaction import put_in_transaction, put_once_in_transaction
from tests.bridge.queues.postgres_rig import QUEUE, schema, server, store, url
from tests.support.buses import RecordingBus
from tests.support.postgres import PostgresServer, execute, init_as, running
from tests.support.processes import PATIENCE_S, ROOT, environment, until
from tests.support.transactions import (
    OPENERS,
    Awaited,
    Blocking,
    Opener,
    by_asyncpg,
)


async def open_transactions(url: str) -> int:
    return len(await execute(url, "SELECT FROM pg_stat_activity WHERE state = 'idle in transaction'"))


WRITER = """
import sys
import asyncio, asyncpg, psycopg
from queuebell import open_store, put_in_transaction

url, at, kind = sys.argv[1:]
plain, _, schema = url.partition("?search_path=")

async def awaited():
    connection = await asyncpg.connect(url)
    async with open_store(url) as store:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("INSERT INTO killed VALUES (1)")
        if at != "before the put":
            await store.put("billing/orders", ["one"], connection=connection)
        if at == "after the commit":
            await transaction.commit()
        print("here", flush=True)
        await asyncio.Event().wait()

def blocking():
    with psycopg.connect(plain, options="-csearch_path=" + schema) as connection:
        connection.execute("INSERT INTO killed VALUES (1)")
        if at != "before the put":
            put_in_transaction(connection, "billing/orders", ["one"])
        if at == "after the commit":
            connection.commit()
        print("here", flush=True)
        sys.stdin.read()

blocking() if kind == "blocking" else asyncio.run(awaited())
"""


pytestmark = pytest.mark.system

__all__ = ["schema", "server", "store", "url"]
each_driver = pytest.mark.parametrize("opened", OPENERS, ids=lambda opener: opener.__name__.removeprefix("by_"))


@pytest.fixture(autouse=True)
def beside_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Django block in a test, where a loop runs; a program of Django's has none there."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


class Ears:
    """What is notified on the channel of bridges, in order."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._heard: asyncio.Queue[str] = asyncio.Queue()

    async def __aenter__(self) -> Ears:
        self._connection = await asyncpg.connect(self._url.partition("?")[0])
        await self._connection.add_listener("queuebell", lambda *said: self._heard.put_nowait(said[3]))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def until_now(self) -> list[str]:
        """Return what was heard, up to a word of our own that comes after all that was committed."""
        await execute(self._url, "NOTIFY queuebell, 'the end'")
        async with asyncio.timeout(PATIENCE_S):
            heard = []
            while (said := await self._heard.get()) != "the end":
                heard.append(said)
        return [said for said in heard if '"billing"' in said or said == QUEUE]


@pytest_asyncio.fixture
async def ears(url: str) -> AsyncIterator[Ears]:
    async with Ears(url) as ears:
        yield ears


async def bodies(store: PostgresStore) -> list[bytes]:
    return [] if await store.depth(QUEUE) is None else [m.body for m in (await store.receive(QUEUE, 32)).messages]


@each_driver
async def test_without_a_transaction_it_is_refused(
    server: PostgresServer, schema: str, store: PostgresStore, opened: Opener
) -> None:
    """In autocommit the put would be part of nothing; one that is begun by hand there is a transaction."""
    async with opened(server, schema, begin=False) as caller:
        with pytest.raises(BadInput, match="begin one") as refused:
            await caller.put(store, QUEUE, ["one"])
        assert refused.value.code == "no_transaction"
        assert await store.queues() == []
        await caller.execute("BEGIN")
        await caller.put(store, QUEUE, ["two"])
        await caller.execute("COMMIT")
    assert await bodies(store) == [b"two"]


@each_driver
async def test_on_a_closed_connection_it_is_refused(
    server: PostgresServer, schema: str, store: PostgresStore, opened: Opener
) -> None:
    """The put is nowhere, with what was put before in the transaction; a session begins anew, and is never closed."""
    async with opened(server, schema) as caller:
        await caller.put(store, QUEUE, ["one"])
        closing: Any = getattr(caller.connection, "terminate", None) or caller.connection.close
        if asyncio.iscoroutine(done := closing()):
            await done
        if isinstance(caller.connection, AsyncSession | Session):
            await caller.put(store, QUEUE, ["two"])
            await caller.end(commit=True)
        else:
            with pytest.raises(BadInput, match="nothing was put") as refused:
                await caller.put(store, QUEUE, ["two"])
            assert refused.value.code == "connection_unusable"
    assert await bodies(store) == [b"two"] * isinstance(caller.connection, AsyncSession | Session)


@each_driver
async def test_on_a_connection_that_the_server_has_ended_it_is_refused(
    server: PostgresServer, schema: str, store: PostgresStore, opened: Opener
) -> None:
    """Its transaction is gone, with what was put in it; a client that has noticed already says that it is closed."""
    async with opened(server, schema) as caller:
        await caller.put(store, QUEUE, ["one"])
        ended = "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE state LIKE 'idle in %'"
        assert await execute(server.url(), ended) == [(True,)]
        with pytest.raises((StoreUnavailable, BadInput), match="nothing was put") as refused:
            await caller.put(store, QUEUE, ["two"])
        assert not isinstance(refused.value, UnknownOutcome)
        assert refused.value.code in {"storage_unavailable", "connection_unusable"}
        with contextlib.suppress(Exception):
            await caller.end(commit=False)
    assert await store.queues() == []


@each_driver
async def test_on_a_connection_to_another_database_it_is_refused(
    server: PostgresServer, schema: str, url: str, store: PostgresStore, opened: Opener
) -> None:
    """Without tables, or with such of another version, the caller's transaction stays as it is, and goes on."""
    database = "other" + schema
    await execute(server.url(), f"CREATE DATABASE {database}")
    other = server.url(database, search_path=schema)

    async def refused(words: str) -> None:
        async with opened(server, schema, database=database) as caller:
            await caller.execute("CREATE TABLE IF NOT EXISTS public.orders (number int)")
            with pytest.raises(BadInput, match=words) as refused:
                await caller.put(store, QUEUE, ["one"])
            assert refused.value.code == "wrong_database"
            await caller.execute("INSERT INTO public.orders VALUES (17)")
            await caller.end(commit=True)

    await refused("no queue tables")
    await init_as(other, 2)
    await refused("open the store of its database|tables have schema 2")
    await init(other)
    await execute(other, "UPDATE queuebell_schema SET version = 99")
    await refused("open the store of its database|newer version")
    assert len(await execute(other, "SELECT FROM public.orders")) == 3
    async with PostgresStore(other) as there:
        with pytest.raises(ConfigurationError, match="newer version"):
            await there.queues()
    assert await execute(other, "SELECT FROM queuebell_messages") == []
    assert await store.queues() == []


async def test_a_server_that_was_started_anew_is_known_again(tmp_path: Path) -> None:
    """The store asks where it leads once more before it refuses a connection."""
    with running() as server:
        url = server.url(search_path="anew")
        await init(url)
        async with PostgresStore(url) as store:
            for _ in range(2):
                async with by_asyncpg(server, "public") as caller:
                    await caller.put(store, QUEUE, ["one"])
                    await caller.end(commit=True)
                await asyncio.to_thread(server.stop)
                await asyncio.to_thread(server.start)
            assert await store.depth(QUEUE) == Depth(2, 0)


@each_driver
async def test_what_the_database_refuses_is_explained(
    server: PostgresServer, schema: str, url: str, store: PostgresStore, opened: Opener
) -> None:
    """Our error says that nothing was put and what is left to do, without the bodies; the driver's is its cause."""
    await execute(url, "ALTER TABLE queuebell_messages ADD CONSTRAINT never CHECK (attempts <> 0)")
    async with opened(server, schema) as caller:
        with pytest.raises(BadInput, match=f"{QUEUE}: nothing was put|the database rejects") as refused:
            await caller.put(store, QUEUE, ["secret"])
        assert "secret" not in str(refused.value) and refused.value.__cause__ is not None
        await caller.end(commit=False)
    async with opened(server, schema) as caller, by_asyncpg(server, schema) as locker:
        await locker.execute("LOCK TABLE queuebell_messages IN EXCLUSIVE MODE")
        await caller.execute("SET LOCAL lock_timeout = '20ms'")
        with pytest.raises(StoreUnavailable, match="only be rolled back"):
            await caller.put(store, QUEUE, ["one"])
        await caller.end(commit=False)
        await locker.end(commit=False)
    assert await store.queues() == []


async def test_a_publishing_queue_leaves_the_ringing_to_the_commit(
    server: PostgresServer, schema: str, url: str, store: PostgresStore, ears: Ears
) -> None:
    """All batches are of the one transaction, and no trigger leaves before it is committed."""
    bus = RecordingBus()
    async with Publisher(bus) as publisher, by_asyncpg(server, schema) as caller:
        queue = PublishingQueue(store, publisher)
        receipts = await queue.put(QUEUE, ["x"] * 300, visible_after_ms=5000, connection=caller.connection)
        assert await store.depth(QUEUE) is None
        await caller.end(commit=True)
        await queue.close()
    assert len(receipts) == 300
    assert bus.taken == []
    assert await ears.until_now() == [QUEUE]
    assert await store.depth(QUEUE) == Depth(0, 300)


KEY = "order-7"


async def put_once(
    caller: Awaited, store: PostgresStore, body: str | bytes | NewMessage, *, key: str = KEY, **more: bool
) -> PutReceipt | None:
    if isinstance(caller, Blocking):
        return put_once_in_transaction(caller.connection, QUEUE, key, body, **more)
    return await store.put_once(QUEUE, key, body, connection=caller.connection, **more)


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


@pytest.mark.parametrize("kind", ["awaited", "blocking"])
@pytest.mark.parametrize("at", ["before the put", "before the commit", "after the commit"])
async def test_a_writer_that_is_killed_leaves_all_or_nothing(
    server: PostgresServer, url: str, store: PostgresStore, ears: Ears, at: str, kind: str
) -> None:
    """By SIGKILL at each point: no row, no message, nobody rung before the commit is done, and then all of it."""
    await init(url, notify=True)
    await execute(url, "CREATE TABLE killed (number int)")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, url, at, kind,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT, env=environment(PYTHONPATH=str(ROOT)),
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        assert await process.stdout.readline() == b"here\n"
        assert bool(await open_transactions(url)) is (at != "after the commit")
        process.send_signal(signal.SIGKILL)
        await process.communicate()

    async def over() -> bool:
        return not await open_transactions(url)

    await until(over, "the server has seen it")
    done = at == "after the commit"
    assert len(await ears.until_now()) == done
    assert await bodies(store) == [b"one"] * done
    assert len(await execute(url, "SELECT FROM killed")) == done
