"""Blobs as files of a directory, on a disk or a mount that all producers and workers see."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from bridge.blob import LIST_MAX, Blob, check_listing, check_name, is_name
from bridge.contract.errors import BadInput, BlobNotFound, Closed, StoreFull, StoreUnavailable

T = TypeVar("T")

_INCOMING: Final = ".incoming"
# A writer that has not come to its end by now never will.
_LEFT_BEHIND_S: Final = 86_400.0


class FileBlobs:
    """Blobs below ``root``, which is made if it is missing (`BlobStore`).

    A blob is written beside the others, flushed to the disk and then moved into its place, so that nobody ever reads
    half of one. What a crash leaves half written is removed by a listing a day later.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self._closed = False

    async def put(self, name: str, data: bytes) -> None:
        """Write a blob."""
        check_name(name)
        if not isinstance(data, bytes):
            raise BadInput("bad_parameter", "a blob is bytes")
        await self._in_thread(lambda: self._write(name, data), f"write blob {name}")

    async def get(self, name: str) -> bytes:
        """Read a blob."""
        check_name(name)
        return await self._in_thread((self.root / name).read_bytes, f"read blob {name}")

    async def delete(self, name: str) -> None:
        """Remove a blob."""
        check_name(name)
        with contextlib.suppress(BlobNotFound):
            await self._in_thread((self.root / name).unlink, f"remove blob {name}")

    async def blobs(self, prefix: str = "", after: str = "", limit: int = LIST_MAX) -> list[Blob]:
        """List blobs."""
        check_listing(prefix, after, limit)
        return await self._in_thread(lambda: self._list(prefix, after, limit), "list blobs")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Refuse further calls."""
        self._closed = True

    async def _in_thread(self, work: Callable[[], T], what: str) -> T:
        if self._closed:
            raise Closed("the blob store is closed")
        try:
            return await asyncio.to_thread(work)
        except FileNotFoundError as error:
            raise BlobNotFound(f"cannot {what} in {self.root}: there is none") from error
        except OSError as error:
            detail = f"cannot {what} in {self.root}: {error.strerror or error}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(f"{detail}; make room, what was written before is safe") from error
            raise StoreUnavailable(detail) from error

    def _write(self, name: str, data: bytes) -> None:
        incoming, target = self.root / _INCOMING, self.root / name
        incoming.mkdir(parents=True, exist_ok=True)
        half = incoming / secrets.token_hex(16)
        try:
            with half.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            new = [folder for folder in target.parents if self.root in folder.parents and not folder.exists()]
            target.parent.mkdir(parents=True, exist_ok=True)
            half.replace(target)
        except BaseException:
            half.unlink(missing_ok=True)
            raise
        for folder in [target.parent, *(folder.parent for folder in new)]:
            _flush_folder(folder)

    def _list(self, prefix: str, after: str, limit: int) -> list[Blob]:
        now = time.time()
        self._tidy(now)
        found: list[Blob] = []
        for name, path in sorted(self._files(prefix)):
            if name <= after:
                continue
            with contextlib.suppress(FileNotFoundError):  # removed since the folder was read
                facts = path.stat()
                found.append(Blob(name, facts.st_size, max(0.0, now - facts.st_mtime)))
                if len(found) == limit:
                    break
        return found

    def _files(self, prefix: str) -> Iterator[tuple[str, Path]]:
        for folder, folders, files in os.walk(self.root / prefix):
            folders[:] = [inner for inner in folders if not inner.startswith(".")]
            for file in files:
                path = Path(folder) / file
                name = path.relative_to(self.root).as_posix()
                if is_name(name):
                    yield name, path

    def _tidy(self, now: float) -> None:
        with contextlib.suppress(FileNotFoundError):
            for half in list((self.root / _INCOMING).iterdir()):
                with contextlib.suppress(FileNotFoundError):
                    if now - half.stat().st_mtime > _LEFT_BEHIND_S:
                        half.unlink()


def _flush_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
