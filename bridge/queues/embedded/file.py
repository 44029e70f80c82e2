"""The data file: who owns it, whether it is ours, and which shape it has.

The advisory lock stands on a file of its own. A second descriptor of the database itself must never be opened and
closed while SQLite has it open: POSIX drops all locks of the process with the first close.
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

from bridge.contract.errors import ConfigurationError, StoreDamaged, StoreError, StoreFull, StoreOwned, StoreUnavailable

_log = logging.getLogger("queuebell.store")

APPLICATION_ID: Final = 0x51424C4C
"""``QBLL`` in the file's header: what tells our files from other SQLite files."""

NAME: Final = "queue.db"
"""What the data file is called in a bridge's data folder."""

SYNCHRONOUS: Final = ("NORMAL", "FULL", "EXTRA")

_MAGIC: Final = b"SQLite format 3\x00"
_HEADER_BYTES: Final = 100
_FIRST_PAGE_BYTES: Final = 4096
_NEW: Final = ".new"
# Pages the write-ahead log may grow to within one commit's reach; the writer checkpoints earlier when it is idle.
_CHECKPOINT_PAGES: Final = 4000
_LOG_BYTES: Final = 6 * 1024 * 1024
_LOG_BYTES_KEPT: Final = 64 * 1024 * 1024

_V1: Final = (
    """CREATE TABLE queues (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, metadata TEXT NOT NULL, paused INTEGER NOT NULL)""",
    # The body stands last and the columns before it keep their width from the first lease on, so that SQLite
    # overwrites a few bytes in place where a lease changes, and not a body of 64 KiB.
    """CREATE TABLE messages (
        seq INTEGER PRIMARY KEY, q INTEGER NOT NULL, vis INTEGER NOT NULL, exp INTEGER, n INTEGER NOT NULL,
        rcpt INTEGER NOT NULL, ins INTEGER NOT NULL, body BLOB NOT NULL)""",
    # The row id ends every index entry by itself: this is the order of receive, (q, vis, seq).
    "CREATE INDEX messages_by_due ON messages (q, vis)",
    "CREATE INDEX messages_by_expiry ON messages (q, exp) WHERE exp IS NOT NULL",
    # The newest time and the highest numbers ever given (O2); they outlive the rows that had them.
    """CREATE TABLE clock (
        id INTEGER PRIMARY KEY CHECK (id = 1), now INTEGER NOT NULL, seq INTEGER NOT NULL, queue INTEGER NOT NULL)""",
    "INSERT INTO clock VALUES (1, 0, 0, 0)",
)

_V2: Final = (
    # The keys of puts that are carried out once; each outlives its message by what is left of its time.
    """CREATE TABLE once (
        seq INTEGER PRIMARY KEY, q INTEGER NOT NULL, until INTEGER NOT NULL, digest BLOB NOT NULL,
        key TEXT NOT NULL)""",
    "CREATE UNIQUE INDEX once_by_key ON once (q, key)",
    "CREATE INDEX once_by_end ON once (until)",
)

_V3: Final = (
    # A queue's own number: a clear changes its id, never this. 0 is for what stood before.
    "ALTER TABLE queues ADD COLUMN made INTEGER NOT NULL DEFAULT 0",
)

_V4: Final = (
    # JSON, NULL for none. It stands behind the body, but one that is NULL is known by the row's head alone.
    "ALTER TABLE messages ADD COLUMN headers BLOB",
)

STEPS: Final[tuple[tuple[str, ...], ...]] = (_V1, _V2, _V3, _V4)
"""Step i brings a file from schema version i to i + 1; steps are only ever added."""


CLOSE: Final = "chmod -R go-rwx {}"
"""What closes a data folder to others, while it is served as well."""


