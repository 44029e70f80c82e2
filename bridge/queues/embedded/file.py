"""The data file: its lock, its checks, its schema, and the reserve for a full disk.

The advisory lock is on a file of its own. No second descriptor of the database may be opened and closed while SQLite
has it open: POSIX drops all locks of the process with the first close.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import sqlite3
import stat
import struct
from pathlib import Path
from typing import Final

from queuebell.bridge.contract.errors import (
    ConfigurationError,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreOwned,
    StoreUnavailable,
)

_log = logging.getLogger("queuebell.store")

APPLICATION_ID: Final = 0x51424C4C
"""``QBLL`` in the file's header, which distinguishes data files from other SQLite files."""

NAME: Final = "queue.db"
"""Name of the data file in a bridge's data folder."""

SYNCHRONOUS: Final = ("NORMAL", "FULL", "EXTRA")

_MAGIC: Final = b"SQLite format 3\x00"
_HEADER_BYTES: Final = 100
_FIRST_PAGE_BYTES: Final = 4096
_NEW: Final = ".new"
# Pages after which a commit checkpoints the write-ahead log; an idle writer does so earlier.
_CHECKPOINT_PAGES: Final = 4000
_LOG_BYTES: Final = 6 * 1024 * 1024
_LOG_BYTES_KEPT: Final = 64 * 1024 * 1024

_V1: Final = (
    """CREATE TABLE queues (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL, paused INTEGER NOT NULL)""",
    # The body comes last, after columns of constant width, so that a lease overwrites a few bytes in place, and not a
    # body of 64 KiB.
    """CREATE TABLE messages (
        seq INTEGER PRIMARY KEY, q INTEGER NOT NULL, vis INTEGER NOT NULL, exp INTEGER, n INTEGER NOT NULL,
        rcpt INTEGER NOT NULL, ins INTEGER NOT NULL, body BLOB NOT NULL)""",
    # The row id ends every index entry: this is the order of receives, (q, vis, seq).
    "CREATE INDEX messages_by_due ON messages (q, vis)",
    "CREATE INDEX messages_by_expiry ON messages (q, exp) WHERE exp IS NOT NULL",
    # The newest time and the highest numbers ever used (O2); they outlive their rows.
    """CREATE TABLE clock (
        id INTEGER PRIMARY KEY CHECK (id = 1), now INTEGER NOT NULL, seq INTEGER NOT NULL, queue INTEGER NOT NULL)""",
    "INSERT INTO clock VALUES (1, 0, 0, 0)",
)

_V2: Final = (
    # The keys of puts; each stays for its window at least.
    """CREATE TABLE once (
        seq INTEGER PRIMARY KEY, q INTEGER NOT NULL, until INTEGER NOT NULL, digest BLOB NOT NULL,
        key TEXT NOT NULL)""",
    "CREATE UNIQUE INDEX once_by_key ON once (q, key)",
    "CREATE INDEX once_by_end ON once (until)",
)

_V3: Final = (
    # A queue's permanent number: a clear changes its id, never this. 0 is for older queues.
    "ALTER TABLE queues ADD COLUMN made INTEGER NOT NULL DEFAULT 0",
)

_V4: Final = (
    # JSON, NULL for none. It comes after the body, but the row's head shows whether it is NULL.
    "ALTER TABLE messages ADD COLUMN headers BLOB",
)

STEPS: Final[tuple[tuple[str, ...], ...]] = (_V1, _V2, _V3, _V4)
"""Step i migrates a file from schema version i to i + 1; steps are only added."""


CLOSE: Final = "chmod -R go-rwx {}"
"""The command that closes a data folder to other users, also while it is in use."""


def make_folder(folder: Path) -> None:
    """Create a data folder for its owner alone, and its parents; existing ones stay as they are. Raises `OSError`."""
    for parent in reversed(folder.parents):
        parent.mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def open_to_others(folder: Path) -> str:
    """Return a warning if every user of this machine can read or replace the data, else "".

    Access for a group may be intended, as for `open_to_all`.
    """
    try:
        mode = folder.stat().st_mode
        if os.name != "posix" or not mode & stat.S_IXOTH:
            return ""
        open_ = mode & stat.S_IWOTH or any(
            each.name.startswith(NAME) and each.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH)
            for each in folder.iterdir()
        )
    except OSError:
        return ""
    return "every user of this machine can read or replace its messages" if open_ else ""


