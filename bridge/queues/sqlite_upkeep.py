"""What is done to the file when nobody waits: removing in bulk, giving space back, shortening the log.

Every step is bounded, so that a call that comes in meanwhile waits a few milliseconds at most; and a step is only ever
due after something was written, so that nothing runs while nothing happens.
"""

from __future__ import annotations

from bridge.queue import PUT_WINDOW_S
from bridge.queues.sqlite_state import State

_GARBAGE_ROWS = 500
_FREED_ROWS = 1000
_FREE_PAGES = 1024
_VACUUM_PAGES = 64
_LOG_PAGES = 1000
_KEYS = 500


class Upkeep(State):
    """A state that knows what is left to tidy; the caller's loop decides when."""

    put_window_ms = int(PUT_WINDOW_S * 1000)

    _vacuuming = False

    @property
    def untidy(self) -> bool:
        """Whether `tidy` has something to do."""
        return (
            bool(self.garbage)
            or self.freed >= _FREED_ROWS
            or self._vacuuming
            or self.log_pages >= _LOG_PAGES
            or self._keys_due
        )

    def tidy(self) -> None:
        """Do one bounded step of removing, giving space back to the file system, or shortening the log."""
        if self.garbage:
            gone = self.execute(
                "DELETE FROM messages WHERE seq IN (SELECT seq FROM messages WHERE q=? LIMIT ?)",
                (self.garbage[0], _GARBAGE_ROWS),
            ).rowcount
            self.freed += gone
            self.log_pages += gone * 120 // 4096 + 1
            if gone < _GARBAGE_ROWS:
                del self.garbage[0]
        elif self.freed >= _FREED_ROWS or self._vacuuming:
            self._vacuum()
        elif self.log_pages >= _LOG_PAGES:
            self.checkpoint("PASSIVE")
        elif self._keys_due:
            self.forget_keys(_KEYS)

    @property
    def _keys_due(self) -> bool:
        # By the time of the last commit: where nothing happens, nothing is due.
        return self.keys.due is not None and self.keys.due <= self.now

    def forget_keys(self, limit: int) -> None:
        """Forget up to ``limit`` keys whose time is over and whose message is gone."""
        gone = self.keys.forget(self.now, self.up + self.put_window_ms, limit)
        self.log_pages += gone * 120 // 4096 + 1

    def checkpoint(self, mode: str) -> None:
        """Bring the write-ahead log into the file."""
        self.log_pages = 0
        self.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def _vacuum(self) -> None:
        self.freed = 0
        (free,) = self.execute("PRAGMA freelist_count").fetchone()
        (pages,) = self.execute("PRAGMA page_count").fetchone()
        # A file in steady use needs its free pages again at once: begin when half is free, end when an eighth is.
        if free < _FREE_PAGES or free * (8 if self._vacuuming else 2) < pages:
            if self._vacuuming:
                # The file itself shrinks with the checkpoint.
                self.checkpoint("TRUNCATE")
                self._vacuuming = False
            return
        self._vacuuming = True
        # The statement steps once for each page without giving rows, and only `executescript` goes on to its end.
        self.connection.executescript(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
        self.log_pages += _VACUUM_PAGES
