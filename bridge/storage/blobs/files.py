"""Blobs as files of a directory, on a disk or a mount that producers and workers share."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, TypeVar

from queuebell.bridge.contract.errors import BlobNotFound, Closed, ConfigurationError, StoreFull, StoreUnavailable
from queuebell.bridge.storage.blobs.base import Blob, BlobStore, is_name

T = TypeVar("T")

MARKER: Final = ".queuebell-blobs"
"""The file that distinguishes a folder of blobs from the empty folder below a missing mount."""
_INCOMING: Final = ".incoming"
_LEFT_BEHIND_S: Final = 86_400.0
"""After this time an unfinished file is left over from a crash."""


class FileBlobs(BlobStore):
    """Blobs below ``root``, which is created if it is missing (`BlobStore`).

    A blob is written to a temporary file, flushed to the disk and then moved to its name, so that no reader sees half
    of it. A listing removes temporary files after a day. The first put marks the folder; where the mark is missing or
    has changed, the store is unavailable and no blob counts as missing.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self._closed = False
        self._mark: str | None = None
        # Without it, a thread that has just found no mark takes the folder for another one after a second thread
        # has written the mark.
        self._marking = threading.RLock()

    async def _put(self, name: str, data: bytes) -> None:
        await self._in_thread(lambda: self._write(name, data), f"write blob {name}")

    async def _get(self, name: str) -> bytes:
        return await self._in_thread(lambda: self._on_blob((self.root / name).read_bytes, name), f"read blob {name}")

    async def _delete(self, name: str) -> None:
        await self._in_thread(lambda: self._on_blob((self.root / name).unlink, name), f"remove blob {name}")

    async def _blobs(self, prefix: str, after: str, limit: int) -> list[Blob]:
        return await self._in_thread(lambda: self._list(prefix, after, limit), "list blobs")

    async def close(self) -> None:
        """Refuse further calls."""
        self._closed = True

    async def _in_thread(self, work: Callable[[], T], what: str) -> T:
        if self._closed:
            raise Closed("the blob store is closed")
        try:
            return await asyncio.to_thread(work)
        except OSError as error:
            detail = f"cannot {what} in {self.root}: {error.strerror or error}"
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(f"{detail}; free some space; blobs written before are safe") from error
            if isinstance(error, PermissionError):
                raise ConfigurationError(
                    f"claim_check: {detail}. Nothing was changed. Give this user read and write "
                    "permission there: producers and workers under other users share the folder through "
                    "a group, or their umask"
                ) from error
            raise StoreUnavailable(detail) from error

    def _on_blob(self, work: Callable[[], T], name: str) -> T:
        """Call ``work`` on a blob; raises `BlobNotFound` only if the folder is known to be the right one."""
        try:
            done = work()
        except FileNotFoundError:
            if not self._is_right_folder():
                raise self._unavailable() from None
        else:
            if self._mark is None:
                with contextlib.suppress(OSError):
                    self._is_right_folder()  # reads the mark, to recognize the folder later
            return done
        try:
            return work()  # again: the mount may have come back after the first call
        except FileNotFoundError as error:
            raise BlobNotFound(f"there is no blob {name} in {self.root}") from error

    def _is_right_folder(self) -> bool:
        """Return whether the root is the folder of the blobs, and not the place where it should be mounted."""
        with self._marking:
            return self._check_mark()

    def _check_mark(self) -> bool:
        try:
            found = self._read_mark()
        except FileNotFoundError:
            # A folder of an older version has blobs and no mark. One that lost its mark since is another folder.
            if self._mark is not None or not self._was_used():
                return False
            try:
                found = self._leave_mark()
            except FileNotFoundError:
                return False
            except OSError:
                return True  # read-only: it cannot be marked
        # A mark that a crash or a person left empty matches any mark.
        self._mark = self._mark or found
        return not found or found == self._mark

    def _was_used(self) -> bool:
        return (self.root / _INCOMING).is_dir() or next(self._files(""), None) is not None

    def _leave_mark(self) -> str:
        path = self.root / MARKER
        try:
            with path.open("x", encoding="ascii") as file:
                file.write(secrets.token_hex(16))
                file.flush()
                os.fsync(file.fileno())
        except FileExistsError:
            pass  # another process was faster
        _flush_folder(self.root)
        return self._read_mark()

    def _read_mark(self) -> str:
        return (self.root / MARKER).read_text("ascii", "replace").strip()

    def _unavailable(self) -> StoreUnavailable:
        if self._mark is None:
            return StoreUnavailable(
                f"no body was ever stored in {self.root}, or it is not mounted: mount it, or fix the "
                f"address; if it is the right folder and its blobs are lost, create the file {MARKER} in "
                "it"
            )
        return StoreUnavailable(
            f"{self.root} is not the same folder as before: mount it again; if it was replaced, restart this process"
        )

    def _write(self, name: str, data: bytes) -> None:
        incoming, target = self.root / _INCOMING, self.root / name
        with self._marking:
            if not self._check_mark():
                if self._mark is not None:
                    raise self._unavailable()
                self.root.mkdir(parents=True, exist_ok=True)  # producers and workers share it, as the umask says
                self._leave_mark()
        incoming.mkdir(exist_ok=True)
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
        if not self._is_right_folder():  # unmounted meanwhile: the file may be below the mount
            raise self._unavailable()

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
    """Make the names in a folder durable, where the system can do that."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
