"""A server that takes no writes any more is left: whoever comes anew gets to the one that does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from queuebell.bridge.contract.errors import StoreUnavailable
from queuebell.bridge.queues.base import Claim, NewMessage, Settlement
from queuebell.bridge.queues.postgres.schema import init
from queuebell.bridge.queues.postgres.store import PostgresStore
from queuebell.bridge.storage.tables.postgres import PostgresTable
from tests.support.postgres import PostgresServer, caught_up, execute, running, take_no_writes
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
