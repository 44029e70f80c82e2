"""Standard error of a scaler: what its workers write, and its own log, by a thread that alone waits for the reader."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import deque
from typing import Final

WAITING_BYTES: Final = 256 * 1024
"""How much output of workers may wait; the scaler's own log may be as much again, so that workers cannot drown it."""
DRAIN_S: Final = 1.0


class Output:
    """Lines for file descriptor ``number``, in their order; to write one never blocks, and may be done in any thread.

    What does not fit is dropped, and counted in a separate line once the reader reads again. A reader that is gone
    loses all, without effect on the scaler. What waits at the end of the process gets `DRAIN_S` to leave.
    """

    def __init__(self, number: int = 2) -> None:
        self._number = number
        self._lines: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._changed = threading.Condition()
        self._writer: threading.Thread | None = None

    def pass_on(self, line: str) -> None:
        """Write a line of a worker."""
        self._take(line, WAITING_BYTES)

    def write(self, text: str) -> int:
        """Write lines of the scaler, as a log handler's stream."""
        self._take(text, 2 * WAITING_BYTES)
        return len(text)

    def flush(self) -> None:
        """No-op: the thread flushes."""

    def drain(self) -> None:
        """Wait for what waits to leave, `DRAIN_S` at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._size, DRAIN_S)

    def _take(self, text: str, most: int) -> None:
        raw = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._size + len(raw) > most:
                self._dropped += 1
                return
            self._lines.append(raw)
            self._size += len(raw)
            if self._writer is None:
                self._writer = threading.Thread(target=self._run, name="output of workers", daemon=True)
                self._writer.start()
                atexit.register(self.drain)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._dropped)
                if self._dropped:
                    note = b"... %d lines were left out about here: nobody read them in time\n" % self._dropped
                    self._lines.appendleft(note)
                    self._size += len(note)
                    self._dropped = 0
                # What is under way still counts: the reader has not had it.
                batch = b"".join(self._lines)
                self._lines.clear()
            left = memoryview(batch)
            with contextlib.suppress(OSError):
                while left:
                    left = left[os.write(self._number, left) :]
            with self._changed:
                self._size -= len(batch)
                self._changed.notify_all()


OUTPUT: Final = Output()
"""That of this process."""
