"""A PostgreSQL server for a module's tests, and a store in a schema of its own for each."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.queues.postgres.schema import init
from queuebell.bridge.queues.postgres.store import PostgresStore
from tests.support.postgres import PostgresServer, running

QUEUE = "billing/orders"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@pytest.fixture
def schema() -> str:
    return f"t{uuid.uuid4().hex}"


@pytest.fixture
def url(server: PostgresServer, schema: str) -> str:
    return server.url(search_path=schema)


@pytest_asyncio.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    await init(url)
    async with PostgresStore(url) as store:
        yield store


def new(*bodies: bytes) -> list[NewMessage]:
    return [NewMessage(body) for body in bodies]
