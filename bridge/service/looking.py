"""Files that are read anew when they change: looked at twice a second, for no system tells of it everywhere."""

from __future__ import annotations

import abc
import asyncio
import logging
import os
import pathlib
from types import TracebackType
from typing import Final, Self

log = logging.getLogger("queuebell.access")

LOOK_S: Final = 0.5
"""How often; what a change ends has ended after twice as long."""

Stamp = tuple[int, int, int, int]


class Looking(abc.ABC):
    """What looks at files of its own while it is entered; an async context manager."""

    _task: asyncio.Task[None] | None = None

    @abc.abstractmethod
    def look(self) -> None:
        """Look at the files, and do what their change asks for; never raises, never blocks for long."""

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                self.look()
            except Exception:
                # Whoever looks no more would go on letting in whom somebody has revoked.
                log.exception("looking at %s failed; it is tried again", type(self).__name__)

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name=f"{type(self).__name__} looking at its files")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


def stamp_of(path: str | os.PathLike[str]) -> Stamp | None:
    """Return what changes with a file: a replaced one is another inode, an edited or opened one has another time."""
    try:
        found = pathlib.Path(path).stat()
    except (OSError, ValueError):  # the latter is for what cannot be a path
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
