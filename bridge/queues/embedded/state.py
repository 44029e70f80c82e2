"""The state of the queues in memory, and the transaction that keeps it consistent with the table.

Counts are kept in memory, so that reading them takes constant time at a million messages. A journal records how to undo
each change if the transaction fails.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.queues.base import StoredMessage
from queuebell.bridge.queues.limits import QUEUES_MAX

Value = int | bytes | None
"""A value in a row of the table `messages`: seq, q, vis, exp, n, rcpt, ins, body, headers."""

_COLUMNS = 9
_ROW = "(?,?,?,?,?,?,?,?,?)"
# Maximum of expired rows that one commit removes: some milliseconds.
_EXPIRED_ROWS = 1000
_EXPIRED = "FROM messages WHERE q=? AND exp<=? ORDER BY exp, seq LIMIT ?"
_COUNT_EXPIRED = f"SELECT vis, exp, COUNT(*), SUM(~rcpt & 1) FROM (SELECT vis, exp, rcpt {_EXPIRED}) GROUP BY vis, exp"  # noqa: S608
_DELETE_EXPIRED = f"DELETE FROM messages WHERE seq IN (SELECT seq {_EXPIRED})"  # noqa: S608
_SELECT_OLDEST = "SELECT vis FROM messages WHERE q=? ORDER BY vis LIMIT 1"
_INSERT = f"INSERT INTO messages VALUES {_ROW}"  # noqa: S608
# One statement for many rows: `executemany` would release and take the interpreter lock for each row. Each statement
# stays below the 999 variables that every SQLite allows; the smaller ones insert the remainder.
_BLOCKS = tuple((size * _COLUMNS, _INSERT + f",{_ROW}" * (size - 1)) for size in (100, 20, 5, 1))

# Size of a row without its body, in table and index; only for estimating the length of the log.
_ROW_BYTES = 120
_PAGE_BYTES = 4096
_PAGES_PER_COMMIT = 3

# A queue's permanent number has so many bits for a counter, and above them the time, 63 in all.
_MADE_BITS = 20


class Backlog(msgspec.Struct, frozen=True):
    """The state of one queue after one commit, in commit order (O1).

    ``rose``: ``visible`` rose from 0 within this commit, even if it is 0 again now, including by delays and leases that
    ended since the last commit. ``put``, ``receives`` and ``empty`` count messages put, receives, and receives that
    found nothing. ``next_visible_in_ms``: when the next invisible message becomes visible or the next message expires.
    ``paused``: receives return nothing, and all messages count as invisible. ``sources``: (found, empty) by the wake
    source of receives. ``leased`` and ``delayed`` do not depend on a pause. ``oldest_ms``: how long the message visible
    longest has waited, None if none is visible.
    """

    queue: str
    exists: bool
    visible: int
    invisible: int
    rose: bool
    put: int
    receives: int
    empty: int
    next_visible_in_ms: int | None
    paused: bool = False
    sources: dict[str, tuple[int, int]] = {}
    leased: int = 0
    delayed: int = 0
    oldest_ms: int | None = None


class Grant(msgspec.Struct, frozen=True):
    """Permission to deliver up to ``limit`` messages to a session within the put's commit, leased for ``lease_s`` (O7).

    ``session`` is opaque to the store.
    """

    session: str
    limit: int
    lease_s: float


class GrantResult(msgspec.Struct, frozen=True):
    """The outcome of a grant.

    ``messages`` are leased with their dequeue count raised; there may be none, as after a failed put. ``visible``
    counts the visible messages at that point of the commit order, including ``messages``.
    """

    queue: str
    session: str
    messages: list[StoredMessage]
    visible: int


class StoreObserver(Protocol):
    """Receives reports of commits, in the event loop's thread: the bridge."""

    def grant(self, queue: str, count: int) -> Grant | None:
        """Return a grant if a session should receive messages of a put with ``count`` visible messages.

        Every grant gets one `GrantResult`.
        """
        ...

    def committed(self, backlogs: list[Backlog], handed: list[GrantResult]) -> None:
        """Process one commit, before its callers get their answers (B1)."""
        ...


