"""Puts within the caller's transaction: its commit makes them visible and wakes workers.

An adapter for each kind of connection executes a statement and returns its rows. Kinds are recognised by the names of
types, so that no driver is loaded that the caller does not use. A put is two statements, three without a store: where
the connection leads (`Within`), the version of the tables, and the INSERT, which puts nothing outside the transaction
of the first.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Final, NamedTuple, Protocol, TypeVar, cast

import msgspec

from queuebell.bridge.contract.errors import BadInput, QueuebellError, StoreUnavailable, UnknownOutcome, named
from queuebell.bridge.queues.base import (
    NEVER,
    PUT_WINDOW_S,
    AsyncConnection,
    Body,
    NewMessage,
    PutReceipt,
    new_messages,
)
from queuebell.bridge.queues.checked import digest, missing, receipt, sending
from queuebell.bridge.queues.limits import check_key, check_put
from queuebell.bridge.queues.postgres import sql
from queuebell.bridge.queues.postgres.connections import INIT_HINT, error_for, misfit

T = TypeVar("T")
Rows = list[tuple[Any, ...]]
Steps = Generator[tuple[str, Sequence[str]], Rows, T]
"""A generator of one put: yields statements with arguments, and receives their rows."""
_Adapter = TypeVar("_Adapter")

_placeholder = re.compile(r'"(?:[^"]|"")*"|\$(\d)')
_STATES: Final = ("sqlstate", "pgcode")
"""Attributes of errors with the SQLSTATE; the second is psycopg 2's, used by SQLAlchemy or Django."""
_FAILED: Final = "25P02"
_FAILED_BY: Final = frozenset({"PendingRollbackError", "TransactionManagementError"})
"""Errors of SQLAlchemy and Django for a failed transaction, without a request to the server."""
_UNUSABLE_BY: Final = frozenset({"InterfaceError", "InvalidRequestError"})
"""The second is SQLAlchemy's for an invalid state of a connection or session."""
_KNOWN: Final = (
    "put(..., connection=) takes a connection of asyncpg, a psycopg 3 AsyncConnection, a SQLAlchemy AsyncConnection or "
    "AsyncSession; put_in_transaction() a psycopg 3 Connection, a SQLAlchemy Connection or Session, Django's connection"
)


class BlockingSession(Protocol):
    """A blocking connection of psycopg or SQLAlchemy, or a blocking session of SQLAlchemy."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Execute one statement."""
        ...


class BlockingConnection(Protocol):
    """Django's connection to a database."""

    def cursor(self) -> Any:
        """Return a cursor."""
        ...


class Within(NamedTuple):
    """Where a connection leads, and its transaction."""

    tables: str
    """The same for all connections to the same tables, until the server restarts."""
    schema: str
    transaction: str | None
    """Its number; None if read-only."""
    notifies: bool
    """Whether the tables notify of puts, or are set not to."""


def put_in_transaction(
    connection: BlockingSession | BlockingConnection,
    queue: str,
    bodies: Sequence[Body],
    *,
    visible_after_ms: int = 0,
    ttl_s: int = NEVER,
    schema: str | None = None,
    create: bool = True,
) -> list[PutReceipt]:
    """Put 1 to 256 messages within the transaction that is open on a blocking connection to PostgreSQL.

    The connection is of psycopg 3, SQLAlchemy 2 (also a session) or Django, to a database with Queuebell's tables:
    those in ``schema``, or the first on its search path. The messages become visible with the commit; a rollback
    discards them. The commit wakes workers by NOTIFY, unless the tables were created with ``--no-notify``. With
    ``create`` False a missing queue raises `QueueNotFound`.

    Raises `BadInput` if nothing was put and the transaction is unchanged: ``no_transaction``, ``read_only``,
    ``wrong_database``, ``transaction_failed``, ``connection_unusable``, ``unknown_connection``, and errors of any put.
    After any other error the transaction can only be rolled back; after `StoreUnavailable` repeat all of it.
    """
    messages = new_messages(bodies, visible_after_ms, ttl_s)
    check_put(queue, messages, sql.BATCH_MAX)
    with sending(queue, messages, carries=True) as (carrying, record):
        receipts = _run_blocking(connection, queue, schema, lambda here: put_steps(here, queue, carrying, create))
        record(receipts)
        return receipts


