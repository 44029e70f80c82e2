"""PostgreSQL behind PgBouncer in transaction mode: what goes through it, and what is told to go past it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from queuebell.assembly import assemble
from queuebell.bridge.brokers.postgres.access import PostgresAccess
from queuebell.bridge.brokers.postgres.broker import PostgresBroker
from queuebell.bridge.contract.errors import BadInput, ConfigurationError
from queuebell.bridge.queues.base import Claim, Settlement
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.bridge.queues.postgres.schema import init
from queuebell.bridge.queues.postgres.store import PostgresStore
from queuebell.bridge.queues.postgres.transaction import put_in_transaction
from queuebell.bridge.storage.tables import open_table
from queuebell.listeners import PULL_ONLY, Listener, Message
from queuebell.settings import Settings
from tests.bridge.queues.postgres_rig import QUEUE, new, schema, server
from tests.support.command import perform, run
from tests.support.outboxes import abandon, opened, put
from tests.support.pgbouncer import Pgbouncer, connect, pooling
from tests.support.postgres import PostgresServer, execute, running, take_no_writes
from tests.support.processes import PATIENCE_S, free_port, until

# Private: `_fetch`: runs a statement of the test's own.

__all__ = ["schema", "server"]

_INSERT = "INSERT INTO queuebell_messages (queue, text) VALUES ($1, $2)"
pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def pooler(server: PostgresServer) -> Iterator[Pgbouncer]:
    """With two connections to the server, so that transactions change places all the time."""
    with pooling(server, default_pool_size="2") as pooler:
        yield pooler


@pytest.fixture(scope="module")
def forgetful(server: PostgresServer) -> Iterator[Pgbouncer]:
    """One that takes settings of a session, and drops them; with a single connection, which all its clients share."""
    ignored = "default_transaction_isolation,enable_seqscan,enable_bitmapscan,jit,plan_cache_mode,lock_timeout"
    more = "statement_timeout,tcp_user_timeout,idle_in_transaction_session_timeout,search_path,synchronous_commit"
    dropped = f"queuebell.session,{ignored},{more}"
    with pooling(server, default_pool_size="1", ignore_startup_parameters=dropped) as pooler:
        yield pooler


async def handled(url: str, count: int) -> list[bytes]:
    """Put and take so many at once, on more connections than the pooler has, and return what was taken."""
    async with PostgresStore(url) as store, PostgresStore(url.replace("?", "?pool_size=7&")) as other:
        for number in range(count):
            await store.put(QUEUE, new(b"%d" % number))

        async def take(one: PostgresStore) -> list[bytes]:
            taken = []
            while received := (await one.receive(QUEUE, 2, visibility_s=30)).messages:
                settling = await one.settle(QUEUE, Settlement([Claim(each.id, each.pop_receipt) for each in received]))
                assert all(each.ok for each in settling.delete)
                taken += [each.body for each in received]
            return taken

        bodies = [body for taken in await asyncio.gather(*(take(one) for one in (store, other) * 6)) for body in taken]
        assert await store.depth(QUEUE) is not None and (await store.depth(QUEUE)).visible == 0  # type: ignore[union-attr]
        return bodies


async def refused(url: str) -> None:
    line = PostgresBroker(url)
    with pytest.raises(ConfigurationError, match=r"pooler.*messages are safe.*\?direct=HOST:5432"):
        await line.connect()
    await line.close()


async def test_many_workers_on_few_connections(pooler: Pgbouncer, schema: str) -> None:
    """Each message is taken once, with the settings of each call in force whichever connection carries it out."""
    url = pooler.url(search_path=schema)
    assert await init(url)
    assert sorted(await handled(url, 60), key=int) == [b"%d" % number for number in range(60)]
    async with PostgresStore(url) as store:
        assert (await store._fetch("SHOW lock_timeout"))[0][0] == "8s"  # the only way to see what a call runs with


async def test_tables_are_made_without_options_and_again(pooler: Pgbouncer, server: PostgresServer) -> None:
    """An address that asks for nothing that the pooler refuses: no statement of ours is left there for others."""
    await execute(server.url(), "CREATE DATABASE fresh")
    url = pooler.url("fresh")
    assert await init(url, notify=True)
    assert await init(url, notify=True) and not await init(url)
    for _ in range(4):
        asked = await asyncpg.connect(url, statement_cache_size=0)
        async with asked.transaction():
            left = await asked.fetch(
                "SELECT statement FROM pg_prepared_statements WHERE statement ~ 'queuebell_schem[a]'"
            )
            assert left == []
        await asked.close()


async def test_a_pooler_that_forgets_settings_is_known_by_them(forgetful: Pgbouncer, schema: str) -> None:
    url = forgetful.url(search_path=schema)
    assert await init(forgetful.url(search_path=schema, direct=True))
    assert len(set(await handled(url, 30))) == 30
    await refused(url)


def test_one_process_after_the_other_puts(forgetful: Pgbouncer, server: PostgresServer, schema: str) -> None:
    """None leaves a prepared statement behind that the next one meets."""
    url = forgetful.url(search_path=schema)
    perform("queue", "init", server.url(search_path=schema))
    for number in range(3):
        run("queue", "put", url, QUEUE, f"order {number}")
    assert json.loads(perform("queue", "depth", url, QUEUE, "--json").stdout)["visible"] == 3


async def test_of_several_poolers_the_one_is_used_whose_server_takes_writes(
    pooler: Pgbouncer, server: PostgresServer, schema: str
) -> None:
    """Whichever stands first; one that is down, first or last, changes nothing."""
    await init(server.url(search_path=schema))
    down = f"127.0.0.1:{free_port()}"
    with running() as standby, pooling(standby) as before:
        await take_no_writes(standby)
        live, read_only = (f"127.0.0.1:{each.port}" for each in (pooler, before))
        for hosts in (f"{live},{down}", f"{down},{live}", f"{read_only},{live}", f"{live},{read_only}"):
            async with PostgresStore(pooler.url(search_path=schema).replace(live, hosts)) as store:
                await store.put(QUEUE, new(b"order"))
    async with PostgresStore(pooler.url(search_path=schema)) as store:
        assert len(await store.peek(QUEUE, 9)) == 4


@pytest.mark.parametrize("given", ["", ":5432", "db:5432,"])
def test_a_direct_host_that_is_empty_is_refused(given: str) -> None:
    """It would be the local socket, and somebody else's database."""
    with pytest.raises(ConfigurationError, match="direct=HOST:PORT"):
        PostgresAccess(f"postgres://pooler:6432/jobs?direct={given}")


