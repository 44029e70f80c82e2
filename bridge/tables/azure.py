"""Entities in a table of Azure Table Storage, or of anything that speaks like it."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import re
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final, Self

from bridge.azure_account import AzureAccount, code_of, meaning
from bridge.contract.errors import Closed, ConfigurationError, Conflict, StoreError
from bridge.table import LIST_MAX, Entity, check_data, check_key, check_listing

ANSWER_S: Final = 10.0
TABLE: Final = "queuebell"

_table = re.compile(r"[A-Za-z][A-Za-z0-9]{2,62}").fullmatch
_told = re.compile(r'"code"\s*:\s*"(\w+)"').search
_CHANGED: Final = frozenset(
    {"EntityAlreadyExists", "ResourceNotFound", "UpdateConditionNotSatisfied", "ConditionNotMet"}
)


class AzureTable:
    """The entities of one table (`AzureAccount`, option ``table``), which must be there (`TableStore`).

    Timestamp and ETag are the service's.
    """

    def __init__(self, url: str) -> None:
        self._account = AzureAccount(url, "ledger", "table", TABLE)
        if not _table(self._account.place):
            raise ConfigurationError("ledger: a table's name is 3 to 63 letters and digits, and starts with a letter")
        self._stack = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._client: Any = None
        self._closed = False

    async def insert(self, partition: str, row: str, data: bytes) -> str:
        """Write a new entity."""
        check_key(partition, row)
        check_data(data)
        async with self._calling(f"entity {partition}/{row} exists already") as table:
            written = await table.create_entity({"PartitionKey": partition, "RowKey": row, "data": data})
        return str(written["etag"])

    async def get(self, partition: str, row: str) -> Entity | None:
        """Read an entity."""
        check_key(partition, row)
        dates: list[str] = []
        try:
            async with self._calling("gone") as table:
                found = await table.get_entity(partition, row, raw_response_hook=lambda answer: _note(answer, dates))
        except Conflict:
            return None
        return _entity(found, dates[-1])

    async def replace(self, partition: str, row: str, data: bytes, etag: str) -> str:
        """Write over an entity."""
        check_key(partition, row)
        check_data(data)
        async with self._calling(f"entity {partition}/{row} was changed or removed by somebody else") as table:
            written = await table.update_entity(
                {"PartitionKey": partition, "RowKey": row, "data": data}, mode="replace", **_unless_changed(etag)
            )
        return str(written["etag"])

    async def delete(self, partition: str, row: str, etag: str) -> None:
        """Remove an entity."""
        check_key(partition, row)
        # The SDK takes a missing entity for a success: what is to be removed is looked for first.
        what = f"entity {partition}/{row} was changed or removed by somebody else"
        if await self.get(partition, row) is None:
            raise Conflict(what)
        async with self._calling(what) as table:
            await table.delete_entity(partition, row, **_unless_changed(etag))

    async def entities(
        self, partition: str, *, older_than_s: float = 0.0, after: str = "", limit: int = LIST_MAX
    ) -> list[Entity]:
        """List entities; their age is looked at here, so that a partition is read from ``after`` to its end."""
        check_listing(partition, older_than_s, after, limit)
        listed: list[Entity] = []
        dates: list[str] = []
        async with self._calling(f"partition {partition} cannot be listed") as table:
            found = table.query_entities(
                "PartitionKey eq @partition and RowKey gt @after",
                parameters={"partition": partition, "after": after},
                raw_response_hook=lambda answer: _note(answer, dates),
            )
            async for each in found:
                entity = _entity(each, dates[-1])
                if entity.age_s >= older_than_s:
                    listed.append(entity)
                    if len(listed) == limit:
                        break
        return listed

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the connections."""
        self._closed = True
        async with self._opening:
            await self._stack.aclose()
            self._client = None

    @contextlib.asynccontextmanager
    async def _calling(self, changed: str) -> AsyncIterator[Any]:
        """Give the table, and say what its errors mean; ``changed`` is what to say of an entity that is another."""
        table = await self._connected()
        from azure.core.exceptions import AzureError

        try:
            yield table
        except AzureError as error:
            if self._closed:
                raise Closed("the table store was closed") from error
            if _code(error) in _CHANGED:
                raise Conflict(changed) from error
            if _code(error) == "TableNotFound":
                name = self._account.place
                raise StoreError(
                    f"azure: the table '{name}' is not there; make it, as with: az storage table create --name {name}"
                ) from error
            raise meaning(error) from error

    async def _connected(self) -> Any:
        async with self._opening:
            if self._closed:
                raise Closed("the table store is closed")
            if self._client is None:
                try:
                    from azure.data.tables.aio import TableClient
                except ImportError:
                    raise ConfigurationError(
                        "ledger: azure: needs the extra: pip install -e '.[azure]' in the checkout"
                    ) from None
                client = self._account.client(TableClient.from_connection_string, ANSWER_S)
                self._client = await self._stack.enter_async_context(client)
            return self._client


def _code(error: Any) -> str:
    """Return the service's code, also where the SDK has left it in the text of the answer."""
    found = code_of(error) or _told(str(error))
    return found if isinstance(found, str) else found[1] if found else ""


def _unless_changed(etag: str) -> dict[str, Any]:
    from azure.core import MatchConditions

    return {"etag": etag, "match_condition": MatchConditions.IfNotModified}


def _note(answer: Any, dates: list[str]) -> None:
    dates.append(answer.http_response.headers["Date"])


def _entity(found: Any, date: str) -> Entity:
    written: datetime.datetime = found.metadata["timestamp"]
    age = (parsedate_to_datetime(date) - written).total_seconds()
    etag = str(found.metadata["etag"])
    return Entity(found["PartitionKey"], found["RowKey"], found["data"], etag, written, max(0.0, age))
