"""Blobs as objects of a bucket of Amazon S3, or of a server that speaks like it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import parse_qsl, urlsplit

from bridge.blob import LIST_MAX, Blob, check_listing, check_name, is_name
from bridge.contract.errors import (
    BadInput,
    BlobNotFound,
    Closed,
    ConfigurationError,
    QueuebellError,
    StoreError,
    StoreUnavailable,
    UnknownOutcome,
)

CONNECT_S: Final = 5
ANSWER_S: Final = 60
OPTIONS: Final = ("endpoint", "region")

_bucket = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]").fullmatch
_LATER: Final = frozenset({"SlowDown", "ServiceUnavailable", "RequestTimeout", "Throttling", "OperationAborted"})
_MISSING: Final = frozenset({"NoSuchKey", "404"})


class S3Blobs:
    """The objects below ``s3://BUCKET[/PREFIX][?region=...&endpoint=https://...]`` (`BlobStore`).

    The prefix is a blob's name. The bucket must be there; credentials are those of the environment. Connects at the
    first call. Raises `ConfigurationError`, without repeating the address.
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
                "claim_check: an address of S3 is s3://BUCKET[/PREFIX], as in s3://invoices/bodies"
            )
        if set(given) - set(OPTIONS):
            raise ConfigurationError(f"claim_check: options of s3:// are {' and '.join(OPTIONS)}")
        self._endpoint, self._region = given.get("endpoint"), given.get("region")
        if self._endpoint is not None and not self._endpoint.startswith(("http://", "https://")):
            raise ConfigurationError("claim_check: endpoint starts with http:// or https://")
        self._bucket = parts.netloc
        self._prefix = f"{prefix}/" if prefix else ""
        self._stack = contextlib.AsyncExitStack()
        self._opening = asyncio.Lock()
        self._client: Any = None
        self._closed = False

    async def put(self, name: str, data: bytes) -> None:
        """Write a blob."""
        check_name(name)
        if not isinstance(data, bytes):
            raise BadInput("bad_parameter", "a blob is bytes")
        async with self._calling() as client:
            await client.put_object(Bucket=self._bucket, Key=self._prefix + name, Body=data)

    async def get(self, name: str) -> bytes:
        """Read a blob."""
        check_name(name)
        async with self._calling(name) as client:
            answer = await client.get_object(Bucket=self._bucket, Key=self._prefix + name)
            async with answer["Body"] as body:
                return bytes(await body.read())

    async def delete(self, name: str) -> None:
        """Remove a blob."""
        check_name(name)
        async with self._calling() as client:
            await client.delete_object(Bucket=self._bucket, Key=self._prefix + name)

    async def blobs(self, prefix: str = "", after: str = "", limit: int = LIST_MAX) -> list[Blob]:
        """List blobs."""
        check_listing(prefix, after, limit)
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
        """Give the client for one request, and say what its errors mean; ``name`` is of a blob that may be missing."""
        client = await self._connected()
        from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

        try:
            yield client
        except (BotoCoreError, ClientError) as error:
            if self._closed:
                raise Closed("the blob store was closed") from error
            raise _meaning(error, name) from error
        except OSError as error:  # also of a body that breaks off
            raise UnknownOutcome(f"s3: no answer: {type(error).__name__}") from error

    async def _connected(self) -> Any:
        async with self._opening:
            if self._closed:
                raise Closed("the blob store is closed")
            if self._client is None:
                self._client = await self._stack.enter_async_context(self._open())
            return self._client

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        try:
            from aiobotocore.config import AioConfig  # type: ignore[import-untyped]
            from aiobotocore.session import get_session  # type: ignore[import-untyped]
        except ImportError:
            raise ConfigurationError(
                "claim_check: s3:// needs the extra: pip install -e '.[sqs]' in the checkout"
            ) from None
        config = AioConfig(
            retries={"total_max_attempts": 1, "mode": "standard"}, connect_timeout=CONNECT_S, read_timeout=ANSWER_S
        )
        async with get_session().create_client(
            "s3", region_name=self._region, endpoint_url=self._endpoint, config=config
        ) as client:
            yield client


def _meaning(error: Any, name: str) -> QueuebellError:
    from botocore.exceptions import (
        ClientError,
        ConnectTimeoutError,
        EndpointConnectionError,
        NoCredentialsError,
        NoRegionError,
        PartialCredentialsError,
    )

    if isinstance(error, NoCredentialsError | PartialCredentialsError | NoRegionError):
        return ConfigurationError("s3: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile")
    if isinstance(error, EndpointConnectionError | ConnectTimeoutError):
        return StoreUnavailable("s3: the service cannot be reached; nothing was sent")
    if not isinstance(error, ClientError):
        return UnknownOutcome(f"s3: no answer: {type(error).__name__}")
    code = str(error.response.get("Error", {}).get("Code", ""))
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if name and code in _MISSING:
        return BlobNotFound(f"there is no blob {name}")
    if code in _LATER or status in (429, 503):
        return StoreUnavailable(f"s3: not now: {code or status}")
    if status >= 500:
        return UnknownOutcome(f"s3: the service failed: {code or status}")
    return StoreError(
        f"s3: refused: {code or status}; nothing was changed. Check that the bucket is there, and its policy"
    )
