"""The history's file beside the data file: read at the start, written once a minute and at the stop."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pathlib
import shutil
from typing import Final

import msgspec

from queuebell.bridge.contract.throttle import Throttle
from queuebell.bridge.observe.history import History, Saved
from queuebell.bridge.observe.slices import between_others
from queuebell.bridge.observe.swallowed import swallowing

EVERY_S: Final = 60.0
_BYTES_MAX: Final = 64 * 1024 * 1024
FREE_MIN: Final = 64 * 1024 * 1024
"""The history leaves this much room on the disk to the messages."""

log = logging.getLogger("queuebell.bridge")


class HistoryFile:
    """Keeps a history in a file; whatever fails here costs the history only, and is logged once an hour.

    A killed bridge loses the last minute at most.
    """

    def __init__(self, data: str | os.PathLike[str], history: History) -> None:
        self._path = pathlib.Path(data) / "history.msgpack"
        self._history = history
        self._lines = Throttle(3600.0)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read the file, and write it from now on."""
        try:
            saved = await asyncio.to_thread(self._read)
            if saved is not None:
                self._history.restore(saved)
        except (OSError, ValueError, msgspec.MsgspecError) as error:
            log.warning(
                "%s: the history cannot be read and starts empty; no message is affected: %s", self._path, error
            )
        self._task = asyncio.create_task(self._go_on(), name="history")

    async def stop(self) -> None:
        """Write it a last time."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None
            await self._save()

    async def _go_on(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            with swallowing("writing the history"):
                await self._save()

    async def _save(self) -> None:
        if self._history.changed:
            try:
                await asyncio.to_thread(self._write, await between_others(self._history.save()))
            except OSError as error:
                self._history.changed = True
                if self._lines.passes(asyncio.get_running_loop().time()) is not None:
                    log.warning("%s: the history cannot be written; no message is affected: %s", self._path, error)

    def _read(self) -> Saved | None:
        try:
            if self._path.stat().st_size > _BYTES_MAX:
                raise ValueError("it is too large")
            return msgspec.msgpack.decode(self._path.read_bytes(), type=Saved)
        except FileNotFoundError:
            return None

    def _write(self, saved: Saved) -> None:
        part = self._path.with_name(self._path.name + ".part")
        if shutil.disk_usage(self._path.parent).free < FREE_MIN:
            raise OSError(errno.ENOSPC, f"less than {FREE_MIN} bytes are free, which are left to messages")
        try:
            with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
                out.write(msgspec.msgpack.encode(saved))
            part.replace(self._path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
