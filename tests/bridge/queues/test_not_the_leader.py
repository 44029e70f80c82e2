"""A server that takes no writes any more is left: whoever comes anew gets to the one that does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from bridge.brokers.postgres.access import PostgresAccess
from bridge.brokers.postgres.line import PostgresLine
from bridge.contract.errors import BusUnavailable, StoreUnavailable
from bridge.queues.base import Claim, Depth, NewMessage, Settlement
from bridge.queues.postgres.schema import init
from bridge.queues.postgres.store import PostgresStore
from bridge.queues.redis.store import RedisStore
from bridge.service.bridge import Bridge
from bridge.storage.tables.postgres import PostgresTable
from bridge.triggers.attachment import Attachments
from listeners import Listener, Message
from tests.support.postgres import PostgresServer, caught_up, execute, running, take_no_writes
from tests.support.processes import until
from tests.support.redis import RedisServer
from tests.support.tcp_proxy import TcpProxy

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]
QUEUE = "billing/orders"


class Pair:
    """A primary with its tables, a hot standby of it, and a name that leads to the primary first."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer, name: TcpProxy) -> None:
        self.primary = primary
        self.standby = standby
        self.name = name

    @property
    def url(self) -> str:
        return f"postgres://postgres@127.0.0.1:{self.name.port}/postgres"

    def hosts(self, *servers: PostgresServer) -> str:
        return f"postgres://postgres@{','.join(f'127.0.0.1:{each.port}' for each in servers)}/postgres"

    async def fail_over(self, *, fenced: bool) -> None:
        """Promote the standby and have the name lead there; the old primary goes on, and takes no writes or dies."""
        await caught_up(self.primary, self.standby)
        if fenced:
            await take_no_writes(self.primary)
        else:
            await asyncio.to_thread(self.primary.stop, "immediate")
        await asyncio.to_thread(self.standby.promote)
        self.name.target = self.standby.port


@pytest.fixture
def servers() -> Iterator[tuple[PostgresServer, PostgresServer]]:
    with running() as primary, running(primary) as standby:
        yield primary, standby


@pytest_asyncio.fixture
async def pair(servers: tuple[PostgresServer, PostgresServer]) -> AsyncIterator[Pair]:
    await init(servers[0].url(), notify=True)
    async with TcpProxy(servers[0].port) as name:
        yield Pair(*servers, name)


def new(*bodies: bytes) -> list[NewMessage]:
    return [NewMessage(body) for body in bodies]


async def test_a_store_leaves_a_primary_that_was_fenced(pair: Pair) -> None:
    """One refusal ends all idle connections to it: the second call already is at the new primary, and so are others."""
    async with PostgresStore(pair.url) as store, PostgresTable(pair.url) as table:
        await store.put(QUEUE, new(b"one", b"two", b"three"))
        await table.insert("billing", "row", b"{}")
        held = [found.messages[0] for found in await asyncio.gather(*(store.receive(QUEUE, 1, 600) for _ in range(3)))]
        await pair.fail_over(fenced=True)
        with pytest.raises(StoreUnavailable, match="25006"):
            await store.receive(QUEUE)
        receipts = [Claim(message.id, message.pop_receipt) for message in held]
        settled = await asyncio.gather(*(store.settle(QUEUE, Settlement(delete=[each])) for each in receipts))
        assert all(each.delete[0].ok for each in settled)
        await store.put(QUEUE, new(b"four"))
        assert [message.body for message in (await store.receive(QUEUE)).messages] == [b"four"]
        with pytest.raises(StoreUnavailable, match="25006"):
            await table.insert("billing", "other", b"{}")
        await table.insert("billing", "other", b"{}")
        rows = await execute(pair.standby.url(), "SELECT row_key FROM queuebell_entities ORDER BY row_key")
        assert [row["row_key"] for row in rows] == ["other", "row"]


async def test_who_only_asks_for_the_depth_leaves_as_well(pair: Pair) -> None:
    """A question is no write, and is answered once more; the next is asked at the new primary."""
    async with PostgresStore(pair.url) as store:
        await store.put(QUEUE, new(b"one"))
        await pair.fail_over(fenced=True)
        await execute(pair.standby.url(), "SELECT queuebell_put($1, 'two')", QUEUE)
        assert await store.depth(QUEUE) == Depth(1, 0)
        assert await store.depth(QUEUE) == Depth(2, 0)


async def test_a_standby_is_no_queue(pair: Pair) -> None:
    """Who is led to a standby is refused before anything is asked, may look if he says so, and takes nothing there."""
    pair.name.target = pair.standby.port
    await execute(pair.primary.url(), "SELECT queuebell_put($1, 'one')", QUEUE)
    await caught_up(pair.primary, pair.standby)
    async with PostgresStore(pair.url) as store, PostgresTable(pair.url) as table:
        with pytest.raises(StoreUnavailable, match="read-write"):
            await store.depth(QUEUE)
        with pytest.raises(StoreUnavailable, match="read-write"):
            await table.get("billing", "row")
        pair.name.target = pair.primary.port
        assert [message.body for message in (await store.receive(QUEUE)).messages] == [b"one"]
    async with PostgresStore(pair.standby.url(target_session_attrs="any")) as looking:
        assert await looking.depth(QUEUE)
        with pytest.raises(StoreUnavailable, match="25006"):
            await looking.receive(QUEUE)


