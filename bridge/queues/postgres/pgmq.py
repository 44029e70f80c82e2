"""The queues of PGMQ in a PostgreSQL database, as Supabase and others have them, by statements of our own.

PGMQ's functions settle a message by its id alone, even if another reader has leased it since. These statements compare
a receipt, made of `read_ct` and `vt`, which each receive changes. Its producers and readers may use the same queues.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Sequence
from typing import Any, Final, cast

from queuebell.bridge.brokers.postgres.access import PostgresAccess, client
from queuebell.bridge.contract.errors import (
    BadQueueReference,
    ConfigurationError,
    NotPrepared,
    QueuebellError,
    QueueNotFound,
    StoreError,
)
from queuebell.bridge.contract.headers import headers_in
from queuebell.bridge.contract.names import DEFAULT_PREFIX, is_token, parse_reference, split_reference
from queuebell.bridge.queues.base import (
    BODY_BYTES_MAX,
    VISIBLE_QUEUES_MAX,
    AsyncConnection,
    Capabilities,
    Counts,
    Depth,
    NewMessage,
    PutReceipt,
    Received,
    Settlement,
    Settling,
    StoredMessage,
    VisibleQueues,
    digest_of,
)
from queuebell.bridge.queues.checked import CheckedStore, missing
from queuebell.bridge.queues.postgres import sql
from queuebell.bridge.queues.postgres.connections import PostgresConnections
from queuebell.bridge.queues.postgres.schema import NOTIFY_PUT
from queuebell.bridge.queues.postgres.store import (
    LONG_S,
    POOL,
    POOL_MAX,
    REQUEST_TIMEOUT_S,
    PostgresClaims,
    all_headers,
)
from queuebell.bridge.queues.postgres.transaction import (
    Joined,
    Steps,
    Within,
    as_bytes,
    headers_as_bytes,
    no_transaction,
    other_database,
    writing,
)

ACCOUNT: Final = "pgmq"
"""The account of queue references, unless the address has another: PGMQ's queues have none."""
NAME_MAX: Final = 47
"""The longest name of a queue."""
DONE: Final = ("delete", "archive")
TABLES_MAX: Final = 500
"""How many tables one statement of a round reads: it locks each."""
OPTIONS: Final = ("pool_size", "account", "done")
NEEDED: Final = frozenset({"msg_id", "read_ct", "enqueued_at", "vt", "message", "headers"})
"""Columns of a queue; version 1.5 brought the headers, a later one `last_read_at`."""
_MISSING: Final = frozenset({"42P01", "42703"})
"""SQLSTATEs of a missing table or column."""


class PgmqAddress:
    """The parts of ``pgmq://USER@HOST/DATABASE``; raises `ConfigurationError`."""

    def __init__(self, url: str) -> None:
        _, _, rest = url.partition("://")
        self.access = PostgresAccess(f"postgres://{rest}", options=OPTIONS)
        self.text = self.access.text.replace("postgres://", "pgmq://", 1)
        self.pool_size = self.access.number("pool_size", POOL, most=POOL_MAX)
        self.account = self.access.options.get("account", ACCOUNT)
        self.done = self.access.options.get("done", DONE[0])
        if not is_token(self.account):
            raise ConfigurationError("store: pgmq: account is letters, digits, '_' and '-'")
        if self.done not in DONE:
            raise ConfigurationError("store: pgmq: done is delete or archive: what becomes of a message that is done")

    def name(self, queue: str) -> str:
        """Return the name of a queue in PGMQ; raises `BadQueueReference`."""
        account, name = split_reference(parse_reference(queue))
        if account != self.account:
            raise BadQueueReference(
                f"pgmq: the queues of this address are {self.account}/NAME; its option account=NAME sets another"
            )
        if len(name) > NAME_MAX or "--" in name:
            raise BadQueueReference(f"pgmq: the name of a queue is at most {NAME_MAX} characters, and has no '--'")
        return name


class PgmqConnections(PostgresConnections):
    """Connections to a database with PGMQ."""

    reads_are_dated = True
    """Whether the tables have the column `last_read_at`; known after the first connection."""

    def _explained(self, error: Exception, *, connected: bool) -> tuple[QueuebellError, bool]:
        if connected and getattr(error, "sqlstate", None) in _MISSING:
            return _Altered(f"{self._access.text}: {error}"), True
        return super()._explained(error, connected=connected)

    async def _check(self, connection: Any) -> None:
        where = self._access.text
        rows = await connection.fetch(
            "SELECT attname::text AS name FROM pg_attribute WHERE attrelid = to_regclass('pgmq.message_record')"
        )
        found = {row["name"] for row in rows}
        if not found:
            raise NotPrepared(f"{where}: there is no PGMQ in this database: CREATE EXTENSION pgmq, or install its SQL")
        if not found >= NEEDED:
            raise NotPrepared(f"{where}: PGMQ here is older than 1.5, and has no headers: ALTER EXTENSION pgmq UPDATE")
        self.reads_are_dated = "last_read_at" in found
        self._checked = True


