"""Room set aside beside a data file, so that a full disk still lets messages be taken and deleted.

What was acknowledged is in the write-ahead log or in the file; to go on, the log must be copied into the file, and for
that the file must grow. On a disk that is full to the last byte nothing could be done any more, not even the deletes
that would make room. So a file of zeros holds as much as a log can ask for. It is given up when the disk is full, and
until it can be made again no put is taken.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Final

_log = logging.getLogger("queuebell.store")

RESERVE_BYTES: Final = 24 * 1024 * 1024
"""The log is copied back every 4,000 pages of 4 KiB; a commit more, and SQLite's own needs, come on top."""


class Reserve:
    """The file of zeros. ``short`` is True from when it was given up until it is made again."""

    def __init__(self, path: Path, size: int = RESERVE_BYTES) -> None:
        self._path = path
        self._size = size
        self.short = False

    def hold(self) -> bool:
        """Make the file, or say that there is no room for it; a disk too small for it from the start does without."""
        try:
            if self._path.exists() and self._path.stat().st_size == self._size:
                self.short = False
                return True
            with self._path.open("wb") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, self._size)
                else:
                    file.write(bytes(self._size))
        except OSError as error:
            _log.debug("%s: no room to set aside: %s", self._path, error.strerror)
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)
            return False
        self.short = False
        return True

    def give_up(self) -> bool:
        """Remove the file; say whether that made room."""
        try:
            self._path.unlink()
        except OSError:
            return False
        self.short = True
        _log.warning("%s: given up, so that messages can still be taken and deleted; puts wait for room", self._path)
        return True
