"""Entities in an SQLite file: shared, full, foreign, and old."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from bridge.contract.errors import (
    ConfigurationError,
    Conflict,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from bridge.storage.tables import open_table
from bridge.storage.tables.sqlite import SqliteTable


async def test_two_that_share_a_file_see_each_other(tmp_path: Path) -> None:
    """Both make the new file at the same time; of their writes with one ETag, one wins."""
    path = tmp_path / "ledger.db"
    async with SqliteTable(path) as one, SqliteTable(path) as two:
        etags = await asyncio.gather(*(store.insert("p", f"r{i}", b"") for i, store in enumerate([one, two] * 8)))
        assert len({*etags}) == 16
        assert await one.entities("p") != []
        assert [entity.row for entity in await two.entities("p")] == [entity.row for entity in await one.entities("p")]
        await two.replace("p", "r0", b"two", etags[0])
        with pytest.raises(Conflict):
            await one.replace("p", "r0", b"one", etags[0])


async def test_a_defect_while_writing_strands_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls of that round hear it, those that were asked meanwhile are carried out, and so are later ones."""
    async with SqliteTable(tmp_path / "ledger.db") as store:
        await store.insert("p", "r", b"")
        commit, broke = store._commit, asyncio.Event()
        loop = asyncio.get_running_loop()

        def fails(operations: Any) -> list[object]:
            if not broke.is_set():
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()  # the second call waits by now
                loop.call_soon_threadsafe(broke.set)
                asyncio.run_coroutine_threadsafe(broke.wait(), loop).result()
                raise RuntimeError("a defect")
            return commit(operations)

        monkeypatch.setattr(store, "_commit", fails)
        first = asyncio.create_task(store.get("p", "r"), name="first")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        second = asyncio.create_task(store.get("p", "r"), name="second")
        with pytest.raises(UnknownOutcome, match=r"an unexpected error \(RuntimeError: a defect\)"):
            await first
        async with asyncio.timeout(60):
            assert await second is not None
            assert await store.get("p", "r") is not None


async def test_what_was_answered_is_there_after_a_restart(tmp_path: Path) -> None:
    """Another store on the same file reads it, by the same keys."""
    async with SqliteTable(tmp_path / "ledger.db") as store:
        etag = await store.insert("p", "r", b"kept")
    async with SqliteTable(tmp_path / "ledger.db") as store:
        entity = await store.get("p", "r")
        assert (entity.data, entity.etag) == (b"kept", etag)


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Return a list that fills with every connection to a file."""
    connect, made = sqlite3.connect, []

    def noted(*args: Any, **more: Any) -> sqlite3.Connection:
        made.append(connect(*args, **more))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    return made


async def test_calls_that_wait_are_committed_together(tmp_path: Path, connections: list[sqlite3.Connection]) -> None:
    """A hundred writes at once take a few commits, not a hundred."""
    async with SqliteTable(tmp_path / "ledger.db") as store:
        await store.insert("p", "first", b"")
        heard: list[str] = []
        connections[0].set_trace_callback(heard.append)
        await asyncio.gather(*(store.insert("p", f"r{number}", b"") for number in range(100)))
        assert len(await store.entities("p")) == 101
    assert sum(line.startswith("INSERT INTO entities") for line in heard) == 100
    # The last one is that of the listing.
    assert heard.count("COMMIT") <= 3 + 1


async def test_a_file_that_another_writes_for_long_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, nothing is written, and the next call works once the other is done."""
    monkeypatch.setattr("bridge.storage.tables.sqlite._BUSY_S", 0.01)
    path = tmp_path / "ledger.db"
    async with SqliteTable(path) as store:
        await store.insert("p", "r", b"")
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            await store.insert("p", "s", b"")
        other.execute("ROLLBACK")
        other.close()
        await store.insert("p", "s", b"")


async def test_a_full_disk_says_so_and_undoes_the_group(tmp_path: Path, connections: list[sqlite3.Connection]) -> None:
    """No call of the group was done; what was there before is safe."""
    path = tmp_path / "ledger.db"
    async with SqliteTable(path) as store:
        await store.insert("p", "r", b"kept")
        connections[0].execute("PRAGMA max_page_count=6")
        answers = await asyncio.gather(
            *(store.insert("p", f"s{number}", b"x" * 50_000) for number in range(3)), return_exceptions=True
        )
        assert all(isinstance(answer, StoreFull) for answer in answers)
        assert [entity.row for entity in await store.entities("p")] == ["r"]


async def test_a_strange_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    """No SQLite file, another program's, or one of a newer version."""
    text = tmp_path / "text.db"
    text.write_bytes(b"no database at all, " * 100)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    newer = tmp_path / "newer.db"
    async with SqliteTable(newer) as store:
        await store.insert("p", "r", b"")
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    for path in (text, other, newer):
        before = path.read_bytes()
        async with SqliteTable(path) as store:
            with pytest.raises(StoreDamaged, match=path.name):
                await store.insert("p", "r", b"")
        assert path.read_bytes() == before


async def test_age_is_by_the_wall_clock(tmp_path: Path) -> None:
    """A listing by age takes those at least so old; a clock that jumps back makes nobody younger than new."""
    now = 1000.0
    async with SqliteTable(tmp_path / "ledger.db", wall=lambda: now) as store:
        await store.insert("p", "old", b"")
        now = 1600.0
        await store.insert("p", "new", b"")
        now = 1700.0
        ages = {entity.row: entity.age_s for entity in await store.entities("p")}
        assert ages == {"old": 700.0, "new": 100.0}
        assert [entity.row for entity in await store.entities("p", older_than_s=700)] == ["old"]
        now = 0.0
        assert [entity.age_s for entity in await store.entities("p")] == [0.0, 0.0]


async def test_a_caller_that_is_cancelled_harms_nobody(tmp_path: Path) -> None:
    """The write may be done; others in its group are answered."""
    async with SqliteTable(tmp_path / "ledger.db") as store:
        one = asyncio.create_task(store.insert("p", "one", b""))
        two = asyncio.create_task(store.insert("p", "two", b""))
        await asyncio.sleep(0)
        one.cancel()
        assert await two
        assert one.cancelled() or (await asyncio.wait([one]) and one.cancelled())


@pytest.mark.parametrize("url", ["sqlite://host/x", "sqlite:", "ftp://secret@x", "", "sqlite:/tmp/%00.db"])
def test_a_url_of_no_store_is_refused(url: str) -> None:
    """With what would be right, and without the URL, which may hold a secret."""
    with pytest.raises(ConfigurationError) as refused:
        open_table(url)
    assert "secret" not in str(refused.value)


def test_a_url_opens_a_file(tmp_path: Path) -> None:
    """An absolute path after three slashes, escapes and all."""
    store: Any = open_table(f"sqlite://{tmp_path}/with%20space.db")
    assert store.path == tmp_path / "with space.db"