class _Altered(StoreError):
    """A table of a queue, or a column of it, is missing."""


class PgmqStore(CheckedStore):
    """The PGMQ queues in the database at ``pgmq://``, as references ``pgmq/NAME``; connects at the first call.

    Options of the address: ``pool_size`` (1 to 100, default 8); ``account`` (default ``pgmq``) of the references;
    ``done=archive`` keeps messages that are done in the queue's archive. Calls time out after ``timeout`` seconds (R,
    10), those on a whole queue after 60. Needs PGMQ 1.5.

    A body that is JSON is stored as such, and returned as PostgreSQL writes it. Any other body is stored as
    ``{"$text": ...}`` or ``{"$base64": ...}``, and returned unchanged.
    """

    kind = "pgmq"
    capabilities = Capabilities(
        batch_max=sql.BATCH_MAX,
        time_to_live=False,
        metadata=False,
        pause=False,
        uncounted_release=True,
        joins_transaction=True,
        oldest_age=True,
        headers=True,
    )

    def __init__(self, url: str, *, timeout: float = REQUEST_TIMEOUT_S) -> None:
        self._where = PgmqAddress(url)
        self._timeout = timeout
        self._connections = PgmqConnections(self._where.access, self._where.pool_size, ("pgmq", url))
        self._home: str | None = None

    def check_client(self) -> None:
        """Raise `ConfigurationError` if the client library is not installed; needs no network."""
        client()

    def __str__(self) -> str:
        return self._where.text

    def fingerprint(self, queue: str) -> str:
        """Return 32 hex digits that identify this queue in this database (B11)."""
        return digest_of("pgmq", self._where.access.place, self._where.name(queue))

    @property
    def scope(self) -> str:
        """See `RoundStore.scope`; references of one queue differ by the account."""
        return digest_of("round", "pgmq", self._where.access.place, self._where.account)

    async def triggers_puts(self) -> bool:
        """Return whether `init` made messages that are sent notify listening bridges."""
        self._check_open()
        return bool((await self._connections.fetch(_NOTIFIES, (), self._timeout))[0]["notifies"])

    async def _put(self, queue: str, messages: Sequence[NewMessage], create: bool) -> list[PutReceipt]:
        given = (
            [as_json(message.body) for message in messages],
            [message.visible_after_ms for message in messages],
            all_headers(messages),
        )
        rows = await self._put_existing(queue, *given)
        if not rows and create:
            await self._create(queue, None)
            rows = await self._put_existing(queue, *given)
        if not rows:
            raise QueueNotFound(f"there is no queue {queue}")
        return [
            PutReceipt(f"{row['id']:016x}", row["receipt"].hex, message.visible_after_ms)
            for row, message in zip(rows, messages, strict=True)
        ]

    async def _put_existing(self, queue: str, *given: object) -> list[Any]:
        try:
            return await self._fetch(_PUT, queue, *given)
        except QueueNotFound:
            return []

    async def _put_on(
        self, connection: AsyncConnection, queue: str, messages: Sequence[NewMessage], create: bool
    ) -> list[PutReceipt]:
        name = self._where.name(queue)
        self._check_open()
        joined = Joined(connection, queue)
        rows = await joined.ask(_WITHIN, name)
        # The server may have restarted, or another one may have become primary.
        if not rows or (rows[0][0] != self._home and rows[0][0] != await self._find_home(queue)):
            raise other_database(queue, f"this connection does not lead to {self}: open the store of its database")
        return await joined.carry_out(self._steps(Within(*rows[0]), queue, messages, create))

    def _steps(self, here: Within, queue: str, messages: Sequence[NewMessage], create: bool) -> Steps[list[PutReceipt]]:
        """Yield the statements of a put on the caller's connection; return the receipts."""
        name, transaction = self._where.name(queue), writing(here, queue)
        ((there,),) = yield _EXISTS, (name,)
        if not there:
            ((inside,),) = yield sql.INSIDE, (transaction,)
            if not inside:
                raise no_transaction(queue)
            if not create:
                raise missing(queue, ())
            yield _MAKE.replace("{name}", name), ()
            self._check_spelling(queue, [row[0] for row in (yield _ALIKE, (name,))])
        lists = (
            [as_bytes(as_json(message.body).encode()) for message in messages],
            [str(message.visible_after_ms) for message in messages],
            [headers_as_bytes(message) for message in messages],
        )
        statement = self._text(_PUT_WITHIN, name)
        if not here.notifies:
            statement += f", pg_notify('{DEFAULT_PREFIX}', '{queue}')::text"
        rows = yield statement, (name, *map(",".join, lists), transaction)
        if not rows:
            raise no_transaction(queue)
        return [
            PutReceipt(row[0], row[1], message.visible_after_ms) for row, message in zip(rows, messages, strict=True)
        ]

    async def _find_home(self, queue: str) -> str:
        rows = await self._fetch(_WITHIN, queue)
        self._home = rows[0][0] if rows else ""
        return self._home

    async def _receive(self, queue: str, limit: int, lease_ms: int) -> Received:
        """Receive up to ``limit`` messages; the depth is counted up to 32 such batches."""
        rows = await self._fetch(_RECEIVE, queue, limit, lease_ms)
        first = rows[0]
        if not first["named"]:
            raise QueueNotFound(f"there is no queue {queue}")
        messages = [_message(row, row["receipt"].hex) for row in rows if row["id"] is not None]
        found = len(messages)
        full = found == limit
        hidden, invisible, delayed = first["visible"] - found, first["invisible"] + found, first["delayed_ms"]
        waits = [ms for ms in (first["next_ms"], lease_ms if found else None) if ms is not None]
        return Received(
            messages,
            Depth(hidden, invisible),
            max(1, min(waits)) if waits and not full else None,
            blocked=not full and hidden > 0,
            depth_is_least=full,
            place=first["place"],
            next_delayed_in_ms=None if full or delayed is None else max(1, delayed),
            counts=None if full else Counts(hidden, invisible, oldest_ms=_age(first["oldest_ms"]) if hidden else None),
        )

    async def _settle(self, queue: str, settlement: Settlement) -> Settling:
        claims = PostgresClaims(settlement)
        *before, bodies, ids, how = cast("tuple[Any, ...]", claims.arguments())
        texts = [None if body is None else as_json(body) for body in bodies]
        archive = self._where.done == "archive"
        rows = await self._fetch(_SETTLE_ARCHIVING if archive else _SETTLE, queue, *before, ids, texts, how)
        return claims.outcome(queue, rows)

    async def _peek(self, queue: str, limit: int) -> list[StoredMessage]:
        rows = await self._fetch(_PEEK, queue, limit)
        if not rows[0]["named"]:
            raise QueueNotFound(f"there is no queue {queue}")
        return [_message(row, "") for row in rows if row["id"] is not None]

    async def depth(self, queue: str) -> Depth | None:
        """Count all messages; reads the queue's whole table, some 0.1 s for a million messages."""
        try:
            (row,) = await self._fetch(_DEPTH, queue, within_s=LONG_S)
        except QueueNotFound:
            return None
        return Depth(row["visible"], row["total"] - row["visible"]) if row["named"] else None

    async def counts(self, queue: str) -> Counts | None:
        """Count up to 100,000 visible messages and 10,000 others."""
        try:
            (row,) = await self._fetch(_COUNTS, queue)
        except QueueNotFound:
            return None
        at_least = row["visible"] == sql.COUNTS_MAX or row["invisible"] == sql.APART_MAX
        found = Counts(row["visible"], row["invisible"], at_least, oldest_ms=_age(row["oldest_ms"]))
        return found if row["named"] else None

    async def exists(self, queue: str) -> bool:
        """Return whether PGMQ lists the queue."""
        (row,) = await self._fetch(_EXISTS, queue)
        return bool(row["named"])

    async def oldest_ms(self, queue: str) -> int | None:
        """Return the age of the first visible entry of the queue's index."""
        try:
            rows = await self._fetch(_OLDEST, queue)
        except QueueNotFound:
            return None
        return _age(rows[0]["ms"]) if rows else None

    async def visible_queues(self) -> VisibleQueues | None:
        """Return the queues with visible messages: one statement for all tables, and one for 500 that are not empty.

        A table that was emptied is not empty until the next vacuum. Takes some 40 ms for 1,000 empty tables.
        """
        self._check_open()
        fetch = self._connections.fetch
        rows = await fetch(_FILLED, (), self._timeout)
        if any(row["hidden"] for row in rows):
            # Row-level security: workers may see other messages.
            return None
        places = {row["place"] for row in rows}
        names = [row["name"] for row in rows if row["name"] is not None and is_token(row["name"])]
        found: list[str] = []
        for part in (names[start : start + TABLES_MAX] for start in range(0, len(names), TABLES_MAX)):
            asked = " UNION ALL ".join(self._text(_VISIBLE.replace("{name}", name), name) for name in part)
            try:
                answers = await fetch(f"{_PLACED} LEFT JOIN ({asked}) AS found ON true", (), self._timeout)
            except _Altered:
                # A queue was dropped meanwhile, or its table altered.
                return None
            places |= {row["place"] for row in answers}
            found += [f"{self._where.account}/{row['name']}" for row in answers if row["name"] is not None]
        # Connections of one address may lead to several servers.
        wrong = len(found) > VISIBLE_QUEUES_MAX or len(places) > 1
        return None if wrong else VisibleQueues(found, places.pop())

    async def place(self) -> str | None:
        """Return which PGMQ of which run of the server a receive reads now."""
        self._check_open()
        (row,) = await self._connections.fetch(_PLACE, (), self._timeout)
        return str(row["place"])

    async def clear(self, queue: str) -> None:
        """Delete every message, none of it to the archive; takes seconds for a million messages."""
        (row,) = await self._fetch(_CLEAR, queue, within_s=LONG_S)
        if not row["named"]:
            raise QueueNotFound(f"there is no queue {queue}")

    async def _create(self, queue: str, metadata: dict[str, str] | None) -> bool:
        found = [row[0] for row in await self._fetch(_ALIKE, queue)]
        if self._where.name(queue) in found:
            return False
        if not found:
            await self._connections.fetch(_MAKE.replace("{name}", self._where.name(queue)), (), self._timeout)
            found = [row[0] for row in await self._fetch(_ALIKE, queue)]
        self._check_spelling(queue, found)
        return True

    def _check_spelling(self, queue: str, found: Sequence[str]) -> None:
        """Raise `BadQueueReference` if the queue would share its table with another, as PGMQ would let it."""
        if found and self._where.name(queue) not in found:
            raise BadQueueReference(
                f"pgmq: nothing was put: the queue {self._where.account}/{found[0]} has the same table, as PGMQ writes "
                "tables in lower case: use that name, or another",
                queue,
            )

    async def delete(self, queue: str) -> None:
        """Drop a queue, its messages and its archive."""
        if await self.exists(queue):
            await self._fetch("SELECT pgmq.drop_queue($1)", queue, within_s=LONG_S)
            # PGMQ leaves this row if the table is gone already.
            await self._fetch("DELETE FROM pgmq.meta WHERE queue_name = $1", queue)

    async def _queues(self, prefix: str, after: str, limit: int) -> list[str]:
        self._check_open()
        rows = await self._connections.fetch("SELECT queue_name::text AS name FROM pgmq.meta", (), self._timeout)
        found = (f"{self._where.account}/{row['name']}" for row in rows if is_token(row["name"]))
        return sorted(name for name in found if name > after and name.startswith(prefix))[:limit]

    async def close(self) -> None:
        """Close the connections; may be called twice."""
        self._closed = True
        await self._connections.close()

    async def _fetch(self, statement: str, queue: str, *args: object, within_s: float | None = None) -> list[Any]:
        name = self._where.name(queue)
        self._check_open()
        for _ in range(2):
            try:
                given = (self._text(statement, name), (name, *args), within_s or self._timeout)
                return await self._connections.fetch(*given)
            except _Altered as error:
                if not (await self._connections.fetch(_EXISTS, (name,), self._timeout))[0][0]:
                    raise QueueNotFound(f"there is no queue {queue}") from None
                why = error
            # It may have been created meanwhile.
        raise StoreError(
            f"{queue}: PGMQ lists this queue, but its table was dropped or altered: {why}; nothing was changed. "
            "Restore it; if the queue is to go, delete it by 'queuebell queue delete'"
        ) from why

    def _text(self, statement: str, name: str) -> str:
        """Return a statement for the tables of a queue."""
        dated = self._connections.reads_are_dated
        for part, column in (("{dated}", ", last_read_at"), ("{read_now}", f", last_read_at = {sql.NOW}")):
            statement = statement.replace(part, column if dated else "")
        # A name has no quotation marks.
        return statement.replace("{q}", f'pgmq."q_{name.lower()}"').replace("{a}", f'pgmq."a_{name.lower()}"')


