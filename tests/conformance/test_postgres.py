"""The store on PostgreSQL answers the questions that all stores answer, by a real server."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from bridge.queue import QueueStore
from bridge.queues.postgres import PostgresStore
from bridge.queues.postgres_schema import init
from tests.conformance.queue import LetPass, QueueStoreConformance
from tests.support.postgres import PostgresServer, let_pass_in, running


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@pytest.mark.system
class TestPostgresStore(QueueStoreConformance):
    @pytest.fixture
    def url(self, server: PostgresServer) -> str:
        return server.url(search_path=f"t{uuid.uuid4().hex}")

    @pytest.fixture
    def let_pass(self, url: str) -> LetPass:
        return let_pass_in(url)

    @pytest_asyncio.fixture
    async def store(self, url: str) -> AsyncIterator[QueueStore]:
        await init(url)
        async with PostgresStore(url) as store:
            yield store
