"""What the engine knows without asking the table, and the transaction that keeps both in step.

Counts live in memory (O(1) at a million messages); every change of them is noted in a journal, so that a transaction
that fails takes its counts back with it.
"""

from __future__ import annotations

import heapq
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from bridge.contract.errors import BadInput
from bridge.queues.base import StoredMessage
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


class Level(msgspec.Struct, frozen=True):
    """How one queue stands after one commit, in the writer's order (O1).

    ``rose``: ``visible`` went from 0 to more at some point within this commit, even if it is 0 again now; delays and
    leases that came due since the last look count. ``put``, ``receives`` and ``empty`` count messages put, receives
    answered, and those of them that found nothing (a peek is no receive). ``next_visible_in_ms``: when the next
    invisible message becomes visible or a message expires, whichever changes the level first. ``paused``: nothing is
    given out, and all messages count as invisible. ``sources``: (found, empty) by wake source, of the receives that
    said one. ``leased`` and ``delayed``: what a pause or none has them be. ``oldest_ms``: for how long the message that
    has been visible longest has waited, None where none is.
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
    """Leave to hand up to ``limit`` messages to one session within the put's own commit, leased for ``lease_s`` (O7).

    ``session`` means nothing to the store.
    """

    session: str
    limit: int
    lease_s: float


class Handed(msgspec.Struct, frozen=True):
    """The outcome of a grant.

    ``messages`` are leased and their dequeue count is raised; there may be none, as when the put failed. ``visible``
    counts the visible messages at that point of the writer's order, ``messages`` among them.
    """

    queue: str
    session: str
    messages: list[StoredMessage]
    visible: int


class StoreObserver(Protocol):
    """Who is told of commits: the bridge. Every call comes on the event loop's thread."""

    def grant(self, queue: str, count: int) -> Grant | None:
        """Say whether a session may be handed messages; asked when a put of ``count`` visible messages is submitted.

        Every grant given is answered by one `Handed`.
        """
        ...

    def committed(self, levels: list[Level], handed: list[Handed]) -> None:
        """Hear of one commit, before the callers of its calls do (mark before acknowledgement, B1)."""
        ...


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


# Stale heap entries are dropped when their time comes; leases that are extended over and over with a long timeout
# would pile them up until then, so the heap is rebuilt when most of it is stale.
_SLACK = 64


class Calendar:
    """A multiset of times in milliseconds that knows its earliest."""

    __slots__ = ("_counts", "_heap", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._heap: list[int] = []
        self.total = 0

    def add(self, at: int, count: int) -> None:
        """Note ``count`` more at this time."""
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
        """Forget ``count`` at this time; they must have been added before."""
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
        """Forget everything up to and including ``now`` and return how many that were."""
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
"""Without times: most queues have none and share it, and replace it before they add one."""


class Tally:
    """The counts of one queue as of ``now``, the time it was last advanced to.

    ``rose`` is set whenever ``visible`` goes from 0 to more, and is for the owner to clear.
    """

    __slots__ = ("_due", "_expiring", "now", "rose", "visible")

    def __init__(self, now: int) -> None:
        self.now = now
        self.visible = 0
        self.rose = False
        self._due = EMPTY
        self._expiring = EMPTY

    @property
    def invisible(self) -> int:
        """Messages that are leased or delayed."""
        return self._due.total

    @property
    def total(self) -> int:
        """All messages."""
        return self.visible + self._due.total

    def add(self, vis: int, exp: int | None, count: int = 1) -> None:
        """Count messages in that are visible from ``vis`` and expire at ``exp``."""
        if vis <= self.now:
            self._raise(count)
        else:
            self._add_due(vis, count)
        if exp is not None:
            self.expire_at(exp, count)

    def remove(self, vis: int, exp: int | None, count: int = 1) -> None:
        """Count messages out that were counted in with this ``vis`` (or have come due since) and ``exp``."""
        if vis <= self.now:
            self.visible -= count
        else:
            self._due.remove(vis, count)
        if exp is not None:
            self._expiring.remove(exp, count)

    def move(self, old: int, new: int, count: int = 1) -> None:
        """Change from when messages are visible; their expiry stays."""
        if old <= self.now and new <= self.now:
            return
        if old <= self.now:
            self.visible -= count
        else:
            self._due.remove(old, count)
        if new <= self.now:
            self._raise(count)
        else:
            self._add_due(new, count)

    def expire_at(self, exp: int, count: int) -> None:
        """Note that ``count`` of the messages counted in expire at ``exp``."""
        if self._expiring is EMPTY:
            self._expiring = Calendar()
        self._expiring.add(exp, count)

    def advance(self, now: int) -> None:
        """Let time pass: what came due is visible. Time that goes back is ignored."""
        if now <= self.now:
            return
        self.now = now
        came_due = self._due.take_until(now)
        if came_due:
            self._raise(came_due)

    def has_expired(self) -> bool:
        """Say whether messages counted here have expired: they are to be removed before any count is believed."""
        earliest = self._expiring.earliest()
        return earliest is not None and earliest <= self.now

    def next_visible(self) -> int | None:
        """Return when the next invisible message becomes visible, or None."""
        return self._due.earliest()

    def next_expiry(self) -> int | None:
        """Return when a message expires next, or None."""
        return self._expiring.earliest()

    def next_change(self) -> int | None:
        """Return when time alone changes the counts next, by a message becoming visible or expiring, or None."""
        due = self._due.earliest()
        expiry = self._expiring.earliest()
        if due is None:
            return expiry
        return due if expiry is None else min(due, expiry)

    def _add_due(self, at: int, count: int) -> None:
        if self._due is EMPTY:
            self._due = Calendar()
        self._due.add(at, count)

    def _raise(self, count: int) -> None:
        if not self.visible:
            self.rose = True
        self.visible += count


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


class StoreClock:
    """Milliseconds since the epoch: the wall clock at start, or the newest time in the file, plus elapsed time.

    ``clock`` gives monotonic seconds; ``start_ms`` is where this run begins. A wall clock that is set later moves
    nothing.
    """

    __slots__ = ("_clock", "_newest", "_origin", "_start_us")

    def __init__(self, clock: Callable[[], float], start_ms: int) -> None:
        self._clock = clock
        self._origin = clock()
        self._start_us = start_ms * 1000
        self._newest = self._start_us

    def read(self) -> int:
        """Return now in whole milliseconds, rounded down: what is due at this time is due indeed."""
        # By microseconds, since 0.005 s x 1000 may be a little less than 5 and would round down to 4.
        us = self._start_us + round((self._clock() - self._origin) * 1e6)
        self._newest = max(self._newest, us)
        return self._newest // 1000

    def read_up(self) -> int:
        """Return the newest time read, rounded up: what is counted from here is never a tick early (B2)."""
        return -(-self._newest // 1000)