def _age(ms: int | None) -> int | None:
    return None if ms is None else max(0, ms)


def _message(row: Any, receipt: str) -> StoredMessage:
    headers = row["headers"]
    return StoredMessage(
        f"{row['id']:016x}",
        receipt,
        body_of(row["message"]),
        row["read_ct"],
        row["enqueued_at"],
        headers={} if headers is None else headers_in(headers),
    )


_WRAPPED: Final = ("$text", "$base64")
_POWER_MAX: Final = 99
_DIGITS_MAX: Final = 300
_power = re.compile("[0-9][eE]").findall
_odd_text = re.compile(r"\\u(0000|[dD][89a-fA-F])").search


def as_json(body: bytes) -> str:
    """Return a body as JSON that PostgreSQL stores without a loss: itself, or the text or bytes within an object."""
    try:
        text = body.decode()
        if "\0" in text:
            raise ValueError("PostgreSQL stores no NUL")
    except ValueError:
        return json.dumps({"$base64": base64.b64encode(body).decode()})
    try:
        # PostgreSQL puts a space after each comma and colon, and writes powers of ten out.
        longest = len(body) + text.count(",") + text.count(":") + _POWER_MAX * len(_power(text))
        if _odd_text(text) is None and longest <= BODY_BYTES_MAX:
            json.loads(text, object_pairs_hook=_object, parse_float=_float, parse_constant=_float)
            return text
    except (ValueError, RecursionError):
        pass
    return json.dumps({"$text": text}, ensure_ascii=False)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs) or (len(found) == 1 and found.keys() & {*_WRAPPED}):
        raise ValueError("the database would keep one of two, or the object would be taken for a wrapped body")
    return found


