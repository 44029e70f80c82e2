"""What of the table on NATS the conformance suite does not ask: what others see and leave, and lost servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio

from bridge.contract.errors import ConfigurationError, Conflict, StoreError, StoreUnavailable
from bridge.queues.jetstream.wire import Wire
from bridge.storage.tables import nats as subject
from bridge.storage.tables import open_table
from bridge.storage.tables.nats import NatsTable
from listeners import Ledger
from tests.support.brokers import NatsServer, nats_that_says
from tests.support.processes import until

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
    async def test_the_bucket_is_one_that_others_read(self, server: NatsServer, table: NatsTable) -> None:
        """What a client of NATS finds is a bucket like any other, with one revision a key."""
        etag = await table.insert("a..b.", "r-1", b"one")
        await table.replace("a..b.", "r-1", b"two", etag)
        async with stranger(server) as js:
            bucket = await js.key_value("queuebell")
            entry = await bucket.get("a==b=.r-1")
            assert (entry.value, entry.revision) == (b"two", 2)
            assert (await bucket.status()).history == 1
            await bucket.update("a==b=.r-1", b"three", last=2)
        entity = await table.get("a..b.", "r-1")
        assert (entity.data, entity.etag) == (b"three", "3")
        assert [each.data for each in await table.entities("a..b.")] == [b"three"]

    async def test_a_delete_leaves_nothing_behind(self, server: NatsServer, table: NatsTable) -> None:
        """Neither the entity nor the marker that took its place."""
        kept = await table.insert(P, "kept", b"")
        for _ in range(3):
            await table.delete(P, "gone", await table.insert(P, "gone", b"x"))
        assert await stored(server) == 1
        entity = await table.get(P, "kept")
        assert entity.etag == kept

    async def test_a_delete_takes_nothing_that_came_after_it(
        self, server: NatsServer, table: NatsTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Somebody inserts the key anew before the marker is removed: what he wrote stands."""
        ask, written = Wire.ask, []

        async def later(wire: Wire, subject: str, *rest: Any) -> Any:
            if ".STREAM.PURGE." in subject:
                written.append(await other.insert(P, "a", b"new"))
            return await ask(wire, subject, *rest)

        async with NatsTable(f"nats://127.0.0.1:{server.port}") as other:
            old = await table.insert(P, "a", b"old")
            monkeypatch.setattr(Wire, "ask", later)
            await table.delete(P, "a", old)
            entity = await other.get(P, "a")
        assert ([entity.etag], entity.data) == (written, b"new")

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

    async def test_inserts_and_deletes_at_the_same_time(self, server: NatsServer, table: NatsTable) -> None:
        """An insert beside a delete finds the key there or gone, and what it says is so."""
        for n in range(40):
            etag = await table.insert(P, "a", b"old")
            _, written = await asyncio.gather(
                table.delete(P, "a", etag), table.insert(P, "a", b"%d" % n), return_exceptions=True
            )
            assert isinstance(written, str | Conflict)
            entity = await table.get(P, "a")
            assert (None if entity is None else entity.etag) == (written if isinstance(written, str) else None)
            if entity is not None:
                assert entity.data == b"%d" % n
                await table.delete(P, "a", entity.etag)
        assert await stored(server) == 0

    async def test_a_long_listing_is_read_in_parts(
        self, server: NatsServer, table: NatsTable, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Each entity once and in order, however the parts fall, and the server keeps nothing of it."""
        monkeypatch.setattr(subject, "PAGE", 4)
        monkeypatch.setattr(subject, "TOGETHER", 3)
        rows = sorted(f"r{number:02}" for number in range(14))
        for row in reversed(rows):
            await table.insert(P, row, row.encode())
        for limit in (1, 3, 4, 13, 14, 1000):
            assert [each.row for each in await table.entities(P, limit=limit)] == rows[:limit]
        assert [each.row for each in await table.entities(P, after="r04", limit=5)] == rows[5:10]
        async with stranger(server) as js:
            assert await js.consumers_info("KV_queuebell") == []

    async def test_only_what_is_old_is_read(self, table: NatsTable, monkeypatch: pytest.MonkeyPatch) -> None:
        """A listing by age ends at the first key that is too young; a rewritten one is young again."""

        async def old() -> bool:
            entity = await table.get(P, "b")
            return entity is not None and entity.age_s > 1.0

        monkeypatch.setattr(subject, "PAGE", 2)
        again = await table.insert(P, "a", b"")
        await table.insert(P, "b", b"")
        await until(old, "b is old")
        await table.replace(P, "a", b"", again)
        for row in ("c", "d", "e", "f"):
            await table.insert(P, row, b"")
        pages: list[int] = []
        pulling = Wire.pulling

        def counted(wire: Wire, subject: str, payload: bytes) -> Any:
            pages.append(json.loads(payload)["batch"])
            return pulling(wire, subject, payload)

        monkeypatch.setattr(Wire, "pulling", counted)
        assert [each.row for each in await table.entities(P, older_than_s=1.0)] == ["b"]
        assert pages == [2]

    async def test_the_ledger_forgets_what_is_old(self, server: NatsServer, table: NatsTable) -> None:
        """And leaves nothing of it in the bucket."""
        ledger = Ledger(table)
        ledger.keep = 0.0
        for number in range(5):
            await table.insert(P, f"r{number}", b"x")
        await table.insert("billing.others", "r0", b"x")
        assert await ledger.purge("billing/orders") == 5
        assert await stored(server) == 1

    async def test_two_that_come_first_make_one_bucket(self, server: NatsServer) -> None:
        """At the same time: neither is refused, and both see all."""
        url = f"nats://127.0.0.1:{server.port}"
        async with NatsTable(url) as one, NatsTable(url) as two:
            await asyncio.gather(*(each.insert(P, f"r{n}", b"") for n, each in enumerate([one, two] * 6)))
            assert len(await one.entities(P)) == len(await two.entities(P)) == 12

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

    async def test_a_killed_server_has_all_it_acknowledged(self, server: NatsServer, table: NatsTable) -> None:
        """While it is away every call says so; when it is back, all is there."""
        etag = await table.insert(P, "a", b"1")
        await server.kill()
        with pytest.raises(StoreUnavailable):
            await table.get(P, "a")
        await server.start()

        async def back() -> Any:
            try:
                return await table.get(P, "a")
            except StoreUnavailable:
                return None

        entity = await until(back, "the server is back")
        assert (entity.data, entity.etag) == (b"1", etag)
        await table.replace(P, "a", b"2", etag)

    async def test_a_server_without_jetstream_is_told(self, tmp_path: Path) -> None:
        """It is not taken for an empty table."""
        async with NatsServer(tmp_path, jetstream=False) as server:
            async with NatsTable(f"nats://127.0.0.1:{server.port}") as table:
                with pytest.raises(StoreUnavailable, match="JetStream"):
                    await table.get(P, "a")

    async def test_a_server_that_is_too_old_is_refused(self) -> None:
        """Before a message is taken for new: later it could not be told how old an entity is."""
        async with nats_that_says("2.9.10") as port, NatsTable(f"nats://127.0.0.1:{port}") as table:
            for call in (table.insert(P, "a", b"1"), table.get(P, "a"), table.entities(P)):
                with pytest.raises(ConfigurationError, match=r"this is NATS 2\.9; JetStream is used from 2\.10 on"):
                    await call
