"""Entities in memory, for tests and for one process."""

from __future__ import annotations

import datetime
import itertools
import time
from collections.abc import Callable

import msgspec

from queuebell.bridge.contract.errors import Closed
from queuebell.bridge.storage.tables.base import Entity, TableStore, changed, exists

_shared: dict[str, dict[tuple[str, str], Entity]] = {}
_etags = itertools.count(1)


class MemoryTable(TableStore):
    """Entities for the life of the process, shared by stores of the same name (`TableStore`).

    ``clock`` is in seconds since the epoch.
    """

    def __init__(self, name: str = "default", *, clock: Callable[[], float] = time.time) -> None:
        self._by_key = _shared.setdefault(name, {})
        self._clock = clock
        self._closed = False

    async def _insert(self, partition: str, row: str, data: bytes) -> str:
        self._check_open()
        if (partition, row) in self._by_key:
            raise exists(partition, row)
        return self._write(partition, row, data)

    async def _get(self, partition: str, row: str) -> Entity | None:
        self._check_open()
        entity = self._by_key.get((partition, row))
        return None if entity is None else self._aged(entity)

    async def _replace(self, partition: str, row: str, data: bytes, etag: str) -> str:
        self._check_open()
        self._compare(partition, row, etag)
        return self._write(partition, row, data)

    async def _delete(self, partition: str, row: str, etag: str) -> None:
        self._check_open()
        self._compare(partition, row, etag)
        del self._by_key[partition, row]

    async def _entities(self, partition: str, older_than_s: float, after: str, limit: int) -> list[Entity]:
        self._check_open()
        rows = sorted(row for inner, row in self._by_key if inner == partition and row > after)
        aged = (self._aged(self._by_key[partition, row]) for row in rows)
        return list(itertools.islice((entity for entity in aged if entity.age_s >= older_than_s), limit))

    async def close(self) -> None:
        """Refuse further calls; the entities stay for other stores of this name."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the table store is closed")

    def _compare(self, partition: str, row: str, etag: str) -> None:
        entity = self._by_key.get((partition, row))
        if entity is None or entity.etag != etag:
            raise changed(partition, row)

    def _write(self, partition: str, row: str, data: bytes) -> str:
        etag = str(next(_etags))
        at = datetime.datetime.fromtimestamp(self._clock(), datetime.UTC)
        self._by_key[partition, row] = Entity(partition, row, data, etag, at, 0.0)
        return etag

    def _aged(self, entity: Entity) -> Entity:
        return msgspec.structs.replace(entity, age_s=max(0.0, self._clock() - entity.written_at.timestamp()))