def _float(text: str) -> float:
    power = text.lower().partition("e")[2] or "0"
    if text.lstrip("-").isalpha() or len(text) > _DIGITS_MAX or abs(int(power)) > _POWER_MAX:
        raise ValueError("the database has no such number, or would write it out")
    return float(text)


def body_of(message: str | None) -> bytes:
    """Return the body of a message as `as_json` was given it; of another producer's, its JSON."""
    if message is None:
        return b""
    if message.startswith('{"$'):
        # What another producer sent may be too deep or too long for this parser, or no base64.
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(message)
            if len(found) == 1 and isinstance(text := found.get("$text"), str):
                return text.encode()
            if len(found) == 1 and isinstance(text := found.get("$base64"), str):
                return base64.b64decode(text, validate=True)
    return message.encode()


# In all statements $1 is the queue's name, {q} its table and {a} its archive.

_NAMED = "EXISTS (SELECT FROM pgmq.meta WHERE queue_name = $1)"


def _receipt(row: str) -> str:
    # A receive changes both numbers, and other readers' functions change at least one.
    return f"""(lpad(to_hex({row}.read_ct), 16, '0') || CASE WHEN isfinite({row}.vt)
    THEN lpad(to_hex((extract(epoch FROM {row}.vt) * 1000000)::bigint), 16, '0') ELSE repeat('f', 16) END)::uuid"""