@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_a_worker_goes_on_when_its_pooler_was_killed(server: PostgresServer, schema: str, mode: str) -> None:
    """With -9, amid work, and started again: each message that was put is handled."""
    handled: set[bytes] = set()
    begun, going = asyncio.Event(), asyncio.Event()

    async def handle(message: Message) -> None:
        begun.set()
        await going.wait()
        handled.add(message.body)

    await init(server.url(search_path=schema))
    async with PostgresStore(server.url(search_path=schema)) as store:
        await store.put(QUEUE, new(*(b"%d" % number for number in range(40))))
    with pooling(server, pool_mode=mode) as pooler:
        port = pooler.port
        listener = Listener(
            pooler.url(search_path=schema),
            QUEUE,
            handle,
            bridge=PULL_ONLY,
            visibility_timeout=2.0,
            handle_signals=False,
        )
        running_listener = asyncio.create_task(listener.run(), name="worker")
        async with asyncio.timeout(PATIENCE_S):
            await begun.wait()
    going.set()
    with pooling(server, port, pool_mode=mode):
        await until(lambda: len(handled) == 40, "all are handled")
        await listener.stop()
        await running_listener


async def test_puts_in_transactions_of_the_caller(pooler: Pgbouncer, schema: str) -> None:
    """By drivers that prepare nothing, as their own manuals say for a pooler; a rollback takes the put along."""
    url = pooler.url(search_path=schema)
    await init(url)
    joined = await connect(pooler)
    try:
        async with PostgresStore(url) as store:
            async with joined.transaction():
                await store.put(QUEUE, new(b"kept"), connection=joined)
            undone = joined.transaction()
            await undone.start()
            await store.put(QUEUE, new(b"gone"), connection=joined)
            await undone.rollback()
            with psycopg.connect(pooler.url(), prepare_threshold=None) as blocking:
                put_in_transaction(blocking, QUEUE, ["blocking"], schema=schema)
            bodies = [message.body for message in await store.peek(QUEUE, 5)]
            assert bodies == [b"kept", b"blocking"]
    finally:
        await joined.close()


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("sqlalchemy", {"prepare_threshold": None}),
        (
            "sqlalchemy-async",
            {
                "statement_cache_size": 0,
                "prepared_statement_cache_size": 0,
                "prepared_statement_name_func": lambda: f"__asyncpg_{uuid.uuid4()}__",
            },
        ),
        ("django", {}),
    ],
)
async def test_an_outbox_is_written_and_relayed(
    pooler: Pgbouncer, server: PostgresServer, kind: str, given: Any
) -> None:
    """With the settings of each driver that its own manual has for a pooler; the relay looks, for it hears nothing."""
    database = f"d{uuid.uuid4().hex}"
    await execute(server.url(), f"CREATE DATABASE {database}")
    through = pooler.url(database)
    async with MemoryStore("outbox") as store, opened(kind, through, **given) as rig, rig.relay(store, sweep_s=0.1):
        for number in range(8):
            await rig.write(put(f"{number}", queue=QUEUE))
        await rig.write(put("never", queue=QUEUE), abandon)

        async def relayed() -> bool:
            depth = await store.depth(QUEUE)
            return depth is not None and depth.visible == 8

        async def removed() -> bool:
            return await rig.count() == 0

        await until(relayed, "all were relayed")
        await until(removed, "their rows were removed")