class FileLock:
    """The advisory lock of a data file; the kernel releases it after a crash."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock; raises `StoreOwned` if another process has it, `StoreUnavailable` if that fails."""
        try:
            import fcntl
        except ImportError:
            raise ConfigurationError("a data file needs Linux or macOS; use a bridge's URL as the store") from None
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"{self._path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # On a full disk only the process number is missing.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            os.close(fd)
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise StoreOwned(
                f"{self._path}: the data file is in use by {who}: stop it, or use another file (--data)"
            ) from None
        except OSError as error:
            os.close(fd)
            raise StoreUnavailable(f"{self._path}: {error.strerror}") from error
        self._fd = fd

    def release(self) -> None:
        """Release the lock, if held. The lock file stays: removing it would race with another process."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def messages_in(path: Path) -> int:
    """Return the number of messages in a data file, 0 if there is no file; changes nothing.

    Raises `StoreDamaged` for an invalid file, and `StoreUnavailable` if it cannot be read.
    """
    if not path.exists():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM messages").fetchone()
    except sqlite3.DatabaseError as error:
        damaged = not isinstance(error, sqlite3.OperationalError)
        raise (StoreDamaged if damaged else StoreUnavailable)(f"{path}: cannot be read: {error}") from error
    return int(count)


def open_file(path: Path, synchronous: str = "FULL") -> tuple[sqlite3.Connection, FileLock]:
    """Lock, check and open a data file; create it and its folder if missing.

    Raises `StoreOwned`, `StoreDamaged`, `StoreUnavailable`, `StoreFull`, or `ConfigurationError` for a newer schema; a
    refused file is not changed.
    """
    if synchronous not in SYNCHRONOUS:
        raise ConfigurationError(f"synchronous is one of {', '.join(SYNCHRONOUS)}")
    try:
        make_folder(path.parent)
    except OSError as error:
        raise StoreUnavailable(f"{path.parent}: {error.strerror}") from error
    lock = FileLock(_beside(path, ".lock"))
    lock.acquire()
    connection: sqlite3.Connection | None = None
    try:
        if _check_header(path):
            _make_file(path)
        connection = _connect(str(path))
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        _settle_in(connection, path, synchronous)
    except BaseException as error:
        if connection is not None:
            connection.close()
        lock.release()
        if isinstance(error, sqlite3.Error):
            raise translate(error, str(path)) from error
        raise
    return connection, lock


def open_memory() -> sqlite3.Connection:
    """Open a database in memory with the newest schema."""
    connection = _connect(":memory:")
    _make(connection)
    return connection


def translate(error: sqlite3.Error, where: str) -> StoreError:
    """Return the store error for an error of SQLite."""
    # The primary code, without the bits of the extended code.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(f"{where}: no space left")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreDamaged(f"{where}: the data file is damaged ({error})")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreOwned(f"{where}: another process has the data file open")
    return StoreUnavailable(f"{where}: {error}")


def limit_log(connection: sqlite3.Connection, tight: bool) -> None:
    """Set the length to which the write-ahead log is cut after a checkpoint; minimal if ``tight``."""
    connection.execute(f"PRAGMA journal_size_limit={_LOG_BYTES if tight else _LOG_BYTES_KEPT}").fetchall()


def migrate(connection: sqlite3.Connection, where: str) -> None:
    """Migrate the schema step by step, each in its own transaction.

    Raises `ConfigurationError` if a newer version wrote the file.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    _refuse_newer(version, where)
    for number in range(version, len(STEPS)):
        _transact(connection, (*STEPS[number], f"PRAGMA user_version={number + 1}"))


def _connect(name: str) -> sqlite3.Connection:
    # Autocommit: the engine executes BEGIN and COMMIT. The connection is used by one thread at a time.
    connection = sqlite3.connect(name, timeout=1.0, isolation_level=None, check_same_thread=False)
    # On by default in some distributions; it doubles the writes of every delete.
    connection.execute("PRAGMA secure_delete=OFF")
    return connection


def _check_header(path: Path) -> bool:
    """Return whether the file has to be created; must run before SQLite opens it, so that no lock is dropped."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
    except FileNotFoundError:
        return True
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error
    if not header:
        return True
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise StoreDamaged(f"{path}: the file is damaged, or not a data file of Queuebell")
    version, application = struct.unpack(">I4xI", header[60:72])
    if _never_filled(path, header):
        return True
    if application != APPLICATION_ID:
        raise StoreDamaged(f"{path}: an SQLite file of another program, not a data file of Queuebell")
    _refuse_newer(version, str(path))
    return False


def _never_filled(path: Path, header: bytes) -> bool:
    """Return whether an older version's first start was interrupted: one page, no table."""
    pages, schema, application = struct.unpack(">I8xI24xI", header[28:72])
    if (pages, schema, application, path.stat().st_size) != (1, 0, 0, _FIRST_PAGE_BYTES):
        return False
    try:
        with _beside(path, "-journal").open("rb") as file:
            # The size of the file before the interrupted transaction.
            return int.from_bytes(file.read(20)[16:]) <= 1
    except FileNotFoundError:
        return True


def _refuse_newer(version: int, where: str) -> None:
    if version > len(STEPS):
        raise ConfigurationError(
            f"{where}: written by a newer version of Queuebell (schema {version}, this one knows {len(STEPS)})"
        )