# A time that Python does not have would fail an answer whose messages are leased already.
_ROW = """m.msg_id AS id, greatest(m.read_ct, 0) AS read_ct, m.message::text AS message, m.headers::text AS headers,
    least(greatest(m.enqueued_at, '1970-01-01 00:00Z'), '9999-01-01 00:00Z') AS enqueued_at"""
_EXISTS: Final = f"SELECT {_NAMED} AS named"
_ALIKE: Final = "SELECT queue_name::text FROM pgmq.meta WHERE lower(queue_name) = lower($1)"
# Two spellings of a name would share a table: each statement of the block sees what was committed before it.
_MAKE: Final = """
DO $$ BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('queuebell pgmq ' || lower('{name}'), 0));
    IF NOT EXISTS (SELECT FROM pgmq.meta WHERE lower(queue_name) = lower('{name}')) THEN
        PERFORM pgmq.create('{name}');
    END IF;
END $$
"""


def _put(bodies: str, headers: str, only: str, returning: str) -> str:
    return f"""
WITH {sql.MOMENT}
INSERT INTO {{q}} AS m (vt, message, headers)
SELECT {sql.NOW} + given.delay * {sql.MS}, {bodies}, {headers}
WHERE {only}
ORDER BY given.place
RETURNING {returning}"""


_PUT: Final = _put(
    "given.body::jsonb",
    "given.headers::jsonb FROM unnest($2::text[], $3::bigint[], $4::text[])"
    " WITH ORDINALITY AS given (body, delay, headers, place)",
    _NAMED,
    f"m.msg_id AS id, {_receipt('m')} AS receipt",
)
_PUT_WITHIN: Final = _put(
    sql.from_bytes("given.body"),
    f"{sql.from_bytes('given.headers')} FROM unnest(string_to_array($2, ',')::bytea[],"
    " string_to_array($3, ',')::bigint[], string_to_array($4, ',')::bytea[])"
    " WITH ORDINALITY AS given (body, delay, headers, place)",
    f"pg_current_xact_id()::text = $5 AND {_NAMED}",
    f"lpad(to_hex(m.msg_id), 16, '0'), replace({_receipt('m')}::text, '-', '')",
)
"""The put on the caller's connection: values are texts, which every driver supports, and bytes are in the server's text
format. It puts nothing outside the transaction ``$5``."""

