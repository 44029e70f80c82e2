"""A first start, or an upgrade, that is killed at any moment leaves what the next start goes on with."""

from __future__ import annotations

import contextlib
import hashlib
import pathlib
import sqlite3
from collections.abc import Callable

import pytest

from queuebell.bridge.contract.errors import StoreDamaged
from queuebell.bridge.queues.embedded import file as sqlite_file
from queuebell.bridge.queues.embedded.file import open_file
from tests.support.crashes import states


def sqlite_file_journal(pages: int) -> bytes:
    """Return the head of a journal of a file that had so many pages."""
    return bytes.fromhex("d9d505f920a163d7") + bytes(8) + pages.to_bytes(4) + bytes(492)


def half_made(path: pathlib.Path) -> None:
    """Leave what older versions left where they died in their first start: a page, and a journal of zeros."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
        connection.execute("VACUUM")
    with path.open("r+b") as file:
        file.truncate(4096)
        file.seek(28)
        file.write((1).to_bytes(4))
        file.seek(40)
        file.write(bytes(4))


def make_numbered(path: pathlib.Path) -> None:
    """Leave a file without tables that another program has put its number on."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA application_id=7")
        connection.execute("VACUUM")


def make_one_page(path: pathlib.Path) -> None:
    """Leave a file whose only page says nothing, and a journal that would bring more back."""
    half_made(path)
    path.with_name("queue.db-journal").write_bytes(sqlite_file_journal(2))


def make_notes(path: pathlib.Path) -> None:
    """Leave another program's file with a table and an unfinished transaction."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE notes (text)")
        connection.commit()


def message_bodies(path: pathlib.Path) -> list[bytes]:
    """Open a data file as a start does, write to it, and return the bodies that it held before."""
    connection, lock = open_file(path)
    try:
        found = [body for (body,) in connection.execute("SELECT body FROM messages")]
        connection.execute("INSERT INTO queues VALUES (7, 'a/q', '{}', 0, 0)")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        assert version == len(sqlite_file.STEPS)
    finally:
        connection.close()
        lock.release()
    return found


OPEN = "connection, lock = open_file(pathlib.Path(sys.argv[1]) / 'queue.db')"


IMPORTS = (
    "import pathlib\n"
    "from queuebell.bridge.queues.embedded import file as sqlite_file\n"
    "from queuebell.bridge.queues.embedded.file import open_file\n"
    "sqlite_file._LOG_BYTES = 8192"
)


def test_what_an_older_version_left_half_made_is_made_anew(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "queue.db"
    for journal in (None, bytes(512), sqlite_file_journal(1)):
        path.unlink(missing_ok=True)
        half_made(path)
        if journal is not None:
            path.with_name("queue.db-journal").write_bytes(journal)
        assert message_bodies(path) == []


def test_a_first_start_killed_anywhere_is_begun_again(tmp_path: pathlib.Path) -> None:
    """Whatever it leaves, the next one opens it, and leaves nothing else lying about."""
    folder = tmp_path / "data"
    folder.mkdir()
    left = states(folder, tmp_path / "left", IMPORTS, OPEN)
    assert len(left) > 20, "it was looked at in the midst of its writes"
    assert any(not (each / "queue.db").exists() for each in left)
    for each in left:
        assert message_bodies(each / "queue.db") == []
        assert {path.name for path in each.iterdir()} <= {"queue.db", "queue.db.lock", "queue.db-wal"}


def test_an_upgrade_killed_anywhere_goes_on(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its messages are there, and the next start takes the steps that are left."""
    folder = tmp_path / "data"
    with monkeypatch.context() as older:
        older.setattr(sqlite_file, "STEPS", sqlite_file.STEPS[:1])
        connection, lock = open_file(folder / "queue.db")
        connection.execute("INSERT INTO messages VALUES (1, 1, 1, NULL, 0, 1, 1, x'6f6e65')")
        connection.close()
        lock.release()
    left = states(folder, tmp_path / "left", IMPORTS, OPEN)
    assert len(left) > 5
    for each in left:
        assert message_bodies(each / "queue.db") == [b"one"]


def test_a_stop_killed_anywhere_keeps_what_was_written(tmp_path: pathlib.Path) -> None:
    """Also where the log is half-way back into the file, and through the start after that."""
    folder = tmp_path / "data"
    folder.mkdir()
    write = "connection.execute(\"INSERT INTO messages VALUES (1, 1, 1, NULL, 0, 1, 1, x'6f6e65', NULL)\")"
    close = 'connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall(); connection.close(); lock.release()'
    left = states(folder, tmp_path / "left", f"{IMPORTS}\n{OPEN}\n{write}", close)
    assert len(left) > 2
    for each in left:
        assert message_bodies(each / "queue.db") == [b"one"]


@pytest.mark.parametrize("make", [make_notes, make_one_page, make_numbered])
def test_a_strangers_file_is_left_as_it_is(tmp_path: pathlib.Path, make: Callable[[pathlib.Path], None]) -> None:
    """Neither it nor what lies beside it is changed, however the stranger's program ended."""
    path = tmp_path / "queue.db"
    make(path)
    path.with_name("queue.db-wal").write_bytes(b"a stranger's log")

    def digests() -> dict[str, str]:
        return {
            each.name: hashlib.sha256(each.read_bytes()).hexdigest()
            for each in tmp_path.iterdir()
            if each.name != "queue.db.lock"
        }

    before = digests()
    with pytest.raises(StoreDamaged, match="another program"):
        open_file(path)
    assert digests() == before
