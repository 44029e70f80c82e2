"""Transactions on PostgreSQL by every driver that a put can join, under one face."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
import django
import django.conf
import psycopg
import sqlalchemy
from django.db import connection as django_connection
from django.db import transaction as django_transaction
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from queuebell.bridge.queues.base import Body, PutReceipt
from queuebell.bridge.queues.postgres.store import PostgresStore
from queuebell.bridge.queues.postgres.transaction import put_in_transaction
from tests.support.postgres import PostgresServer


class Awaited:
    """A connection whose calls are awaited; `end` commits or rolls back the transaction that is open on it."""

    def __init__(self, connection: Any, execute: Callable[[str], Any], end: Callable[[bool], Any]) -> None:
        self.connection = connection
        self._execute, self._end = execute, end

    async def execute(self, statement: str) -> None:
        await self._execute(statement)

    async def put(self, store: PostgresStore, queue: str, bodies: Sequence[Body]) -> list[PutReceipt]:
        return await store.put(queue, bodies, connection=self.connection)

    async def end(self, commit: bool) -> None:
        await self._end(commit)


class Blocking(Awaited):
    """A connection that blocks."""

    async def execute(self, statement: str) -> None:
        self._execute(statement)

    async def put(self, store: PostgresStore, queue: str, bodies: Sequence[Body]) -> list[PutReceipt]:
        return put_in_transaction(self.connection, queue, bodies)

    async def end(self, commit: bool) -> None:
        self._end(commit)


Opener = Callable[..., AbstractAsyncContextManager[Awaited]]


@asynccontextmanager
async def by_asyncpg(
    server: PostgresServer, schema: str, *, begin: bool = True, database: str = "postgres"
) -> AsyncIterator[Awaited]:
    connection = await asyncpg.connect(server.url(database), server_settings={"search_path": schema})
    try:
        transaction = connection.transaction()
        if begin:
            await transaction.start()
        yield Awaited(
            connection, connection.execute, lambda commit: (transaction.commit, transaction.rollback)[not commit]()
        )
    finally:
        await connection.close()


@asynccontextmanager
async def by_asyncpg_pool(
    server: PostgresServer, schema: str, *, begin: bool = True, database: str = "postgres"
) -> AsyncIterator[Awaited]:
    async with (
        asyncpg.create_pool(
            server.url(database), min_size=1, max_size=1, server_settings={"search_path": schema}
        ) as pool,
        pool.acquire() as connection,
    ):
        if begin:
            await connection.execute("BEGIN")
        yield Awaited(
            connection, connection.execute, lambda commit: connection.execute("COMMIT" if commit else "ROLLBACK")
        )


@asynccontextmanager
async def by_psycopg_async(
    server: PostgresServer, schema: str, *, begin: bool = True, database: str = "postgres"
) -> AsyncIterator[Awaited]:
    connection = await psycopg.AsyncConnection.connect(
        server.url(database), options=f"-csearch_path={schema}", autocommit=not begin,
        row_factory=psycopg.rows.dict_row, cursor_factory=psycopg.AsyncRawCursor,
    )  # fmt: skip
    try:
        yield Awaited(
            connection, connection.execute, lambda commit: connection.commit() if commit else connection.rollback()
        )
    finally:
        await connection.close()


def _address(server: PostgresServer, database: str, driver: str) -> str:
    return server.url(database).replace("postgres://", f"postgresql+{driver}://", 1)


@asynccontextmanager
async def by_sqlalchemy_async(
    server: PostgresServer,
    schema: str,
    *,
    begin: bool = True,
    database: str = "postgres",
    session: bool = False,
    driver: str = "asyncpg",
) -> AsyncIterator[Awaited]:
    given: dict[str, Any] = (
        {"server_settings": {"search_path": schema}} if driver == "asyncpg" else {"options": f"-csearch_path={schema}"}
    )
    more = {} if begin else {"isolation_level": "AUTOCOMMIT"}
    engine = create_async_engine(_address(server, database, driver), connect_args=given, poolclass=NullPool, **more)
    async with AsyncSession(engine) if session else engine.connect() as connection:
        yield Awaited(
            connection,
            lambda statement: connection.execute(sqlalchemy.text(statement)),
            lambda commit: connection.commit() if commit else connection.rollback(),
        )
    await engine.dispose()


def by_sqlalchemy_session_async(
    server: PostgresServer, schema: str, *, begin: bool = True, database: str = "postgres"
) -> Any:
    return by_sqlalchemy_async(server, schema, begin=begin, database=database, session=True, driver="psycopg")


@asynccontextmanager
async def by_psycopg(
    server: PostgresServer, schema: str, *, begin: bool = True, database: str = "postgres"
) -> AsyncIterator[Awaited]:
    with contextlib.closing(
        psycopg.connect(server.url(database), options=f"-csearch_path={schema}", autocommit=not begin)
    ) as connection:
        yield Blocking(
            connection, connection.execute, lambda commit: connection.commit() if commit else connection.rollback()
        )


@asynccontextmanager
async def by_sqlalchemy(
    server: PostgresServer, schema: str, *, begin: bool = True, database: str = "postgres", session: bool = False
) -> AsyncIterator[Awaited]:
    more = {} if begin else {"isolation_level": "AUTOCOMMIT"}
    engine = sqlalchemy.create_engine(
        _address(server, database, "psycopg"),
        connect_args={"options": f"-csearch_path={schema}"},
        poolclass=NullPool,
        **more,
    )
    with Session(engine) if session else engine.connect() as connection:
        yield Blocking(
            connection,
            lambda statement: connection.execute(sqlalchemy.text(statement)),
            lambda commit: connection.commit() if commit else connection.rollback(),
        )
    engine.dispose()


def by_sqlalchemy_session(
    server: PostgresServer, schema: str, *, begin: bool = True, database: str = "postgres"
) -> Any:
    return by_sqlalchemy(server, schema, begin=begin, database=database, session=True)


@asynccontextmanager
async def by_django(
    server: PostgresServer, schema: str, *, begin: bool = True, database: str = "postgres"
) -> AsyncIterator[Awaited]:
    """Within `atomic`; needs ``DJANGO_ALLOW_ASYNC_UNSAFE``, for a loop runs here."""
    if not django.conf.settings.configured:
        django.conf.settings.configure(
            DATABASES={
                "default": {
                    "ENGINE": "django.db.backends.postgresql",
                }
            },
            LOGGING_CONFIG=None,
        )
        django.setup()
    django_connection.settings_dict.update(
        NAME=database,
        HOST="127.0.0.1",
        PORT=server.port,
        USER="postgres",
        OPTIONS={"options": f"-csearch_path={schema}"},
    )
    atomic = django_transaction.atomic()

    def execute(statement: str) -> None:
        with django_connection.cursor() as cursor:
            cursor.execute(statement)

    def end(commit: bool) -> None:
        error = None if commit else RuntimeError("rolled back")
        atomic.__exit__(error and RuntimeError, error, None)

    if begin:
        atomic.__enter__()
    try:
        yield Blocking(django_connection, execute, end)
    finally:
        if django_connection.in_atomic_block:
            end(False)
        django_connection.close()


OPENERS: list[Opener] = [
    by_asyncpg, by_asyncpg_pool, by_psycopg_async, by_sqlalchemy_async, by_sqlalchemy_session_async,
    by_psycopg, by_sqlalchemy, by_sqlalchemy_session, by_django,
]  # fmt: skip