def put_once_in_transaction(
    connection: BlockingSession | BlockingConnection,
    queue: str,
    key: str,
    body: Body,
    *,
    visible_after_ms: int = 0,
    ttl_s: int = NEVER,
    schema: str | None = None,
    create: bool = True,
) -> PutReceipt | None:
    """Put a message once under your own key, within the transaction that is open on a blocking connection.

    Returns None if it was put before (`PutOnceStore.put_once`); the key is remembered for 600 s at least, and a
    rollback forgets it. A put of the same key in another transaction waits for the end of this one. Connections and
    errors are as for `put_in_transaction`, and another body under a known key raises ``message_conflict``.
    """
    check_key(key)
    messages = new_messages([body], visible_after_ms, ttl_s)
    check_put(queue, messages, sql.BATCH_MAX)
    window_ms = round(PUT_WINDOW_S * 1000)
    with sending(queue, messages, carries=True) as ((message,), record):
        put = receipt(
            _run_blocking(
                connection,
                queue,
                schema,
                lambda here: put_once_steps(here, queue, key, message, digest(message), create, window_ms),
            )
        )
        record(put)
        return put


def _run_blocking(
    connection: BlockingSession | BlockingConnection,
    queue: str,
    schema: str | None,
    steps_in: Callable[[Within], Steps[T]],
) -> T:
    """Execute the steps of a put on a blocking connection, after a check of where it leads."""
    with explained(queue):
        carry_out = _adapter(connection, queue, _BLOCKING)
        here = within(carry_out(connection, sql.WITHIN, (schema or "",)), queue)
        ((version,),) = carry_out(connection, sql.version_within(here.schema), ())
        if (fault := misfit(version)) is not None:
            raise BadInput("wrong_database", f"{queue}: nothing was put: {fault}")
        steps = steps_in(here)
        try:
            asked = next(steps)
            while True:
                asked = steps.send(carry_out(connection, *asked))
        except StopIteration as done:
            return cast(T, done.value)


class Joined:
    """The caller's asynchronous connection, for one put; raises as `put_in_transaction` does."""

    def __init__(self, connection: AsyncConnection, queue: str) -> None:
        with explained(queue):
            self._carry_out = _adapter(connection, queue, _AWAITED)
        self._connection, self._queue = connection, queue

    async def ask(self, statement: str, *arguments: str) -> Rows:
        """Execute one statement and return its rows."""
        with explained(self._queue):
            return await self._carry_out(self._connection, statement, arguments)

    async def within(self, schema: str) -> Within:
        """Return where the connection leads, for the tables in ``schema``."""
        return within(await self.ask(sql.WITHIN, schema), self._queue)

    async def carry_out(self, steps: Steps[T]) -> T:
        """Execute steps (`put_steps`, `put_once_steps`) in the transaction found by `within`."""
        with explained(self._queue):
            try:
                asked = next(steps)
                while True:
                    asked = steps.send(await self._carry_out(self._connection, *asked))
            except StopIteration as done:
                return cast(T, done.value)


def within(rows: Sequence[Sequence[Any]], queue: str) -> Within:
    """Return the result of `sql.WITHIN`; raise `BadInput` (``wrong_database``) if there are no tables."""
    if not rows:
        raise other_database(queue, f"there are no queue tables on this connection's search path: {INIT_HINT}")
    return Within(*rows[0])


def put_steps(here: Within, queue: str, messages: Sequence[NewMessage], create: bool) -> Steps[list[PutReceipt]]:
    """Yield the statements of a put of messages; return the receipts."""
    lists = (
        [as_bytes(message.body) for message in messages],
        [str(message.visible_after_ms) for message in messages],
        [str(message.ttl_s) for message in messages],
    )
    statement = sql.put_within(here.schema, notify=not here.notifies, create=create)
    headers = ",".join(headers_as_bytes(message) for message in messages)
    rows = yield statement, (queue, *map(",".join, lists), writing(here, queue), headers)
    if not rows and not create:
        ((inside,),) = yield sql.INSIDE, (writing(here, queue),)
        if inside:
            raise missing(queue, ())
    if not rows:
        raise no_transaction(queue)
    return [PutReceipt(row[0], row[1], message.visible_after_ms) for row, message in zip(rows, messages, strict=True)]