_WITHIN: Final = """
SELECT concat_ws(' ', extract(epoch FROM pg_postmaster_start_time()), d.oid, c.oid), 'pgmq',
    CASE WHEN current_setting('transaction_read_only') = 'off' THEN pg_current_xact_id()::text END,
    EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgname = 'queuebell_notify' AND t.tgenabled IN ('O', 'A')
        AND t.tgrelid = to_regclass('pgmq.' || quote_ident('q_' || lower($1))))
FROM pg_class AS c, pg_database AS d
WHERE c.oid = to_regclass('pgmq.meta') AND d.datname = current_database()
"""
"""Where a connection leads, its transaction (null if read-only), and whether puts notify; no row without PGMQ."""

_OLDEST_MS = f"floor(extract(epoch FROM {sql.NOW} - min(vt) FILTER (WHERE isfinite(vt))) * 1000)::bigint"
_RECEIVE: Final = f"""
WITH {sql.MOMENT_LAZILY},
picked AS MATERIALIZED (
    SELECT msg_id, vt FROM {{q}} WHERE vt <= {sql.NOW} AND {_NAMED}
    ORDER BY vt LIMIT $2 FOR UPDATE SKIP LOCKED
),
leased AS (
    UPDATE {{q}} AS m SET vt = {sql.NOW} + $3::bigint * {sql.MS}, read_ct = least(m.read_ct, 2147483646) + 1{{read_now}}
    WHERE m.msg_id = ANY(ARRAY(SELECT msg_id FROM picked))
    RETURNING {_ROW}, {_receipt("m")} AS receipt
),
due AS MATERIALIZED (
    SELECT count(*) AS visible, {_OLDEST_MS} AS oldest_ms
    FROM (SELECT vt FROM {{q}} WHERE vt <= {sql.NOW} ORDER BY vt LIMIT $2 * {sql.COUNTED + 1}) AS v
),
later AS MATERIALIZED (
    SELECT count(*) AS invisible, min(vt) FILTER (WHERE isfinite(vt)) AS next,
        coalesce(min(vt) FILTER (WHERE read_ct = 0 AND isfinite(vt)),
            CASE WHEN count(*) = $2 * {sql.COUNTED} AND isfinite(max(vt)) THEN max(vt) END) AS delayed
    FROM (SELECT vt, read_ct FROM {{q}} WHERE vt > {sql.NOW} ORDER BY vt LIMIT $2 * {sql.COUNTED}) AS i
)
SELECT {sql.place("pgmq.meta")} AS place, {_NAMED} AS named, due.visible, due.oldest_ms, leased.*, later.invisible,
    ceil(extract(epoch FROM later.next - {sql.NOW}) * 1000)::bigint AS next_ms,
    ceil(extract(epoch FROM later.delayed - {sql.NOW}) * 1000)::bigint AS delayed_ms
FROM due CROSS JOIN later LEFT JOIN (leased JOIN picked ON picked.msg_id = leased.id) ON true
ORDER BY picked.vt, picked.msg_id
"""  # noqa: S608


