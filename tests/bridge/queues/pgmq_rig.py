"""A PostgreSQL server with PGMQ, by the SQL of its own package, and a database for each test."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from functools import cache
from importlib.resources import files

import pytest
import pytest_asyncio

from queuebell.bridge.brokers.postgres.access import PostgresAccess
from queuebell.bridge.queues.postgres.pgmq import PgmqStore
from tests.support.postgres import PostgresServer, execute, running

TEMPLATE = "pgmq"


@cache
def pgmq_sql() -> str:
    """Return what installs PGMQ without an extension."""
    return (files("pgmq") / "sql" / "pgmq.sql").read_text()


async def run_script(url: str, script: str) -> None:
    """Carry out a script on a connection of its own."""
    connection = await PostgresAccess(url).connect()
    try:
        await connection.execute(script)
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def pgmq_server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@pytest_asyncio.fixture
async def database(pgmq_server: PostgresServer) -> str:
    """The address of a database with PGMQ and no queue, as plain PostgreSQL."""
    url = pgmq_server.url()
    if not await execute(url, "SELECT FROM pg_database WHERE datname = $1", TEMPLATE):
        await execute(url, f"CREATE DATABASE {TEMPLATE}")
        await run_script(pgmq_server.url(TEMPLATE), pgmq_sql())
    name = f"t{uuid.uuid4().hex}"
    await execute(url, f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
    return pgmq_server.url(name)


@pytest.fixture
def pgmq_url(database: str) -> str:
    return database.replace("postgres://", "pgmq://")


@pytest_asyncio.fixture
async def pgmq(pgmq_url: str) -> AsyncIterator[PgmqStore]:
    async with PgmqStore(pgmq_url) as store:
        yield store
