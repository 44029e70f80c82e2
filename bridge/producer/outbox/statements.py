"""The statements on an outbox, for PostgreSQL and SQLite alike, whoever carries them out.

No cursor is kept of what was seen: a look reads the lowest ids that stand there. Ids are given in one order and
committed in another, and a row that commits late would lie behind a cursor for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from bridge.contract.errors import BadInput, ConfigurationError, NotPrepared
from bridge.producer.outbox.rows import VERSION, OutboxRow

Execute = Callable[[str, Mapping[str, object]], list[tuple[Any, ...]]]
"""Carries out one statement, with values for ``:p1`` and so on, and returns its rows."""

CHANNEL: Final = "queuebell_outbox"
DIALECTS: Final = ("postgresql", "sqlite")
LOOK_ROWS: Final = 100
INSERT_ROWS: Final = 100
REASON_MAX: Final = 500
_COLUMNS: Final = ("put_key", "queue", "body", "written_ms", "visible_after_ms", "ttl_s", "headers")
_NEEDED: Final = {"id", "version", "refused", *_COLUMNS}
_LOCK: Final = 0x7162  # of the pairs of advisory locks; the other half is the table
HELD_S: Final = 45
"""Longer than all puts of one look take (`relay.TURN_S`, and the longest time-out of a put, 30 s)."""


class Place(msgspec.Struct, frozen=True):
    """Where an outbox is: what kind of database, the table as it is written in a statement, and its bare name."""

    dialect: str
    table: str
    name: str


class Look(msgspec.Struct, frozen=True):
    """What one look found; ``busy`` where another relay is at work, and nothing was read."""

    rows: list[OutboxRow] = []
    busy: bool = False

    @property
    def full(self) -> bool:
        """Whether there may be more."""
        return len(self.rows) == LOOK_ROWS


def check_dialect(dialect: str) -> None:
    """Refuse a database that has no outbox; raises `BadInput`."""
    if dialect not in DIALECTS:
        raise BadInput("wrong_database", f"an outbox must be a table of PostgreSQL or SQLite, not of {dialect}")


def misfit(place: Place, found: set[str]) -> str | None:
    """Return why a table with these columns is no outbox of this version, and what to do; None where it is one."""
    if not found:
        return f"this connection finds no table {place.name}: create it (create_all, or your migrations)"
    if missing := sorted(_NEEDED - found):
        return (
            f"the table {place.name} is from another version of Queuebell: it lacks the column "
            f"{', '.join(missing)}: migrate it (makemigrations and migrate, or Alembic)"
        )
    return None


def insert(execute: Execute, place: Place, rows: Sequence[OutboxRow], in_transaction: bool = True) -> None:
    """Write rows in the transaction that is open, whose commit rings.

    Raises `BadInput` where nothing was written and the transaction is as it was: ``wrong_database`` or
    ``no_transaction``. PostgreSQL itself says whether a transaction is open, and is asked for the table first, for a
    statement that fails would fail the transaction. On SQLite none does, and nothing may be read before the INSERT: a
    transaction that has read cannot become one that writes while another commits.
    """
    queue = rows[0].queue
    if place.dialect == "postgresql":
        found, transaction = _about(execute, place)
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
            _refuse_misfit(place, _about(execute, place)[0], queue)
        raise


def _insert(execute: Execute, place: Place, rows: Sequence[OutboxRow]) -> None:
    values = [value for row in rows for value in (VERSION, *(getattr(row, name) for name in _COLUMNS))]
    width = len(_COLUMNS) + 1
    places = ", ".join(f"({_places(width, each * width)})" for each in range(len(rows)))
    columns = ", ".join(("version", *_COLUMNS))
    execute(f"INSERT INTO {place.table} ({columns}) VALUES {places}", _given(values))  # noqa: S608


def _refuse_misfit(place: Place, found: set[str], queue: str) -> None:
    if (fault := misfit(place, found)) is not None:
        raise BadInput("wrong_database", f"{queue}: nothing was put: {fault}")


def check(execute: Execute, place: Place) -> tuple[int, int]:
    """Return how many rows were refused, and how many are of another version.

    Raises `NotPrepared` where there is no such table, `ConfigurationError` where it is another.
    """
    found, _ = _about(execute, place)
    if (fault := misfit(place, found)) is not None:
        raise (ConfigurationError if found else NotPrepared)(f"outbox: nothing is relayed: {fault}")
    ((refused, others),) = execute(
        "SELECT COUNT(*) FILTER (WHERE refused IS NOT NULL), COUNT(*) FILTER (WHERE version <> :p1)"  # noqa: S608
        f" FROM {place.table}",
        {"p1": VERSION},
    )
    return refused, others


def look(execute: Execute, place: Place, resting: Sequence[str], rung: bool) -> Look:
    """Read up to 100 rows in the order of their ids, but those of queues that rest.

    On PostgreSQL one relay at a time: the transaction has the lock until it ends, and the server ends it if the relay
    says nothing for `HELD_S`, or takes up nothing that it was sent. It has written nothing before it
    deletes, so that no put, however long, holds up a vacuum. On SQLite readers do not wait for each other. There
    ``rung`` waits for the writer that rang: it rings when its commit begins.
    """
    if place.dialect == "postgresql":
        # The lock comes before the snapshot: in an older one there is what the relay before has deleted.
        execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED", {})
        # A relay that stands still keeps its connection: only the server can end its transaction, and with it the lock.
        lock = (
            f"SELECT pg_try_advisory_xact_lock({_LOCK}, CAST(CAST(to_regclass(:p1) AS oid) AS integer)),"
            " set_config('idle_in_transaction_session_timeout', :p2, true), set_config('tcp_user_timeout', :p2, true)"
        )
        if not execute(lock, {"p1": place.table, "p2": f"{HELD_S}s"})[0][0]:
            return Look(busy=True)
    elif rung:
        execute(f"DELETE FROM {place.table} WHERE id < 0", {})  # noqa: S608
    but = f" AND queue NOT IN ({_places(len(resting))})" if resting else ""
    rows = execute(
        f"SELECT {', '.join(_COLUMNS)}, id FROM {place.table} WHERE refused IS NULL AND version = {VERSION}"  # noqa: S608
        f"{but} ORDER BY id LIMIT {LOOK_ROWS}",
        _given(resting),
    )
    # psycopg gives a view; what is not bytes at all `message_of` refuses, row by row.
    return Look(
        [
            OutboxRow(key, queue, bytes(body) if isinstance(body, memoryview) else body, *rest)
            for key, queue, body, *rest in rows
        ]
    )


def finish(execute: Execute, place: Place, sent: Sequence[OutboxRow], refused: Mapping[OutboxRow, str]) -> None:
    """Take away what the store has, and write down why it refused what it refused.

    A row is its id and its key: SQLite gives the id of one that another relay took away to the next that is written.
    """
    if sent:
        ids, keys = _places(len(sent)), _places(len(sent), len(sent))
        execute(
            f"DELETE FROM {place.table} WHERE id IN ({ids}) AND put_key IN ({keys})",  # noqa: S608
            _given([*(row.id for row in sent), *(row.put_key for row in sent)]),
        )
    for row, reason in refused.items():
        execute(
            f"UPDATE {place.table} SET refused = :p1 WHERE id = :p2 AND put_key = :p3",  # noqa: S608
            _given([reason[:REASON_MAX], row.id, row.put_key]),
        )


def _about(execute: Execute, place: Place) -> tuple[set[str], str]:
    """Return the columns of the table, none where it is not there, and the transaction where the server tells it."""
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


def _places(count: int, after: int = 0) -> str:
    return ", ".join(f":p{number}" for number in range(after + 1, after + count + 1))


def _given(values: Sequence[object]) -> dict[str, object]:
    return {f"p{number}": value for number, value in enumerate(values, 1)}
