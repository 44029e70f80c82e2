"""Queues in a PostgreSQL database: one table of messages, leases by the server's clock, receives by SKIP LOCKED."""

from __future__ import annotations

import asyncio
import datetime
import json
import math
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from queuebell.bridge.brokers.postgres.access import PostgresAccess, client
from queuebell.bridge.contract.errors import QueuebellError, QueueNotFound, StoreError, StoreUnavailable, UnknownOutcome
from queuebell.bridge.contract.headers import headers_in
from queuebell.bridge.contract.names import parse_reference
from queuebell.bridge.queues import limits
from queuebell.bridge.queues.base import (
    PUT_WINDOW_S,
    VISIBLE_QUEUES_MAX,
    AsyncConnection,
    Capabilities,
    Claim,
    Counts,
    Depth,
    Extend,
    NewMessage,
    PutReceipt,
    Received,
    Release,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
    VisibleQueues,
    digest_of,
)
from queuebell.bridge.queues.checked import CheckedOnceStore, receipt
from queuebell.bridge.queues.checked import digest as digest_of_body
from queuebell.bridge.queues.limits import lease_ms
from queuebell.bridge.queues.postgres import sql
from queuebell.bridge.queues.postgres.connections import PostgresConnections
from queuebell.bridge.queues.postgres.schema import PUT_FUNCTION
from queuebell.bridge.queues.postgres.transaction import (
    Joined,
    Within,
    other_database,
    put_once_steps,
    put_steps,
    within,
)
from queuebell.bridge.queues.side_by_side import outcomes

REQUEST_TIMEOUT_S: Final = 10.0
LONG_S: Final = 60.0
"""Time-out of calls on a whole queue: counting, clearing, deleting."""
KEY_LOOKS: Final = 5
"""Attempts of a put whose key expires between its rejection and the read of its digest."""
POOL: Final = 8
POOL_MAX: Final = 100