def make_folder(folder: Path) -> None:
    """Make a data folder that nobody but its owner reads, in folders that nobody else writes to.

    Those that are there stay as they are. Raises `OSError`.
    """
    for parent in reversed(folder.parents):
        parent.mkdir(mode=0o755, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def open_to_others(folder: Path) -> str:
    """Say that every user of this machine can read or replace what stands in a data folder; "" where they cannot.

    A group may be meant to, as for `open_to_all`.
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
    """The advisory lock of one data file, held from `acquire` to `release`, and dropped by the kernel at a crash."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock; raises `StoreOwned` if somebody has it, `StoreUnavailable` if it cannot be made."""
        try:
            import fcntl
        except ImportError:
            raise ConfigurationError("a data file needs Linux or macOS; use the bridge's URL as the store") from None
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreUnavailable(f"{self._path}: {error.strerror}") from error
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A full disk keeps nobody from owning the file; only the number in it is missing then.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError:
            holder = os.pread(fd, 20, 0).decode("ascii", "replace").strip()
            os.close(fd)
            who = f"process {holder}" if holder.isdigit() else "another process"
            raise StoreOwned(
                f"{self._path}: the data file is owned by {who}: end that, or use another file (--data)"
            ) from None
        except OSError as error:
            os.close(fd)
            raise StoreUnavailable(f"{self._path}: {error.strerror}") from error
        self._fd = fd

    def release(self) -> None:
        """Let go; nothing happens where it is not held. The lock file stays: removing it would race with a waiter."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def messages_in(path: Path) -> int:
    """Return how many messages a data file holds, 0 where there is none; it is read and nothing is changed.

    Raises `StoreDamaged` for what is no such file, and `StoreUnavailable` where it cannot be read.
    """
    if not path.exists():
        return 0
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
            (count,) = connection.execute("SELECT count(*) FROM messages").fetchone()
    except sqlite3.DatabaseError as error:
        damaged = not isinstance(error, sqlite3.OperationalError)
        raise (StoreDamaged if damaged else StoreUnavailable)(f"{path}: it cannot be read: {error}") from error
    return int(count)


def open_file(path: Path, synchronous: str = "FULL") -> tuple[sqlite3.Connection, FileLock]:
    """Own, check, and open a data file, making it and its directory where they are missing.

    Raises `StoreOwned`, `StoreDamaged`, `StoreUnavailable`, `StoreFull`, or `ConfigurationError` for a newer schema;
    a file that is refused is left as it was.
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
    """Return the error of ours that says in one line what SQLite reports."""
    # The primary code; the bits above say more than anybody needs.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(f"{where}: there is no room left")
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreDamaged(f"{where}: the data file is damaged ({error})")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreOwned(f"{where}: another process has the data file open")
    return StoreUnavailable(f"{where}: {error}")


def limit_log(connection: sqlite3.Connection, tight: bool) -> None:
    """Say how long the write-ahead log may stay once its pages are in the file: as at the start, where it is tight."""
    connection.execute(f"PRAGMA journal_size_limit={_LOG_BYTES if tight else _LOG_BYTES_KEPT}").fetchall()


def migrate(connection: sqlite3.Connection, where: str) -> None:
    """Bring the schema up to date, step by step, each in a transaction of its own.

    Raises `ConfigurationError` if a newer version wrote the file.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    _refuse_newer(version, where)
    for number in range(version, len(STEPS)):
        _transact(connection, (*STEPS[number], f"PRAGMA user_version={number + 1}"))


def _connect(name: str) -> sqlite3.Connection:
    # Autocommit: the engine says BEGIN and COMMIT itself. The connection is used by one thread at a time.
    connection = sqlite3.connect(name, timeout=1.0, isolation_level=None, check_same_thread=False)
    # Some distributions compile it in; overwriting deleted rows doubles the writes of every delete.
    connection.execute("PRAGMA secure_delete=OFF")
    return connection


def _check_header(path: Path) -> bool:
    """Say whether the file is still to be made; read before SQLite has it open, so no lock can be dropped."""
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
        raise StoreDamaged(f"{path}: the data file is damaged or no data file of Queuebell")
    version, application = struct.unpack(">I4xI", header[60:72])
    if _never_filled(path, header):
        return True
    if application != APPLICATION_ID:
        raise StoreDamaged(f"{path}: an SQLite file of another program, no data file of Queuebell")
    _refuse_newer(version, str(path))
    return False


def _never_filled(path: Path, header: bytes) -> bool:
    """Say whether this is what older versions left where their first start was cut short: one page, never a table."""
    pages, schema, application = struct.unpack(">I8xI24xI", header[28:72])
    if (pages, schema, application, path.stat().st_size) != (1, 0, 0, _FIRST_PAGE_BYTES):
        return False
    try:
        with _beside(path, "-journal").open("rb") as file:
            # What the file had before the transaction that was cut short.
            return int.from_bytes(file.read(20)[16:]) <= 1
    except FileNotFoundError:
        return True


def _refuse_newer(version: int, where: str) -> None:
    if version > len(STEPS):
        raise ConfigurationError(
            f"{where}: written by a newer version of Queuebell (schema {version}, this one knows {len(STEPS)})"
        )


def _make_file(path: Path) -> None:
    """Make a data file under another name and give it its own when it is whole and on the disk.

    Whoever dies on the way leaves nothing under the name of the data file: half made, it would be taken for a
    stranger's, since its header is looked at before SQLite could take a transaction that was cut short back.
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
        # They would be taken for the new file's.
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
    """Make a file in one transaction of the old journal, so that its header is never in the write-ahead log only."""
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
        # A full disk has rolled back already, and a second ROLLBACK would hide that error behind its own.
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _settle_in(connection: sqlite3.Connection, path: Path, synchronous: str) -> None:
    # EXCLUSIVE, set before the first access, keeps every other process off and needs no shared memory: the reset of
    # a write-ahead log by two processes at once corrupts files on SQLite before 3.51.3.
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
    """Give the empty log its length beforehand: syncing a file that does not grow takes half the time.

    Zeros after the last valid frame, or instead of any, are what SQLite's recovery ends at anyway.
    """
    try:
        with path.open("r+b", buffering=0) as log:
            if os.fstat(log.fileno()).st_size == 0:
                log.write(bytes(_LOG_BYTES))
                os.fsync(log.fileno())
    except FileNotFoundError:
        pass
    except OSError as error:
        # It only costs speed; where the disk is full, calls will say so.
        _log.debug("%s: not extended: %s", path, error.strerror)


_log = logging.getLogger("queuebell.store")

RESERVE_BYTES: Final = 24 * 1024 * 1024
"""The log is copied back every 4,000 pages of 4 KiB; a commit more, and SQLite's own needs, come on top."""


class Reserve:
    """The file of zeros. ``short`` is True from when it was given up until it is made again."""

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size = size
        self.short = False

    def hold(self) -> bool:
        """Make the file, or say that there is no room for it; a disk too small for it from the start does without.

        One that was given up stays as an empty file, so that this holds through a restart: puts wait for room.
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
                # Trying would take the last of it, for a moment, from whoever else writes there.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with open(self._path, "wb", opener=_owned) as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, self._size)
                else:
                    file.write(bytes(self._size))
        except OSError as error:
            self._say(error.strerror or str(error), given_up)
            with contextlib.suppress(OSError):
                if given_up:
                    # An empty one stays where it was given up: the next start has to know that puts wait for room.
                    os.truncate(self._path, 0)
                else:
                    self._path.unlink(missing_ok=True)
            self.short = given_up
            return False
        self.short = False
        return True

    def _say(self, why: str, given_up: bool) -> None:
        if self.short:
            # Tried again with every commit.
            _log.debug("%s: no room to set aside: %s", self._path, why)
        elif given_up:
            _log.warning(
                "%s: was given up before this start, and there is no room for it yet (%s): what was acknowledged is "
                "safe, messages can be taken and deleted, and puts wait for room",
                self._path,
                why,
            )
        else:
            _log.warning(
                "%s: no room to set aside %d MiB (%s): what was acknowledged is safe, but on a full disk messages may "
                "not be taken or deleted either; make room and start again",
                self._path,
                self._size >> 20,
                why,
            )

    def give_up(self) -> bool:
        """Empty the file; say whether that made room."""
        try:
            if self._path.stat().st_size == 0:
                return False
            os.truncate(self._path, 0)
        except OSError:
            return False
        self.short = True
        _log.warning("%s: given up, so that messages can still be taken and deleted; puts wait for room", self._path)
        return True


def _owned(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
