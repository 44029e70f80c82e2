"""Blobs in memory, for tests and for one process."""

from __future__ import annotations

import time
from collections.abc import Callable

from queuebell.bridge.contract.errors import BlobNotFound, Closed
from queuebell.bridge.storage.blobs.base import Blob, BlobStore

_shared: dict[str, dict[str, tuple[bytes, float]]] = {}


class MemoryBlobs(BlobStore):
    """Blobs for the life of the process, shared by stores of the same name (`BlobStore`). ``clock`` is in seconds."""

    def __init__(self, name: str = "default", *, clock: Callable[[], float] = time.monotonic) -> None:
        self._blobs_by_name = _shared.setdefault(name, {})
        self._clock = clock
        self._closed = False

    async def _put(self, name: str, data: bytes) -> None:
        self._check_open()
        self._blobs_by_name[name] = (data, self._clock())

    async def _get(self, name: str) -> bytes:
        self._check_open()
        try:
            return self._blobs_by_name[name][0]
        except KeyError:
            raise BlobNotFound(f"there is no blob {name}") from None

    async def _delete(self, name: str) -> None:
        self._check_open()
        self._blobs_by_name.pop(name, None)

    async def _blobs(self, prefix: str, after: str, limit: int) -> list[Blob]:
        self._check_open()
        held = self._blobs_by_name
        names = sorted(name for name in held if name > after and name.startswith(prefix))[:limit]
        now = self._clock()
        return [Blob(name, len(held[name][0]), max(0.0, now - held[name][1])) for name in names]

    async def close(self) -> None:
        """Refuse further calls; the blobs stay for other stores of this name."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the blob store is closed")
