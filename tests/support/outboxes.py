"""Outboxes by everything that can write and read one, under one face; as a program it is killed at a step.

``python -m tests.support.outboxes KIND DATABASE STORE STEP`` writes three messages and relays them to a store, and
kills itself by SIGKILL at a step of `STEPS`, or stops itself with the fault "stopped". DATABASE is a file, or the
``postgres://`` address of a server's database.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import django
import django.conf
import sqlalchemy
from django.apps import apps
from django.core.management import call_command
from django.db import connections, transaction
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from queuebell.bridge.producer.outbox import table
from queuebell.bridge.producer.outbox.database import Link, OutboxDatabase
from queuebell.bridge.producer.outbox.relay import Relay
from queuebell.bridge.producer.outbox.table import Execute, Place
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import Body, PutReceipt, QueueStore
from queuebell.frameworks.sqlalchemy import Outbox
from tests.support.processes import until

T = TypeVar("T")
QUEUE = "billing/orders"
Step = Callable[["Writer"], None]
"""What is done within a transaction, by calls that block."""


class Writer:
    """A transaction that is open."""

    def __init__(
        self, put: Callable[..., list[str]], execute: Callable[[str], Any], savepoint: Callable[[], Any]
    ) -> None:
        self.put, self.execute, self.savepoint = put, execute, savepoint


class RolledBackError(Exception):
    """What ends a transaction without a commit."""


def abandon(_: Writer) -> None:
    raise RolledBackError


def put(*bodies: Body, queue: str = QUEUE, **options: Any) -> Step:
    return lambda writer: writer.put(queue, list(bodies), **options)


def within_savepoint(*steps: Step) -> Step:
    """Do steps, and roll back to where they began if they end in `abandon`."""

    def done(writer: Writer) -> None:
        try:
            with writer.savepoint():
                for step in steps:
                    step(writer)
        except RolledBackError:
            pass

    return done


class Rig:
    """An outbox of one kind in one database."""

    database_url: str
    outbox: Outbox

    async def create(self) -> None:
        """Make the table as its users do."""
        raise NotImplementedError

    async def write(self, *steps: Step, begin: bool = True) -> None:
        """Do steps in a transaction, which is committed unless one of them raises `RolledBackError`."""
        raise NotImplementedError

    async def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Carry out a statement, and commit."""
        raise NotImplementedError

    def database(self) -> OutboxDatabase:
        raise NotImplementedError

    def relay(self, to: Any, **options: Any) -> Relay:
        return Relay(self.database(), to, **options)

    async def count(self) -> int:
        ((count,),) = await self.query("SELECT COUNT(*) FROM queuebell_outbox")
        return int(count)

    async def close(self) -> None:
        raise NotImplementedError


def _sqlalchemy_url(database: str, drivers: dict[str, str]) -> str:
    if database.startswith("postgres://"):
        return database.replace("postgres", "postgresql+" + drivers["postgres"], 1)
    return f"sqlite+{drivers['sqlite']}:///{database}"


class SqlAlchemyRig(Rig):
    def __init__(self, database: str, **given: Any) -> None:
        self.outbox = Outbox(MetaData())
        url = _sqlalchemy_url(database, {"postgres": "psycopg", "sqlite": "pysqlite"})
        self.engine = sqlalchemy.create_engine(url, connect_args=given)

    async def create(self) -> None:
        self.outbox.table.metadata.create_all(self.engine)

    async def write(self, *steps: Step, begin: bool = True) -> None:
        await asyncio.to_thread(self._write, steps, begin)

    def _write(self, steps: Sequence[Step], begin: bool) -> None:
        engine = self.engine if begin else self.engine.execution_options(isolation_level="AUTOCOMMIT")
        with Session(engine) as session:
            try:
                _do(self.outbox, session, steps)
                session.commit()
            except RolledBackError:
                session.rollback()

    async def query(self, statement: str) -> list[tuple[Any, ...]]:
        return await asyncio.to_thread(self._query, statement)

    def _query(self, statement: str) -> list[tuple[Any, ...]]:
        with self.engine.begin() as connection:
            result = connection.execute(sqlalchemy.text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    def database(self) -> OutboxDatabase:
        return self.outbox.database(self.engine)

    async def close(self) -> None:
        self.engine.dispose()


def _do(outbox: Outbox, session: Session, steps: Sequence[Step]) -> None:
    writer = Writer(
        lambda queue, bodies, **options: outbox.put(session, queue, bodies, **options),
        lambda statement: session.execute(sqlalchemy.text(statement)),
        session.begin_nested,
    )
    for step in steps:
        step(writer)


class AsyncSqlAlchemyRig(Rig):
    """With asyncpg and aiosqlite; `write` goes through `run_sync`, but for the one put that is all there is to do."""

    def __init__(self, database: str, **given: Any) -> None:
        self.outbox = Outbox(MetaData())
        url = _sqlalchemy_url(database, {"postgres": "asyncpg", "sqlite": "aiosqlite"})
        self.engine = create_async_engine(url, connect_args=given)

    async def create(self) -> None:
        async with self.engine.begin() as connection:
            await connection.run_sync(self.outbox.table.metadata.create_all)

    async def write(self, *steps: Step, begin: bool = True) -> None:
        engine = self.engine if begin else self.engine.execution_options(isolation_level="AUTOCOMMIT")
        async with AsyncSession(engine) as session:
            try:
                await session.run_sync(lambda sync: _do(self.outbox, sync, steps))
                await session.commit()
            except RolledBackError:
                await session.rollback()

    async def query(self, statement: str) -> list[tuple[Any, ...]]:
        async with self.engine.begin() as connection:
            result = await connection.execute(sqlalchemy.text(statement))
            return [tuple(row) for row in result] if result.returns_rows else []

    def database(self) -> OutboxDatabase:
        return self.outbox.database(self.engine)

    async def close(self) -> None:
        await self.engine.dispose()


class DjangoRig(Rig):
    def __init__(self, database: str) -> None:
        installed = "queuebell.frameworks.django"
        if not django.conf.settings.configured:
            # The default database is for other tests of this process, which fill it in (tests/support/transactions.py).
            engine = {"default": {"ENGINE": "django.db.backends.postgresql"}}
            django.conf.settings.configure(INSTALLED_APPS=[installed], DATABASES=engine, LOGGING_CONFIG=None)
            django.setup()
        if not apps.is_installed(installed):  # another test's settings
            apps.set_installed_apps([*(config.name for config in apps.get_app_configs()), installed])
        self.alias = f"outbox-{id(self)}"
        connections.databases[self.alias] = connections.configure_settings({"default": _django_settings(database)})[
            "default"
        ]
        self._thread = ThreadPoolExecutor(1, "django")

    async def create(self) -> None:
        await self._run(lambda: call_command("migrate", database=self.alias, app_label="queuebell", verbosity=0))

    async def write(self, *steps: Step, begin: bool = True) -> None:
        await self._run(lambda: self._write(steps, begin))

    def _write(self, steps: Sequence[Step], begin: bool) -> None:
        from queuebell.frameworks.django import outbox

        writer = Writer(
            lambda queue, bodies, **options: outbox.put(queue, bodies, using=self.alias, **options),
            self._execute,
            lambda: transaction.atomic(using=self.alias),
        )
        try:
            with transaction.atomic(using=self.alias) if begin else connections[self.alias].cursor():
                for step in steps:
                    step(writer)
        except RolledBackError:
            pass

    def _execute(self, statement: str) -> list[tuple[Any, ...]]:
        with connections[self.alias].cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall()) if cursor.description else []

    async def query(self, statement: str) -> list[tuple[Any, ...]]:
        return await self._run(lambda: self._execute(statement))

    def database(self) -> OutboxDatabase:
        from queuebell.frameworks.django import outbox

        return outbox.database(self.alias)

    async def close(self) -> None:
        await self._run(lambda: connections[self.alias].close())
        self._thread.shutdown()
        del connections.databases[self.alias]

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