async def test_nobody_listens_through_it_and_the_words_say_what_to_write(pooler: Pgbouncer) -> None:
    await refused(pooler.url())
    line = PostgresBroker(pooler.url(direct=True))
    try:
        await line.connect()
        assert await line.probe() < 2.0
    finally:
        await line.close()


async def test_a_table_of_entities_is_made_in_its_schema(
    pooler: Pgbouncer, server: PostgresServer, schema: str
) -> None:
    await execute(server.url(), f"CREATE SCHEMA {schema}")
    async with open_table(pooler.url(search_path=schema)) as table:
        await table.insert("p", "r", b"entity")
    ((count,),) = await execute(server.url(), f"SELECT count(*) FROM {schema}.queuebell_entities")
    assert count == 1


def test_the_commands_say_what_is_wrong_and_take_both_addresses(pooler: Pgbouncer, schema: str, tmp_path: Path) -> None:
    """Tables are made and puts done through the pooler; `check` names what the bridge lacks, and is content with it."""
    through, both = pooler.url(search_path=schema), pooler.url(direct=True, search_path=schema)
    perform("queue", "init", through, "--notify")
    perform("queue", "put", through, QUEUE, "order 1")
    assert b"order 1" in perform("queue", "peek", through, QUEUE).stdout
    env = {"QUEUEBELL_DATA": str(tmp_path), "QUEUEBELL_LISTEN": f"127.0.0.1:{free_port()}", "QUEUEBELL_STORE": through}
    told = perform("check", "--live", env={**env, "QUEUEBELL_POSTGRES": through}, code=1).stdout.decode()
    assert "is a connection pooler" in told and "?direct=HOST:5432" in told
    env |= {"QUEUEBELL_STORE": both, "QUEUEBELL_POSTGRES": both}
    told = perform("check", "--live", env=env).stdout.decode()
    assert f"127.0.0.1:{pooler.port}/postgres: it answers" in told and "a notification to ourselves took" in told


async def test_a_bridge_and_a_worker_on_one_address(pooler: Pgbouncer, server: PostgresServer, schema: str) -> None:
    """The bridge listens past the pooler and keeps its queues through it; a plain INSERT wakes the worker."""
    url = pooler.url(direct=True, search_path=schema)
    await init(url, notify=True, prefix=schema)
    settings = Settings(listen="127.0.0.1:0", store=url, prefix=schema)
    made = assemble(settings, in_memory=True)
    await made.service.start()
    await made.web.start()
    await made.brokers.start()
    handled = asyncio.Event()

    async def handle(message: Message) -> None:
        assert message.text() == "plain"
        handled.set()

    listener = Listener(made.web.url, QUEUE, handle)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(listener.run(), name="worker")
            await until(
                lambda: made.service.listeners() and made.service.readiness().ready, "a session, and the database heard"
            )
            past = server.url(search_path=schema)
            await execute(past, _INSERT, QUEUE, "plain")
            async with asyncio.timeout(PATIENCE_S):
                await handled.wait()
            await listener.stop()
    finally:
        await made.brokers.stop()
        await made.web.stop()
        await made.service.stop()


async def test_a_refused_call_leaves_its_connection_usable(pooler: Pgbouncer, schema: str) -> None:
    url = pooler.url(search_path=schema)
    await init(url)
    async with PostgresStore(url.replace("?", "?pool_size=1&")) as store:
        with pytest.raises(BadInput, match="division by zero"):
            await store._fetch("SELECT 1 / 0")  # the database rejects nothing that the store's own calls let pass
        await store.put(QUEUE, new(b"after"))


def test_one_database_has_one_name_by_either_way(pooler: Pgbouncer, server: PostgresServer) -> None:
    """A worker through the pooler and a bridge past it are of one mind about which queue is which (B11)."""
    through, past = PostgresAccess(pooler.url(direct=True)), PostgresAccess(server.url())
    assert through.place == past.place
    assert through.text != past.text == through.direct.text
