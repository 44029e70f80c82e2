"""What is done to the file when nobody waits: removing in bulk, giving space back, shortening the log.

Every step is bounded, so that a call that comes in meanwhile waits a few milliseconds at most; and a step is only ever
due after something was written, so that nothing runs while nothing happens.
"""

from __future__ import annotations

from bridge.queues.embedded.file import limit_log
from bridge.queues.embedded.state import State

_GARBAGE_ROWS = 500
_FREED_ROWS = 1000
_FREE_PAGES = 1024
_VACUUM_PAGES = 64
# On a full disk a step gives so many pages back; the log takes them, and all that moves with them, without growing.
_GIVEN_BACK_PAGES = 256
_LOG_PAGES = 1000
_KEYS = 500


class Upkeep:
    """Knows what is left to tidy of a state; the caller's loop decides when."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._vacuuming = False
        self.tight = False
        """Whether the disk is full: every free page goes back at once, and the log keeps no more than it needs."""

    @property
    def untidy(self) -> bool:
        """Whether `tidy` has something to do."""
        state = self._state
        return (
            bool(state.garbage)
            or state.freed >= (1 if self.tight else _FREED_ROWS)
            or self._vacuuming
            or state.log_pages >= _LOG_PAGES
            or self._keys_due
        )

    def tidy(self) -> None:
        """Do one bounded step of removing, giving space back to the file system, or shortening the log."""
        state = self._state
        if state.garbage:
            gone = state.execute(
                "DELETE FROM messages WHERE seq IN (SELECT seq FROM messages WHERE q=? LIMIT ?)",
                (state.garbage[0], _GARBAGE_ROWS),
            ).rowcount
            state.freed += gone
            state.removed(gone)
            if gone < _GARBAGE_ROWS:
                del state.garbage[0]
        elif self.tight and (state.freed or self._vacuuming):
            self._give_back()
        elif state.freed >= _FREED_ROWS or self._vacuuming:
            self._vacuum()
        elif state.log_pages >= _LOG_PAGES:
            self.checkpoint("PASSIVE")
        elif self._keys_due:
            state.forget_keys(_KEYS)

    def tighten(self, tight: bool) -> None:
        """Give back whatever is free from now on, or no longer."""
        # From the one to the other it is looked once, for what was freed before.
        self._vacuuming = tight
        self.tight = tight
        limit_log(self._state.connection, tight)

    @property
    def _keys_due(self) -> bool:
        # By the time of the last commit: where nothing happens, nothing is due.
        state = self._state
        return state.keys.due is not None and state.keys.due <= state.now

    def checkpoint(self, mode: str) -> None:
        """Bring the write-ahead log into the file."""
        state = self._state
        state.log_pages = 0
        state.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def _vacuum(self) -> None:
        state = self._state
        state.freed = 0
        (free,) = state.execute("PRAGMA freelist_count").fetchone()
        (pages,) = state.execute("PRAGMA page_count").fetchone()
        # A file in steady use needs its free pages again at once: begin when half is free, end when an eighth is.
        if free < _FREE_PAGES or free * (8 if self._vacuuming else 2) < pages:
            if self._vacuuming:
                # The file itself shrinks with the checkpoint.
                self.checkpoint("TRUNCATE")
                self._vacuuming = False
            return
        self._vacuuming = True
        self._free(_VACUUM_PAGES)

    def _give_back(self) -> None:
        state = self._state
        state.freed = 0
        (free,) = state.execute("PRAGMA freelist_count").fetchone()
        self._vacuuming = free > _GIVEN_BACK_PAGES
        if free:
            self._free(_GIVEN_BACK_PAGES)
        # The file shrinks with it. The log stays as long as it is: deletes go on, whoever takes what becomes free.
        self.checkpoint("RESTART")

    def _free(self, pages: int) -> None:
        # The statement steps once for each page without giving rows, and only `executescript` goes on to its end.
        state = self._state
        state.connection.executescript(f"PRAGMA incremental_vacuum({pages})")
        state.log_pages += pages
