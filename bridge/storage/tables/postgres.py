"""Entities in a table of a PostgreSQL database, shared by any number of machines."""

from __future__ import annotations

import secrets
from typing import Any, Final

from queuebell.bridge.brokers.postgres.access import PostgresAccess
from queuebell.bridge.contract.errors import Closed
from queuebell.bridge.queues.postgres.connections import PostgresConnections
from queuebell.bridge.storage.tables.base import Entity, TableStore, changed, exists

CONNECTIONS: Final = 4
CALL_S: Final = 60.0
"""The server's time limit for a statement; callers have shorter time-outs."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS queuebell_entities (
    partition_key text COLLATE "C" NOT NULL,
    row_key text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    etag text NOT NULL,
    written timestamptz NOT NULL,
    PRIMARY KEY (partition_key, row_key)
)
"""
# Without this lock, two processes may both find the table missing, and the second CREATE fails.
_ONE_AT_A_TIME: Final = "SELECT pg_advisory_xact_lock(1363298132)"
_THERE: Final = "SELECT to_regclass('queuebell_entities') IS NOT NULL"
_COLUMNS: Final = (
    "row_key, data, etag, written, greatest(0, extract(epoch FROM clock_timestamp() - written))::float8 AS age"
)
_INSERT: Final = (
    "INSERT INTO queuebell_entities VALUES ($1, $2, $3, $4, clock_timestamp()) ON CONFLICT DO NOTHING RETURNING etag"
)
_GET: Final = f"SELECT {_COLUMNS} FROM queuebell_entities WHERE partition_key=$1 AND row_key=$2"  # noqa: S608
_REPLACE: Final = (
    "UPDATE queuebell_entities SET data=$3, etag=$4, written=clock_timestamp()"
    " WHERE partition_key=$1 AND row_key=$2 AND etag=$5 RETURNING etag"
)
_DELETE: Final = "DELETE FROM queuebell_entities WHERE partition_key=$1 AND row_key=$2 AND etag=$3 RETURNING etag"
_LIST: Final = (
    f"SELECT {_COLUMNS} FROM queuebell_entities WHERE partition_key=$1 AND row_key>$2"  # noqa: S608
    " AND ($3=0 OR written <= clock_timestamp() - $3::float8 * interval '1 second') ORDER BY row_key LIMIT $4"
)


class PostgresTable(TableStore):
    """Entities in the table ``queuebell_entities`` (`TableStore`), created at the first call if it is missing.

    All times are the server's.
    """

    def __init__(self, url: str) -> None:
        self._connections = _Connections(PostgresAccess(url), CONNECTIONS)
        self._closed = False

    async def _insert(self, partition: str, row: str, data: bytes) -> str:
        etag = secrets.token_hex(8)
        if not await self._fetch(_INSERT, partition, row, data, etag):
            raise exists(partition, row)
        return etag

    async def _get(self, partition: str, row: str) -> Entity | None:
        found = await self._fetch(_GET, partition, row)
        return _entity(partition, found[0]) if found else None

    async def _replace(self, partition: str, row: str, data: bytes, etag: str) -> str:
        new = secrets.token_hex(8)
        if not await self._fetch(_REPLACE, partition, row, data, new, etag):
            raise changed(partition, row)
        return new

    async def _delete(self, partition: str, row: str, etag: str) -> None:
        if not await self._fetch(_DELETE, partition, row, etag):
            raise changed(partition, row)

    async def _entities(self, partition: str, older_than_s: float, after: str, limit: int) -> list[Entity]:
        found = await self._fetch(_LIST, partition, after, float(older_than_s), limit)
        return [_entity(partition, each) for each in found]

    async def close(self) -> None:
        """Close the connections; calls under way fail with `Closed`."""
        self._closed = True
        await self._connections.close()

    async def _fetch(self, sql: str, *arguments: object) -> list[Any]:
        if self._closed:
            raise Closed("the table store is closed")
        return await self._connections.fetch(sql, arguments, CALL_S)


class _Connections(PostgresConnections):
    """Connections that create the table if it is missing."""

    async def _check(self, connection: Any) -> None:
        # Checked first: a user without the right to create tables can use an existing one.
        if not await connection.fetchval(_THERE):
            # One script is one transaction, also behind a pooler.
            await connection.execute(f"{_ONE_AT_A_TIME};{_SCHEMA}")
        self._checked = True


def _entity(partition: str, found: Any) -> Entity:
    return Entity(partition, found["row_key"], found["data"], found["etag"], found["written"], found["age"])