def _settle(archived: str) -> str:
    """Return the settlement; a receipt is compared again where another statement has changed a message since."""
    held = "AS held (id, receipt"
    return f"""
WITH {sql.MOMENT},
there AS MATERIALIZED (
    SELECT m.msg_id AS id, {_receipt("m")} AS receipt FROM {{q}} AS m WHERE m.msg_id = ANY($7::bigint[]) AND {_NAMED}
),
given_up AS MATERIALIZED (
    SELECT there.id, there.receipt FROM there
    JOIN unnest($2::bigint[], $3::uuid[]) {held}) ON held.id = there.id AND held.receipt = there.receipt
),
kept AS MATERIALIZED (
    SELECT there.id, there.receipt, held.ms, held.body, held.how FROM there
    JOIN unnest($4::bigint[], $5::uuid[], $6::bigint[], $8::text[], $9::bigint[]) {held}, ms, body, how)
        ON held.id = there.id AND held.receipt = there.receipt
),
deleted AS (
    DELETE FROM {{q}} AS m
    WHERE m.msg_id = ANY(ARRAY(SELECT id FROM given_up)) AND {_receipt("m")} = ANY(ARRAY(SELECT receipt FROM given_up))
    RETURNING m.*
){archived},
moved AS (
    UPDATE {{q}} AS m
    SET vt = {sql.NOW} + {sql.beside("ms", "kept", "m.msg_id")} * {sql.MS},
        message = coalesce({sql.beside("body", "kept", "m.msg_id")}::jsonb, m.message),
        read_ct = greatest(0, m.read_ct - ({sql.beside("how", "kept", "m.msg_id")} & 1))
    WHERE m.msg_id = ANY(ARRAY(SELECT id FROM kept)) AND {_receipt("m")} = ANY(ARRAY(SELECT receipt FROM kept))
    RETURNING m.msg_id AS id, {_receipt("m")} AS receipt
)
SELECT 'deleted' AS what, msg_id AS id, {_receipt("deleted")} AS held, NULL::uuid AS receipt FROM deleted
UNION ALL SELECT 'moved', id, {sql.beside("receipt", "kept", "moved.id")}, receipt FROM moved
UNION ALL SELECT 'there', id, NULL, NULL FROM there
UNION ALL SELECT 'queue', 0, NULL, NULL WHERE {_NAMED}
"""  # noqa: S608


_COLUMNS = "msg_id, read_ct, enqueued_at, vt, message, headers{dated}"
_SETTLE: Final = _settle("")
_SETTLE_ARCHIVING: Final = _settle(
    f""",
archived AS (INSERT INTO {{a}} ({_COLUMNS}) SELECT {_COLUMNS} FROM deleted)"""  # noqa: S608
)
_PEEK: Final = f"""
WITH {sql.MOMENT}
SELECT {_NAMED} AS named, m.* FROM (SELECT) AS one LEFT JOIN (
    SELECT {_ROW}, row_number() OVER (ORDER BY m.vt) AS place FROM {{q}} AS m WHERE m.vt <= {sql.NOW}
    ORDER BY m.vt LIMIT $2
) AS m ON true
ORDER BY m.place, m.id
"""  # noqa: S608
_DEPTH: Final = f"""
WITH {sql.MOMENT}
SELECT {_NAMED} AS named, count(*) FILTER (WHERE vt <= {sql.NOW}) AS visible, count(*) AS total FROM {{q}}
"""  # noqa: S608
_COUNTS: Final = f"""
WITH {sql.MOMENT}
SELECT {_NAMED} AS named, count(*) AS visible, {_OLDEST_MS} AS oldest_ms, (SELECT count(*) FROM (
    SELECT FROM {{q}} WHERE vt > {sql.NOW} LIMIT {sql.APART_MAX}) AS i) AS invisible
FROM (SELECT vt FROM {{q}} WHERE vt <= {sql.NOW} ORDER BY vt LIMIT {sql.COUNTS_MAX}) AS v
"""  # noqa: S608
_OLDEST: Final = f"""
WITH {sql.MOMENT}
SELECT floor(extract(epoch FROM {sql.NOW} - vt) * 1000)::bigint AS ms FROM {{q}}
WHERE vt <= {sql.NOW} AND vt > '-infinity' AND {_NAMED} ORDER BY vt LIMIT 1
"""  # noqa: S608
# A partitioned table reports no size: its parts do.
_FILLED: Final = f"""
SELECT {sql.place("pgmq.meta")} AS place, filled.name,
    row_security_active('pgmq.meta') OR coalesce(filled.hidden, false) AS hidden
FROM (SELECT) AS one LEFT JOIN (
    SELECT m.queue_name::text AS name, row_security_active(c.oid) AS hidden FROM pgmq.meta AS m
    JOIN pg_class AS c ON c.relname = 'q_' || lower(m.queue_name) AND c.relnamespace = 'pgmq'::regnamespace
    WHERE c.relkind <> 'r' OR c.relhassubclass OR pg_relation_size(c.oid) > 0
) AS filled ON true
"""  # noqa: S608
_PLACE: Final = f"SELECT {sql.place('pgmq.meta')} AS place"
_PLACED: Final = f"{_PLACE}, found.name FROM (SELECT) AS one"
# A name has no quotation marks. The first entry of the index, whatever the planner believes of the others.
_VISIBLE: Final = "SELECT '{name}' AS name WHERE (SELECT min(vt) FROM {q}) <= clock_timestamp()"
_CLEAR: Final = f"WITH gone AS (DELETE FROM {{q}} WHERE {_NAMED}) SELECT {_NAMED} AS named"  # noqa: S608

