"""An outbox in a SQLAlchemy 2 database: rows in your transaction, messages right after its commit."""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
    event,
    text,
)
from sqlalchemy.engine.interfaces import Dialect
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import SingletonThreadPool, StaticPool

from queuebell.bridge.contract.errors import BadInput, ConfigurationError
from queuebell.bridge.contract.partitioning import Partitions
from queuebell.bridge.producer.outbox import table
from queuebell.bridge.producer.outbox.database import (
    LISTEN,
    BlockingDatabase,
    Link,
    OutboxDatabase,
    notifications,
    notify_relays,
)
from queuebell.bridge.producer.outbox.relay import Relay
from queuebell.bridge.producer.outbox.table import Execute, Place
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import NEVER, Body, QueueStore
from queuebell.bridge.queues.postgres.transaction import explained

T = TypeVar("T")
Blocking = Session | scoped_session[Any] | Connection
Awaited = AsyncSession | async_scoped_session[Any] | AsyncConnection


class Outbox:
    """The table ``queuebell_outbox`` in your ``metadata``, with puts and a relay; `create_all` or Alembic creates it.

    ``schema`` is the table's schema, by default the metadata's.
    """

    def __init__(self, metadata: MetaData, *, name: str = table.TABLE, schema: str | None = None) -> None:
        self.table = Table(
            name,
            metadata,
            Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
            Column("version", SmallInteger, nullable=False),
            Column("put_key", String(128), nullable=False),
            Column("queue", String(161), nullable=False),
            Column("body", LargeBinary, nullable=False),
            Column("written_ms", BigInteger, nullable=False),
            Column("visible_after_ms", BigInteger, nullable=False),
            Column("ttl_s", BigInteger, nullable=False),
            Column("headers", Text),
            Column("refused", Text),
            schema=schema,
        )
        """Its rows are the waiting messages; ``refused`` is why the store rejected one permanently."""

    def put(
        self,
        session: Blocking,
        queue: str | Partitions,
        bodies: Sequence[Body],
        *,
        key: str | bytes | None = None,
        visible_after_ms: int = 0,
        ttl_s: int = NEVER,
    ) -> list[str]:
        """Put 1 to 10,000 messages in the transaction of a session or connection; return the key of each.

        They are sent after the transaction commits, and never after a rollback, also to a savepoint. The delay counts
        from now, the time to live from the put to the store. ``key`` chooses the partition of a partitioned queue,
        such as ``billing/orders:8``. It does not flush the session's objects.

        Raises `BadInput`, with nothing put and the transaction unchanged: ``no_transaction``,
        ``wrong_database``, ``transaction_failed``, ``connection_unusable``, ``unknown_connection``, and what any put
        raises. After `StoreUnavailable` the transaction can only be rolled back.
        """
        written = table.new_rows(
            queue,
            bodies,
            key=key,
            visible_after_ms=visible_after_ms,
            ttl_s=ttl_s,
            now_ms=time.time_ns() // 1_000_000,
            name=lambda: uuid.uuid4().hex,
            draw=random.random,
        )
        if not isinstance(session, Session | scoped_session | Connection):
            raise BadInput(
                "unknown_connection",
                f"{queue}: nothing was put: {type(session).__name__} cannot be used here: put() takes a Session or "
                "Connection of SQLAlchemy, `await aput()` their asynchronous kinds",
            )
        with explained(written[0].queue):
            connection = session
            if not isinstance(connection, Connection):
                connection = connection.connection(bind_arguments={"clause": self.table})
            place = self._place(connection.dialect)
            table.insert(_executor(connection), place, written, _in_transaction(connection))
            if place.dialect == "sqlite" and not event.contains(connection, "commit", notify_relays):
                # It is called when the commit begins; the relay's read waits for its end.
                event.listen(connection, "commit", notify_relays)
        return [row.put_key for row in written]

    async def aput(
        self,
        session: Awaited,
        queue: str | Partitions,
        bodies: Sequence[Body],
        *,
        key: str | bytes | None = None,
        visible_after_ms: int = 0,
        ttl_s: int = NEVER,
    ) -> list[str]:
        """Do what `put` does, for an `AsyncSession` or `AsyncConnection`."""
        if not hasattr(session, "run_sync"):
            raise BadInput(
                "unknown_connection",
                f"{queue}: nothing was put: {type(session).__name__} cannot be used here: aput() takes an AsyncSession "
                "or AsyncConnection of SQLAlchemy, put() their blocking kinds",
            )
        run: Callable[..., Any] = session.run_sync
        with explained(str(queue)):
            keys: list[str] = await run(
                self.put, queue, bodies, key=key, visible_after_ms=visible_after_ms, ttl_s=ttl_s
            )
        return keys

    def relay(self, engine: Engine | AsyncEngine, to: QueueStore | PublishingQueue, **options: Any) -> Relay:
        """Return the relay that puts committed rows to a store, an async context manager with the options of `Relay`.

        It takes a connection of the engine's pool for each read, and on PostgreSQL one outside the pool to listen on.
        Raises `BadInput` (``wrong_database``) for a database other than PostgreSQL and SQLite, and
        `ConfigurationError` for SQLite in memory, whose one connection is the application's.
        """
        return Relay(self.database(engine), to, **options)

    def database(self, engine: Engine | AsyncEngine) -> OutboxDatabase:
        """Return the database that a relay reads; raises as `relay` does."""
        place = self._place(engine.dialect)
        if isinstance(engine.pool, StaticPool | SingletonThreadPool):
            raise ConfigurationError("an outbox is relayed from a file: a SQLite database in memory is one connection")
        if isinstance(engine, AsyncEngine):
            return _AsyncDatabase(place, engine)
        return BlockingDatabase(place, lambda: _BlockingLink(engine.connect()))

    def _place(self, dialect: Dialect) -> Place:
        table.check_dialect(dialect.name)
        return Place(dialect.name, dialect.identifier_preparer.format_table(self.table), self.table.name)


