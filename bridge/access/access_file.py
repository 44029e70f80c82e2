"""Read, replace and watch the access file: JSON that only its owner can read, always replaced as a whole."""

from __future__ import annotations

import abc
import asyncio
import contextlib
import fcntl
import json
import logging
import os
import pathlib
import stat
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

import msgspec

from queuebell.bridge.access.keys import Access, AccessList
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.queues.embedded.file import make_folder

log = logging.getLogger("queuebell.access")
CHECK_EVERY_S: Final = 0.5
"""Interval of checks; a change takes effect within twice this time."""
Stamp = tuple[int, int, int, int]
_BYTES_MAX = 16 * 1024 * 1024
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Unreachable(ConfigurationError):
    """The file cannot be read now, which may be temporary."""


def read(path: pathlib.Path) -> AccessList:
    """Read an access file without blocking.

    Raises `ConfigurationError` if others than its owner can read or write it, or if it is invalid; `Unreachable` if it
    is missing or cannot be read.
    """
    try:
        # O_NONBLOCK, as opening a pipe would block the event loop.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise ConfigurationError(f"access: {path} is not a regular file")
            if mode & _OTHERS:
                raise ConfigurationError(f"access: others can read or write {path}; restrict it: chmod 600 {path}")
            raw = file.read(_BYTES_MAX + 1)
    except OSError as error:
        raise Unreachable(f"access: cannot read {path}: {error.strerror}") from None
    return parse(raw, path)


def parse(raw: bytes, path: pathlib.Path) -> AccessList:
    """Parse an access file; raises `ConfigurationError` if it is invalid."""
    if len(raw) > _BYTES_MAX:
        raise ConfigurationError(f"access: {path} is larger than {_BYTES_MAX} bytes, so it is not an access file")
    try:
        listed = msgspec.json.decode(raw, type=AccessList)
        Access(listed)
        json.loads(raw, object_pairs_hook=_each_once)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ConfigurationError) as error:
        raise ConfigurationError(f"access: {path} cannot be used: {error}") from None
    return listed


def _each_once(pairs: list[tuple[str, object]]) -> None:
    """Raise `ConfigurationError` for a duplicate key, which a decoder would silently ignore."""
    if len(dict(pairs)) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigurationError(f"duplicate key {twice!r}: only one of the two would take effect")


def change(path: pathlib.Path, step: Callable[[AccessList], AccessList]) -> AccessList:
    """Replace the file with the result of ``step`` on its content, or on an empty list if there is no file.

    Concurrent changes run one after the other. Readers see the old or the new file, and so does the next start after a
    crash. Raises `ConfigurationError`, and any error of ``step``.
    """
    try:
        make_folder(path.parent)
        with _locked(path.with_name(path.name + ".lock")):
            changed = step(read(path) if path.exists() else AccessList())
            _replace(path, msgspec.json.format(msgspec.json.encode(changed)) + b"\n")
    except OSError as error:
        raise ConfigurationError(f"access: cannot write {path}: {error.strerror}") from None
    return changed


@contextlib.contextmanager
def _locked(path: pathlib.Path) -> Iterator[None]:
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _replace(path: pathlib.Path, raw: bytes) -> None:
    # Follow links: a mounted secret is one.
    path = pathlib.Path(os.path.realpath(path))
    owner = (path if path.exists() else path.parent).stat()
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    file = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(file, "wb") as out:
            if os.geteuid() == 0:
                # If root replaces the file, the bridge's user still has to read it.
                os.fchown(file, owner.st_uid, owner.st_gid)
            out.write(raw)
            out.flush()
            os.fsync(out.fileno())
        part.replace(path)
    except OSError:
        part.unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class FileWatch(abc.ABC):
    """Checks its files periodically while entered; an async context manager."""

    _task: asyncio.Task[None] | None = None

    @abc.abstractmethod
    def check(self) -> None:
        """Check the files and apply changes; does not block for long."""

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                self.check()
            except Exception:
                # Keep checking, or revocations would no longer take effect.
                log.exception("%s: checking its files failed; it retries", type(self).__name__)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"{type(self).__name__} checking its files")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def stamp_of(path: str | os.PathLike[str]) -> Stamp | None:
    """Return a value that changes when a file is replaced, edited or gets other permissions; None if missing."""
    try:
        found = pathlib.Path(path).stat()
    except (OSError, ValueError):  # ValueError: not a valid path
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