class Queue:
    """A queue in memory: the number in its rows, its permanent number, its counts, and whether it is paused.

    The tally counts by time alone; `visible` and `invisible` also consider a pause.
    """

    __slots__ = ("behind", "delayed", "id", "made", "name", "paused", "tally")

    def __init__(self, number: int, name: str, tally: Tally, made: int, paused: bool = False) -> None:
        self.id = number
        self.made = made
        self.name = name
        self.tally = tally
        self.paused = paused
        self.behind = False
        """Whether more messages expired than one commit removes: until they are gone, receives return nothing."""
        self.delayed = EMPTY
        """When the delays of messages end that were put or released with a delay."""

    @property
    def visible(self) -> int:
        """Messages that a receive could return now: none while paused."""
        return 0 if self.paused or self.behind else self.tally.visible

    @property
    def invisible(self) -> int:
        """Messages that no receive could return now: all while paused."""
        return self.tally.total if self.paused or self.behind else self.tally.invisible

    @property
    def waiting(self) -> int:
        """Delayed messages, as of the tally's time."""
        self.delayed.take_until(self.tally.now)
        return self.delayed.total

    def next_visible(self) -> int | None:
        """Return when the next message becomes visible by time alone; None while paused."""
        if self.paused:
            return None
        return self.tally.now if self.behind else self.tally.next_visible()

    def next_delayed(self, now: int) -> int | None:
        """Return when the next delay ends; None while paused."""
        self.delayed.take_until(now)
        return None if self.paused else self.delayed.earliest()

    def delay(self, at: int, count: int) -> None:
        """Add ``count`` messages delayed until ``at``."""
        if self.delayed is EMPTY:
            self.delayed = Calendar()
        self.delayed.add(at, count)

    def undelay(self, at: int, count: int) -> None:
        """Remove delays that have not ended."""
        if at in self.delayed:
            self.delayed.remove(at, count)

    def next_change(self) -> int | None:
        """Return when time alone changes the state next: while paused, only an expiry does."""
        return self.tally.next_expiry() if self.paused else self.tally.next_change()


