"""Room set aside beside a data file, so that a full disk still lets messages be taken and deleted.

What was acknowledged is in the write-ahead log or in the file; to go on, the log must be copied into the file, and for
that the file must grow. On a disk that is full to the last byte nothing could be done any more, not even the deletes
that would make room. So a file of zeros holds as much as a log can ask for. It is given up when the disk is full, and
until it can be made again no put is taken.
"""

from __future__ import annotations

import contextlib
import errno
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
        """Make the file, or say that there is no room for it; a disk too small for it from the start does without.

        One that was given up stays as an empty file, so that this holds through a restart: puts wait for room.
        """
        given_up = self.short
        try:
            given_up = self._path.exists()
            held = self._path.stat().st_size if given_up else 0
            if held == self._size:
                self.short = False
                return True
            disk = os.statvfs(self._path.parent)
            if disk.f_bavail * disk.f_frsize + held < self._size:
                # Trying would take the last of it, for a moment, from whoever else writes there.
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with open(self._path, "wb", opener=_owned) as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, self._size)
                else:
                    file.write(bytes(self._size))
        except OSError as error:
            self._say(error.strerror or str(error), given_up)
            with contextlib.suppress(OSError):
                if given_up:
                    # An empty one stays where it was given up: the next start has to know that puts wait for room.
                    os.truncate(self._path, 0)
                else:
                    self._path.unlink(missing_ok=True)
            self.short = given_up
            return False
        self.short = False
        return True

    def _say(self, why: str, given_up: bool) -> None:
        if self.short:
            # Tried again with every commit.
            _log.debug("%s: no room to set aside: %s", self._path, why)
        elif given_up:
            _log.warning(
                "%s: was given up before this start, and there is no room for it yet (%s): what was acknowledged is "
                "safe, messages can be taken and deleted, and puts wait for room",
                self._path,
                why,
            )
        else:
            _log.warning(
                "%s: no room to set aside %d MiB (%s): what was acknowledged is safe, but on a full disk messages may "
                "not be taken or deleted either; make room and start again",
                self._path,
                self._size >> 20,
                why,
            )

    def give_up(self) -> bool:
        """Empty the file; say whether that made room."""
        try:
            if self._path.stat().st_size == 0:
                return False
            os.truncate(self._path, 0)
        except OSError:
            return False
        self.short = True
        _log.warning("%s: given up, so that messages can still be taken and deleted; puts wait for room", self._path)
        return True


def _owned(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
