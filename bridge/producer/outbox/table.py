"""The outbox table: its rows and the SQL on them, the same for PostgreSQL and SQLite and for every driver.

A row is written in the application's transaction and deleted once the store has its message. Its ``put_key`` lets a
store that puts once recognize a put that is repeated after a crash.

No cursor is kept: each read starts at the lowest id. Ids are assigned in one order and committed in another, so a row
that commits late would stay behind a cursor forever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.errors import BadInput, ConfigurationError, NotPrepared
from queuebell.bridge.contract.headers import checked_headers
from queuebell.bridge.contract.partitioning import Partitions, parse_queue
from queuebell.bridge.queues.base import NEVER, Body, NewMessage, new_messages
from queuebell.bridge.queues.limits import check_put

Execute = Callable[[str, Mapping[str, object]], list[tuple[Any, ...]]]
"""Executes one statement, with values for ``:p1`` and so on, and returns its rows."""

TABLE: Final = "queuebell_outbox"
CHANNEL: Final = "queuebell_outbox"
VERSION: Final = 1
"""The format of a row; a relay leaves rows of another version alone and logs that."""
DIALECTS: Final = ("postgresql", "sqlite")
PUT_MAX: Final = 10_000
READ_ROWS: Final = 100
INSERT_ROWS: Final = 100
REASON_MAX: Final = 500
HELD_S: Final = 45
"""Longer than all puts of one read take (`relay.TURN_S`, and the longest time-out of a put, 30 s)."""
_COLUMNS: Final = ("put_key", "queue", "body", "written_ms", "visible_after_ms", "ttl_s", "headers")
_NEEDED: Final = {"id", "version", "refused", *_COLUMNS}
_LOCK: Final = 0x7162  # first half of the pair of advisory lock keys; the second is the table


class OutboxRow(msgspec.Struct, frozen=True, gc=False):
    """One message in an outbox; ``id`` is 0 before it is inserted. Times are those of `NewMessage`."""

    put_key: str
    queue: str
    body: bytes
    written_ms: int
    visible_after_ms: int = 0
    ttl_s: int = NEVER
    headers: str | None = None
    """As JSON; None without headers."""
    id: int = 0


class Place(msgspec.Struct, frozen=True):
    """Where an outbox is: the database's dialect, the table as written in SQL, and its bare name."""

    dialect: str
    table: str
    name: str


class PendingRows(msgspec.Struct, frozen=True):
    """The rows of one read; ``busy`` if another relay holds the lock and nothing was read."""

    rows: list[OutboxRow] = []
    busy: bool = False

    @property
    def full(self) -> bool:
        """Whether there may be more."""
        return len(self.rows) == READ_ROWS


def new_rows(
    queue: str | Partitions,
    bodies: Sequence[Body],
    *,
    key: str | bytes | None,
    visible_after_ms: int,
    ttl_s: int,
    now_ms: int,
    name: Callable[[], str],
    draw: Draw,
) -> list[OutboxRow]:
    """Return a put of 1 to 10,000 messages as rows; ``name`` makes the ``put_key`` of each.

    On a partitioned queue all go to the partition of ``key``, or to a random one without a key. Raises `BadInput` for
    messages that no store accepts.
    """
    messages = new_messages(bodies, visible_after_ms, ttl_s)
    given = parse_queue(queue)
    if isinstance(given, Partitions):
        ref = given.of(key) if key is not None else given.reference(int(draw() * given.count))
    elif key is not None:
        raise BadInput(
            "bad_parameter",
            "key: chooses a partition, but this queue has none; a partitioned one is written billing/orders:8",
        )
    else:
        ref = given
    check_put(ref, messages, PUT_MAX)
    return [
        OutboxRow(
            name(),
            ref,
            each.body,
            now_ms,
            each.visible_after_ms,
            each.ttl_s,
            msgspec.json.encode(each.headers).decode() if each.headers else None,
        )
        for each in messages
    ]