def _executor(connection: Connection) -> Execute:
    def execute(statement: str, given: Mapping[str, object]) -> list[tuple[Any, ...]]:
        result = connection.execute(text(statement), dict(given))
        return [tuple(row) for row in result] if result.returns_rows else []

    return execute


def _in_transaction(connection: Connection) -> bool:
    """Return whether a write is part of a transaction; for SQLite, as far as its driver knows."""
    if connection.dialect.name != "sqlite":
        return True  # the server is asked
    driver: Any = connection.connection.driver_connection
    return driver.in_transaction or not (driver.isolation_level is None or getattr(driver, "autocommit", None) is True)


class _BlockingLink:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.execute = _executor(connection)
        self.commit, self.close = connection.commit, connection.close

    def listen(self) -> Any:
        return _listen(self._connection)


def _listen(connection: Connection) -> Any:
    driver = connection.connection.driver_connection  # a detached one has none
    connection.detach()
    connection.execute(text(LISTEN))
    connection.commit()
    return driver


class _AsyncLink:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def call(self, work: Callable[[Execute], T], *, commit: bool = False) -> T:
        result = await self._connection.run_sync(lambda connection: work(_executor(connection)))
        if commit:
            await self._connection.commit()
        return result


class _AsyncDatabase:
    def __init__(self, place: Place, engine: AsyncEngine) -> None:
        self.place, self._engine = place, engine

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Link]:
        async with self._engine.connect() as connection:
            yield _AsyncLink(connection)

    @asynccontextmanager
    async def listen(self, on_commit: Callable[[], None]) -> AsyncIterator[asyncio.Future[None]]:
        async with self._engine.connect() as connection:
            async with notifications(await connection.run_sync(_listen), on_commit) as lost:
                yield lost

    async def close(self) -> None:
        """Do nothing: the engine is the caller's."""