class PostgresStore(CheckedOnceStore):
    """The queues in the database at ``postgres://``; connects at the first call.

    Option ``pool_size`` of the address (1 to 100, default 8): the maximum of connections of all stores of this address
    in this process and event loop. Calls time out after ``timeout`` seconds (R, 10), those on a whole queue after 60.
    The key of a put is remembered for ``put_window_s`` at least. ``queuebell queue init`` creates the tables.
    """

    kind = "postgres"
    capabilities = Capabilities(
        batch_max=sql.BATCH_MAX,
        uncounted_release=True,
        joins_transaction=True,
        put_once=True,
        oldest_age=True,
        counts_leased=True,
        headers=True,
    )

    def __init__(self, url: str, *, timeout: float = REQUEST_TIMEOUT_S, put_window_s: float = PUT_WINDOW_S) -> None:
        access = PostgresAccess(url, options=("pool_size",))
        self._place, self._text = access.place, access.text
        self._timeout = timeout
        self._put_window_ms = round(put_window_s * 1000)
        size = access.number("pool_size", POOL, most=POOL_MAX)
        self._connections = PostgresConnections(access, size, ("postgres", url))
        self._marks = PostgresMarks()
        self._home: Within | None = None

    def check_client(self) -> None:
        """Raise `ConfigurationError` if the client library is not installed; needs no network."""
        client()

    def __str__(self) -> str:
        return self._text

    @property
    def puts_by(self) -> Callable[[int], bool]:
        """A predicate of server processes: whether one executes calls of this store.

        From now on the store does not share its connections with other stores of this process.
        """
        self._connections.stop_sharing()
        return self._connections.carried_by

    def fingerprint(self, queue: str) -> str:
        """Return 32 hex digits that identify this queue in this database and schema (B11)."""
        return digest_of(self._place, queue)

    @property
    def scope(self) -> str:
        """See `RoundStore.scope`."""
        return digest_of("round", self._place)

    async def identity(self) -> str | None:
        """Return a digest of the database system identifier of `initdb`; a physical copy has the same."""
        try:
            rows = await self._fetch("SELECT system_identifier FROM pg_control_system()")
        except StoreUnavailable:
            raise
        except StoreError:  # No permission, or no such function in this kind of PostgreSQL.
            return None
        return digest_of("postgres", str(rows[0][0]))

    async def triggers_puts(self) -> bool:
        """Return whether the tables NOTIFY of each put, which triggers listening bridges."""
        return bool(await self._fetch(PUT_FUNCTION))

    async def put_named(
        self, queue: str, messages: Sequence[NewMessage], create: bool
    ) -> tuple[list[PutReceipt], str | None]:
        """Put checked messages; return the name of their commit too if the tables notify."""
        self._check_open()
        rows = await self._fetch(
            sql.PUT if create else sql.PUT_EXISTING,
            queue,
            [message.body for message in messages],
            [message.visible_after_ms for message in messages],
            [message.ttl_s for message in messages],
            all_headers(messages),
        )
        if not rows:
            raise QueueNotFound(f"there is no queue {queue}")
        return [
            PutReceipt(f"{row['id']:016x}", row["receipt"].hex, message.visible_after_ms)
            for row, message in zip(rows, messages, strict=True)
        ], rows[0]["said"]

    async def _put(self, queue: str, messages: Sequence[NewMessage], create: bool) -> list[PutReceipt]:
        return (await self.put_named(queue, messages, create))[0]

    async def _put_on(
        self, connection: AsyncConnection, queue: str, messages: Sequence[NewMessage], create: bool
    ) -> list[PutReceipt]:
        joined, here = await self._joined(connection, queue)
        return await joined.carry_out(put_steps(here, queue, messages, create))

    async def _put_once(
        self,
        queue: str,
        key: str,
        message: NewMessage,
        digest: str,
        create: bool,
        connection: AsyncConnection | None,
    ) -> PutReceipt | bool:
        if connection is not None:
            joined, here = await self._joined(connection, queue)
            return await joined.carry_out(
                put_once_steps(here, queue, key, message, digest, create, self._put_window_ms)
            )
        return (await self._put_under(queue, key, message, digest, create))[0]

    async def put_once_named(
        self, queue: str, key: str, message: NewMessage, create: bool
    ) -> tuple[PutReceipt | None, str | None]:
        """Put under a key; no name if it was put before."""
        self._check_open()
        put, said = await self._put_under(queue, key, message, digest_of_body(message), create)
        return receipt(put), said

    async def put_each_once(self, queue: str, messages: Sequence[tuple[str, NewMessage]]) -> int:
        """Put up to 256 messages, each under its key as `put_once` does; return how many are new.

        All or none are put, except those whose key has another body, for which it then raises `BadInput`.
        """
        given: dict[str, NewMessage] = {}
        for key, message in messages:
            if given.setdefault(key, message).body != message.body:
                receipt(False)
        self._check_put(queue, [*given.values()], None)
        for key in given:
            limits.check_key(key)
        digests = {key: digest_of_body(message) for key, message in given.items()}
        rows = await self._fetch(
            sql.PUT_EACH_ONCE,
            queue,
            [*given],
            [message.body for message in given.values()],
            [message.visible_after_ms for message in given.values()],
            [message.ttl_s for message in given.values()],
            [*digests.values()],
            self._put_window_ms,
            all_headers([*given.values()]),
        )
        there = {key: digest for key, digest in digests.items() if key not in {row["key"] for row in rows}}
        if there and await self._fetch(sql.OTHERS, queue, [*there], [*there.values()]):
            receipt(False)
        return len(rows)

    async def _put_under(
        self, queue: str, key: str, message: NewMessage, digest: str, create: bool
    ) -> tuple[PutReceipt | bool, str | None]:
        """Put; if the key is known, a second statement compares the digest."""
        said = (key, digest, self._put_window_ms, _headers(message))
        given = (message.body, message.visible_after_ms, message.ttl_s, *said)
        statement = sql.put_once(create=create)
        for _ in range(KEY_LOOKS):
            (row,) = await self._fetch(statement, queue, *given)
            if row["id"] is not None:
                return PutReceipt(f"{row['id']:016x}", row["receipt"].hex, message.visible_after_ms), row["said"]
            if not row["there"]:
                raise QueueNotFound(f"there is no queue {queue}")
            known = await self._fetch(sql.known(), queue, key, digest)
            if known:
                return bool(known[0]["same"]), None
        raise StoreUnavailable(f"{queue}: nothing was put: its key expired repeatedly meanwhile; try again")

    async def _joined(self, connection: AsyncConnection, queue: str) -> tuple[Joined, Within]:
        """Return the caller's connection, checked to lead to this store's tables, and where it leads."""
        self._check_open()
        joined = Joined(connection, queue)
        home = self._home or await self._find_home(queue)
        here = await joined.within(home.schema)
        if here.tables != home.tables:
            # The server may have restarted, or another one may have become primary.
            home = await self._find_home(queue)
            if here.tables != home.tables:
                raise other_database(queue, f"this connection does not lead to {self}: open the store of its database")
        return joined, here

    async def _find_home(self, queue: str) -> Within:
        try:
            self._home = within(await self._fetch(sql.WITHIN, ""), queue)
        except UnknownOutcome as error:  # Of a query: nothing was put.
            raise StoreUnavailable(f"{queue}: nothing was put: {error}") from error
        return self._home

    async def _receive(self, queue: str, limit: int, lease_ms: int) -> Received:
        """Receive up to ``limit`` messages; the depth is counted up to 32 such batches, or 8.

        After a mark a full batch is one short statement. A shorter batch proves nothing; the full statement completes
        it.
        """
        now = asyncio.get_running_loop().time()
        mark = self._marks.mark(queue, now)
        if mark is None:
            return await self._receive_fully(queue, limit, lease_ms, now)
        if (again_s := self._marks.far(queue, now)) is not None:
            return await self._receive_fully(queue, limit, lease_ms, now, since=mark, again_s=again_s)
        rows = await self._fetch(sql.RECEIVE_ON, queue, limit, lease_ms, mark)
        if len(rows) == limit:
            hidden = rows[0]["visible"] - limit
            # Nothing follows, and messages before the mark are unknown: the next receive starts at the beginning.
            self._marks.record(queue, now, rows[0]["due"] if hidden else None)
            return Received([_leased(row) for row in rows], Depth(max(1, hidden), limit), depth_is_least=True)
        return await self._receive_fully(queue, limit, lease_ms, now, rows)

    async def _receive_fully(
        self,
        queue: str,
        limit: int,
        lease: int,
        now: float,
        taken: Sequence[Any] = (),
        *,
        since: datetime.datetime | None = None,
        again_s: float | None = None,
    ) -> Received:
        """Complete a batch from the beginning of the queue; ``taken`` are leased already.

        Or receive from ``since`` on, and report that there may be more in ``again_s`` seconds, from the beginning.
        """
        limit -= len(taken)
        again_ms = None if again_s is None else math.ceil(again_s * 1000)
        try:
            rows = await self._fetch(sql.RECEIVE, queue, limit, lease, since, again_ms)
        except QueuebellError:
            if not taken:
                raise
            # These are leased, so the caller must get them. The depth is a guess; the next receive finds out.
            return Received([_leased(row) for row in taken], Depth(1, len(taken)), depth_is_least=True)
        first = rows[0]
        found, visible, invisible = first["taken"], first["visible"], first["invisible"]
        if not first["named"] and not visible + invisible and since is None:
            raise QueueNotFound(f"there is no queue {queue}")
        rows = sorted([*taken, *(row for row in rows if row["id"] is not None)], key=_due) if taken else rows
        full = found == limit
        # Unless the queue is paused, visible messages that were not leased within the limit are locked.
        hidden = visible - found
        walked = first["walked"] if since is None else None
        if full:
            mark = since if first["passed"] else rows[0]["due"]
        else:
            mark = first["settled"] if walked is None or is_far(walked, limit) else None
        self._marks.record(queue, now, mark, walked=walked, limit=limit)
        messages = [_leased(row) for row in rows if row["id"] is not None]
        leased, delayed = (None, None) if first["leased"] is None else (first["leased"] + found, first["delayed"])
        if first["paused"]:
            counts = Counts(0, visible + invisible, leased=leased, delayed=delayed)
            return Received(messages, Depth(0, visible + invisible), counts=counts)
        next_ms = delayed_ms = None
        if not full:
            delayed_ms = first["delayed_ms"]
            waits = [ms for ms in (first["next_ms"], lease if found else None) if ms is not None]
            next_ms = max(1, min(waits)) if waits else None
            if again_ms is not None:
                delayed_ms = min(again_ms, delayed_ms or again_ms)
                next_ms = min(again_ms, next_ms or again_ms)
        elif since is not None:
            # Earlier messages are unknown, and a depth of 0 would deny them.
            hidden = max(1, hidden)
        return Received(
            messages,
            Depth(hidden, invisible + found),
            next_ms,
            blocked=not full and hidden > 0,
            depth_is_least=full or since is not None,
            next_delayed_in_ms=None if delayed_ms is None else max(1, delayed_ms),
            place=first["place"],
            counts=None
            if full or since is not None
            else Counts(
                hidden, invisible + found, False, leased, delayed, max(0, first["oldest_ms"]) if hidden > 0 else None
            ),
        )

    async def _settle(self, queue: str, settlement: Settlement) -> Settling:
        """Settle all items; deletes alone are one short statement, followed by a full one after a rejection."""
        claims = PostgresClaims(settlement)
        deletes = claims.deletes()
        gone: list[Any] = []
        if deletes is not None:
            gone = await self._fetch(sql.DELETE_HELD, queue, *deletes)
            if len(gone) == len(settlement.delete):
                return claims.all_deleted()
            claims.deleted(row["id"] for row in gone)
        try:
            rows = await self._fetch(sql.SETTLE, queue, *claims.arguments())
        except QueuebellError as error:
            if not gone:
                raise
            return claims.deleted_before(error)
        return claims.outcome(queue, rows)

    async def _peek(self, queue: str, limit: int) -> list[StoredMessage]:
        rows = await self._fetch(sql.PEEK, queue, limit)
        self._check_exists(queue, rows)
        return [_message(row, "") for row in rows if row["id"] is not None]

    async def depth(self, queue: str) -> Depth | None:
        """Count all messages; reads the queue's whole index, some 0.1 s for a million messages."""
        parse_reference(queue)
        (row,) = await self._fetch(sql.DEPTH, queue, within_s=LONG_S)
        if not row["named"] and not row["total"]:
            return None
        visible = 0 if row["paused"] else row["visible"]
        return Depth(visible, row["total"] - visible)

    async def counts(self, queue: str) -> Counts | None:
        """Count up to 100,000 visible messages and 10,000 others, in some 10 ms."""
        parse_reference(queue)
        (row,) = await self._fetch(sql.COUNTS, queue)
        visible, invisible, oldest_ms = row["visible"], row["invisible"], row["oldest_ms"]
        if not row["named"] and not visible + invisible:
            return None
        delayed = None if invisible == sql.APART_MAX else row["delayed"]
        leased = None if delayed is None else invisible - delayed
        if row["paused"]:
            visible, invisible, oldest_ms = 0, visible + invisible, None
        at_least = row["visible"] == sql.COUNTS_MAX or row["invisible"] == sql.APART_MAX
        return Counts(visible, invisible, at_least, leased, delayed, None if oldest_ms is None else max(0, oldest_ms))

    async def exists(self, queue: str) -> bool:
        """Return whether the queue has a row or a message, by two index lookups."""
        parse_reference(queue)
        (row,) = await self._fetch(sql.EXISTS, queue)
        return bool(row["there"])

    async def visible_queues(self) -> VisibleQueues | None:
        """Return the queues with visible messages; one statement, some 150 ms for 10,000 queues that have some."""
        self._check_open()
        rows = await self._connections.fetch(sql.VISIBLE_QUEUES, (VISIBLE_QUEUES_MAX + 1,), self._timeout)
        if len(rows) > VISIBLE_QUEUES_MAX or rows[0]["hidden"]:
            return None
        return VisibleQueues([row["name"] for row in rows if row["name"] is not None], rows[0]["place"])

    async def place(self) -> str | None:
        """Return which tables of which run of the server a receive reads now."""
        self._check_open()
        (row,) = await self._connections.fetch(sql.PLACE, (), self._timeout)
        return str(row["place"])

    async def oldest_ms(self, queue: str) -> int | None:
        """Return the age of the first live entry of the queue's index."""
        parse_reference(queue)
        rows = await self._fetch(sql.OLDEST, queue)
        return max(0, rows[0]["ms"]) if rows else None

    async def clear(self, queue: str) -> None:
        """Remove every message; takes seconds for a million messages."""
        parse_reference(queue)
        self._check_exists(queue, await self._fetch(sql.CLEAR, queue, within_s=LONG_S))

    async def _pause(self, queue: str, paused: bool) -> None:
        if not await self._fetch(sql.PAUSE, queue, paused):
            raise QueueNotFound(f"there is no queue {queue}")

    async def paused(self, queue: str) -> bool:
        """Return whether the queue is paused."""
        parse_reference(queue)
        (row,) = await self._fetch(sql.PAUSED, queue)
        return bool(row["paused"])

    async def _create(self, queue: str, metadata: dict[str, str] | None) -> bool:
        parse_reference(queue)
        text = None if metadata is None else json.dumps(metadata)
        (row,) = await self._fetch(sql.CREATE, queue, text)
        return bool(row["new"])

    async def create_alike(self, queue: str, metadata: dict[str, str]) -> bool | None:
        """Create a queue and return True; False if it exists with the same metadata, None if with other metadata."""
        parse_reference(queue)
        text = json.dumps(metadata)
        same = None
        while same is None:  # Null if it was created or deleted concurrently.
            (row,) = await self._fetch(sql.CREATE_ALIKE, queue, text)
            if row["new"]:
                return True
            same = row["same"]
        return False if same else None

    async def metadata(self, queue: str) -> dict[str, str]:
        """Return the metadata of a queue; raises `QueueNotFound`."""
        parse_reference(queue)
        rows = await self._fetch(sql.METADATA, queue)
        self._check_exists(queue, rows)
        return _metadata(rows[0])

    async def listing(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, dict[str, str]]]:
        """Return references in ascending order, with their metadata."""
        limits.check_list(prefix, after, limit)
        rows = await self._fetch(sql.LISTING, after, prefix, prefix + "\x7f", limit)
        return [(row["name"], _metadata(row)) for row in rows]

    async def delete(self, queue: str) -> None:
        """Delete a queue and its messages; takes seconds for a million messages."""
        parse_reference(queue)
        await self._fetch(sql.DELETE, queue, within_s=LONG_S)

    async def _queues(self, prefix: str, after: str, limit: int) -> list[str]:
        # Names are ASCII; this is greater than every name with the prefix.
        rows = await self._fetch(sql.NAMES, after, prefix, prefix + "\x7f", limit)
        return [row["name"] for row in rows]

    async def close(self) -> None:
        """Close the connections; may be called twice."""
        self._closed = True
        await self._connections.close()

    async def _fetch(self, statement: str, *args: object, within_s: float | None = None) -> list[Any]:
        self._check_open()
        return await self._connections.fetch(statement, args, within_s or self._timeout)

    @staticmethod
    def _check_exists(queue: str, rows: Sequence[Any]) -> None:
        if not rows[0]["there"]:
            raise QueueNotFound(f"there is no queue {queue}")


