"""``queuebell`` on a disk where files cannot grow past BYTES, until SIGUSR1: ``small_disk.py BYTES COMMAND ...``."""

from __future__ import annotations

import resource
import signal
import sys
from types import FrameType

from queuebell.command.main import main


def make_room(_: int, __: FrameType | None) -> None:
    """Take the limit away."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


if __name__ == "__main__":
    # A write past the limit then fails with EFBIG, as one on a full disk does with ENOSPC (Python ignores SIGXFSZ).
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    signal.signal(signal.SIGUSR1, make_room)
    sys.exit(main(sys.argv[2:]))
