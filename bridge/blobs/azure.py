"""Blobs in a container of Azure Blob Storage, or of anything that speaks like it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final, Self

from bridge.azure_account import AzureAccount, code_of, meaning
from bridge.blob import LIST_MAX, Blob, check_listing, check_name, is_name
from bridge.contract.errors import BadInput, BlobNotFound, Closed, ConfigurationError

ANSWER_S: Final = 60.0
CONTAINER: Final = "queuebell-claims"

_container = re.compile(r"[a-z0-9](-?[a-z0-9])*").fullmatch


class AzureBlobs:
    """The block blobs of one container (`AzureAccount`, option ``container``), which must be there (`BlobStore`)."""

    def __init__(self, url: str) -> None:
        self._account = AzureAccount(url, "claim_check", "container", CONTAINER)
        if not 3 <= len(self._account.place) <= 63 or not _container(self._account.place):
            raise ConfigurationError("claim_check: a container's name is 3 to 63 small letters, digits and dashes")
        self._stack = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._client: Any = None
        self._closed = False

    async def put(self, name: str, data: bytes) -> None:
        """Write a blob."""
        check_name(name)
        if not isinstance(data, bytes):
            raise BadInput("bad_parameter", "a blob is bytes")
        async with self._calling() as container:
            await container.upload_blob(name, data, overwrite=True)

    async def get(self, name: str) -> bytes:
        """Read a blob."""
        check_name(name)
        async with self._calling(name) as container:
            stream = await container.download_blob(name)
            return bytes(await stream.readall())

    async def delete(self, name: str) -> None:
        """Remove a blob."""
        check_name(name)
        with contextlib.suppress(BlobNotFound):
            async with self._calling(name) as container:
                await container.delete_blob(name)

    async def blobs(self, prefix: str = "", after: str = "", limit: int = LIST_MAX) -> list[Blob]:
        """List blobs; the service cannot begin after a name, so that what comes before is read and left out."""
        check_listing(prefix, after, limit)
        found: list[Blob] = []
        dates: list[str] = []
        async with self._calling() as container:
            listed = container.list_blobs(
                name_starts_with=prefix or None,
                raw_response_hook=lambda answer: dates.append(answer.http_response.headers["Date"]),
            )
            async for item in listed:
                if item.name > after and is_name(item.name):
                    age = (parsedate_to_datetime(dates[-1]) - item.last_modified).total_seconds()
                    found.append(Blob(item.name, item.size, max(0.0, age)))
                    if len(found) == limit:
                        break
        return found

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
    async def _calling(self, name: str = "") -> AsyncIterator[Any]:
        """Give the container, and say what its errors mean; ``name`` is of a blob that may be missing."""
        container = await self._connected()
        from azure.core.exceptions import AzureError

        try:
            yield container
        except AzureError as error:
            if self._closed:
                raise Closed("the blob store was closed") from error
            if name and code_of(error) == "BlobNotFound":
                raise BlobNotFound(f"there is no blob {name}") from error
            raise meaning(error) from error

    async def _connected(self) -> Any:
        async with self._opening:
            if self._closed:
                raise Closed("the blob store is closed")
            if self._client is None:
                try:
                    from azure.storage.blob.aio import ContainerClient
                except ImportError:
                    raise ConfigurationError(
                        "claim_check: azure: needs the extra: pip install -e '.[azure]' in the checkout"
                    ) from None
                client = self._account.client(ContainerClient.from_connection_string, ANSWER_S)
                self._client = await self._stack.enter_async_context(client)
            return self._client
