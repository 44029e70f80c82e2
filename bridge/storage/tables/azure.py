"""Entities in a table of Azure Table Storage or a compatible server."""

from __future__ import annotations

import contextlib
import datetime
import re
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final

from queuebell.bridge.contract.errors import ConfigurationError, Conflict, StoreError
from queuebell.bridge.queues.azure.account import AzureAccount
from queuebell.bridge.queues.connections import LazyClient
from queuebell.bridge.storage.tables.base import Entity, TableStore, changed, exists

ANSWER_S: Final = 10.0
TABLE: Final = "queuebell"

_table = re.compile(r"[A-Za-z][A-Za-z0-9]{2,62}").fullmatch
_code_in = re.compile(r'"code"\s*:\s*"(\w+)"').search
_CHANGED: Final = frozenset(
    {"EntityAlreadyExists", "ResourceNotFound", "UpdateConditionNotSatisfied", "ConditionNotMet"}
)


class AzureTable(TableStore):
    """The entities of one table (`AzureAccount`, option ``table``), which must exist (`TableStore`).

    Timestamp and ETag are the service's.
    """

    def __init__(self, url: str) -> None:
        account = AzureAccount(url, "ledger", "table", TABLE)
        self._name = account.place
        if not _table(self._name):
            raise ConfigurationError(
                "ledger: a table's name must be 3 to 63 letters and digits, starting with a letter"
            )
        self._table: LazyClient[Any] = LazyClient(
            partial(account.client, _sdk, ANSWER_S, self._name), "the table store"
        )

    async def _insert(self, partition: str, row: str, data: bytes) -> str:
        async with self._calling(exists(partition, row)) as table:
            written = await table.create_entity({"PartitionKey": partition, "RowKey": row, "data": data})
        return str(written["etag"])

    async def _get(self, partition: str, row: str) -> Entity | None:
        dates: list[str] = []
        try:
            async with self._calling(Conflict("gone")) as table:
                found = await table.get_entity(partition, row, raw_response_hook=partial(_note, dates))
        except Conflict:
            return None
        return _entity(found, dates[-1])

    async def _replace(self, partition: str, row: str, data: bytes, etag: str) -> str:
        async with self._calling(changed(partition, row)) as table:
            written = await table.update_entity(
                {"PartitionKey": partition, "RowKey": row, "data": data}, mode="replace", **_unless_changed(etag)
            )
        return str(written["etag"])

    async def _delete(self, partition: str, row: str, etag: str) -> None:
        # The SDK reports success for a missing entity, so it is read first.
        if await self._get(partition, row) is None:
            raise changed(partition, row)
        async with self._calling(changed(partition, row)) as table:
            await table.delete_entity(partition, row, **_unless_changed(etag))

    async def _entities(self, partition: str, older_than_s: float, after: str, limit: int) -> list[Entity]:
        """List entities; ages are compared here, so a partition is read from ``after`` to its end."""
        listed: list[Entity] = []
        dates: list[str] = []
        async with self._calling(Conflict(f"partition {partition} cannot be listed")) as table:
            found = table.query_entities(
                "PartitionKey eq @partition and RowKey gt @after",
                parameters={"partition": partition, "after": after},
                raw_response_hook=partial(_note, dates),
            )
            async for each in found:
                entity = _entity(each, dates[-1])
                if entity.age_s >= older_than_s:
                    listed.append(entity)
                    if len(listed) == limit:
                        break
        return listed

    async def close(self) -> None:
        """Close the connections."""
        await self._table.close()

    @contextlib.asynccontextmanager
    async def _calling(self, conflict: Conflict) -> AsyncIterator[Any]:
        """Yield the table and translate its errors; ``conflict`` is raised for an entity that has changed."""
        table = await self._table.client()
        from queuebell.bridge.queues.azure.errors import FAILURES, meaning

        try:
            yield table
        except FAILURES as error:
            self._table.check_open()
            code = _code(error)
            if code in _CHANGED:
                raise conflict from error
            if code == "TableNotFound":
                raise StoreError(
                    f"azure: the table '{self._name}' does not exist; create it, for example: az storage "
                    f"table create --name {self._name}"
                ) from error
            raise meaning(error) from error


def _sdk() -> Any:
    from azure.data.tables.aio import TableClient

    return TableClient


def _code(error: Any) -> str:
    """Return the service's code, also from the text of its answer."""
    from queuebell.bridge.queues.azure.errors import code_of

    found = code_of(error) or _code_in(str(error))
    return found if isinstance(found, str) else found[1] if found else ""


def _unless_changed(etag: str) -> dict[str, Any]:
    from azure.core import MatchConditions

    return {"etag": etag, "match_condition": MatchConditions.IfNotModified}


def _note(dates: list[str], answer: Any) -> None:
    dates.append(answer.http_response.headers["Date"])


def _entity(found: Any, date: str) -> Entity:
    written: datetime.datetime = found.metadata["timestamp"]
    age = (parsedate_to_datetime(date) - written).total_seconds()
    etag = str(found.metadata["etag"])
    return Entity(found["PartitionKey"], found["RowKey"], found["data"], etag, written, max(0.0, age))