@pytest.mark.parametrize("fenced", [True, False])
async def test_of_several_hosts_the_one_that_takes_writes(pair: Pair, fenced: bool) -> None:
    """An address that names all servers finds the primary in any order, and the next one after a promotion."""
    ports = f"{pair.standby.port}%2C{pair.primary.port}"
    in_options = f"postgres://postgres@/postgres?host=127.0.0.1%2C127.0.0.1&port={ports}"
    for url in (pair.hosts(pair.primary, pair.standby), pair.hosts(pair.standby, pair.primary), in_options):
        async with PostgresStore(url) as store:
            await store.put(QUEUE, new(b"one"))
            await store.clear(QUEUE)
    async with PostgresStore(pair.hosts(pair.primary, pair.standby)) as store:
        await store.put(QUEUE, new(b"one"))
        await pair.fail_over(fenced=fenced)
        if fenced:  # a connection that ended is not even tried
            with pytest.raises(StoreUnavailable):
                await store.receive(QUEUE)
        assert [message.body for message in (await store.receive(QUEUE)).messages] == [b"one"]


async def test_a_host_that_does_not_answer_costs_the_others_nothing(pair: Pair) -> None:
    """Its share of the time ends, and the next one is asked within the same call."""
    async with TcpProxy(pair.primary.port) as hole:
        hole.black_hole()
        url = f"postgres://postgres@127.0.0.1:{hole.port},127.0.0.1:{pair.primary.port}/postgres"
        connection = await PostgresAccess(url).connect(within_s=20.0)
        await connection.close()


async def test_a_line_listens_where_writes_go(pair: Pair) -> None:
    """At a standby there is nothing to hear, and a probe finds out a primary that takes no writes any more."""
    line = PostgresLine(pair.standby.url())
    with pytest.raises(BusUnavailable, match="read-write"):
        await line.connect()
    await line.close()
    line = PostgresLine(pair.url)
    try:
        await line.connect()
        await line.probe()
        await take_no_writes(pair.primary)
        with pytest.raises(BusUnavailable, match="takes no writes"):
            await line.probe()
        assert "takes no writes" in await line.broken()
    finally:
        await line.close()


async def test_a_worker_and_a_bridge_go_over_to_the_new_primary(pair: Pair) -> None:
    """Both had their connections to a primary that lives on without writes; the next put there is heard and handled."""
    seen: asyncio.Queue[str] = asyncio.Queue()

    async def handle(message: Message) -> None:
        seen.put_nowait(message.text())

    async with Bridge() as bridge, Attachments(bridge, postgres=[pair.url]):
        await until(lambda: bridge.readiness().ready, "the bridge listens")
        listener = Listener(pair.url, QUEUE, handle, bridge=bridge, handle_signals=False)
        task = asyncio.create_task(listener.run(), name="worker")
        try:
            await execute(pair.primary.url(), "SELECT queuebell_put($1, 'before')", QUEUE)
            async with asyncio.timeout(30):
                assert await seen.get() == "before"
            await pair.fail_over(fenced=True)
            await execute(pair.standby.url(), "SELECT queuebell_put($1, 'after')", QUEUE)
            async with asyncio.timeout(40):
                while await seen.get() != "after":
                    pass
            ears = "SELECT FROM pg_stat_activity WHERE query LIKE '%pg_notify%' AND application_name = 'queuebell'"
            await until(lambda: execute(pair.standby.url(), ears), "the bridge listens there too")
        finally:
            await listener.stop()
            await task


async def test_an_empty_replica_of_redis_is_no_empty_queue(tmp_path: Path) -> None:
    """A replica answers reads; what a worker asks it is refused, with and without the queue, and the next goes on."""
    async with RedisServer(tmp_path / "one") as old, RedisServer(tmp_path / "two") as master:
        async with TcpProxy(old.port) as name:
            async with RedisStore(f"redis://127.0.0.1:{name.port}") as store:
                await store.create(QUEUE)
                assert not (await store.receive(QUEUE)).messages
                async with old.stranger() as redis:
                    await redis.replicaof("127.0.0.1", master.port)
                    # A replica takes over all that its master has, which is nothing.
                    await until(lambda: linked(redis), "it is a replica")
                name.target = master.port
                gone = Settlement(delete=[Claim("1-1", "x")])
                with pytest.raises(StoreUnavailable, match="replica"):
                    await store.receive(QUEUE)
                await store.put(QUEUE, new(b"one"))
            async with old.stranger() as redis:
                await until(lambda: redis.exists("queuebell:{billing/orders}"), "the replica has it")
            async with RedisStore(old.url()) as replica:
                for queue in (QUEUE, "billing/none"):
                    for call in (replica.receive(queue), replica.settle(queue, gone), replica.clear(queue)):
                        with pytest.raises(StoreUnavailable, match="replica"):
                            await call
                    with pytest.raises(StoreUnavailable, match="replica"):
                        await replica.pause(queue)
                assert await replica.depth(QUEUE) == Depth(1, 0)


async def linked(redis: object) -> bool:
    return (await redis.info("replication")).get("master_link_status") == "up"  # type: ignore[attr-defined]
