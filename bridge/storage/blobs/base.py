"""The promise of a blob store: whole blobs by name, for bodies that are too large for a queue.

An adapter is small and dumb, as a queue store's is: one call is one request, its SDK's own retries are switched off,
and nothing is decided. Every method may raise `StoreUnavailable` (try again), `UnknownOutcome`, `StoreFull`, `Closed`,
`StoreError` where the service refuses (a right or the place is missing), `ConfigurationError` where the system refuses
a folder, and `BadInput` for a name that is none.
"""

from __future__ import annotations

import contextlib
import re
from types import TracebackType
from typing import Final, Protocol, Self

import msgspec

from bridge.contract.errors import BadInput, BlobNotFound
from bridge.contract.names import TOKEN
from bridge.storage.within import CALL_S, LISTING_S, within

LIST_MAX: Final = 1000
SEGMENTS_MAX: Final = 8

_name = re.compile(f"{TOKEN}(?:/{TOKEN}){{0,{SEGMENTS_MAX - 1}}}").fullmatch
_prefix = re.compile(f"(?:{TOKEN}/){{0,{SEGMENTS_MAX}}}").fullmatch


class Blob(msgspec.Struct, frozen=True):
    """A blob as a listing shows it; ``age_s`` is since it was last written, by the store's own clock, never below 0."""

    name: str
    size: int
    age_s: float


class BlobStore(Protocol):
    """A place for whole blobs.

    A name is 1 to 8 tokens (letters, digits, ``_`` and ``-``, 80 characters each at most) with slashes between them, so
    that it is safe in a path and in a URL. No name may be the beginning of another up to one of its slashes.
    """

    async def put(self, name: str, data: bytes) -> None:
        """Write a blob: whole or not at all, and durable once this returns. One of that name is replaced."""
        ...

    async def get(self, name: str) -> bytes:
        """Read a blob. Raises `BlobNotFound`."""
        ...

    async def delete(self, name: str) -> None:
        """Remove a blob; nothing happens where there is none."""
        ...

    async def blobs(self, prefix: str = "", after: str = "", limit: int = LIST_MAX) -> list[Blob]:
        """List up to ``limit`` (1 to 1000) blobs in ascending order of name, those greater than ``after``.

        ``prefix`` is empty or ends with a slash: whole tokens. What has no name of a blob is left out.
        """
        ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of everything; may be called twice."""
        ...


class CheckedBlobs(BlobStore):
    """Refuses names and listings that no store takes, and ends each call in its time; the requests are a subclass's."""

    async def put(self, name: str, data: bytes) -> None:
        """Write a blob."""
        check_name(name)
        if not isinstance(data, bytes):
            raise BadInput("bad_parameter", "a blob must be bytes")
        async with within(CALL_S, "the blob store"):
            await self._put(name, data)

    async def get(self, name: str) -> bytes:
        """Read a blob."""
        check_name(name)
        async with within(CALL_S, "the blob store"):
            return await self._get(name)

    async def delete(self, name: str) -> None:
        """Remove a blob."""
        check_name(name)
        with contextlib.suppress(BlobNotFound):
            async with within(CALL_S, "the blob store"):
                await self._delete(name)

    async def blobs(self, prefix: str = "", after: str = "", limit: int = LIST_MAX) -> list[Blob]:
        """List blobs."""
        check_listing(prefix, after, limit)
        async with within(LISTING_S, "the blob store"):
            return await self._blobs(prefix, after, limit)

    async def _put(self, name: str, data: bytes) -> None:
        raise NotImplementedError

    async def _get(self, name: str) -> bytes:
        raise NotImplementedError

    async def _delete(self, name: str) -> None:
        raise NotImplementedError

    async def _blobs(self, prefix: str, after: str, limit: int) -> list[Blob]:
        raise NotImplementedError


def is_name(name: str) -> bool:
    """Say whether a blob could have this name: strangers may have put others where blobs are kept."""
    return _name(name) is not None


def check_name(name: object) -> str:
    """Return a blob's name if it is one; raises `BadInput`."""
    if not isinstance(name, str) or _name(name) is None:
        raise BadInput("bad_parameter", f"a blob's name must be 1 to {SEGMENTS_MAX} tokens separated by slashes")
    return name


def check_listing(prefix: str, after: str, limit: object) -> None:
    """Refuse a listing that no store answers; raises `BadInput`."""
    if _prefix(prefix) is None:
        raise BadInput("bad_parameter", "prefix must be empty, or tokens that each end with a slash")
    if after:
        check_name(after)
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= LIST_MAX:
        raise BadInput("bad_parameter", f"limit must be from 1 to {LIST_MAX}")
