"""Puts within a transaction of the caller's, by each driver: the commit has them there and rings, nothing else does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from bridge.contract.errors import BadInput, Closed, ConfigurationError, StoreUnavailable, UnknownOutcome, Unsupported
from bridge.producer.publisher import Publisher
from bridge.producer.publishing_queue import PublishingQueue
from bridge.queues import open_store
from bridge.queues.base import Depth, NewMessage
from bridge.queues.postgres.schema import init
from bridge.queues.postgres.store import PostgresStore
from bridge.queues.postgres.transaction import put_in_transaction
from bridge.storage.claim_check import ClaimCheck
from tests.bridge.queues.postgres_rig import QUEUE, schema, server, store, url
from tests.support.buses import RecordingBus
from tests.support.postgres import PostgresServer, execute, init_as, running
from tests.support.processes import PATIENCE_S, ROOT, environment, until
from tests.support.transactions import (
    OPENERS,
    Blocking,
    Opener,
    by_asyncpg,
    by_psycopg,
    by_psycopg_async,
    by_sqlalchemy_session,
    by_sqlalchemy_session_async,
)

__all__ = ["schema", "server", "store", "url"]
pytestmark = pytest.mark.system
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
async def test_a_commit_has_it_there_and_rings(
    server: PostgresServer, schema: str, url: str, store: PostgresStore, ears: Ears, opened: Opener
) -> None:
    """Any bytes in their order, each with its delay and expiry, two puts and a row of the caller's are one."""
    await init(url, notify=True)
    await execute(url, "CREATE TABLE orders (number int)")
    first = ["grün: % %s :p1 $1 \\", b"", bytes(range(256)), b"x" * 65_536]
    async with opened(server, schema) as caller:
        receipts = await caller.put(store, QUEUE, first)
        await caller.execute("INSERT INTO orders VALUES (17)")
        receipts += await caller.put(
            store, QUEUE, [NewMessage(b"later", visible_after_ms=60_000), NewMessage(b"short", ttl_s=60)]
        )
        assert await store.depth(QUEUE) is None
        assert await ears.until_now() == []
        await caller.end(commit=True)
    heard = await ears.until_now()
    assert len(heard) == 3
    # Rounded up, as the bridge does: a tick early would be a loss (B2).
    assert any(59_000 < json.loads(said).get("not_before_ms", 0) <= 60_000 + 1000 * PATIENCE_S for said in heard), heard
    assert await execute(url, "SELECT number FROM orders") == [(17,)]
    assert await store.depth(QUEUE) == Depth(5, 1)
    taken = (await store.receive(QUEUE, 32)).messages
    assert [m.body for m in taken] == ["grün: % %s :p1 $1 \\".encode(), *first[1:], b"short"]
    assert [bool(m.expires_at) for m in taken] == [False] * 4 + [True]
    assert [r.id for r in (*receipts[:4], receipts[5])] == [m.id for m in taken]
    assert [r.visible_in_ms for r in receipts] == [0, 0, 0, 0, 60_000, 0]
    rows = await execute(url, "SELECT id, receipt FROM queuebell_messages WHERE attempts = 0")
    assert [(f"{row['id']:016x}", row["receipt"].hex) for row in rows] == [(receipts[4].id, receipts[4].pop_receipt)]


@each_driver
async def test_a_rollback_leaves_nothing(
    server: PostgresServer, schema: str, url: str, store: PostgresStore, ears: Ears, opened: Opener
) -> None:
    """No message, no queue, and nobody is rung; nor for a savepoint that is rolled back before the commit."""
    await init(url, notify=True)
    async with opened(server, schema) as caller:
        await caller.put(store, QUEUE, ["one"])
        await caller.end(commit=False)
    assert await ears.until_now() == []
    assert await store.queues() == []
    async with opened(server, schema) as caller:
        await caller.execute("SELECT 1")
        await caller.execute("SAVEPOINT here")
        await caller.put(store, QUEUE, ["two"])
        await caller.execute("ROLLBACK TO SAVEPOINT here")
        await caller.end(commit=True)
    assert await ears.until_now() == []
    assert await store.queues() == []


