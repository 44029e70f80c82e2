"""The store on PostgreSQL answers the questions that all stores answer, by a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from queuebell.bridge.queues.postgres.schema import init
from queuebell.bridge.queues.postgres.store import PostgresStore
from tests.bridge.queues.postgres_rig import schema, server, store, url
from tests.conformance.queue import LetPass, QueueStoreConformance
from tests.support.pgbouncer import Pgbouncer, pooling
from tests.support.postgres import PostgresServer, let_pass_in

__all__ = ["schema", "server", "store", "url"]


@pytest.mark.system
class TestPostgresStore(QueueStoreConformance):
    @pytest.fixture
    def let_pass(self, url: str) -> LetPass:
        return let_pass_in(url)


@pytest.fixture(scope="module")
def pooler(server: PostgresServer) -> Iterator[Pgbouncer]:
    with pooling(server) as pooler:
        yield pooler


@pytest.mark.system
class TestPostgresStoreThroughPgbouncer(QueueStoreConformance):
    """Pool mode transaction; the tables are made through it as well."""

    @pytest_asyncio.fixture
    async def store(self, pooler: Pgbouncer, schema: str) -> AsyncIterator[PostgresStore]:
        await init(pooler.url(search_path=schema))
        async with PostgresStore(pooler.url(search_path=schema)) as store:
            yield store

    @pytest.fixture
    def let_pass(self, url: str) -> LetPass:
        return let_pass_in(url)