def _make_file(path: Path) -> None:
    """Create a data file under another name, and rename it once it is complete and on the disk.

    An interrupted start then leaves no file under the final name: its header would be checked before SQLite could roll
    the interrupted transaction back, and rejected.
    """
    path = path.resolve()
    new = _beside(path, _NEW)
    leftovers = [new, _beside(new, "-journal")]
    _remove(leftovers)
    try:
        # SQLite gives its log and its journal the mode of the file itself.
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with contextlib.closing(_connect(str(new))) as connection:
            _make(connection)
        # SQLite would apply them to the new file.
        _remove([_beside(path, "-journal"), _beside(path, "-wal")])
        new.replace(path)
        _flush_folder(path.parent)
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error
    finally:
        with contextlib.suppress(OSError):
            _remove(leftovers)


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(paths: list[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _make(connection: sqlite3.Connection) -> None:
    """Create the schema by one transaction of the old journal, so that the header is not only in the log."""
    connection.execute("PRAGMA auto_vacuum=INCREMENTAL")
    statements = [statement for step in STEPS for statement in step]
    _transact(
        connection,
        (*statements, f"PRAGMA application_id={APPLICATION_ID}", f"PRAGMA user_version={len(STEPS)}"),
    )


def _transact(connection: sqlite3.Connection, statements: tuple[str, ...]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in statements:
            connection.execute(statement)
        connection.execute("COMMIT")
    except BaseException:
        # SQLite rolls back on a full disk; a second ROLLBACK would hide that error.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _settle_in(connection: sqlite3.Connection, path: Path, synchronous: str) -> None:
    # EXCLUSIVE, set before the first access, excludes other processes and needs no shared memory: before SQLite 3.51.3
    # two processes that reset a write-ahead log at once corrupt the file.
    for pragma in (
        "journal_mode=WAL",
        f"synchronous={synchronous}",
        f"wal_autocheckpoint={_CHECKPOINT_PAGES}",
        "cache_size=-32000",
        "temp_store=MEMORY",
    ):
        connection.execute(f"PRAGMA {pragma}").fetchall()
    limit_log(connection, tight=False)
    migrate(connection, str(path))
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    size = path.stat().st_size
    if size < pages * page_size:
        raise StoreDamaged(f"{path}: the data file is damaged (cut off after {size} of {pages * page_size} bytes)")
    _extend_log(_beside(path, "-wal"))


def _extend_log(path: Path) -> None:
    """Extend the empty log in advance: syncing a file that does not grow takes half the time.

    SQLite's recovery ends at the first invalid frame, so zeros do no harm.
    """
    try:
        with path.open("r+b", buffering=0) as log:
            if os.fstat(log.fileno()).st_size == 0:
                log.write(bytes(_LOG_BYTES))
                os.fsync(log.fileno())
    except FileNotFoundError:
        pass
    except OSError as error:
        # This only costs speed; on a full disk, calls fail and say so.
        _log.debug("%s: not extended: %s", path, error.strerror)


_log = logging.getLogger("queuebell.store")

RESERVE_BYTES: Final = 24 * 1024 * 1024
"""The log of 4,000 pages of 4 KiB, a commit more, and what SQLite itself needs."""


class Reserve:
    """A file of zeros that reserves space for a full disk; ``short`` while it is released.

    To continue on a full disk, the log has to be copied into the data file, which may have to grow for that; without
    space not even deletes would work. So the reserve is released when the disk is full, and puts are refused until it
    can be restored.
    """

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size = size
        self.short = False

    def hold(self) -> bool:
        """Create or restore the reserve; return whether it exists. A disk too small from the start does without.

        A released reserve stays as an empty file, so that puts wait for space after a restart too.
        """
        given_up = self.short
        try:
            given_up = self._path.exists()
            held = self._path.stat().st_size if given_up else 0
            if held == self._size:
                self.short = False
                return True
            disk = os.statvfs(self._path.parent)
            if disk.f_bavail * disk.f_frsize + held < self._size:
                # A try would take the last space from other programs for a moment.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with open(self._path, "wb", opener=_owned) as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, self._size)
                else:
                    file.write(bytes(self._size))
        except OSError as error:
            self._log_shortage(error.strerror or str(error), given_up)
            with contextlib.suppress(OSError):
                if given_up:
                    # The next start has to know that puts wait for space.
                    os.truncate(self._path, 0)
                else:
                    self._path.unlink(missing_ok=True)
            self.short = given_up
            return False
        self.short = False
        return True

    def _log_shortage(self, why: str, given_up: bool) -> None:
        if self.short:
            # Repeated with every commit.
            _log.debug("%s: no space for the reserve: %s", self._path, why)
        elif given_up:
            _log.warning(
                "%s: the reserve was released before this start, and there is no space to restore it yet (%s). "
                "Acknowledged messages are safe, and can be received and deleted; puts wait for space",
                self._path,
                why,
            )
        else:
            _log.warning(
                "%s: no space for a reserve of %d MiB (%s). Acknowledged messages are safe, but on a full disk they "
                "may not be received or deleted; free space and restart",
                self._path,
                self._size >> 20,
                why,
            )

    def release(self) -> bool:
        """Release the reserved space; return whether there was any."""
        try:
            if self._path.stat().st_size == 0:
                return False
            os.truncate(self._path, 0)
        except OSError:
            return False
        self.short = True
        _log.warning(
            "%s: the disk is full; the reserve is released, so messages can be received and deleted, and puts wait",
            self._path,
        )
        return True


def _owned(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
