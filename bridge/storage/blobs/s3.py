"""Blobs as objects of a bucket of Amazon S3 or a compatible server."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from queuebell.bridge.contract.errors import BlobNotFound, ConfigurationError, StoreError, UnknownOutcome
from queuebell.bridge.queues.connections import LazyClient
from queuebell.bridge.queues.sqs.client import client
from queuebell.bridge.storage.blobs.base import Blob, BlobStore, is_name

ANSWER_S: Final = 60
OPTIONS: Final = ("endpoint", "region")

_bucket = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]").fullmatch
_MISSING: Final = frozenset({"NoSuchKey", "404"})


class S3Blobs(BlobStore):
    """The objects below ``s3://BUCKET[/PREFIX][?region=...&endpoint=https://...]`` (`BlobStore`).

    The prefix is a valid blob name. The bucket must exist; credentials come from the environment. Connects at the first
    call. Raises `ConfigurationError`, without repeating the address.
    """

    def __init__(self, url: str) -> None:
        try:
            parts = urlsplit(url)
            given = dict(parse_qsl(parts.query, keep_blank_values=True))
        except ValueError:
            raise ConfigurationError("claim_check: the address is malformed") from None
        prefix = parts.path.strip("/")
        if not _bucket(parts.netloc) or (prefix and not is_name(prefix)) or parts.fragment:
            raise ConfigurationError(
                "claim_check: an address of S3 must be s3://BUCKET[/PREFIX], such as s3://invoices/bodies"
            )
        if set(given) - set(OPTIONS):
            raise ConfigurationError(f"claim_check: options of s3:// are {' and '.join(OPTIONS)}")
        endpoint = given.get("endpoint")
        if endpoint is not None and not endpoint.startswith(("http://", "https://")):
            raise ConfigurationError("claim_check: endpoint must start with http:// or https://")
        self._bucket = parts.netloc
        self._prefix = f"{prefix}/" if prefix else ""
        self._client: LazyClient[Any] = LazyClient(
            partial(client, "s3", "claim_check: s3://", given.get("region"), endpoint, ANSWER_S), "the blob store"
        )

    async def _put(self, name: str, data: bytes) -> None:
        async with self._calling() as client:
            await client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)

    async def _get(self, name: str) -> bytes:
        async with self._calling(name) as client:
            answer = await client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            async with answer["Body"] as body:
                return bytes(await body.read())

    async def _delete(self, name: str) -> None:
        async with self._calling() as client:
            await client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    async def _blobs(self, prefix: str, after: str, limit: int) -> list[Blob]:
        found: list[Blob] = []
        more = True
        start = self._prefix + after if after else ""
        async with self._calling() as client:
            while more and len(found) < limit:
                options = {"StartAfter": start} if start else {}
                answer = await client.list_objects_v2(
                    Bucket=self._bucket, Prefix=self._prefix + prefix, MaxKeys=limit - len(found), **options
                )
                now = parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
                for item in answer.get("Contents", []):
                    start = item["Key"]
                    name = start.removeprefix(self._prefix)
                    if is_name(name):
                        age = (now - item["LastModified"]).total_seconds()
                        found.append(Blob(name, item["Size"], max(0.0, age)))
                more = bool(answer["IsTruncated"])
        return found

    async def close(self) -> None:
        """Close the connections."""
        await self._client.close()

    @contextlib.asynccontextmanager
    async def _calling(self, name: str = "") -> AsyncIterator[Any]:
        """Yield the client and translate its errors; ``name`` is the blob that may be missing."""
        client = await self._client.client()
        from queuebell.bridge.queues.sqs.errors import FAILURES, code_of, meaning

        try:
            yield client
        except FAILURES as error:
            self._client.check_open()
            if name and code_of(error) in _MISSING:
                raise BlobNotFound(f"there is no blob {name}") from error
            found = meaning(error, "s3")
            if type(found) is StoreError:
                found = StoreError(f"{found}. Check that the bucket exists, and its policy")
            raise found from error
        except OSError as error:  # also for a body that breaks off
            raise UnknownOutcome(f"s3: no answer: {type(error).__name__}") from error
