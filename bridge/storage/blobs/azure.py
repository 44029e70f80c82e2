"""Blobs in a container of Azure Blob Storage or a compatible server."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final

from queuebell.bridge.contract.errors import BlobNotFound, ConfigurationError
from queuebell.bridge.queues.azure.account import AzureAccount
from queuebell.bridge.queues.connections import LazyClient
from queuebell.bridge.storage.blobs.base import Blob, BlobStore, is_name

ANSWER_S: Final = 60.0
CONTAINER: Final = "queuebell-claims"

_container = re.compile(r"[a-z0-9](-?[a-z0-9])*").fullmatch


class AzureBlobs(BlobStore):
    """The block blobs of one container (`AzureAccount`, option ``container``), which must exist (`BlobStore`)."""

    def __init__(self, url: str) -> None:
        account = AzureAccount(url, "claim_check", "container", CONTAINER)
        if not 3 <= len(account.place) <= 63 or not _container(account.place):
            raise ConfigurationError(
                "claim_check: a container's name must be 3 to 63 lowercase letters, digits and dashes"
            )
        opened = partial(account.client, _sdk, ANSWER_S, account.place)
        self._container: LazyClient[Any] = LazyClient(opened, "the blob store")

    async def _put(self, name: str, data: bytes) -> None:
        async with self._calling() as container:
            await container.upload_blob(name, data, overwrite=True)

    async def _get(self, name: str) -> bytes:
        async with self._calling(name) as container:
            stream = await container.download_blob(name)
            return bytes(await stream.readall())

    async def _delete(self, name: str) -> None:
        async with self._calling(name) as container:
            await container.delete_blob(name)

    async def _blobs(self, prefix: str, after: str, limit: int) -> list[Blob]:
        """List blobs; the service cannot start after a name, so earlier ones are read and left out."""
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

    async def close(self) -> None:
        """Close the connections."""
        await self._container.close()

    @contextlib.asynccontextmanager
    async def _calling(self, name: str = "") -> AsyncIterator[Any]:
        """Yield the container and translate its errors; ``name`` is the blob that may be missing."""
        container = await self._container.client()
        from queuebell.bridge.queues.azure.errors import FAILURES, code_of, meaning

        try:
            yield container
        except FAILURES as error:
            self._container.check_open()
            if name and code_of(error) == "BlobNotFound":
                raise BlobNotFound(f"there is no blob {name}") from error
            raise meaning(error) from error


def _sdk() -> Any:
    from azure.storage.blob.aio import ContainerClient

    return ContainerClient
