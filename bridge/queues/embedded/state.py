"""What the engine knows without asking the table, and the transaction that keeps both in step.

Counts live in memory (O(1) at a million messages); every change of them is noted in a journal, so that a transaction
that fails takes its counts back with it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from bridge.contract.errors import BadInput
from bridge.queues.embedded.clock import StoreClock
from bridge.queues.embedded.keys import Keys
from bridge.queues.embedded.tally import EMPTY, Calendar, Tally
from bridge.queues.embedded.terms import Handed, Level
from bridge.queues.limits import QUEUES_MAX

Value = int | bytes | None
"""What stands in a row of the table `messages`: seq, q, vis, exp, n, rcpt, ins, body, headers."""

_COLUMNS = 9
_ROW = "(?,?,?,?,?,?,?,?,?)"
# Rows that one commit removes because they have expired: some milliseconds, however many there are.
_EXPIRED_ROWS = 1000
_EXPIRED = "FROM messages WHERE q=? AND exp<=? ORDER BY exp, seq LIMIT ?"
_COUNT_EXPIRED = f"SELECT vis, exp, COUNT(*), SUM(~rcpt & 1) FROM (SELECT vis, exp, rcpt {_EXPIRED}) GROUP BY vis, exp"  # noqa: S608
_DELETE_EXPIRED = f"DELETE FROM messages WHERE seq IN (SELECT seq {_EXPIRED})"  # noqa: S608
_SELECT_OLDEST = "SELECT vis FROM messages WHERE q=? ORDER BY vis LIMIT 1"
_INSERT = f"INSERT INTO messages VALUES {_ROW}"  # noqa: S608
# One statement for many rows: `executemany` would let go of the interpreter lock, and wait for it, once a row. Each of
# these stays below the 999 variables that every SQLite allows, and the smaller take what the larger leave.
_BLOCKS = tuple((size * _COLUMNS, _INSERT + f",{_ROW}" * (size - 1)) for size in (100, 20, 5, 1))

# What a row costs beside its body, in the table and its index; only for guessing the length of the log.
_ROW_BYTES = 120
_PAGE_BYTES = 4096
_PAGES_PER_COMMIT = 3

# Of the number that a queue keeps for ever so many are a count, and those above the time; both fit into 63.
_MADE_BITS = 20


class Queue:
    """A queue in memory: the number its rows carry, the one that is its own, its counts, and whether it is paused.

    The tally counts by time alone; what is told of a queue are `visible` and `invisible`.
    """

    __slots__ = ("behind", "delayed", "id", "made", "name", "paused", "tally")

    def __init__(self, number: int, name: str, tally: Tally, made: int, paused: bool = False) -> None:
        self.id = number
        self.made = made
        self.name = name
        self.tally = tally
        self.paused = paused
        self.behind = False
        """Whether more has expired than one commit removes: until it is gone, nothing is given out, as in a pause."""
        self.delayed = EMPTY
        """When delays end: of what was put or given back for later and is not visible yet."""

    @property
    def visible(self) -> int:
        """Messages that a receive could take now: none while it is paused."""
        return 0 if self.paused or self.behind else self.tally.visible

    @property
    def invisible(self) -> int:
        """Messages that no receive could take now: all of them while it is paused."""
        return self.tally.total if self.paused or self.behind else self.tally.invisible

    @property
    def waiting(self) -> int:
        """Messages that were put or given back for later, as of the tally's time."""
        self.delayed.take_until(self.tally.now)
        return self.delayed.total

    def next_visible(self) -> int | None:
        """Return when time alone makes a message visible next: never while it is paused."""
        if self.paused:
            return None
        return self.tally.now if self.behind else self.tally.next_visible()

    def next_delayed(self, now: int) -> int | None:
        """Return when the next delay ends: never while it is paused."""
        self.delayed.take_until(now)
        return None if self.paused else self.delayed.earliest()

    def delay(self, at: int, count: int) -> None:
        """Note that ``count`` messages are delayed until then."""
        if self.delayed is EMPTY:
            self.delayed = Calendar()
        self.delayed.add(at, count)

    def undelay(self, at: int, count: int) -> None:
        """Take a delay back, unless it has ended."""
        if at in self.delayed:
            self.delayed.remove(at, count)

    def next_change(self) -> int | None:
        """Return when time alone changes what is told next: while it is paused, only an expiry does."""
        return self.tally.next_expiry() if self.paused else self.tally.next_change()