def message_of(row: OutboxRow, now_ms: int) -> NewMessage:
    """Return the message to put for a row, with what remains of its delay (from 0 to the delay, under any clock).

    Raises `BadInput` for a damaged row: another program has changed it.
    """
    # SQLite stores text in a column of bytes or numbers.
    fields = (row.body, row.written_ms, row.visible_after_ms, row.ttl_s)
    if [type(field) for field in fields] != [bytes, int, int, int]:
        raise BadInput(
            "bad_parameter", "the row is damaged: its body is not bytes, or one of its times is not a number"
        )
    waited = max(0, now_ms - row.written_ms)
    delay_ms = max(0, row.visible_after_ms - waited)
    try:
        headers = {} if row.headers is None else checked_headers(msgspec.json.decode(row.headers))
    except (msgspec.DecodeError, BadInput, UnicodeError, RecursionError, TypeError):
        raise BadInput("bad_parameter", "the row is damaged: its headers are not JSON names and values") from None
    return NewMessage(row.body, delay_ms, row.ttl_s, headers)


def check_dialect(dialect: str) -> None:
    """Raise `BadInput` for a database that cannot have an outbox."""
    if dialect not in DIALECTS:
        raise BadInput("wrong_database", f"an outbox must be a table of PostgreSQL or SQLite, not of {dialect}")


def insert(execute: Execute, place: Place, rows: Sequence[OutboxRow], in_transaction: bool = True) -> None:
    """Insert rows in the open transaction; its commit notifies relays.

    Raises `BadInput` (``wrong_database`` or ``no_transaction``) where nothing was written and the transaction is as it
    was. PostgreSQL is asked first for the table and whether a transaction is open, because a statement that fails
    would fail the transaction. On SQLite nothing may be read before the INSERT: a transaction that has read cannot
    become a writer while another one commits.
    """
    queue = rows[0].queue
    if place.dialect == "postgresql":
        found, transaction = _describe(execute, place)
        _refuse_misfit(place, found, queue)
        in_transaction = bool(
            execute(
                f"SELECT pg_notify('{CHANNEL}', '') WHERE CAST(pg_current_xact_id() AS text) = :p1",
                {"p1": transaction},
            )
        )
    if not in_transaction:
        raise BadInput(
            "no_transaction",
            f"{queue}: nothing was put: no transaction is open on this connection (autocommit): begin one "
            "and put within it, or put without an outbox",
        )
    try:
        for start in range(0, len(rows), INSERT_ROWS):
            _insert(execute, place, rows[start : start + INSERT_ROWS])
    except Exception:
        if place.dialect == "sqlite":
            _refuse_misfit(place, _describe(execute, place)[0], queue)
        raise


def check_table(execute: Execute, place: Place) -> tuple[int, int]:
    """Return the number of rejected rows and the number of rows of another version.

    Raises `NotPrepared` without such a table, and `ConfigurationError` if it is of another version.
    """
    found, _ = _describe(execute, place)
    if (fault := _misfit(place, found)) is not None:
        raise (ConfigurationError if found else NotPrepared)(f"outbox: nothing is relayed: {fault}")
    ((refused, others),) = execute(
        "SELECT COUNT(*) FILTER (WHERE refused IS NOT NULL), COUNT(*) FILTER (WHERE version <> :p1)"  # noqa: S608
        f" FROM {place.table}",
        {"p1": VERSION},
    )
    return refused, others


