"""Blobs in memory, for tests and for one process."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from bridge.blob import LIST_MAX, Blob, check_listing, check_name
from bridge.contract.errors import BadInput, BlobNotFound, Closed

_shared: dict[str, dict[str, tuple[bytes, float]]] = {}


class MemoryBlobs:
    """Blobs that last as long as the process (`BlobStore`); stores of one name share them. ``clock`` is in seconds."""

    def __init__(self, name: str = "default", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._blobs = _shared.setdefault(name, {})
        self._clock = clock
        self._closed = False

    async def put(self, name: str, data: bytes) -> None:
        """Write a blob."""
        self._check(name)
        if not isinstance(data, bytes):
            raise BadInput("bad_parameter", "a blob is bytes")
        self._blobs[name] = (data, self._clock())

    async def get(self, name: str) -> bytes:
        """Read a blob."""
        self._check(name)
        try:
            return self._blobs[name][0]
        except KeyError:
            raise BlobNotFound(f"there is no blob {name}") from None

    async def delete(self, name: str) -> None:
        """Remove a blob."""
        self._check(name)
        self._blobs.pop(name, None)

    async def blobs(self, prefix: str = "", after: str = "", limit: int = LIST_MAX) -> list[Blob]:
        """List blobs."""
        self._check("open")
        check_listing(prefix, after, limit)
        names = sorted(name for name in self._blobs if name > after and name.startswith(prefix))[:limit]
        now = self._clock()
        return [Blob(name, len(self._blobs[name][0]), max(0.0, now - self._blobs[name][1])) for name in names]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Refuse further calls; the blobs stay for others of this name."""
        self._closed = True

    def _check(self, name: str) -> None:
        if self._closed:
            raise Closed("the blob store is closed")
        check_name(name)