@each_driver
async def test_it_rings_where_plain_puts_do_not(
    server: PostgresServer, schema: str, url: str, store: PostgresStore, ears: Ears, opened: Opener
) -> None:
    """Without the trigger function the put says itself, unless silence is meant."""
    async with opened(server, schema) as caller:
        await caller.put(store, QUEUE, ["one"])
        assert await ears.until_now() == []
        await caller.end(commit=True)
    assert await ears.until_now() == [QUEUE]
    await init(url, notify=False)
    async with opened(server, schema) as caller:
        await caller.put(store, QUEUE, ["two"])
        await caller.end(commit=True)
    assert await ears.until_now() == []
    assert await bodies(store) == [b"one", b"two"]


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
async def test_in_a_failed_transaction_it_is_refused(
    server: PostgresServer, schema: str, store: PostgresStore, opened: Opener
) -> None:
    """Whatever failed it; after a rollback the same connection takes the put."""
    async with opened(server, schema) as caller:
        with pytest.raises(Exception, match="division"):
            await caller.execute("SELECT 1 / 0")
        with pytest.raises(BadInput, match="roll it back") as refused:
            await caller.put(store, QUEUE, ["one"])
        assert refused.value.code == "transaction_failed"
        await caller.end(commit=False)
        assert await store.queues() == []


class Base(DeclarativeBase):
    """Tables of the caller's."""


class Thing(Base):
    """A row of the caller's."""

    __tablename__ = "things"
    number: Mapped[int] = mapped_column(primary_key=True)


@pytest.mark.parametrize("opened", [by_sqlalchemy_session, by_sqlalchemy_session_async])
async def test_a_put_writes_no_objects_of_the_session(
    server: PostgresServer, schema: str, store: PostgresStore, opened: Opener
) -> None:
    """What is wrong with them is told where the caller writes them, by the caller's own errors."""
    async with opened(server, schema) as caller:
        session: Any = caller.connection
        await caller.execute("CREATE TEMPORARY TABLE things (number int PRIMARY KEY CHECK (number < 5))")
        session.add(Thing(number=7))
        await caller.put(store, QUEUE, ["one"])
        with pytest.raises(sqlalchemy.exc.IntegrityError):
            await caller.end(commit=True)
        await caller.end(commit=False)
        assert await store.queues() == []


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


def test_on_a_session_that_cannot_be_asked_it_is_refused(server: PostgresServer, schema: str) -> None:
    """One that begins nothing by itself and was not begun, and one that is closed for good."""
    engine = sqlalchemy.create_engine(server.url().replace("postgres://", "postgresql+psycopg://", 1))
    with Session(engine, autobegin=False) as unbegun, Session(engine, close_resets_only=False) as closed:
        closed.close()
        for session in (unbegun, closed):
            with pytest.raises(BadInput, match="nothing was put") as refused:
                put_in_transaction(session, QUEUE, ["one"], schema=schema)
            assert refused.value.code == "connection_unusable"
    engine.dispose()


async def test_on_a_connection_that_went_back_to_its_pool_it_is_refused(url: str, store: PostgresStore) -> None:
    """Another may have it by now."""
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool:
        async with pool.acquire() as connection:
            await connection.execute("SELECT 1")
        with pytest.raises(BadInput, match="released back") as refused:
            await store.put(QUEUE, ["one"], connection=connection)
    assert refused.value.code == "connection_unusable"


async def test_on_a_connection_that_is_busy_it_is_refused(
    server: PostgresServer, schema: str, store: PostgresStore
) -> None:
    """With another statement of its transaction, which goes on."""
    async with by_asyncpg(server, schema) as caller, by_asyncpg(server, schema) as locker:
        await locker.execute("SELECT pg_advisory_xact_lock(1)")
        busy = asyncio.create_task(caller.execute("SELECT pg_advisory_xact_lock(1)"), name="busy")
        await until(lambda: waits(server.url()), "it waits")
        with pytest.raises(BadInput, match="in progress") as refused:
            await caller.put(store, QUEUE, ["one"])
        assert refused.value.code == "connection_unusable"
        await locker.end(commit=True)
        await busy
        await caller.put(store, QUEUE, ["two"])
        await caller.end(commit=True)
    assert await bodies(store) == [b"two"]


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

    await refused("no tables of queues")
    await init_as(other, 2)
    await refused("open the store of its database|tables are of schema 2")
    await init(other)
    await execute(other, "UPDATE queuebell_schema SET version = 99")
    await refused("open the store of its database|newer version")
    assert len(await execute(other, "SELECT FROM public.orders")) == 3
    async with PostgresStore(other) as there:
        with pytest.raises(ConfigurationError, match="newer version"):
            await there.queues()
    assert await execute(other, "SELECT FROM queuebell_messages") == []
    assert await store.queues() == []


