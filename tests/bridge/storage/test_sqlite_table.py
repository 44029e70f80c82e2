"""Entities in an SQLite file that is locked, full, foreign or newer."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from queuebell.bridge.contract.errors import (
    ConfigurationError,
    StoreDamaged,
    StoreFull,
    StoreUnavailable,
)
from queuebell.bridge.storage.tables import open_table
from queuebell.bridge.storage.tables.sqlite import SqliteTable


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Return a list that fills with every connection to a file."""
    connect, made = sqlite3.connect, []

    def noted(*args: Any, **more: Any) -> sqlite3.Connection:
        made.append(connect(*args, **more))
        return made[-1]

    monkeypatch.setattr(sqlite3, "connect", noted)
    return made


async def test_a_file_that_another_writes_for_long_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call fails, nothing is written, and the next call works once the other process is done."""
    monkeypatch.setattr("queuebell.bridge.storage.tables.sqlite._BUSY_S", 0.01)
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
    """No call of the group was carried out; earlier data is safe."""
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
    """Not an SQLite file, another program's, or one of a newer version."""
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


@pytest.mark.parametrize("url", ["sqlite://host/x", "sqlite:", "ftp://secret@x", "", "sqlite:/tmp/%00.db"])
def test_a_url_of_no_store_is_refused(url: str) -> None:
    """The error says what is valid, and does not show the URL, which may hold a secret."""
    with pytest.raises(ConfigurationError) as refused:
        open_table(url)
    assert "secret" not in str(refused.value)
