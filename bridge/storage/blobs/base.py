"""The promise of a blob store: whole blobs by name, for bodies that are too large for a queue.

A store of `bridge/storage/blobs/` makes one request per call, switches its SDK's retries off and decides nothing.
"""

from __future__ import annotations

import contextlib
import re
from types import TracebackType
from typing import Final, Self

import msgspec

from queuebell.bridge.contract.errors import BadInput, BlobNotFound
from queuebell.bridge.contract.names import TOKEN
from queuebell.bridge.storage.within import CALL_S, LISTING_S, within

LIST_MAX: Final = 1000
SEGMENTS_MAX: Final = 8

_name = re.compile(f"{TOKEN}(?:/{TOKEN}){{0,{SEGMENTS_MAX - 1}}}").fullmatch
_prefix = re.compile(f"(?:{TOKEN}/){{0,{SEGMENTS_MAX}}}").fullmatch


class Blob(msgspec.Struct, frozen=True):
    """An entry of a listing; ``age_s`` is the time since its last write by the store's own clock, never below 0."""

    name: str
    size: int
    age_s: float


class BlobStore:
    """Keeps whole blobs. Subclasses implement the underscored methods, which get checked arguments.

    A name is 1 to 8 tokens (letters, digits, ``_`` and ``-``, 80 characters each at most) joined by slashes, so that
    it is safe in a path and in a URL. No name may be a prefix of another that ends at one of its slashes.

    Every method may raise `StoreUnavailable` (try again), `UnknownOutcome`, `StoreFull`, `Closed`, `StoreError` (the
    service refuses: a right or the place is missing), `ConfigurationError` (the system refuses a folder), and
    `BadInput` for an invalid name.
    """

    async def put(self, name: str, data: bytes) -> None:
        """Write a blob: whole or not at all, and durable once this returns. Replaces one of the same name."""
        check_name(name)
        if not isinstance(data, bytes):
            raise BadInput("bad_parameter", "a blob must be bytes")
        async with within(CALL_S, "the blob store"):
            await self._put(name, data)

    async def get(self, name: str) -> bytes:
        """Return a blob's content. Raises `BlobNotFound`."""
        check_name(name)
        async with within(CALL_S, "the blob store"):
            return await self._get(name)

    async def delete(self, name: str) -> None:
        """Remove a blob, if there is one."""
        check_name(name)
        with contextlib.suppress(BlobNotFound):
            async with within(CALL_S, "the blob store"):
                await self._delete(name)

    async def blobs(self, prefix: str = "", after: str = "", limit: int = LIST_MAX) -> list[Blob]:
        """List up to ``limit`` (1 to 1000) blobs whose names are greater than ``after``, in ascending order.

        ``prefix`` is empty or ends with a slash: whole tokens. Objects without a valid blob name are left out.
        """
        if _prefix(prefix) is None:
            raise BadInput("bad_parameter", "prefix must be empty, or tokens that each end with a slash")
        if after:
            check_name(after)
        _check_limit(limit)
        async with within(LISTING_S, "the blob store"):
            return await self._blobs(prefix, after, limit)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections; may be called twice."""
        raise NotImplementedError

    async def _put(self, name: str, data: bytes) -> None:
        raise NotImplementedError

    async def _get(self, name: str) -> bytes:
        raise NotImplementedError

    async def _delete(self, name: str) -> None:
        raise NotImplementedError

    async def _blobs(self, prefix: str, after: str, limit: int) -> list[Blob]:
        raise NotImplementedError


def is_name(name: str) -> bool:
    """Return whether ``name`` is a valid blob name; other programs may keep objects in the same place."""
    return _name(name) is not None


def check_name(name: object) -> None:
    """Raise `BadInput` for an invalid blob name."""
    if not isinstance(name, str) or not is_name(name):
        raise BadInput("bad_parameter", f"a blob's name must be 1 to {SEGMENTS_MAX} tokens separated by slashes")


def _check_limit(limit: object) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LIST_MAX:
        raise BadInput("bad_parameter", f"limit must be from 1 to {LIST_MAX}")
