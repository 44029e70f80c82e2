"""The promise of a table store, asked of each."""

from __future__ import annotations

import asyncio
import datetime
import os
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from queuebell.bridge.contract.errors import BadInput, Closed, ConfigurationError, Conflict, StoreError
from queuebell.bridge.storage.tables import open_table
from queuebell.bridge.storage.tables.base import DATA_BYTES_MAX, TableStore
from queuebell.bridge.storage.tables.memory import MemoryTable
from queuebell.bridge.storage.tables.sqlite import SqliteTable
from tests.support.azurite_storage import azurite, connection_string
from tests.support.background_server import BackgroundServer
from tests.support.postgres import PostgresServer, execute, running

P = "billing.orders"


class TableStoreConformance:
    """Subclasses give the fixture ``store``: an empty one."""

    async def test_what_was_written_is_read(self, store: TableStore) -> None:
        """Bytes come back unchanged, the empty and the largest too, with the ETag of the write."""
        for number, data in enumerate((b"", bytes(range(256)), os.urandom(DATA_BYTES_MAX))):
            row = f"r{number}"
            etag = await store.insert(P, row, data)
            entity = await store.get(P, row)
            assert (entity.partition, entity.row, entity.data, entity.etag) == (P, row, data, etag)
        assert await store.get(P, "none") is None
        assert await store.get("none", "r0") is None

    async def test_the_timestamp_is_of_the_last_write(self, store: TableStore) -> None:
        """An aware time, and an age by the same clock."""
        etag = await store.insert(P, "a", b"1")
        first = await store.get(P, "a")
        await store.replace(P, "a", b"2", etag)
        second = await store.get(P, "a")
        assert first.written_at <= second.written_at
        assert abs((second.written_at - datetime.datetime.now(datetime.UTC)).total_seconds()) < 60
        assert 0 <= second.age_s < 60

    async def test_an_insert_is_of_what_is_not_there(self, store: TableStore) -> None:
        etag = await store.insert(P, "a", b"1")
        with pytest.raises(Conflict, match="a already exists"):
            await store.insert(P, "a", b"2")
        entity = await store.get(P, "a")
        assert (entity.data, entity.etag) == (b"1", etag)

    async def test_a_replace_is_of_what_was_read(self, store: TableStore) -> None:
        """The newest ETag writes once; an old one, and one of nothing, are refused and change nothing."""
        first = await store.insert(P, "a", b"1")
        second = await store.replace(P, "a", b"2", first)
        assert second != first
        for row, etag in (("a", first), ("b", second)):
            with pytest.raises(Conflict):
                await store.replace(P, row, b"3", etag)
        entity = await store.get(P, "a")
        assert (entity.data, entity.etag) == (b"2", second)
        assert await store.get(P, "b") is None

    async def test_a_delete_is_of_what_was_read(self, store: TableStore) -> None:
        """An old ETag removes nothing; what is gone is a conflict."""
        first = await store.insert(P, "a", b"1")
        second = await store.replace(P, "a", b"2", first)
        with pytest.raises(Conflict):
            await store.delete(P, "a", first)
        assert await store.get(P, "a") is not None
        await store.delete(P, "a", second)
        assert await store.get(P, "a") is None
        with pytest.raises(Conflict):
            await store.delete(P, "a", second)

    async def test_an_etag_never_comes_again(self, store: TableStore) -> None:
        """After a delete and an insert of the same data, old ETags write nothing."""
        old = await store.insert(P, "a", b"1")
        await store.delete(P, "a", old)
        new = await store.insert(P, "a", b"1")
        assert new != old
        with pytest.raises(Conflict):
            await store.replace(P, "a", b"2", old)
        await store.replace(P, "a", b"2", new)

    async def test_of_many_writers_one_wins(self, store: TableStore) -> None:
        """Of concurrent writes with the same ETag one succeeds, and its data stays."""

        async def attempt(write: object) -> object:
            try:
                return await write  # type: ignore[misc]
            except Conflict:
                return None

        inserted = await asyncio.gather(*(attempt(store.insert(P, "a", b"%d" % n)) for n in range(12)))
        (etag,) = [etag for etag in inserted if etag]
        entity = await store.get(P, "a")
        assert entity.data == b"%d" % inserted.index(etag)
        replaced = await asyncio.gather(*(attempt(store.replace(P, "a", b"%d" % n, str(etag))) for n in range(12)))
        (etag,) = [etag for etag in replaced if etag]
        entity = await store.get(P, "a")
        assert (entity.data, entity.etag) == (b"%d" % replaced.index(etag), etag)

    async def test_a_listing_is_in_order_and_goes_on(self, store: TableStore) -> None:
        """One partition, by row key, page after page, each entity once."""
        rows = ["B", "a", "a-1", "b", "c_9"]
        for row in rows:
            await store.insert(P, row, row.encode())
            await store.insert("other", row, b"")
        listed = await store.entities(P)
        assert [(entity.row, entity.data) for entity in listed] == [(row, row.encode()) for row in sorted(rows)]
        pages, after = [], ""
        while page := await store.entities(P, after=after, limit=2):
            assert len(page) <= 2
            pages += [entity.row for entity in page]
            after = page[-1].row
        assert pages == sorted(rows)
        assert await store.entities("none") == []

    async def test_a_listing_is_by_age(self, store: TableStore) -> None:
        """No entity is an hour old; each is at least 0 s old."""
        await store.insert(P, "a", b"1")
        assert await store.entities(P, older_than_s=3600) == []
        assert len(await store.entities(P, older_than_s=0)) == 1

    async def test_keys_differ_by_case_and_mark(self, store: TableStore) -> None:
        keys = [("a.b", "c"), ("a", "b"), ("A.b", "c"), ("a.b", "C"), ("a_b", "c"), ("a-b", "c")]
        for number, (partition, row) in enumerate(keys):
            await store.insert(partition, row, b"%d" % number)
        for number, (partition, row) in enumerate(keys):
            entity = await store.get(partition, row)
            assert entity.data == b"%d" % number

    @pytest.mark.parametrize(
        ("partition", "row"),
        [("", "a"), ("a", ""), ("a/b", "a"), ("a", "a.b"), ("a", "a/b"), ("a", ".."), ("a", "x" * 201), ("a\n", "a")],
    )
    async def test_a_bad_key_is_refused(self, store: TableStore, partition: str, row: str) -> None:
        for call in (
            store.insert(partition, row, b""),
            store.get(partition, row),
            store.replace(partition, row, b"", "1"),
            store.delete(partition, row, "1"),
        ):
            with pytest.raises(BadInput):
                await call

    async def test_bad_data_and_bounds_are_refused(self, store: TableStore) -> None:
        """Text, too many bytes, a negative age, no limit."""
        for call in (
            store.insert(P, "a", "text"),  # type: ignore[arg-type]
            store.insert(P, "a", b"x" * (DATA_BYTES_MAX + 1)),
            store.replace(P, "a", b"x" * (DATA_BYTES_MAX + 1), "1"),
            store.entities(P, older_than_s=-1),
            store.entities(P, limit=0),
            store.entities(P, after="../x"),
        ):
            with pytest.raises(BadInput):
                await call
        assert await store.get(P, "a") is None

    async def test_a_closed_store_refuses(self, store: TableStore) -> None:
        await store.insert(P, "a", b"")
        await store.close()
        await store.close()
        for call in (store.get(P, "a"), store.insert(P, "b", b""), store.entities(P)):
            with pytest.raises(Closed):
                await call


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
        """Both create the table at the same time: neither is refused, and both see all entities."""
        await execute(postgres.url(), "DROP TABLE IF EXISTS queuebell_entities")
        async with open_table(postgres.url()) as one, open_table(postgres.url()) as two:
            await asyncio.gather(*(store.insert(P, f"r{n}", b"") for n, store in enumerate([one, two] * 6)))
            assert len(await one.entities(P)) == len(await two.entities(P)) == 12


@pytest.mark.parametrize("url", ["nats://127.0.0.1:4222", "tls://127.0.0.1:4222", "NATS://a"])
def test_a_ledger_in_nats_is_refused(url: str) -> None:
    """The error says what to use instead, and does not show the URL, which may hold a password."""
    with pytest.raises(ConfigurationError, match=r"^ledger: NATS cannot store a ledger; use postgres://"):
        open_table(url)


@pytest.fixture(scope="module")
def table_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackgroundServer]:
    with azurite("table", tmp_path_factory.mktemp("azurite-table")) as server:
        yield server


@pytest.mark.system
class TestAzureTable(TableStoreConformance):
    """Azurite; each test has a table of its own."""

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
        """No message counts as new because the ledger is missing."""
        async with open_table("azure:?table=nobodymadeit") as missing:
            for call in (missing.get(P, "a"), missing.insert(P, "a", b""), missing.entities(P)):
                with pytest.raises(StoreError) as refused:
                    await call
                assert not isinstance(refused.value, Conflict)