# Not PGMQ's NOTIFY: it is throttled, and nothing follows what was throttled; an open transaction that has notified
# holds up all others; and a crash of the server forgets which queues notify. This is the trigger of our own tables.
_ROWS: Final = """SELECT '{account}/' || TG_ARGV[0] AS queue, clock_timestamp() AS now,
    CASE WHEN isfinite(vt) THEN vt ELSE clock_timestamp() END AS visible_at,
    CASE WHEN isfinite(enqueued_at) THEN enqueued_at ELSE clock_timestamp() END AS inserted_at
    FROM new_messages WHERE vt < 'infinity'"""
_NOTIFY: Final = """
CREATE OR REPLACE FUNCTION pgmq.queuebell_notify_put() RETURNS trigger LANGUAGE plpgsql AS $function${put}$function$;
CREATE OR REPLACE FUNCTION pgmq.queuebell_add_notify() RETURNS trigger LANGUAGE plpgsql AS $function$
BEGIN
    IF new.queue_name ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' THEN
        EXECUTE format({trigger}, 'q_' || lower(new.queue_name), new.queue_name);
    END IF;
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RAISE WARNING 'queue % will notify nobody until ''queuebell queue init --notify'' is run again: %',
        new.queue_name, SQLERRM;
    RETURN NULL;
END $function$;
CREATE OR REPLACE TRIGGER queuebell_add_notify AFTER INSERT ON pgmq.meta
    FOR EACH ROW EXECUTE FUNCTION pgmq.queuebell_add_notify();
"""
_TRIGGER: Final = """'CREATE OR REPLACE TRIGGER queuebell_notify AFTER INSERT ON pgmq.%I
    REFERENCING NEW TABLE AS new_messages FOR EACH STATEMENT EXECUTE FUNCTION pgmq.queuebell_notify_put(%L)'"""
_NOTIFIES: Final = """
SELECT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'queuebell_add_notify' AND tgenabled IN ('O', 'A')
    AND tgrelid = to_regclass('pgmq.meta')) AS notifies
"""
_SILENT: Final = f"""
SELECT m.queue_name::text AS name, format({_TRIGGER}, 'q_' || lower(m.queue_name), m.queue_name) AS trigger
FROM pgmq.meta AS m WHERE m.queue_name ~ '^[A-Za-z0-9][A-Za-z0-9_-]*$' AND NOT EXISTS (
    SELECT FROM pg_trigger AS t WHERE t.tgname = 'queuebell_notify' AND t.tgenabled IN ('O', 'A')
        AND t.tgrelid = to_regclass('pgmq.' || quote_ident('q_' || lower(m.queue_name))))
ORDER BY 1
"""  # noqa: S608
"""The queues that do not notify, and what makes each do so."""
_NO_NOTIFY: Final = """
DROP FUNCTION IF EXISTS pgmq.queuebell_add_notify() CASCADE;
DROP FUNCTION IF EXISTS pgmq.queuebell_notify_put() CASCADE;
"""


async def init(url: str, *, notify: bool | None = None, prefix: str = DEFAULT_PREFIX) -> list[str]:
    """Make every message that is sent to a queue of PGMQ NOTIFY the channel ``prefix``, with ``notify`` False none.

    Returns a line for each change. It covers the queues that exist and those that are created later, and needs the
    owner of PGMQ's tables. Raises `NotPrepared` for a database without PGMQ, and errors of store calls.
    """
    where = PgmqAddress(url)
    connections = PgmqConnections(where.access.direct, 1)
    put = NOTIFY_PUT.replace("{rows}", _ROWS.format(account=where.account)).format(channel=prefix)
    try:
        if notify is None:
            await connections.fetch("SELECT", (), REQUEST_TIMEOUT_S)
            return ["PGMQ is here; nothing to create. --notify makes sent messages wake workers"]
        if not notify:
            await connections.use(REQUEST_TIMEOUT_S, lambda connection: connection.execute(_NO_NOTIFY))
            return ["puts send no notifications"]
        script = _NOTIFY.replace("{put}", put).replace("{trigger}", _TRIGGER)
        await connections.use(REQUEST_TIMEOUT_S, lambda connection: connection.execute(script))
        done = [f"every message sent to a queue notifies the channel {prefix}"]
        for row in await connections.fetch(_SILENT, (), REQUEST_TIMEOUT_S):
            # Each by itself: the lock of one queue waits for its open transactions.
            try:
                await connections.fetch(row["trigger"], (), REQUEST_TIMEOUT_S)
            except QueuebellError as error:
                name = f"{where.account}/{row['name']}"
                done.append(f"but not to {name}; run this again, as the owner of its table: {error}")
        return done
    finally:
        await connections.close()