def _metadata(row: Any) -> dict[str, str]:
    found: dict[str, str] = json.loads(row["metadata"] or "{}")
    return found


def _due(row: Any) -> tuple[datetime.datetime, int]:
    return row["due"], row["id"]


def _leased(row: Any) -> StoredMessage:
    return _message(row, row["receipt"].hex)


def _message(row: Any, receipt: str) -> StoredMessage:
    inserted: datetime.datetime = row["inserted_at"]
    headers = row["headers"]
    return StoredMessage(
        f"{row['id']:016x}",
        receipt,
        row["body"],
        row["attempts"],
        inserted,
        row["expires_at"],
        row["key"],
        # Other programs that write the table may have stored invalid headers.
        {} if headers is None else headers_in(headers),
    )


def _headers(message: NewMessage) -> str | None:
    return json.dumps(message.headers) if message.headers else None


def all_headers(messages: Sequence[NewMessage]) -> list[str | None] | None:
    """Return the headers of each as the statements take them: nothing at all where no message has any."""
    return [_headers(message) for message in messages] if any(message.headers for message in messages) else None


MARK_S: Final = 1.0
"""Interval of receives from the beginning: while batches are full, a message that appears before the mark waits no
longer than this, and after a short batch not at all."""
WALKED_S: Final = 1e-5
"""The interval for each index entry walked over, ten times what one takes: without vacuums, a tenth of the time is
spent on receives from the beginning."""
INTERVAL_S_MAX: Final = 60.0
"""The longest interval, the same as the delay after a lost trigger."""
AGAIN_S: Final = 5.0
"""How far ahead a receive from a mark reads; another follows then, until one is from the beginning."""
FEW: Final = 10_000
"""If fewer entries are walked over, each short batch is followed by a receive from the beginning."""
COUNTED: Final = 100
"""Plus the entries of so many batches, which may belong to live messages."""
QUEUES_MAX: Final = 10_000


