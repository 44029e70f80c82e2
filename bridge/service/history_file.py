"""The history's file beside the data file: read at the start, written once a minute and at the stop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import pathlib
import shutil
import stat
from typing import Final

import msgspec

from queuebell.bridge.contract.throttle import Throttle
from queuebell.bridge.observe.history import History, Saved
from queuebell.bridge.observe.slices import between_others
from queuebell.bridge.observe.swallowed import swallowing

EVERY_S: Final = 60.0
_STOP_S: Final = 10.0
_BYTES_MAX: Final = 64 * 1024 * 1024
FREE_MIN: Final = 64 * 1024 * 1024
"""The history leaves this much room on the disk to the messages."""

log = logging.getLogger("queuebell.bridge")


class HistoryFile:
    """Keeps a history in a file; whatever fails here costs the history only, and is logged once an hour.

    A killed bridge loses the last minute at most.
    """

    def __init__(self, path: pathlib.Path, history: History) -> None:
        self._path = path
        self._history = history
        self._lines = Throttle(3600.0)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """Continue with what the file holds; before anything happens on a queue."""
        try:
            await asyncio.to_thread(self._read)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            log.warning(
                "%s: the history cannot be read and starts empty; no message is affected: %s", self._path, error
            )

    def start(self) -> None:
        """Write it from now on."""
        self._task = asyncio.create_task(self._go_on(), name="history")

    async def stop(self) -> None:
        """Write it a last time; a write that is under way ends first. A disk that hangs is waited for 10 s."""
        if self._task is not None:
            self._stopping.set()
            task, self._task = self._task, None
            _, late = await asyncio.wait([task], timeout=_STOP_S)
            if late:
                log.warning("%s: the disk does not answer; the last minute of the history is not written", self._path)
                task.cancel()
                await asyncio.wait([task])

    async def _go_on(self) -> None:
        ends = False
        while not ends:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EVERY_S):
                    ends = await self._stopping.wait()
            with swallowing("writing the history"):
                await self._save()

    async def _save(self) -> None:
        if self._history.changed:
            try:
                await asyncio.to_thread(self._write, await between_others(self._history.save()))
            except Exception as error:
                self._history.changed = True
                if not isinstance(error, OSError):
                    raise
                if self._lines.passes(asyncio.get_running_loop().time()) is not None:
                    log.warning("%s: the history cannot be written; no message is affected: %s", self._path, error)

    def _read(self) -> None:
        try:
            about = self._path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return
        if not stat.S_ISREG(about.st_mode) or about.st_size > _BYTES_MAX:
            raise ValueError("it is too large, or no file")
        self._history.restore(msgspec.msgpack.decode(self._path.read_bytes(), type=Saved))

    def _write(self, saved: Saved) -> None:
        # Bridges of one shared store may use one folder: then the file is that of the last that wrote it.
        part = self._path.with_name(f"{self._path.name}.{os.getpid()}.part")
        if shutil.disk_usage(self._path.parent).free < FREE_MIN:
            raise OSError(errno.ENOSPC, f"less than {FREE_MIN} bytes are free, which are left to messages")
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
                out.write(msgspec.msgpack.encode(saved))
            part.replace(self._path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
