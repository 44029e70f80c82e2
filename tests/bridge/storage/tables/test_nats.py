"""What of the table on NATS the conformance suite does not ask: what others see and leave, and lost servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio

from bridge.contract.errors import ConfigurationError, Conflict, StoreError, StoreUnavailable
from bridge.storage.tables import open_table
from bridge.storage.tables.nats import NatsTable
from tests.support.brokers import NatsServer

P = "billing.orders"


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path) as server:
        yield server


@pytest_asyncio.fixture
async def table(server: NatsServer) -> AsyncIterator[NatsTable]:
    async with NatsTable(f"nats://127.0.0.1:{server.port}") as table:
        yield table


@asynccontextmanager
async def stranger(server: NatsServer) -> AsyncIterator[Any]:
    """JetStream as a client that knows nothing of Queuebell has it."""
    client = await nats.connect(f"nats://127.0.0.1:{server.port}")
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def stored(server: NatsServer) -> int:
    """How many messages the bucket holds, markers too."""
    async with stranger(server) as js:
        return int((await js.stream_info("KV_queuebell")).state.messages)


@pytest.mark.parametrize("query", ["bucket=a.b", "bucket=", "replicas=0", "replicas=6", "prefix=x"])
def test_addresses_that_are_none(query: str) -> None:
    """Options that there are not, or that cannot be, are mistakes of the configuration."""
    with pytest.raises(ConfigurationError):
        open_table(f"nats://127.0.0.1:4222?{query}")


class TestNatsTable:
    @pytest.mark.parametrize("how", ["delete", "purge"])
    async def test_the_marker_of_a_delete_is_no_entity(self, how: str, server: NatsServer, table: NatsTable) -> None:
        """Left by a client of NATS, or by a worker that was killed in between."""
        old = await table.insert(P, "a", b"1")
        async with stranger(server) as js:
            await getattr(await js.key_value("queuebell"), how)("billing=orders.a")
        assert await stored(server) == 1
        assert await table.get(P, "a") is None
        assert await table.entities(P) == []
        with pytest.raises(Conflict):
            await table.replace(P, "a", b"2", old)
        new = await table.insert(P, "a", b"2")
        assert [each.etag for each in await table.entities(P)] == [new]

    @pytest.mark.parametrize("etag", ["0", "", "-1", "1_0", "x", "9" * 30, "٣"])
    async def test_what_is_no_revision_writes_nothing(self, etag: str, table: NatsTable) -> None:
        """Above all 0, which would be an insert."""
        for write in (table.replace(P, "a", b"1", etag), table.delete(P, "a", etag)):
            with pytest.raises(Conflict):
                await write
        assert await table.get(P, "a") is None

    async def test_a_bucket_that_vanished_is_no_empty_one(self, server: NatsServer, table: NatsTable) -> None:
        """Nobody takes a message for new because the ledger is not there any more."""
        etag = await table.insert(P, "a", b"1")
        async with stranger(server) as js:
            await js.delete_key_value("queuebell")
        for call in (
            table.get(P, "a"),
            table.insert(P, "b", b""),
            table.replace(P, "a", b"", etag),
            table.delete(P, "a", etag),
            table.entities(P),
        ):
            with pytest.raises(StoreError) as refused:
                await call
            assert not isinstance(refused.value, Conflict)

    async def test_a_server_without_jetstream_is_told(self, tmp_path: Path) -> None:
        """It is not taken for an empty table."""
        async with NatsServer(tmp_path, jetstream=False) as server:
            async with NatsTable(f"nats://127.0.0.1:{server.port}") as table:
                with pytest.raises(StoreUnavailable, match="JetStream"):
                    await table.get(P, "a")
