"""Entities in an SQLite file, shared by the processes of one machine."""

from __future__ import annotations

import asyncio
import datetime
import logging
import os
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

from queuebell.bridge.contract.errors import (
    Closed,
    QueuebellError,
    StoreDamaged,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
    named,
)
from queuebell.bridge.storage.tables.base import Entity, TableStore, changed, exists

log = logging.getLogger("queuebell.store")

_Operation = Callable[[sqlite3.Connection], object]

_APPLICATION: Final = 0x51424C54
_VERSION: Final = 1
_TABLE: Final = """
CREATE TABLE entities (
    partition TEXT NOT NULL, row TEXT NOT NULL, data BLOB NOT NULL, etag TEXT NOT NULL, written REAL NOT NULL,
    PRIMARY KEY (partition, row)
) WITHOUT ROWID
"""
_SCHEMA: Final = (
    _TABLE,
    "CREATE INDEX entities_by_age ON entities (partition, written)",
    f"PRAGMA application_id={_APPLICATION}",
    f"PRAGMA user_version={_VERSION}",
)
_LIST: Final = (
    "SELECT row, data, etag, written FROM entities WHERE partition=? AND row>? AND (?=0.0 OR written<=?)"
    " ORDER BY row LIMIT ?"
)
_BUSY_S: Final = 5.0


class SqliteTable(TableStore):
    """Entities in one file, created if it is missing (`TableStore`).

    It has a rollback journal and is flushed at every commit, so that acknowledged writes survive a power failure, and
    several processes can open it. Calls that wait during a commit share the next one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()
        self._connection: sqlite3.Connection | None = None
        self._using = threading.Lock()
        self._waiting: list[tuple[_Operation, asyncio.Future[Any]]] = []
        self._committing: asyncio.Task[None] | None = None
        self._closed = False

    async def _insert(self, partition: str, row: str, data: bytes) -> str:
        etag = secrets.token_hex(8)

        def write(connection: sqlite3.Connection) -> str:
            done = connection.execute(
                "INSERT INTO entities VALUES (?,?,?,?,?) ON CONFLICT DO NOTHING",
                (partition, row, data, etag, time.time()),
            )
            return etag if done.rowcount == 1 else ""

        if not await self._call(write):
            raise exists(partition, row)
        return etag

    async def _get(self, partition: str, row: str) -> Entity | None:

        def read(connection: sqlite3.Connection) -> Entity | None:
            query = "SELECT row, data, etag, written FROM entities WHERE partition=? AND row=?"
            found = connection.execute(query, (partition, row)).fetchone()
            return None if found is None else _entity(partition, found, time.time())

        return cast("Entity | None", await self._call(read))

    async def _replace(self, partition: str, row: str, data: bytes, etag: str) -> str:
        new = secrets.token_hex(8)
        statement = "UPDATE entities SET data=?, etag=?, written=? WHERE partition=? AND row=? AND etag=?"
        if not await self._call(
            lambda connection: connection.execute(statement, (data, new, time.time(), partition, row, etag)).rowcount
        ):
            raise changed(partition, row)
        return new

    async def _delete(self, partition: str, row: str, etag: str) -> None:
        statement = "DELETE FROM entities WHERE partition=? AND row=? AND etag=?"
        if not await self._call(lambda connection: connection.execute(statement, (partition, row, etag)).rowcount):
            raise changed(partition, row)

    async def _entities(self, partition: str, older_than_s: float, after: str, limit: int) -> list[Entity]:

        def read(connection: sqlite3.Connection) -> list[Entity]:
            now = time.time()
            found = connection.execute(_LIST, (partition, after, older_than_s, now - older_than_s, limit)).fetchall()
            return [_entity(partition, each, now) for each in found]

        return cast("list[Entity]", await self._call(read))

    async def close(self) -> None:
        """Carry out waiting calls and close the file."""
        self._closed = True
        if self._committing is not None:
            await asyncio.wait([self._committing])
        await asyncio.to_thread(self._close_file)

    async def _call(self, operation: _Operation) -> object:
        if self._closed:
            raise Closed("the table store is closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((operation, answer))
        if self._committing is None:
            self._committing = loop.create_task(self._commit_all(), name=f"table[{self.path.name}]")
        return await answer

    async def _commit_all(self) -> None:
        try:
            while self._waiting:
                calls, self._waiting = self._waiting, []
                try:
                    results = await asyncio.to_thread(self._commit, [operation for operation, _ in calls])
                except QueuebellError as error:
                    results = [error] * len(calls)
                except Exception as error:
                    # Calls that came meanwhile wait for the next round.
                    log.exception("%s: unexpected error while writing", self.path)
                    results = [UnknownOutcome(f"{self.path}: unexpected error ({named(error)})")] * len(calls)
                except BaseException:
                    results = [UnknownOutcome(f"{self.path}: the writer was stopped")] * len(calls)
                    raise
                finally:
                    for (_, answer), result in zip(calls, results, strict=True):
                        if not answer.done():
                            if isinstance(result, Exception):
                                answer.set_exception(result)
                            else:
                                answer.set_result(result)
        finally:
            self._committing = None

    def _commit(self, operations: Sequence[_Operation]) -> list[object]:
        """Carry out a group in one transaction; a fault rolls all of it back."""
        with self._using:
            ending = False
            try:
                connection = self._open()
                connection.execute("BEGIN IMMEDIATE")
                results = [operation(connection) for operation in operations]
                ending = True
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._undo()
                raise _translate(error, self.path, ending) from error
            except BaseException:
                self._undo()
                raise
            else:
                return results

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                _prepare(connection, self.path)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _undo(self) -> None:
        """Roll back by closing the connection, which may be the cause; the next call opens the file again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _close_file(self) -> None:
        with self._using:
            self._undo()


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("BEGIN IMMEDIATE")  # of two processes that open a new file, one creates the table
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if not tables and not application:
        for statement in _SCHEMA:
            connection.execute(statement)
    elif application != _APPLICATION:
        raise StoreDamaged(f"{path} is not a Queuebell table; nothing was changed. Name another file")
    elif version > _VERSION:
        raise StoreDamaged(f"{path} was written by a newer Queuebell (version {version}; this one reads {_VERSION})")
    connection.execute("COMMIT")


def _entity(partition: str, found: tuple[str, bytes, str, float], now: float) -> Entity:
    row, data, etag, written = found
    at = datetime.datetime.fromtimestamp(written, datetime.UTC)
    return Entity(partition, row, data, etag, at, max(0.0, now - written))


def _translate(error: sqlite3.Error, path: Path, ending: bool) -> StoreError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(f"{path}: no space left to write; free some; acknowledged data is safe")
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StoreDamaged(f"{path} is damaged or not an SQLite file: {error}")
    if ending and code != sqlite3.SQLITE_BUSY:
        return UnknownOutcome(f"{path}: a commit failed: {error}")
    return StoreUnavailable(f"{path}: {error}")