class Touch:
    """Operations of one commit on one queue, for its report."""

    __slots__ = ("empty", "put", "receives", "sources")

    def __init__(self) -> None:
        self.put = 0
        self.receives = 0
        self.empty = 0
        self.sources: dict[str, tuple[int, int]] = {}
        """(found, empty) by the source of receives."""

    def count(self, source: str, work: bool) -> None:
        """Count a receive by its source."""
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
        self.deleted_queue_ids: list[int] = []
        self.freed = 0
        self.log_pages = 0
        self.grant_results: list[GrantResult] = []
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
        """Return a future time as milliseconds from now, at least 1, rounded down.

        Callers that wait add the resolution of one millisecond (B2).
        """
        return None if at is None else max(1, at - self.up)

    # -- the transaction -------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Open the transaction of this commit, unless it is open."""
        if not self._in_transaction:
            self.execute("BEGIN IMMEDIATE")
            self._in_transaction = True

    def flush(self) -> None:
        """Write the rows that puts have queued, before any other statement reads messages."""
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
        """Queue rows, as one flat list, for the next `flush`; ``size`` is that of bodies and headers."""
        self._inserts += values
        self._insert_bytes += size + len(values) // _COLUMNS * _ROW_BYTES

    def on_rollback(self, undo: Callable[..., object], *args: object) -> None:
        """Record how to undo a change in memory if this transaction fails."""
        self._journal.append((undo, args))

    def commit(self) -> bool:
        """Commit all changes since the last commit; return whether anything was written."""
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
        """Undo all changes since the last commit, in the file and in memory."""
        self.committing = False
        self._in_transaction = False
        self._inserts.clear()
        self._insert_bytes = 0
        self.grant_results.clear()
        # Memory first: it cannot fail, and the statement below can.
        for undo, args in reversed(self._journal):
            undo(*args)
        self._journal.clear()
        for name, touch in self._touched.items():
            touch.put = touch.receives = touch.empty = 0
            touch.sources.clear()
            queue = self.queues.get(name)
            if queue is not None:
                # Ended delays stay ended; they may not have been reported, and a missing report loses a wake.
                queue.tally.rose = queue.tally.visible > 0
        # SQLite rolls some failures back by itself.
        if self.connection.in_transaction:
            self.execute("ROLLBACK")

    def touch(self, name: str) -> Touch:
        """Mark this queue for the report of the commit."""
        touched = self._touched.get(name)
        if touched is None:
            touched = self._touched[name] = Touch()
        return touched

    def take_backlogs(self) -> list[Backlog]:
        """Return the states of the queues touched since the last call."""
        backlogs = [self._backlog(name, touch) for name, touch in self._touched.items()]
        self._touched.clear()
        return backlogs

    def take_grant_results(self) -> list[GrantResult]:
        """Return the outcomes of the grants since the last call."""
        handed = self.grant_results
        self.grant_results = []
        return handed

    # -- queues ----------------------------------------------------------------------------------------------------

    def current(self, name: str) -> Queue | None:
        """Return a queue as of now, expired messages removed, or None if it does not exist."""
        queue = self.queues.get(name)
        if queue is not None:
            queue.tally.advance(self.now)
            if queue.behind or queue.tally.has_expired():
                self._purge(queue)
        return queue

    def ensure(self, name: str, metadata: str = "{}") -> Queue:
        """Return a queue as `current` does, created if missing; raises `BadInput` if there are too many."""
        queue = self.current(name)
        if queue is None:
            if len(self.queues) >= QUEUES_MAX:
                raise BadInput("too_many_queues", f"at most {QUEUES_MAX} queues")
            self.begin()
            self.queue_number += 1
            number = self.queue_number
            # Unique among the queues of this file, and of files that were here before.
            made = self.now << _MADE_BITS | number & (1 << _MADE_BITS) - 1
            self.execute("INSERT INTO queues VALUES (?,?,?,0,?)", (number, name, metadata, made))
            queue = self.queues[name] = Queue(number, name, Tally(self.now), made)
            self.on_rollback(self.queues.pop, name)
        return queue

    def delay(self, queue: Queue, vis: int, count: int) -> None:
        """Count messages delayed until ``vis`` that are not leased."""
        if count and vis > self.now:
            queue.delay(vis, count)
            self.on_rollback(queue.undelay, vis, count)

    def undelay(self, queue: Queue, vis: int, count: int) -> None:
        """Stop counting messages delayed until ``vis``."""
        if count and vis in queue.delayed:
            queue.delayed.remove(vis, count)
            self.on_rollback(queue.delayed.add, vis, count)

    def discard(self, number: int, total: int, small: int = 1000) -> None:
        """Delete the rows of a queue number no longer in use: immediately if few, else step by step later."""
        if total > small:
            self.deleted_queue_ids.append(number)
            self.on_rollback(self.deleted_queue_ids.remove, number)
        elif total:
            self.execute("DELETE FROM messages WHERE q=?", (number,))
            self.freed += total

    def recount(self, queue: Queue) -> None:
        """Count a queue again from the table."""
        self.flush()
        old = queue.tally
        queue.tally = self.counted(queue.id)
        queue.tally.rose = old.rose or queue.tally.visible > 0
        self.on_rollback(setattr, queue, "tally", old)

    def counted(self, number: int) -> Tally:
        """Return the counts of a queue number in the table."""
        tally = Tally(self.now)
        rows = self.execute("SELECT vis, exp, COUNT(*) FROM messages WHERE q=? GROUP BY vis, exp", (number,))
        for vis, exp, count in rows:
            tally.add(vis, exp, count)
        return tally

    def forget_keys(self, limit: int) -> None:
        """Forget up to ``limit`` expired keys whose message is gone."""
        self.removed(self.keys.forget(self.now, self.up + self.keys.window_ms, limit))

    def removed(self, rows: int) -> None:
        """Record that a statement removed so many rows, which extended the log."""
        self.log_pages += rows * _ROW_BYTES // _PAGE_BYTES + 1

    def backlogs(self) -> list[Backlog]:
        """Return the current state of every queue, with ``rose`` set where messages are visible."""
        self.tick()
        backlogs = []
        nothing = Touch()
        for name in list(self.queues):
            queue = self.current(name)
            if queue is not None:
                queue.tally.rose = queue.tally.visible > 0
                backlogs.append(self._backlog(name, nothing))
        return backlogs

    def _backlog(self, name: str, touch: Touch) -> Backlog:
        queue = self.queues.get(name)
        if queue is None:
            return Backlog(
                name, False, 0, 0, False, touch.put, touch.receives, touch.empty, None, sources=touch.sources
            )
        tally = queue.tally
        rose, tally.rose = tally.rose, False
        return Backlog(
            name,
            True,
            queue.visible,
            queue.invisible,
            # A rise while paused is reported at the resume.
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
        """Return how long the message visible longest has waited; None if none is visible."""
        if not queue.visible:
            return None
        self.flush()
        row = self.execute(_SELECT_OLDEST, (queue.id,)).fetchone()
        return None if row is None else max(0, self.now - int(row[0]))

    def _purge(self, queue: Queue) -> None:
        """Remove expired messages before counts are used (O1), up to the limit of one commit.

        Without the limit, many messages that expire together would delay the calls of all other queues.
        """
        self.flush()
        self.begin()
        bounds = (queue.id, self.now, self._may_expire)
        gone = self.execute(_COUNT_EXPIRED, bounds).fetchall()
        removed = self.execute(_DELETE_EXPIRED, bounds).rowcount
        for vis, exp, count, delayed in gone:
            queue.tally.remove(vis, exp, count)
            self.on_rollback(queue.tally.add, vis, exp, count)
            self.undelay(queue, vis, delayed)
        self.freed += removed
        self.removed(removed)
        self._may_expire -= removed
        self.touch(queue.name)
        self.on_rollback(setattr, queue, "behind", queue.behind)
        if not queue.tally.has_expired():
            # Messages held back meanwhile become visible now.
            queue.tally.rose = queue.tally.rose or (queue.behind and queue.tally.visible > 0)
            queue.behind = False
        elif self._may_expire:
            # Never observed; but a wrong count would make every call purge again.
            self.recount(queue)
            queue.behind = False
        else:
            queue.behind = True

    def _load(self) -> None:
        by_number: dict[int, Queue] = {}
        for number, name, made, paused in self.execute("SELECT id, name, made, paused FROM queues"):
            by_number[number] = self.queues[name] = Queue(number, name, Tally(self.now), made, bool(paused))
        orphans: set[int] = set()
        # Two passes over the index alone: most rows are visible and need no row each in Python.
        for number, count in self.execute("SELECT q, COUNT(*) FROM messages WHERE vis<=? GROUP BY q", (self.now,)):
            if number in by_number:
                by_number[number].tally.add(self.now, None, count)
            else:
                orphans.add(number)
        # Only the rows show which messages are leased, and these are few compared with the visible ones.
        for number, vis, count, delayed in self.execute(
            "SELECT q, vis, COUNT(*), SUM(~rcpt & 1) FROM messages WHERE vis>? GROUP BY q, vis", (self.now,)
        ):
            if number in by_number:
                by_number[number].tally.add(vis, None, count)
                if delayed:
                    # Not in the journal: a rollback does not change what the file already contained.
                    by_number[number].delay(vis, delayed)
            else:
                orphans.add(number)
        for number, exp, count in self.execute(
            "SELECT q, exp, COUNT(*) FROM messages WHERE exp IS NOT NULL GROUP BY q, exp"
        ):
            if number in by_number:
                by_number[number].tally.expire_at(exp, count)
        self.deleted_queue_ids.extend(sorted(orphans))


# Stale heap entries are dropped when their time comes; repeated extensions of long leases would accumulate them until
# then, so the heap is rebuilt when most of it is stale.
_SLACK = 64


class Calendar:
    """A multiset of times in milliseconds that knows its earliest."""

    __slots__ = ("_counts", "_heap", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []
        self.total = 0

    def add(self, at: int, count: int) -> None:
        """Add ``count`` at this time."""
        self.total += count
        known = self._counts.get(at)
        if known is not None:
            self._counts[at] = known + count
            return
        self._counts[at] = count
        heapq.heappush(self._heap, at)
        if len(self._heap) > 2 * len(self._counts) + _SLACK:
            self._heap = list(self._counts)
            heapq.heapify(self._heap)

    def remove(self, at: int, count: int) -> None:
        """Remove ``count`` at this time; they must have been added before."""
        left = self._counts[at] - count
        self.total -= count
        if left:
            self._counts[at] = left
        else:
            del self._counts[at]

    def earliest(self) -> int | None:
        """Return the earliest time, or None."""
        heap = self._heap
        while heap:
            if heap[0] in self._counts:
                return heap[0]
            heapq.heappop(heap)
        return None

    def take_until(self, now: int) -> int:
        """Remove everything up to and including ``now``; return the number."""
        taken = 0
        heap = self._heap
        while heap and heap[0] <= now:
            taken += self._counts.pop(heapq.heappop(heap), 0)
        self.total -= taken
        return taken

    def __contains__(self, at: int) -> bool:
        return at in self._counts

    def items(self) -> Iterator[tuple[int, int]]:
        """Yield (time, count) in no particular order."""
        return iter(self._counts.items())


EMPTY: Final = Calendar()
"""Shared by queues without times, which replace it before they add one."""


class Tally:
    """The counts of visible and invisible messages of one queue as of ``now``, the time it was last advanced to.

    Pure: times are whole milliseconds of the store's clock (O2). Each change takes O(log n) of the number of different
    times, whatever the number of messages.

    ``rose`` is set whenever ``visible`` goes from 0 to more, and is for the owner to clear.
    """

    __slots__ = ("due", "expiring", "now", "rose", "visible")

    def __init__(self, now: int) -> None:
        self.now = now
        self.visible = 0
        self.rose = False
        self.due = EMPTY
        self.expiring = EMPTY

    @property
    def invisible(self) -> int:
        """Messages that are leased or delayed."""
        return self.due.total

    @property
    def total(self) -> int:
        """All messages."""
        return self.visible + self.due.total

    def add(self, vis: int, exp: int | None, count: int = 1) -> None:
        """Add messages that are visible from ``vis`` and expire at ``exp``."""
        if vis <= self.now:
            self._raise(count)
        else:
            self._add_due(vis, count)
        if exp is not None:
            self.expire_at(exp, count)

    def remove(self, vis: int, exp: int | None, count: int = 1) -> None:
        """Remove messages that were added with this ``vis`` and ``exp``."""
        if vis <= self.now:
            self.visible -= count
        else:
            self.due.remove(vis, count)
        if exp is not None:
            self.expiring.remove(exp, count)

    def move(self, old: int, new: int, count: int = 1) -> None:
        """Change when messages become visible; their expiry stays."""
        if old <= self.now and new <= self.now:
            return
        if old <= self.now:
            self.visible -= count
        else:
            self.due.remove(old, count)
        if new <= self.now:
            self._raise(count)
        else:
            self._add_due(new, count)

    def expire_at(self, exp: int, count: int) -> None:
        """Record that ``count`` of the added messages expire at ``exp``."""
        if self.expiring is EMPTY:
            self.expiring = Calendar()
        self.expiring.add(exp, count)

    def advance(self, now: int) -> None:
        """Advance to ``now``: messages whose time has come are visible. An earlier time is ignored."""
        if now <= self.now:
            return
        self.now = now
        came_due = self.due.take_until(now)
        if came_due:
            self._raise(came_due)

    def has_expired(self) -> bool:
        """Return whether messages have expired, which must be removed before counts are used."""
        earliest = self.expiring.earliest()
        return earliest is not None and earliest <= self.now

    def next_visible(self) -> int | None:
        """Return when the next invisible message becomes visible, or None."""
        return self.due.earliest()

    def next_expiry(self) -> int | None:
        """Return when a message expires next, or None."""
        return self.expiring.earliest()

    def next_change(self) -> int | None:
        """Return when a message becomes visible or expires next, or None."""
        due = self.due.earliest()
        expiry = self.expiring.earliest()
        if due is None:
            return expiry
        return due if expiry is None else min(due, expiry)

    def _add_due(self, at: int, count: int) -> None:
        if self.due is EMPTY:
            self.due = Calendar()
        self.due.add(at, count)

    def _raise(self, count: int) -> None:
        if not self.visible:
            self.rose = True
        self.visible += count


_FIND = "SELECT seq, until, digest FROM once WHERE q=? AND key=?"
_INSERT = "INSERT INTO once VALUES (?,?,?,?,?)"
_DUE = "SELECT seq FROM once WHERE until<=? ORDER BY until LIMIT ?"
_STANDS = "EXISTS (SELECT 1 FROM messages WHERE messages.seq=once.seq)"
# Single statements, valid with and without a transaction.
_KEEP = f"UPDATE once SET until=? WHERE seq IN ({_DUE}) AND {_STANDS}"  # noqa: S608
_FORGET = f"DELETE FROM once WHERE seq IN ({_DUE}) AND NOT {_STANDS}"  # noqa: S608


class Keys:
    """The keys of `put_once`, in the table `once`: ``count`` is their number, ``due`` when the first one may expire.

    A key stays while its message exists, and at least for the window. It belongs to a queue number, which changes when
    the queue is cleared or recreated: its old keys are then no longer found, and removed when they expire.

    A key is remembered for ``window_ms`` at least.
    """

    __slots__ = ("_execute", "count", "due", "queues", "window_ms")

    def __init__(self, connection: sqlite3.Connection, window_ms: int) -> None:
        self.window_ms = window_ms
        self._execute = connection.execute
        self.count, self.due = self._execute("SELECT COUNT(*), MIN(until) FROM once").fetchone()
        self.queues: set[int] = {number for (number,) in self._execute("SELECT DISTINCT q FROM once")}
        """The queue numbers with keys; receives of other queues look for none."""

    def find(self, number: int, key: str, now: int) -> bytes | None:
        """Return the digest of the body put under a key, or None if the key is unknown or expired."""
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
        """Insert a key, replacing an expired one of the same name."""
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

    def seq_of(self, number: int, key: str) -> int | None:
        """Return the message that was put under a key of a queue, None without one; it may be gone."""
        row = self._execute(_FIND, (number, key)).fetchone() if number in self.queues else None
        return None if row is None else int(row[0])

    def of(self, seqs: Sequence[int]) -> dict[int, str]:
        """Return the keys of messages that have one."""
        marks = ",".join("?" * len(seqs))
        return dict(self._execute(f"SELECT seq, key FROM once WHERE seq IN ({marks})", seqs).fetchall())  # noqa: S608

    def forget(self, now: int, again: int, limit: int) -> int:
        """Check up to ``limit`` expired keys; return how many were removed.

        Keys whose message still exists are checked again at ``again``.
        """
        self._execute(_KEEP, (again, now, limit))
        gone = self._execute(_FORGET, (now, limit)).rowcount
        self.count -= gone
        (self.due,) = self._execute("SELECT MIN(until) FROM once").fetchone()
        return gone


class StoreClock:
    """The one clock of a store (O2), in milliseconds since the epoch; it never goes back.

    It starts at ``start_ms``, the wall clock or the newest time in the file if later, and adds the elapsed time of
    ``clock`` (monotonic seconds).
    """

    __slots__ = ("_clock", "_newest", "_origin", "_start_us")

    def __init__(self, clock: Callable[[], float], start_ms: int) -> None:
        self._clock = clock
        self._origin = clock()
        self._start_us = start_ms * 1000
        self._newest = self._start_us

    def read(self) -> int:
        """Return now in whole milliseconds, rounded down, so that nothing is due too early."""
        # In microseconds, because 0.005 s x 1000 may be slightly less than 5 and would round down to 4.
        us = self._start_us + round((self._clock() - self._origin) * 1e6)
        self._newest = max(self._newest, us)
        return self._newest // 1000

    def read_up(self) -> int:
        """Return the newest time read, rounded up, so that times counted from it are never too early (B2)."""
        return -(-self._newest // 1000)