async def test_the_store_says_which_tables(server: PostgresServer, schema: str, url: str, store: PostgresStore) -> None:
    """Those of its address, wherever the caller's connection looks; a blocking put is told the schema."""
    for number, opened in enumerate(OPENERS):
        async with opened(server, "public") as caller:
            if isinstance(caller, Blocking):
                with pytest.raises(BadInput) as refused:
                    await caller.put(store, QUEUE, [b"nowhere"])
                assert refused.value.code == "wrong_database"
                put_in_transaction(caller.connection, QUEUE, [b"%d" % number], schema=schema)
            else:
                await caller.put(store, QUEUE, [b"%d" % number])
            await caller.end(commit=True)
    assert await bodies(store) == [b"%d" % number for number in range(len(OPENERS))]


async def test_a_schema_of_any_name(server: PostgresServer) -> None:
    """Its name is quoted, by each driver in its way."""
    async with PostgresStore(server.url(search_path='"Odd%%20name%%2525s"'.replace("%%", "%"))) as store:
        await init(server.url(search_path='"Odd%20name%2525s"'))
        async with by_psycopg_async(server, "public") as caller, by_asyncpg(server, "public") as other:
            await caller.put(store, QUEUE, ["one"])
            await other.put(store, "billing/other", ["two"])
            await caller.end(commit=True)
            await other.end(commit=True)
        assert await store.queues() == [QUEUE, "billing/other"]


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


async def test_what_is_no_connection_is_refused(store: PostgresStore, server: PostgresServer, schema: str) -> None:
    """An unknown kind, one for the other call, and one to no PostgreSQL: the error says what is taken."""
    with contextlib.closing(sqlite3.connect(":memory:")) as unknown:
        for call in (
            lambda: put_in_transaction(unknown, QUEUE, ["one"]),
            lambda: put_in_transaction(None, QUEUE, ["x"]),
        ):
            with pytest.raises(BadInput, match="psycopg 3 Connection") as refused:
                call()
            assert refused.value.code == "unknown_connection"
        with pytest.raises(BadInput, match="psycopg 3 AsyncConnection") as refused:
            await store.put(QUEUE, ["one"], connection=unknown)  # type: ignore[arg-type]
        assert refused.value.code == "unknown_connection"
    async with by_psycopg(server, schema) as blocking, by_asyncpg(server, schema) as awaited:
        with pytest.raises(BadInput, match="put_in_transaction") as refused:
            await store.put(QUEUE, ["one"], connection=blocking.connection)
        assert refused.value.code == "unknown_connection"
        with pytest.raises(BadInput, match="connection=") as refused:
            put_in_transaction(awaited.connection, QUEUE, ["one"])
        assert refused.value.code == "unknown_connection"
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as elsewhere, pytest.raises(BadInput, match="sqlite") as refused:
        put_in_transaction(elsewhere, QUEUE, ["one"])
    assert refused.value.code == "wrong_database"
    engine.dispose()
    assert await store.queues() == []


async def test_other_stores_refuse_a_connection(server: PostgresServer, schema: str) -> None:
    """They say which store can, and what to do instead; nothing was put."""
    async with by_asyncpg(server, schema) as caller, open_store("memory:caller") as store:
        with pytest.raises(Unsupported, match=r"PostgreSQL.*outbox.*after your commit"):
            await store.put(QUEUE, ["one"], connection=caller.connection)
        assert await store.depth(QUEUE) is None