def read_pending(execute: Execute, place: Place, resting: Sequence[str], notified: bool) -> PendingRows:
    """Read up to 100 rows in the order of their ids, without the queues in ``resting``.

    On PostgreSQL an advisory lock, held until the transaction ends, lets one relay at a time read. The server ends the
    transaction of a relay that is silent or does not receive for `HELD_S`. Nothing is written before the rows are
    deleted, so a long put does not hold up a vacuum. On SQLite ``notified`` waits for the writer that
    notified, because it does so when its commit begins.
    """
    if place.dialect == "postgresql":
        # The lock comes before the snapshot: an older snapshot still has the rows that the relay before deleted.
        execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", {})
        # A frozen relay keeps its connection: only the server can end its transaction, and with it the lock.
        lock = (
            f"SELECT pg_try_advisory_xact_lock({_LOCK}, CAST(CAST(to_regclass(:p1) AS oid) AS integer)),"
            " set_config('idle_in_transaction_session_timeout', :p2, true), set_config('tcp_user_timeout', :p2, true)"
        )
        if not execute(lock, {"p1": place.table, "p2": f"{HELD_S}s"})[0][0]:
            return PendingRows(busy=True)
    elif notified:
        execute(f"DELETE FROM {place.table} WHERE id < 0", {})  # noqa: S608
    but = f" AND queue NOT IN ({_placeholders(len(resting))})" if resting else ""
    rows = execute(
        f"SELECT {', '.join(_COLUMNS)}, id FROM {place.table} WHERE refused IS NULL AND version = {VERSION}"  # noqa: S608
        f"{but} ORDER BY id LIMIT {READ_ROWS}",
        _numbered(resting),
    )
    # psycopg returns a memoryview; `message_of` rejects a body of any other type, row by row.
    return PendingRows(
        [
            OutboxRow(key, queue, bytes(body) if isinstance(body, memoryview) else body, *rest)
            for key, queue, body, *rest in rows
        ]
    )


def record_outcome(execute: Execute, place: Place, sent: Sequence[OutboxRow], refused: Mapping[OutboxRow, str]) -> None:
    """Delete the rows that the store has, and write the reason to those that it rejected.

    Rows are matched by id and key: SQLite reuses the id of a row that another relay deleted.
    """
    if sent:
        ids, keys = _placeholders(len(sent)), _placeholders(len(sent), len(sent))
        execute(
            f"DELETE FROM {place.table} WHERE id IN ({ids}) AND put_key IN ({keys})",  # noqa: S608
            _numbered([*(row.id for row in sent), *(row.put_key for row in sent)]),
        )
    for row, reason in refused.items():
        execute(
            f"UPDATE {place.table} SET refused = :p1 WHERE id = :p2 AND put_key = :p3",  # noqa: S608
            _numbered([reason[:REASON_MAX], row.id, row.put_key]),
        )


def _insert(execute: Execute, place: Place, rows: Sequence[OutboxRow]) -> None:
    values = [value for row in rows for value in (VERSION, *(getattr(row, name) for name in _COLUMNS))]
    width = len(_COLUMNS) + 1
    places = ", ".join(f"({_placeholders(width, each * width)})" for each in range(len(rows)))
    columns = ", ".join(("version", *_COLUMNS))
    execute(f"INSERT INTO {place.table} ({columns}) VALUES {places}", _numbered(values))  # noqa: S608


def _describe(execute: Execute, place: Place) -> tuple[set[str], str]:
    """Return the table's columns, none if it is missing, and on PostgreSQL the id of the transaction."""
    if place.dialect == "postgresql":
        statement = """
            SELECT (SELECT string_agg(CAST(attname AS text), ' ') FROM pg_attribute
                    WHERE attrelid = to_regclass(:p1) AND attnum > 0 AND NOT attisdropped),
                CAST(pg_current_xact_id() AS text)
        """
        ((names, transaction),) = execute(statement, {"p1": place.table})
    else:
        statement = "SELECT group_concat(name, ' '), '' FROM pragma_table_info(:p1)"
        ((names, transaction),) = execute(statement, {"p1": place.name})
    return set((names or "").split()), transaction


def _refuse_misfit(place: Place, found: set[str], queue: str) -> None:
    if (fault := _misfit(place, found)) is not None:
        raise BadInput("wrong_database", f"{queue}: nothing was put: {fault}")


def _misfit(place: Place, found: set[str]) -> str | None:
    """Return why a table with these columns is not an outbox of this version, and what to do; None if it is."""
    if not found:
        return f"this connection finds no table {place.name}: create it (create_all, or your migrations)"
    if missing := sorted(_NEEDED - found):
        return (
            f"the table {place.name} is from another version of Queuebell: it lacks the column "
            f"{', '.join(missing)}: migrate it (makemigrations and migrate, or Alembic)"
        )
    return None


def _placeholders(count: int, after: int = 0) -> str:
    return ", ".join(f":p{number}" for number in range(after + 1, after + count + 1))


def _numbered(values: Sequence[object]) -> dict[str, object]:
    return {f"p{number}": value for number, value in enumerate(values, 1)}