class _Mark(NamedTuple):
    since: datetime.datetime
    until: float
    every_s: float
    far: bool


class PostgresMarks:
    """One mark a queue, where receives start: when the earliest message of the newest full batch became visible.

    Until the next vacuum, an index keeps the dead entries of deleted and leased messages, all before the live ones. A
    message may still appear before a mark, by a late commit or a lock that another receive released, and counts after
    the mark miss it. So a full batch after a mark reports at least one visible message, and removes the mark if it
    counted none.

    Open transactions prevent vacuums, and the dead entries accumulate. If there are many, a short batch leaves a mark
    too: one second before its receive, for transactions being committed. Times are seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self._marks: dict[str, _Mark] = {}

    def mark(self, queue: str, now: float) -> datetime.datetime | None:
        """Return where to start; None is the beginning."""
        kept = self._marks.get(queue)
        if kept is None:
            return None
        if now < kept.until:
            return kept.since
        # One receive starts at the beginning, also for the others in progress.
        self._marks[queue] = kept._replace(until=now + kept.every_s)
        return None

    def far(self, queue: str, now: float) -> float | None:
        """Return after how many seconds to receive again, if there are too many dead entries at the beginning."""
        kept = self._marks.get(queue)
        return min(AGAIN_S, max(0.0, kept.until - now)) if kept is not None and kept.far else None

    def record(
        self, queue: str, begun: float, since: datetime.datetime | None, *, walked: int | None = None, limit: int = 0
    ) -> None:
        """Record a receive started at ``begun``, and where the next one starts; None is the beginning.

        A receive from the beginning reports how many index entries it ``walked`` over, and its batch size.
        """
        if since is None:
            self._marks.pop(queue, None)
            return
        kept = self._marks.get(queue)
        if kept is None and len(self._marks) >= QUEUES_MAX:
            self._marks.clear()
        if kept is not None and walked is None:
            # Only a receive from the beginning restarts the interval.
            self._marks[queue] = kept._replace(since=since)
        else:
            walked = walked or 0
            every_s = min(INTERVAL_S_MAX, max(MARK_S, walked * WALKED_S))
            self._marks[queue] = _Mark(since, begun + every_s, every_s, is_far(walked, limit))


def is_far(walked: int, limit: int) -> bool:
    """Return whether so many entries are more than with regular vacuums."""
    return walked > FEW + COUNTED * limit


_hex16 = re.compile("[0-9a-f]{16}").fullmatch
_hex32 = re.compile("[0-9a-f]{32}").fullmatch
_ID_MAX = 2**63 - 1
_NO_RECEIPT = "0" * 32
"""Not a valid receipt: random UUIDs contain their version."""

_OK = Settled(True)
_MISMATCH = Settled(False, code="pop_receipt_mismatch")
_NOT_FOUND = Settled(False, code="message_not_found")

Held = tuple[int, str]


class PostgresClaims:
    """The items of a settlement as arguments of its statement, which must not contain a claim twice."""

    def __init__(self, settlement: Settlement) -> None:
        self._settlement = settlement
        self._deletes = dict.fromkeys(_known(settlement.delete))
        self._gone: set[Held] = set()
        self._moves: dict[Held, tuple[int, bytes | None, int]] = {}
        for release in settlement.release:
            self._move(release, release.after_ms, None, sql.FREED | release.uncounted)
        for extend in settlement.extend:
            self._move(extend, lease_ms(extend.visibility_s), extend.body)

    def deletes(self) -> tuple[str, str] | None:
        """Return ids and receipts, joined by commas, if all items are deletes of different messages."""
        asked = self._settlement
        if asked.release or asked.extend or not self._deletes:
            return None
        ids = dict(list(self._deletes))
        if len(ids) < len(self._deletes):
            return None
        return ",".join(map(str, ids)), ",".join(ids.values())

    def deleted(self, ids: Iterable[int]) -> None:
        """Record which messages of `deletes` were deleted."""
        gone = set(ids)
        self._gone = {held for held in self._deletes if held[0] in gone}

    def all_deleted(self) -> Settling:
        """Return the outcome if all items were deletes and succeeded."""
        return Settling([_OK] * len(self._settlement.delete), [], [])

    def deleted_before(self, error: QueuebellError) -> Settling:
        """Return the outcome if all items were deletes and the second statement failed."""
        return Settling(outcomes([_OK if _held(i) in self._gone else error for i in self._settlement.delete]), [], [])

    def arguments(self) -> tuple[object, ...]:
        """Return the arguments of the statement after the queue."""
        # Sorted, so that concurrent settlements of the same messages cannot deadlock.
        deletes, moves = sorted(self._deletes), sorted(self._moves)
        return (
            [id_ for id_, _ in deletes],
            [receipt for _, receipt in deletes],
            [id_ for id_, _ in moves],
            [receipt for _, receipt in moves],
            [self._moves[held][0] for held in moves],
            [self._moves[held][1] for held in moves],
            sorted({id_ for id_, _ in (*deletes, *moves)}),
            [self._moves[held][2] for held in moves],
        )

    def outcome(self, queue: str, rows: Sequence[Any]) -> Settling:
        """Return the outcome of each item, as if they had been settled one after the other.

        Raises `QueueNotFound` if the rows show that there is no such queue.
        """
        done: dict[Held, Settled] = dict.fromkeys(self._gone, _OK)
        there: set[int] = set()
        exists = bool(done)
        for row in rows:
            match row["what"]:
                case "deleted":
                    done[row["id"], row["held"].hex] = _OK
                case "moved":
                    done[row["id"], row["held"].hex] = Settled(True, pop_receipt=row["receipt"].hex)
                case "there":
                    there.add(row["id"])
                case "queue":
                    exists = True
        if not exists:
            raise QueueNotFound(f"there is no queue {queue}")

        def settled(item: Claim | Release | Extend) -> Settled:
            held = _held(item)
            if held is None:
                return _NOT_FOUND
            outcome = done.pop(held, None)
            if outcome is None:
                return _MISMATCH if held[0] in there else _NOT_FOUND
            if outcome is _OK:
                there.discard(held[0])
            return outcome

        asked = self._settlement
        return Settling(
            [settled(item) for item in asked.delete],
            [settled(item) for item in asked.release],
            [settled(item) for item in asked.extend],
        )

    def _move(self, item: Release | Extend, ms: int, body: bytes | None, how: int = 0) -> None:
        held = _held(item)
        # The first of several claims of the same lease counts.
        if held is not None and held not in self._deletes:
            self._moves.setdefault(held, (ms, body, how))


def _known(items: Iterable[Claim]) -> list[Held]:
    return [held for item in items if (held := _held(item)) is not None]


def _held(item: Claim | Release | Extend) -> Held | None:
    """Return message and receipt of a claim; None for an id that this store cannot have created."""
    # Both come from the caller and may be invented.
    id_: object = item.id
    receipt: object = item.pop_receipt
    if not isinstance(id_, str) or _hex16(id_) is None or (number := int(id_, 16)) > _ID_MAX:
        return None
    if not isinstance(receipt, str) or _hex32(receipt) is None:
        return number, _NO_RECEIPT
    return number, receipt
