"""What a task does that is measured: it says how long ago its put was called."""

from __future__ import annotations

import os
import time


def sample(stamp: str | bytes) -> None:
    """Note the nanoseconds from ``stamp`` (``time.monotonic_ns`` of another process of this machine) to now."""
    taken = time.monotonic_ns() - int(stamp)
    # One short write to a file opened for appending is whole, whatever processes and threads do it.
    file = os.open(os.environ["SAMPLES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(file, b"%d\n" % taken)
    os.close(file)