def _django_settings(database: str) -> dict[str, Any]:
    if not database.startswith("postgres://"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": database}
    url = sqlalchemy.make_url(database)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": url.database,
        "HOST": url.host,
        "PORT": url.port,
        "USER": url.username,
    }


RIGS: dict[str, Callable[..., Rig]] = {
    "sqlalchemy": SqlAlchemyRig,
    "sqlalchemy-async": AsyncSqlAlchemyRig,
    "django": DjangoRig,
}


@asynccontextmanager
async def opened(kind: str, database: str, create: bool = True, **given: Any) -> AsyncIterator[Rig]:
    rig = RIGS[kind](database, **given)
    try:
        if create:
            await rig.create()
        yield rig
    finally:
        await rig.close()


# A process that kills itself -------------------------------------------------------------------------------------

BODIES = ("order 1", "order 2", "order 3")
STEPS = (
    "before the insert",
    "after the insert",
    "after the commit",
    "after the read",
    "after the first put",
    "after the puts",
    "after the delete",
    "after the delete's commit",
)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Watched:
    """A store and a database of which each step may be the last; with a ``fault`` they are as they must not be."""

    def __init__(self, step: str, fault: str, store: QueueStore, database: OutboxDatabase) -> None:
        self.step, self.fault, self.database = step, fault, database
        self._store: Any = store
        self.capabilities = store.capabilities
        self.place: Place = database.place
        self._puts = 0

    def reached(self, step: str) -> None:
        if step == self.step and self.fault == "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif step == self.step:
            die()

    async def put_once(self, queue: str, key: str, body: Body) -> PutReceipt | None:
        self.reached("after the read")
        if self.fault == "without a key":
            await self._store.put(queue, [body])
        else:
            await self._store.put_once(queue, key, body)
        self._puts += 1
        self.reached("after the first put")
        if self._puts == len(BODIES):
            self.reached("after the puts")
        return None

    def listen(self, on_commit: Callable[[], None]) -> Any:
        return self.database.listen(on_commit)

    async def close(self) -> None:
        await self.database.close()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Link]:
        async with self.database.connect() as link:
            self._link = link
            yield self

    async def call(self, work: Callable[[Execute], T], *, commit: bool = False) -> T:
        def watched(execute: Execute) -> T:
            result = work(execute)
            if isinstance(result, table.PendingRows):
                if result.rows and self.fault == "marked before":
                    table.record_outcome(execute, self.place, result.rows, {})
            elif commit:
                self.reached("after the delete")
            return result

        result = await self._link.call(watched, commit=commit)
        if commit and result is None:
            self.reached("after the delete's commit")
        return result


async def main(kind: str, database: str, store: str, step: str, fault: str = "") -> None:
    if fault == "stopped":
        table.HELD_S = 2  # type: ignore[misc]
    async with opened(kind, database, create=False) as rig, open_store(store) as to:
        watched = Watched(step, fault, to, rig.database())
        watched.reached("before the insert")
        await rig.write(put(*BODIES), lambda _: watched.reached("after the insert"))
        watched.reached("after the commit")
        async with Relay(watched, watched):  # type: ignore[arg-type]
            await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))


async def is_empty(rig: Rig) -> None:
    async def empty() -> bool:
        return await rig.count() == 0

    await until(empty, "the outbox is empty")
