"""Entities in memory, for tests and for one process."""

from __future__ import annotations

import datetime
import itertools
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec

from bridge.contract.errors import Closed, Conflict
from bridge.table import LIST_MAX, Entity, check_data, check_key, check_listing

_shared: dict[str, dict[tuple[str, str], Entity]] = {}
_etags = itertools.count(1)


class MemoryTable:
    """Entities that last as long as the process (`TableStore`); stores of one name share them.

    ``clock`` is in seconds since the epoch.
    """

    def __init__(self, name: str = "default", *, clock: Callable[[], float] = time.time) -> None:
        self._entities = _shared.setdefault(name, {})
        self._clock = clock
        self._closed = False

    async def insert(self, partition: str, row: str, data: bytes) -> str:
        """Write a new entity."""
        self._check(partition, row)
        check_data(data)
        if (partition, row) in self._entities:
            raise Conflict(f"entity {partition}/{row} exists already")
        return self._write(partition, row, data)

    async def get(self, partition: str, row: str) -> Entity | None:
        """Read an entity."""
        self._check(partition, row)
        entity = self._entities.get((partition, row))
        return None if entity is None else self._aged(entity)

    async def replace(self, partition: str, row: str, data: bytes, etag: str) -> str:
        """Write over an entity."""
        self._check(partition, row)
        check_data(data)
        self._compare(partition, row, etag)
        return self._write(partition, row, data)

    async def delete(self, partition: str, row: str, etag: str) -> None:
        """Remove an entity."""
        self._check(partition, row)
        self._compare(partition, row, etag)
        del self._entities[partition, row]

    async def entities(
        self, partition: str, *, older_than_s: float = 0.0, after: str = "", limit: int = LIST_MAX
    ) -> list[Entity]:
        """List entities."""
        self._check("open", "open")
        check_listing(partition, older_than_s, after, limit)
        rows = sorted(row for inner, row in self._entities if inner == partition and row > after)
        aged = (self._aged(self._entities[partition, row]) for row in rows)
        return list(itertools.islice((entity for entity in aged if entity.age_s >= older_than_s), limit))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Refuse further calls; the entities stay for others of this name."""
        self._closed = True

    def _check(self, partition: str, row: str) -> None:
        if self._closed:
            raise Closed("the table store is closed")
        check_key(partition, row)

    def _compare(self, partition: str, row: str, etag: str) -> None:
        entity = self._entities.get((partition, row))
        if entity is None or entity.etag != etag:
            raise Conflict(f"entity {partition}/{row} was changed or removed by somebody else")

    def _write(self, partition: str, row: str, data: bytes) -> str:
        etag = str(next(_etags))
        at = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)
        self._entities[partition, row] = Entity(partition, row, data, etag, at, 0.0)
        return etag

    def _aged(self, entity: Entity) -> Entity:
        return msgspec.structs.replace(entity, age_s=max(0.0, self._clock() - entity.written_at.timestamp()))
