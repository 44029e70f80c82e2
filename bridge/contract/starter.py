"""What a worker process and the scaler that started it have in common: a socket that the worker inherits, and words.

``QUEUEBELL_STARTER`` names the worker's end as ``FD:INODE``. The second number tells whether the descriptor is still
that socket: a program between the two may have closed it and opened something else in its place.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from typing import Final

VARIABLE: Final = "QUEUEBELL_STARTER"
READY: Final = b"ready"
"""The listener has a session with its bridge, or polls for want of one."""
BUSY: Final = b"busy"
"""It holds messages."""
IDLE: Final = b"idle"


def ticket(fd: int) -> str:
    """Return what the variable says of an open socket."""
    return f"{fd}:{os.fstat(fd).st_ino}"


def inherited(environment: Mapping[str, str]) -> int | None:
    """Return the descriptor of the socket to the scaler; None without one, or where it is not that socket any more."""
    fd, colon, inode = environment.get(VARIABLE, "").partition(":")
    if not colon or not fd.isdecimal() or not inode.isdecimal():
        return None
    try:
        is_it = os.fstat(int(fd))
    except OSError:
        return None
    return int(fd) if stat.S_ISSOCK(is_it.st_mode) and is_it.st_ino == int(inode) else None
