"""The promise of a table store: small entities with optimistic concurrency.

An entity has a partition key, a row key, a timestamp and an ETag. A writer names the ETag that it read, and is refused
if the entity has changed since.
"""

from __future__ import annotations

import datetime
import re
from types import TracebackType
from typing import Final, Self

import msgspec

from queuebell.bridge.contract.errors import BadInput, Conflict
from queuebell.bridge.storage.within import CALL_S, LISTING_S, within

DATA_BYTES_MAX: Final = 60 * 1024
LIST_MAX: Final = 1000

_partition = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,199}").fullmatch
_row = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,199}").fullmatch


class Entity(msgspec.Struct, frozen=True):
    """An entity as it was read: ``written_at`` and ``age_s`` (never below 0) are by the table's own clock.

    An ETag never repeats, even after a delete and a new insert.
    """

    partition: str
    row: str
    data: bytes
    etag: str
    written_at: datetime.datetime
    age_s: float


class TableStore:
    """Keeps entities of up to 60 KiB. Subclasses implement the underscored methods, which get checked arguments.

    A partition key is 1 to 200 letters, digits, ``_``, ``-`` and ``.``, a row key the same without dots; both start
    with a letter or digit and are case-sensitive.

    Every method may raise `StoreUnavailable` (try again), `UnknownOutcome` (a write may have been done), `StoreFull`,
    `Closed`, and `BadInput` for invalid keys.
    """

    async def insert(self, partition: str, row: str, data: bytes) -> str:
        """Write a new entity and return its ETag. Raises `Conflict` if it exists."""
        _check_key(partition, row)
        _check_data(data)
        async with within(CALL_S, "the table store"):
            return await self._insert(partition, row, data)

    async def get(self, partition: str, row: str) -> Entity | None:
        """Return an entity, None where there is none."""
        _check_key(partition, row)
        async with within(CALL_S, "the table store"):
            return await self._get(partition, row)

    async def replace(self, partition: str, row: str, data: bytes, etag: str) -> str:
        """Overwrite the entity with this ETag and return its new one. Raises `Conflict` if it changed or is gone."""
        _check_key(partition, row)
        _check_data(data)
        async with within(CALL_S, "the table store"):
            return await self._replace(partition, row, data, etag)

    async def delete(self, partition: str, row: str, etag: str) -> None:
        """Remove the entity with this ETag. Raises `Conflict` if it changed or is gone."""
        _check_key(partition, row)
        async with within(CALL_S, "the table store"):
            await self._delete(partition, row, etag)

    async def entities(
        self, partition: str, *, older_than_s: float = 0.0, after: str = "", limit: int = LIST_MAX
    ) -> list[Entity]:
        """List up to ``limit`` (1 to 1000) entities of a partition, in ascending order of row key.

        Only those with row keys greater than ``after`` that are at least ``older_than_s`` seconds old.
        """
        _check_key(partition, after or "0")
        if not older_than_s >= 0:
            raise BadInput("bad_parameter", "older_than_s must be 0 seconds or more")
        _check_limit(limit)
        async with within(LISTING_S, "the table store"):
            return await self._entities(partition, older_than_s, after, limit)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish calls that are under way and close everything; may be called twice."""
        raise NotImplementedError

    async def _insert(self, partition: str, row: str, data: bytes) -> str:
        raise NotImplementedError

    async def _get(self, partition: str, row: str) -> Entity | None:
        raise NotImplementedError

    async def _replace(self, partition: str, row: str, data: bytes, etag: str) -> str:
        raise NotImplementedError

    async def _delete(self, partition: str, row: str, etag: str) -> None:
        raise NotImplementedError

    async def _entities(self, partition: str, older_than_s: float, after: str, limit: int) -> list[Entity]:
        raise NotImplementedError


def exists(partition: str, row: str) -> Conflict:
    """Return the error for an insert of an existing entity."""
    return Conflict(f"entity {partition}/{row} already exists")


def changed(partition: str, row: str) -> Conflict:
    """Return the error for an ETag that is no longer the entity's."""
    return Conflict(f"entity {partition}/{row} was changed or removed by another writer")


def _check_key(partition: object, row: object) -> None:
    if not isinstance(partition, str) or _partition(partition) is None:
        raise BadInput("bad_parameter", "a partition key must be 1 to 200 letters, digits, '_', '-' and '.'")
    if not isinstance(row, str) or _row(row) is None:
        raise BadInput("bad_parameter", "a row key must be 1 to 200 letters, digits, '_' and '-'")


def _check_data(data: object) -> None:
    if not isinstance(data, bytes):
        raise BadInput("bad_parameter", "an entity's data must be bytes")
    if len(data) > DATA_BYTES_MAX:
        raise BadInput("too_large", f"an entity's data may have at most {DATA_BYTES_MAX} bytes")


def _check_limit(limit: object) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LIST_MAX:
        raise BadInput("bad_parameter", f"limit must be from 1 to {LIST_MAX}")