class Touch:
    """What one commit did to one queue, as far as its level does not show it."""

    __slots__ = ("empty", "put", "receives", "sources")

    def __init__(self) -> None:
        self.put = 0
        self.receives = 0
        self.empty = 0
        self.sources: dict[str, tuple[int, int]] = {}
        """(found, empty) of the receives that said why they looked."""

    def count(self, source: str, work: bool) -> None:
        """Count a receive that said why it looked."""
        found, empty = self.sources.get(source, (0, 0))
        self.sources[source] = (found + work, empty + (not work))


class State:
    """Queues, counts and the open transaction over one connection; used by one thread at a time."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        clock: Callable[[], float],
        wall: Callable[[], float],
        check: Callable[[], None] | None,
        put_window_ms: int,
    ) -> None:
        self.connection = connection
        self.execute = connection.execute
        self._check = check
        newest, self.seq, self.queue_number = self.execute("SELECT now, seq, queue FROM clock").fetchone()
        self._clock = StoreClock(clock, max(int(wall() * 1000), newest))
        self.now = self._clock.read()
        self.up = self.now
        self.queues: dict[str, Queue] = {}
        self.keys = Keys(connection, put_window_ms)
        self.garbage: list[int] = []
        self.freed = 0
        self.log_pages = 0
        self.handed: list[Handed] = []
        self.committing = False
        self._may_expire = _EXPIRED_ROWS
        self._inserts: list[Value] = []
        self._insert_bytes = 0
        self._touched: dict[str, Touch] = {}
        self._journal: list[tuple[Callable[..., object], tuple[object, ...]]] = []
        self._in_transaction = False
        self._load()

    # -- time ------------------------------------------------------------------------------------------------------

    def tick(self) -> int:
        """Read the clock for a group of operations and return now."""
        self.now = self._clock.read()
        self.up = self._clock.read_up()
        self._may_expire = _EXPIRED_ROWS
        return self.now

    def due_in(self, at: int | None) -> int | None:
        """Return a time to come as milliseconds from now, at least 1, and never more than was asked for.

        Whoever waits for it adds the resolution of one millisecond (B2).
        """
        return None if at is None else max(1, at - self.up)

    # -- the transaction -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Open the transaction of this commit where none is open yet."""
        if not self._in_transaction:
            self.execute("BEGIN IMMEDIATE")
            self._in_transaction = True

    def flush(self) -> None:
        """Write the rows that puts have left for one statement; before any other statement looks at messages."""
        values = self._inserts
        if values:
            self.begin()
            done, count = 0, len(values)
            for size, statement in _BLOCKS:
                while count - done >= size:
                    self.execute(statement, values[done : done + size])
                    done += size
            values.clear()

    def insert(self, values: list[Value], size: int) -> None:
        """Leave rows, one after the other and flat, for the next `flush`; ``size`` is that of bodies and headers."""
        self._inserts += values
        self._insert_bytes += size + len(values) // _COLUMNS * _ROW_BYTES

    def note(self, undo: Callable[..., object], *args: object) -> None:
        """Note what takes a change in memory back, if this transaction fails."""
        self._journal.append((undo, args))

    def commit(self) -> bool:
        """Make everything since the last commit last, and say whether anything was written."""
        self.flush()
        wrote = self._in_transaction
        if self._in_transaction:
            self.execute("UPDATE clock SET now=?, seq=?, queue=? WHERE id=1", (self.now, self.seq, self.queue_number))
            if self._check is not None:
                self._check()
            self.committing = True
            self.execute("COMMIT")
            self.committing = False
            self._in_transaction = False
            self.log_pages += _PAGES_PER_COMMIT + self._insert_bytes // _PAGE_BYTES
            self._insert_bytes = 0
        self._journal.clear()
        return wrote

    def rollback(self) -> None:
        """Take back everything since the last commit, in the file and in memory."""
        self.committing = False
        self._in_transaction = False
        self._inserts.clear()
        self._insert_bytes = 0
        self.handed.clear()
        # Memory first: it cannot fail, and the statement below can.
        for undo, args in reversed(self._journal):
            undo(*args)
        self._journal.clear()
        for name, touch in self._touched.items():
            touch.put = touch.receives = touch.empty = 0
            touch.sources.clear()
            queue = self.queues.get(name)
            if queue is not None:
                # Delays that came due stay due; whether they rose is no longer known, and a rise untold is a loss.
                queue.tally.rose = queue.tally.visible > 0
        # SQLite rolls some failures back by itself.
        if self.connection.in_transaction:
            self.execute("ROLLBACK")

    def touch(self, name: str) -> Touch:
        """Have this queue's level told after the commit."""
        touched = self._touched.get(name)
        if touched is None:
            touched = self._touched[name] = Touch()
        return touched

    def take_levels(self) -> list[Level]:
        """Return the levels of the queues touched since the last call."""
        levels = [self._level(name, touch) for name, touch in self._touched.items()]
        self._touched.clear()
        return levels

    def take_handed(self) -> list[Handed]:
        """Return the outcomes of the grants since the last call."""
        handed = self.handed
        self.handed = []
        return handed

    # -- queues ----------------------------------------------------------------------------------------------------

    def look(self, name: str) -> Queue | None:
        """Return a queue with its counts as of now: what came due is visible, what expired is gone."""
        queue = self.queues.get(name)
        if queue is not None:
            queue.tally.advance(self.now)
            if queue.behind or queue.tally.has_expired():
                self._purge(queue)
        return queue

    def ensure(self, name: str, metadata: str = "{}") -> Queue:
        """Return a queue as `look` does, made where it is missing; raises `BadInput` if there are too many."""
        queue = self.look(name)
        if queue is None:
            if len(self.queues) >= QUEUES_MAX:
                raise BadInput("too_many_queues", f"at most {QUEUES_MAX} queues")
            self.begin()
            self.queue_number += 1
            number = self.queue_number
            # No other queue of its millisecond has it, and none of another file that stood in this one's place.
            made = self.now << _MADE_BITS | number & (1 << _MADE_BITS) - 1
            self.execute("INSERT INTO queues VALUES (?,?,?,0,?)", (number, name, metadata, made))
            queue = self.queues[name] = Queue(number, name, Tally(self.now), made)
            self.note(self.queues.pop, name)
        return queue

    def delay(self, queue: Queue, vis: int, count: int) -> None:
        """Note that so many messages wait until ``vis``, and nobody holds them."""
        if count and vis > self.now:
            queue.delay(vis, count)
            self.note(queue.undelay, vis, count)

    def undelay(self, queue: Queue, vis: int, count: int) -> None:
        """Note that so many of those that wait until ``vis`` do so no more."""
        if count and vis in queue.delayed:
            queue.delayed.remove(vis, count)
            self.note(queue.delayed.add, vis, count)

    def discard(self, number: int, total: int, small: int = 1000) -> None:
        """Remove the rows of a queue number that no queue has any more: at once if few, else bit by bit later."""
        if total > small:
            self.garbage.append(number)
            self.note(self.garbage.remove, number)
        elif total:
            self.execute("DELETE FROM messages WHERE q=?", (number,))
            self.freed += total

    def recount(self, queue: Queue) -> None:
        """Count a queue anew from the table."""
        self.flush()
        old = queue.tally
        queue.tally = self.counted(queue.id)
        queue.tally.rose = old.rose or queue.tally.visible > 0
        self.note(setattr, queue, "tally", old)

    def counted(self, number: int) -> Tally:
        """Return the counts of a queue number as the table has them."""
        tally = Tally(self.now)
        rows = self.execute("SELECT vis, exp, COUNT(*) FROM messages WHERE q=? GROUP BY vis, exp", (number,))
        for vis, exp, count in rows:
            tally.add(vis, exp, count)
        return tally

    def forget_keys(self, limit: int) -> None:
        """Forget up to ``limit`` keys whose time is over and whose message is gone."""
        self.removed(self.keys.forget(self.now, self.up + self.keys.window_ms, limit))

    def removed(self, rows: int) -> None:
        """Take note that one statement removed so many rows without a look at their bodies: the log grew."""
        self.log_pages += rows * _ROW_BYTES // _PAGE_BYTES + 1

    def levels(self) -> list[Level]:
        """Return how every queue stands now; ``rose`` where something is visible."""
        self.tick()
        levels = []
        nothing = Touch()
        for name in list(self.queues):
            queue = self.look(name)
            if queue is not None:
                queue.tally.rose = queue.tally.visible > 0
                levels.append(self._level(name, nothing))
        return levels

    def _level(self, name: str, touch: Touch) -> Level:
        queue = self.queues.get(name)
        if queue is None:
            return Level(name, False, 0, 0, False, touch.put, touch.receives, touch.empty, None, sources=touch.sources)
        tally = queue.tally
        rose, tally.rose = tally.rose, False
        return Level(
            name,
            True,
            queue.visible,
            queue.invisible,
            # What rises while it is paused rises for everybody when it is resumed.
            rose and not queue.paused and not queue.behind,
            touch.put,
            touch.receives,
            touch.empty,
            self.due_in(queue.next_change()),
            queue.paused,
            touch.sources,
            tally.invisible - queue.waiting,
            queue.waiting,
            self.oldest_ms(queue),
        )

    def oldest_ms(self, queue: Queue) -> int | None:
        """Return how long the message that has been visible longest has waited; None where none is visible."""
        if not queue.visible:
            return None
        self.flush()
        row = self.execute(_SELECT_OLDEST, (queue.id,)).fetchone()
        return None if row is None else max(0, self.now - int(row[0]))

    def _purge(self, queue: Queue) -> None:
        """Remove what has expired before any count or predicate is believed (O1), as far as one commit may.

        Many that expire together would hold up the calls of all other queues.
        """
        self.flush()
        self.begin()
        bounds = (queue.id, self.now, self._may_expire)
        gone = self.execute(_COUNT_EXPIRED, bounds).fetchall()
        removed = self.execute(_DELETE_EXPIRED, bounds).rowcount
        for vis, exp, count, delayed in gone:
            queue.tally.remove(vis, exp, count)
            self.note(queue.tally.add, vis, exp, count)
            self.undelay(queue, vis, delayed)
        self.freed += removed
        self.removed(removed)
        self._may_expire -= removed
        self.touch(queue.name)
        self.note(setattr, queue, "behind", queue.behind)
        if not queue.tally.has_expired():
            # What was not given out meanwhile rises now.
            queue.tally.rose = queue.tally.rose or (queue.behind and queue.tally.visible > 0)
            queue.behind = False
        elif self._may_expire:
            # Never seen; but a count of what is not there would have every call purge again.
            self.recount(queue)
            queue.behind = False
        else:
            queue.behind = True

    def _load(self) -> None:
        by_number: dict[int, Queue] = {}
        for number, name, made, paused in self.execute("SELECT id, name, made, paused FROM queues"):
            by_number[number] = self.queues[name] = Queue(number, name, Tally(self.now), made, bool(paused))
        orphans: set[int] = set()
        # Two passes over the index alone: most rows are visible, and those need no line each in Python.
        for number, count in self.execute("SELECT q, COUNT(*) FROM messages WHERE vis<=? GROUP BY q", (self.now,)):
            if number in by_number:
                by_number[number].tally.add(self.now, None, count)
            else:
                orphans.add(number)
        # Which of them are leased only the rows say, and these are few beside the visible ones.
        for number, vis, count, delayed in self.execute(
            "SELECT q, vis, COUNT(*), SUM(~rcpt & 1) FROM messages WHERE vis>? GROUP BY q, vis", (self.now,)
        ):
            if number in by_number:
                by_number[number].tally.add(vis, None, count)
                if delayed:
                    # Without a line in the journal: what the file holds, no rollback takes back.
                    by_number[number].delay(vis, delayed)
            else:
                orphans.add(number)
        for number, exp, count in self.execute(
            "SELECT q, exp, COUNT(*) FROM messages WHERE exp IS NOT NULL GROUP BY q, exp"
        ):
            if number in by_number:
                by_number[number].tally.expire_at(exp, count)
        self.garbage.extend(sorted(orphans))
