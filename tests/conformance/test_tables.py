"""Every table store of this project answers the same questions."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from bridge.contract.errors import ConfigurationError, Conflict, StoreError
from bridge.storage.tables import open_table
from bridge.storage.tables.base import TableStore
from bridge.storage.tables.memory import MemoryTable
from bridge.storage.tables.sqlite import SqliteTable
from tests.conformance.table import P, TableStoreConformance
from tests.support.azurite_storage import azurite, connection_string
from tests.support.background_server import BackgroundServer
from tests.support.postgres import PostgresServer, execute, running


class TestMemoryTable(TableStoreConformance):
    @pytest_asyncio.fixture
    async def store(self) -> AsyncIterator[TableStore]:
        async with MemoryTable(uuid.uuid4().hex) as store:
            yield store


class TestSqliteTable(TableStoreConformance):
    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[TableStore]:
        async with SqliteTable(tmp_path / "ledger.db") as store:
            yield store


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@pytest.mark.system
class TestPostgresTable(TableStoreConformance):
    @pytest_asyncio.fixture
    async def store(self, postgres: PostgresServer) -> AsyncIterator[TableStore]:
        await execute(postgres.url(), "DROP TABLE IF EXISTS queuebell_entities")
        async with open_table(postgres.url()) as store:
            yield store

    async def test_two_that_come_first_make_one_table(self, postgres: PostgresServer) -> None:
        """At the same time, on a database that has none: neither is refused, and both see all."""
        await execute(postgres.url(), "DROP TABLE IF EXISTS queuebell_entities")
        async with open_table(postgres.url()) as one, open_table(postgres.url()) as two:
            await asyncio.gather(*(store.insert(P, f"r{n}", b"") for n, store in enumerate([one, two] * 6)))
            assert len(await one.entities(P)) == len(await two.entities(P)) == 12


@pytest.mark.parametrize("url", ["nats://127.0.0.1:4222", "tls://127.0.0.1:4222", "NATS://a"])
def test_a_ledger_in_nats_is_refused(url: str) -> None:
    """With what to use instead, and without the URL, which may hold a password."""
    with pytest.raises(ConfigurationError, match=r"^ledger: NATS cannot store a ledger; use postgres://"):
        open_table(url)


@pytest.fixture(scope="module")
def table_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    with azurite("table", tmp_path_factory.mktemp("azurite-table")) as server:
        yield server


@pytest.mark.system
class TestAzureTable(TableStoreConformance):
    """The same questions to Azurite; each test has a table of its own."""

    @pytest_asyncio.fixture
    async def store(
        self, table_service: BackgroundServer, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[TableStore]:
        from azure.data.tables.aio import TableClient

        text, table = connection_string("table", table_service.url), f"t{uuid.uuid4().hex}"
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
        async with TableClient.from_connection_string(text, table) as client:
            await client.create_table()
        async with open_table(f"azure:?table={table}") as store:
            yield store

    async def test_a_missing_table_is_no_missing_entity(self, store: TableStore) -> None:
        """Nobody takes a message for new because the ledger is not there."""
        async with open_table("azure:?table=nobodymadeit") as missing:
            for call in (missing.get(P, "a"), missing.insert(P, "a", b""), missing.entities(P)):
                with pytest.raises(StoreError) as refused:
                    await call
                assert not isinstance(refused.value, Conflict)