@each_driver
async def test_the_rules_of_a_put_hold(
    server: PostgresServer, schema: str, store: PostgresStore, opened: Opener
) -> None:
    """Names, sizes and numbers are refused as ever, before the transaction is touched; 256 messages go in one put."""
    wrong: list[tuple[str, Any, str]] = [
        ("no reference", ["x"], "bad_queue_reference"), (QUEUE, "x", "bad_parameter"), (QUEUE, [], "bad_parameter"),
        (QUEUE, ["x"] * 257, "too_many_items"), (QUEUE, ["x" * 65_537], "message_too_large"),
        (QUEUE, [NewMessage(b"x", -1)], "bad_parameter"), (QUEUE, [NewMessage(b"x", ttl_s=0)], "bad_parameter"),
    ]  # fmt: skip
    async with opened(server, schema) as caller:
        for queue, given, code in wrong:
            with pytest.raises(BadInput) as refused:
                await caller.put(store, queue, given)
            assert refused.value.code == code
        receipts = await caller.put(store, QUEUE, [b"%d" % number for number in range(256)])
        await caller.end(commit=True)
    assert [r.id for r in receipts] == [m.id for m in (await store.receive(QUEUE, 256)).messages]


@each_driver
async def test_what_the_database_refuses_is_explained(
    server: PostgresServer, schema: str, url: str, store: PostgresStore, opened: Opener
) -> None:
    """Our error says that nothing was put and what is left to do, without the bodies; the driver's is its cause."""
    await execute(url, "ALTER TABLE queuebell_messages ADD CONSTRAINT never CHECK (attempts <> 0)")
    async with opened(server, schema) as caller:
        with pytest.raises(BadInput, match=f"{QUEUE}: nothing was put|the database refuses") as refused:
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


async def test_a_body_is_put_aside_before_the_transaction(
    server: PostgresServer, schema: str, store: PostgresStore, tmp_path: Path
) -> None:
    """What is over the limit goes by its claim; a put that is refused takes its blob along."""
    blobs = tmp_path / "blobs"
    async with Publisher(RecordingBus()) as publisher, ClaimCheck(blobs.as_uri()) as check:
        queue = PublishingQueue(store, publisher, claim_check=check)
        async with by_asyncpg(server, schema, begin=False) as caller:
            with pytest.raises(BadInput):
                await queue.put(QUEUE, ["x" * 100_000], connection=caller.connection)
        assert [path.name for path in blobs.rglob("*") if path.is_file()] == [".queuebell-blobs"]
        async with by_asyncpg(server, schema) as caller:
            await queue.put(QUEUE, ["x" * 100_000], connection=caller.connection)
            await caller.end(commit=True)
        (body,) = await bodies(store)
        assert await check.fetch(body) == b"x" * 100_000


async def test_a_cancelled_put_leaves_nothing(
    server: PostgresServer, schema: str, url: str, store: PostgresStore
) -> None:
    """While it waits for a lock of another; the transaction can only be rolled back then."""
    await store.put(QUEUE, ["before"])
    async with by_asyncpg(server, schema) as caller, by_asyncpg(server, schema) as locker:
        await locker.execute("LOCK TABLE queuebell_messages IN EXCLUSIVE MODE")
        putting = asyncio.create_task(caller.put(store, QUEUE, ["one"]), name="putting")
        await until(lambda: waits(url), "it waits")
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        await locker.end(commit=False)
        await caller.end(commit=False)
    assert await bodies(store) == [b"before"]


async def waits(url: str) -> bool:
    return bool(await execute(url, "SELECT FROM pg_locks WHERE NOT granted"))


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


async def test_a_closed_store_takes_none(server: PostgresServer, schema: str, url: str, store: PostgresStore) -> None:
    """Also where it has found its tables before, and asks for no connection of its own any more."""
    async with by_asyncpg(server, schema) as caller:
        await caller.put(store, QUEUE, ["one"])
        await store.close()
        with pytest.raises(Closed):
            await caller.put(store, QUEUE, ["two"])
        await caller.end(commit=True)
    assert await execute(url, "SELECT body FROM queuebell_messages") == [(b"one",)]


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


async def open_transactions(url: str) -> int:
    return len(await execute(url, "SELECT FROM pg_stat_activity WHERE state = 'idle in transaction'"))