def put_once_steps(
    here: Within, queue: str, key: str, message: NewMessage, digest: str, create: bool, window_ms: int
) -> Steps[PutReceipt | bool]:
    """Yield the statements of a put under a key; return the receipt, or whether the earlier body has this digest."""
    body, delay, ttl = as_bytes(message.body), str(message.visible_after_ms), str(message.ttl_s)
    statement = sql.put_once_within(here.schema, notify=not here.notifies, create=create)
    given = (queue, body, delay, ttl, writing(here, queue), digest, str(window_ms), key, headers_as_bytes(message))
    (row,) = yield statement, given
    if not row[0]:
        raise no_transaction(queue)
    if not row[1]:
        raise missing(queue, ())
    if row[2] is not None:
        return PutReceipt(row[2], row[3], message.visible_after_ms)
    known = yield sql.known(sql.quoted(here.schema)), (queue, key, digest)
    if not known:
        raise StoreUnavailable(
            f"{queue}: nothing was put: the key just expired: repeat the put, or the whole transaction"
        )
    return bool(known[0][0])


def as_bytes(given: bytes) -> str:
    """Return bytes in the server's text format."""
    return "\\x" + given.hex()


def headers_as_bytes(message: NewMessage) -> str:
    """Return the headers as JSON in that format, no text for none."""
    return as_bytes(msgspec.json.encode(message.headers)) if message.headers else ""


def other_database(queue: str, why: str) -> BadInput:
    """Return the error for a connection to another database."""
    return BadInput("wrong_database", f"{queue}: nothing was put: {why}, or use a connection to the queues' database")


def writing(here: Within, queue: str) -> str:
    """Return the transaction; raise `BadInput` if it is read-only, before a write would fail it."""
    if here.transaction is None:
        raise BadInput(
            "read_only",
            f"{queue}: nothing was put: the connection's transaction is READ ONLY, or its server is a standby: begin a "
            "writable one",
        )
    return here.transaction


def no_transaction(queue: str) -> BadInput:
    """Return the error for a connection in autocommit mode."""
    return BadInput(
        "no_transaction",
        f"{queue}: nothing was put: no transaction is open on this connection (autocommit): begin one and put within "
        "it, or put without a connection",
    )


def _adapter(connection: object, queue: str, kinds: Mapping[str, _Adapter]) -> _Adapter:
    """Return the adapter for a connection; raise `BadInput` if there is none, or it is unusable."""
    names = [f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__]
    found = next((kinds[name] for name in names if name in kinds), None)
    if found is None:
        raise BadInput("unknown_connection", f"{queue}: nothing was put: {names[0]} is not supported: {_KNOWN}")
    if getattr(connection, "closed", False) or getattr(connection, "closed_in_transaction", False):
        raise _unusable(queue, "it is closed")
    bind: Any = connection.get_bind() if hasattr(connection, "get_bind") else connection
    dialect = getattr(bind, "vendor", None) or getattr(getattr(bind, "dialect", None), "name", "postgresql")
    if dialect != "postgresql":
        raise other_database(queue, f"this connection leads to {dialect}: put without it")
    return found


@contextmanager
def explained(queue: str) -> Iterator[None]:
    """Map errors of drivers, SQLAlchemy and Django to store errors."""
    try:
        yield
    except Exception as error:
        ours = _meaning(error, queue)
        if ours is None:
            raise
        raise ours from error


def _meaning(error: Exception, queue: str) -> QueuebellError | None:
    """Return the store error for an error of a driver or a wrapper; None for any other error."""
    names = {kind.__name__ for kind in type(error).__mro__}
    # The wrapped error has the SQLSTATE, and its text does not contain the statement with the bodies.
    layers = [each for each in (getattr(error, "orig", None), error.__cause__, error) if isinstance(each, Exception)]
    states = [(str(getattr(each, name, None) or ""), each) for each in layers for name in _STATES]
    state, inner = next((found for found in states if found[0]), ("", layers[0]))
    if state == _FAILED or names & _FAILED_BY:
        return BadInput(
            "transaction_failed",
            f"{queue}: nothing was put: an earlier statement has failed this connection's transaction: roll it back, "
            "and repeat all of it",
        )
    if state:
        ours = error_for(
            inner, state, f"{queue}: nothing was put, and the transaction can only be rolled back", sent=True
        )
        return StoreUnavailable(str(ours)) if isinstance(ours, UnknownOutcome) else ours
    if names & _UNUSABLE_BY:
        return _unusable(queue, named(inner))
    if isinstance(inner, TimeoutError) and inner.errno is None:
        # asyncpg's: it has cancelled the statement, and the connection is still usable.
        return StoreUnavailable(
            f"{queue}: nothing was put within the connection's own time-out (command_timeout), and the transaction can "
            "only be rolled back: repeat all of it, or allow more time"
        )
    if type(inner).__module__ == "sqlite3" and "OperationalError" in names:
        return StoreUnavailable(
            f"{queue}: nothing was put: the database rejected it: {named(inner)}: roll back, and repeat all of it"
        )
    if "OperationalError" in names or isinstance(error, OSError):
        return StoreUnavailable(
            f"{queue}: nothing was put: the connection is lost, and its transaction with it: {named(inner)}: repeat "
            "all of it on another"
        )
    return None


