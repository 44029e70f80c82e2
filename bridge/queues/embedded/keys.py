"""The keys that messages were put under, so that the same put is not carried out twice.

A key stands while its message does, and until its time is over. It belongs to the number of its queue, which changes
when the queue is cleared or made anew: then nothing finds it any more, and it goes when its time is over.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

_FIND = "SELECT seq, until, digest FROM once WHERE q=? AND key=?"
_INSERT = "INSERT INTO once VALUES (?,?,?,?,?)"
_DUE = "SELECT seq FROM once WHERE until<=? ORDER BY until LIMIT ?"
_STANDS = "EXISTS (SELECT 1 FROM messages WHERE messages.seq=once.seq)"
# Each is one statement, so that it can stand alone as well as in a transaction.
_KEEP = f"UPDATE once SET until=? WHERE seq IN ({_DUE}) AND {_STANDS}"  # noqa: S608
_FORGET = f"DELETE FROM once WHERE seq IN ({_DUE}) AND NOT {_STANDS}"  # noqa: S608


class Keys:
    """The table `once`; ``count`` is how many keys stand in it, ``due`` when the first one's time is over.

    A key is remembered for ``window_ms`` at least.
    """

    __slots__ = ("_execute", "count", "due", "queues", "window_ms")

    def __init__(self, connection: sqlite3.Connection, window_ms: int) -> None:
        self.window_ms = window_ms
        self._execute = connection.execute
        self.count, self.due = self._execute("SELECT COUNT(*), MIN(until) FROM once").fetchone()
        self.queues: set[int] = {number for (number,) in self._execute("SELECT DISTINCT q FROM once")}
        """The numbers of queues that have, or had, a key: a receive of any other looks for none."""

    def find(self, number: int, key: str, now: int) -> bytes | None:
        """Return the digest of what was put under a key, or None where nothing is known of it (any more)."""
        if number not in self.queues:
            return None
        row = self._execute(_FIND, (number, key)).fetchone()
        if row is None:
            return None
        seq, until, digest = row
        if until <= now and self._execute("SELECT 1 FROM messages WHERE seq=?", (seq,)).fetchone() is None:
            return None
        return bytes(digest)

    def insert(self, seq: int, number: int, until: int, digest: bytes, key: str) -> None:
        """Write a key down; one of the same name whose time is over gives way."""
        row = (seq, number, until, digest, key)
        try:
            self._execute(_INSERT, row)
            self.count += 1
        except sqlite3.IntegrityError:
            self._execute("DELETE FROM once WHERE q=? AND key=?", (number, key))
            self._execute(_INSERT, row)
        self.queues.add(number)
        if self.due is None or until < self.due:
            self.due = until

    def of(self, seqs: Sequence[int]) -> dict[int, str]:
        """Return the keys of those messages that have one."""
        marks = ",".join("?" * len(seqs))
        return dict(self._execute(f"SELECT seq, key FROM once WHERE seq IN ({marks})", seqs).fetchall())  # noqa: S608

    def forget(self, now: int, again: int, limit: int) -> int:
        """Look at up to ``limit`` keys whose time is over, and return how many are gone.

        Those whose message still stands are looked at again at ``again``.
        """
        self._execute(_KEEP, (again, now, limit))
        gone = self._execute(_FORGET, (now, limit)).rowcount
        self.count -= gone
        (self.due,) = self._execute("SELECT MIN(until) FROM once").fetchone()
        return gone
