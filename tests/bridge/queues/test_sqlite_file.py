"""Who may open a data file: its one owner, and only if it is ours and whole."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bridge.contract.errors import (
    ConfigurationError,
    StoreDamaged,
    StoreError,
    StoreOwned,
    StoreUnavailable,
)
from bridge.queues.base import NewMessage
from bridge.queues.embedded import file as sqlite_file
from bridge.queues.embedded.file import messages_in, open_file, open_to_others
from bridge.queues.embedded.sqlite import SqliteStore

Q = "billing/orders"

HOLDER = """
import asyncio, sys
from bridge.queues.embedded.sqlite import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await store.close()

asyncio.run(main())
"""


async def fill(path: Path, count: int = 64) -> None:
    store = SqliteStore(path)
    for _ in range(count // 32):
        await store.put(Q, [NewMessage(b"x" * 500)] * 32)
    await store.close()


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def one_line(error: BaseException, path: Path) -> bool:
    text = str(error)
    return "\n" not in text and str(path) in text


async def refused(path: Path, expected: type[Exception]) -> Exception:
    """Open and expect a refusal; the file stays as it was, and nothing is left open or locked."""
    before = digest(path)
    store = SqliteStore(path)
    with pytest.raises(expected) as caught:
        await store.open()
    await store.close()
    assert digest(path) == before
    assert one_line(caught.value, path)
    return caught.value


async def test_a_second_process_is_refused_by_name(tmp_path: Path) -> None:
    """One owner at a time; the next one may come when it is gone."""
    path = tmp_path / "queue.db"
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout.readline() == "open\n"
        store = SqliteStore(path)
        with pytest.raises(StoreOwned) as caught:
            await store.open()
        assert str(holder.pid) in str(caught.value) and "--data" in str(caught.value)
        with pytest.raises(StoreOwned):
            await store.put(Q, [NewMessage(b"x")])
        holder.communicate("\n")
    # The same store may try again.
    await store.put(Q, [NewMessage(b"x")])
    await store.close()


async def test_a_second_store_in_this_process_is_refused(tmp_path: Path) -> None:
    """The lock is per file, not per process."""
    first, second = SqliteStore(tmp_path / "queue.db"), SqliteStore(tmp_path / "queue.db")
    await first.open()
    with pytest.raises(StoreOwned):
        await second.open()
    await second.close()
    await first.put(Q, [NewMessage(b"x")])
    await first.close()


async def test_another_program_that_reads_the_file_is_waited_for(tmp_path: Path) -> None:
    """SQLite's own lock speaks too: somebody who ignores ours is told of, not written over."""
    path = tmp_path / "queue.db"
    await fill(path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store = SqliteStore(path)
        with pytest.raises(StoreOwned):
            await store.open()
    depth = await store.depth(Q)
    await store.close()
    assert depth.visible == 64


async def test_no_database_is_refused(tmp_path: Path) -> None:
    """A text file, or one too short to be anything."""
    for content in (b"these are my notes, do not overwrite them\n" * 100, b"x", b"SQLite format 3\x00"):
        path = tmp_path / "queue.db"
        path.write_bytes(content)
        await refused(path, StoreDamaged)


async def test_the_file_of_another_program_is_refused(tmp_path: Path) -> None:
    """An SQLite file that is not ours is neither migrated nor turned to another journal."""
    path = tmp_path / "queue.db"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE notes (text)")
    assert "another program" in str(await refused(path, StoreDamaged))


async def test_a_file_cut_off_is_refused(tmp_path: Path) -> None:
    """Half a file is not served as if it were whole."""
    path = tmp_path / "queue.db"
    await fill(path, 640)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 // 4096 * 4096])
    await refused(path, StoreDamaged)


async def test_a_file_with_broken_pages_is_refused(tmp_path: Path) -> None:
    """Garbage where the tables should be."""
    path = tmp_path / "queue.db"
    await fill(path, 640)
    data = bytearray(path.read_bytes())
    data[4096 : 20 * 4096] = b"\xa5" * (19 * 4096)
    path.write_bytes(data)
    await refused(path, StoreDamaged)


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """A file of a later version is left to that version, and the error names both."""
    path = tmp_path / "queue.db"
    await fill(path)
    newest = len(sqlite_file.STEPS)
    # The header has it without a sign.
    for version, said in ((newest + 1, newest + 1), (99, 99), (-1, 2**32 - 1)):
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(f"PRAGMA user_version={version}")
        error = await refused(path, ConfigurationError)
        assert f"schema {said}, this one knows {newest}" in str(error)


async def test_the_messages_of_a_file_that_nobody_serves_are_counted(tmp_path: Path) -> None:
    """Nothing is made where there is none; what cannot be read is named, and whether it is damaged."""
    path = tmp_path / "odd?name#.db"
    assert messages_in(path) == 0 and not path.exists()
    await fill(path)
    assert messages_in(path) == 64
    path.write_bytes(b"these are my notes" * 100)
    with pytest.raises(StoreDamaged) as damaged:
        messages_in(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(StoreUnavailable) as unreadable:
        messages_in(path)
    assert one_line(damaged.value, path) and one_line(unreadable.value, path)


async def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """A file stands where the directory should be, or a directory where the file or its lock should."""
    (tmp_path / "file").write_bytes(b"")
    store = SqliteStore(tmp_path / "file" / "queue.db")
    with pytest.raises(StoreUnavailable, match=r"/file: File exists"):
        await store.open()
    await store.close()
    store = SqliteStore(tmp_path)
    with pytest.raises(StoreError) as caught:
        await store.open()
    await store.close()
    assert one_line(caught.value, tmp_path)
    (tmp_path / "queue.db.lock").mkdir()
    store = SqliteStore(tmp_path / "queue.db")
    with pytest.raises(StoreUnavailable, match=r"queue\.db\.lock: Is a directory"):
        await store.open()
    await store.close()


async def test_settings_are_checked(tmp_path: Path) -> None:
    """``synchronous`` is one of three words."""
    store = SqliteStore(tmp_path / "queue.db", synchronous="OFF")
    with pytest.raises(ConfigurationError):
        await store.open()


def test_a_new_file_has_its_marks(tmp_path: Path) -> None:
    """Write-ahead log, incremental vacuum, full synchronisation, version, and an application's number in the header."""
    connection, lock = sqlite_file.open_file(tmp_path / "deep" / "er" / "queue.db")
    wanted = {"journal_mode": "wal", "synchronous": 2, "auto_vacuum": 2, "user_version": len(sqlite_file.STEPS)}
    assert {name: connection.execute(f"PRAGMA {name}").fetchone()[0] for name in wanted} == wanted
    connection.close()
    lock.release()
    lock.release()
    header = (tmp_path / "deep" / "er" / "queue.db").read_bytes()[:100]
    assert int.from_bytes(header[68:72]) == sqlite_file.APPLICATION_ID


def test_migration_goes_step_by_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older file is brought up to date, a step that fails leaves the file at the version before."""
    path = tmp_path / "queue.db"
    one = sqlite_file.STEPS[0]
    monkeypatch.setattr(sqlite_file, "STEPS", (one,))
    connection, lock = sqlite_file.open_file(path)
    connection.close()
    lock.release()
    broken = ("CREATE TABLE third (x)", "this is no SQL")
    monkeypatch.setattr(sqlite_file, "STEPS", (one, ("CREATE TABLE second (x)",), broken))
    with pytest.raises(StoreUnavailable):
        sqlite_file.open_file(path)
    monkeypatch.setattr(sqlite_file, "STEPS", (one, ("CREATE TABLE second (x)",)))
    connection, lock = sqlite_file.open_file(path)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type='table'")}
    version = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    lock.release()
    assert {"messages", "second"} <= tables
    assert "third" not in tables
    assert version == (2,)


def modes(folder: Path) -> dict[str, int]:
    """The permissions of all that stands in a folder."""
    return {each.name: each.stat().st_mode & 0o777 for each in folder.iterdir()}


async def test_what_is_made_is_for_its_owner_alone(tmp_path: Path) -> None:
    """From its birth: the folder, the file, its log, its lock, and the room that is set aside, whatever the umask."""
    before = os.umask(0)
    try:
        folder = tmp_path / "new" / "data"
        store = SqliteStore(folder / "queue.db")
        await store.open()
        try:
            await store.put("a/b", [b"secret"])
            found = modes(folder)
            assert {"queue.db", "queue.db-wal", "queue.db.lock", "queue.db.reserve"} <= found.keys()
            assert set(found.values()) == {0o600}
            assert folder.stat().st_mode & 0o777 == 0o700
            assert folder.parent.stat().st_mode & 0o777 == 0o755
        finally:
            await store.close()
    finally:
        os.umask(before)


def test_a_folder_that_is_open_is_said(tmp_path: Path) -> None:
    """Only where others can come to something in it; closing either is enough."""
    folder = tmp_path / "data"
    assert open_to_others(folder) == ""
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    assert open_to_others(folder) == ""
    connection, lock = open_file(folder / "queue.db")
    connection.close()
    lock.release()
    assert open_to_others(folder) == ""
    (folder / "queue.db").chmod(0o644)
    assert "every user of this machine" in open_to_others(folder)
    folder.chmod(0o750)
    assert open_to_others(folder) == ""
    (folder / "queue.db").chmod(0o600)
    folder.chmod(0o757)
    assert "replace" in open_to_others(folder)