def _unusable(queue: str, why: str) -> BadInput:
    return BadInput(
        "connection_unusable",
        f"{queue}: nothing was put: the connection is unusable: {why}: use one that is open and not in use",
    )


def _pyformat(statement: str) -> str:
    return _placed(statement.replace("%", "%%"), lambda place: f"%(p{place})s")


def _text(statement: str) -> Any:
    from sqlalchemy import text

    return text(_placed(statement, lambda place: f":p{place}", lambda name: name.replace(":", "\\:")))


def _placed(statement: str, written: Callable[[str], str], named: Callable[[str], str] = str) -> str:
    """Return a statement with a driver's placeholders; quoted names are not changed."""
    return _placeholder.sub(lambda found: written(found[1]) if found[1] else named(found[0]), statement)


def _by_name(given: Sequence[str]) -> dict[str, str]:
    return {f"p{place}": value for place, value in enumerate(given, 1)}


async def _asyncpg(connection: Any, statement: str, given: Sequence[str]) -> Rows:
    return [tuple(row) for row in await connection.fetch(statement, *given)]


async def _psycopg_async(connection: Any, statement: str, given: Sequence[str]) -> Rows:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    # Not the connection's own cursor class, whose rows and placeholders may differ; the same below.
    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(_pyformat(statement).encode(), _by_name(given))
        return await cursor.fetchall()


async def _sqlalchemy_async(connection: Any, statement: str, given: Sequence[str]) -> Rows:
    with _no_flush(connection):
        return [tuple(row) for row in await connection.execute(_text(statement), _by_name(given))]


def _psycopg(connection: Any, statement: str, given: Sequence[str]) -> Rows:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    with Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(_pyformat(statement).encode(), _by_name(given))
        return cursor.fetchall()


def _sqlalchemy(connection: Any, statement: str, given: Sequence[str]) -> Rows:
    with _no_flush(connection):
        return [tuple(row) for row in connection.execute(_text(statement), _by_name(given))]


def _no_flush(connection: Any) -> AbstractContextManager[Any]:
    """Prevent a session from flushing the caller's objects within the put, as their errors are the caller's."""
    return getattr(connection, "no_autoflush", None) or nullcontext()


def _django(connection: Any, statement: str, given: Sequence[str]) -> Rows:
    with connection.cursor() as cursor:
        cursor.execute(_pyformat(statement), _by_name(given))
        return list(cursor.fetchall())


_AWAITED: Final[dict[str, Callable[[Any, str, Sequence[str]], Awaitable[Rows]]]] = {
    "asyncpg.Connection": _asyncpg,
    "asyncpg.PoolConnectionProxy": _asyncpg,
    "psycopg.AsyncConnection": _psycopg_async,
    "sqlalchemy.AsyncConnection": _sqlalchemy_async,
    "sqlalchemy.AsyncSession": _sqlalchemy_async,
    "sqlalchemy.async_scoped_session": _sqlalchemy_async,
}
_BLOCKING: Final[dict[str, Callable[[Any, str, Sequence[str]], Rows]]] = {
    "psycopg.Connection": _psycopg,
    "sqlalchemy.Connection": _sqlalchemy,
    "sqlalchemy.Session": _sqlalchemy,
    "sqlalchemy.scoped_session": _sqlalchemy,
    "django.BaseDatabaseWrapper": _django,
    "django.ConnectionProxy": _django,
}
