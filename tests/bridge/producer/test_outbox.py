"""The outbox's relay: damaged rows, a bridge that restarts, cancellation, wrong arguments, drivers, its own faults.

What every database and driver has in common is in `tests/conformance/test_outboxes.py`.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import sqlalchemy
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from queuebell.bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    StoreUnavailable,
    Unsupported,
)
from queuebell.bridge.producer.outbox.database import Link, notify_relays, on_local_commit
from queuebell.bridge.producer.outbox.relay import Relay
from queuebell.bridge.producer.outbox.table import Execute, Place
from queuebell.bridge.queues.base import Body, Capabilities, NewMessage, PutReceipt, new_messages
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.frameworks.sqlalchemy import Outbox
from tests.support.outboxes import QUEUE, Rig, SqlAlchemyRig, is_empty, put
from tests.support.processes import Processes, until
from tests.support.sim_loop import pass_time, simulated

# Private: `_note_busy`: the test plants a fault of the relay there.


class FakeStore:
    """A store that keeps what it is given."""

    def __init__(self, *, once: bool = True) -> None:
        self.capabilities = Capabilities(put_once=once, batch_max=32)
        self.messages: dict[str, list[str]] = {}

    async def put(self, queue: str, bodies: Sequence[Body]) -> list[PutReceipt]:
        given = [message.body.decode() for message in new_messages(bodies)]
        self.messages.setdefault(queue, []).extend(given)
        return [PutReceipt("", "", 0) for _ in given]

    async def put_once(self, queue: str, key: str, body: Body) -> PutReceipt | None:
        return (await self.put(queue, [body]))[0]


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    rig = SqlAlchemyRig(str(tmp_path / "application.db"))
    await rig.create()
    yield rig
    await rig.close()


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize(
    "damage",
    ["headers = '{'", "headers = '[1]'", "headers = ''", "body = 'text'", "written_ms = 'then'", "ttl_s = 'x'"],
)
async def test_a_damaged_row_is_refused_and_holds_up_nothing(
    rig: Rig, once: bool, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is kept with the reason, counted and logged; once repaired, it is put."""
    store = FakeStore(once=once)
    await rig.write(put("1", NewMessage("2", headers={"a": "b"}), "3"))
    before = await rig.query("SELECT headers, body, written_ms, ttl_s FROM queuebell_outbox WHERE id = 2")
    await rig.query(f"UPDATE queuebell_outbox SET {damage} WHERE id = 2")
    async with rig.relay(store, interval_s=0.02) as relay:
        await until(lambda: (relay.state().sent, relay.state().refused) == (2, 1), "all are asked about")
        assert relay.state().failures == 0
        ((number, reason),) = await rig.query("SELECT id, refused FROM queuebell_outbox")
        assert number == 2 and reason.startswith("bad_parameter: ") and "the row is damaged" in reason
        ((headers, body, written, ttl),) = before
        mended = f"headers = '{headers}', body = x'{body.hex()}', written_ms = {written}, ttl_s = {ttl}, refused = NULL"
        await rig.query(f"UPDATE queuebell_outbox SET {mended}")
        await is_empty(rig)
    assert store.messages == {QUEUE: ["1", "3", "2"]}
    assert [r.levelname for r in caplog.records if "row 2 is kept with the reason" in r.message] == ["ERROR"]


async def test_a_bridge_that_restarts(rig: Rig, tmp_path: Path) -> None:
    """Rows committed in the meantime wait; each message is there once, in order."""
    async with Processes(tmp_path) as processes:
        bridge = await processes.serve()
        async with HttpStore(bridge.url) as store, rig.relay(store, interval_s=0.05) as relay:
            await rig.write(put("before"))
            await is_empty(rig)
            await bridge.kill()
            await rig.write(put("meanwhile"))
            await until(lambda: relay.state().failures, "it is away")
            await rig.write(put("after"))
            await processes.serve(port=bridge.port)
            await is_empty(rig)
            found = [message.body for message in (await store.receive(QUEUE, 32)).messages]
            assert found == [b"before", b"meanwhile", b"after"]


async def test_a_cancelled_run_gives_way(rig: Rig) -> None:
    begun = asyncio.Event()

    class Hanging(FakeStore):
        async def put_once(self, queue: str, key: str, body: Body) -> PutReceipt | None:
            begun.set()
            await asyncio.Event().wait()
            return None

    running = asyncio.create_task(rig.relay(Hanging(), close_timeout=0.0).run(), name="relay")
    await rig.write(put("1"))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await rig.count() == 1


@pytest.mark.parametrize(
    "options", [{"interval_s": 0.0}, {"sweep_s": float("nan")}, {"interval_s": float("inf")}, {"close_timeout": -1.0}]
)
async def test_numbers_that_are_none_are_refused(rig: Rig, options: dict[str, float]) -> None:
    with pytest.raises(BadInput, match=next(iter(options))):
        rig.relay(FakeStore(), **options)


async def test_what_cannot_be_relayed_from_or_to() -> None:
    outbox = Outbox(MetaData())
    for engine in (sqlalchemy.create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://")):
        with pytest.raises(ConfigurationError, match="in memory"):
            outbox.relay(engine, FakeStore())  # type: ignore[arg-type]
    other = sqlalchemy.create_mock_engine("mysql://", lambda *_: None)
    with pytest.raises(BadInput, match="not of mysql") as failure:
        outbox.relay(other, FakeStore())  # type: ignore[arg-type]
    assert failure.value.code == "wrong_database"


async def test_a_store_is_needed(rig: Rig) -> None:
    with pytest.raises(ConfigurationError, match="to a store"):
        rig.relay("http://127.0.0.1:8470")


async def test_a_database_that_is_locked_is_told(tmp_path: Path) -> None:
    """Another writer holds it for longer than the driver waits."""
    outbox = Outbox(MetaData())
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/application.db", connect_args={"timeout": 0})
    outbox.table.metadata.create_all(engine)
    with engine.begin() as holder, Session(engine) as session:
        outbox.put(holder, QUEUE, ["x"])
        with pytest.raises(StoreUnavailable, match="the database rejected it: OperationalError: database is locked"):
            outbox.put(session, QUEUE, ["y"])
    engine.dispose()


TABLE = """
    CREATE TABLE queuebell_outbox (id INTEGER PRIMARY KEY, version INTEGER, put_key TEXT, queue TEXT, body BLOB,
    written_ms INTEGER, visible_after_ms INTEGER, ttl_s INTEGER, headers TEXT, refused TEXT)
"""


class Database:
    """An outbox in memory that notes when it is read; as ``postgresql`` its driver cannot listen."""

    def __init__(self, kind: str = "sqlite") -> None:
        self.place = Place(kind, "queuebell_outbox", "queuebell_outbox")
        self.rows = sqlite3.connect(":memory:", isolation_level=None)
        self.rows.execute(TABLE)
        self.looks: list[float] = []
        self.closed = False
        self.listens = 0

    def execute(self, statement: str, given: Mapping[str, object]) -> list[tuple[Any, ...]]:
        if self.place.dialect == "postgresql":
            if "pg_attribute" in statement:
                ((names,),) = self.rows.execute("SELECT group_concat(name, ' ') FROM pragma_table_info(:p1)", given)
                return [(names, "17")]
            if "advisory" in statement:
                return [(True, "", "")]
            if "ISOLATION" in statement or "pg_notify" in statement:
                return [("",)]
        return self.rows.execute(statement, given).fetchall()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Link]:
        self.looks.append(asyncio.get_running_loop().time())
        yield self  # type: ignore[misc]

    async def call(self, work: Callable[[Execute], Any], *, commit: bool = False) -> Any:
        return work(self.execute)

    @asynccontextmanager
    async def listen(self, on_commit: Callable[[], None]) -> AsyncIterator[asyncio.Future[None]]:
        self.listens += 1
        raise Unsupported("pg8000: cannot")
        yield

    async def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.rows.close()


def half() -> float:
    """Chance that is none."""
    return 0.5


def relay_of(database: Database, store: Any = None, **options: Any) -> Relay:
    return Relay(database, FakeStore() if store is None else store, draw=half, **options)


def since(began: float, times: list[float]) -> list[float]:
    return [round(time - began, 3) for time in times]


def now() -> float:
    return asyncio.get_running_loop().time()


@simulated
async def test_a_driver_that_cannot_be_listened_on_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """The relay polls instead, and logs that once."""
    database, began = Database("postgresql"), now()
    async with relay_of(database, interval_s=2.0) as relay:
        await pass_time(7)
        assert since(began, database.looks)[-3:] == [2, 4, 6]
        assert database.listens == 1
        assert not relay.state().listening
    assert caplog.messages == ["commits of other processes are not received; polling every 2 s: pg8000: cannot"]


@simulated
async def test_a_fault_of_the_relay_itself_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Its task ends, and leaving logs the error."""
    database = Database()
    async with relay_of(database) as relay:
        relay._note_busy = None  # type: ignore[assignment, method-assign]
        await relay.ended()
    (record,) = caplog.records
    assert record.getMessage() == "unexpected error in a task of the outbox"
    assert record.exc_info is not None and isinstance(record.exc_info[1], TypeError)


async def test_a_loop_that_is_gone_fails_no_commit() -> None:
    gone = asyncio.new_event_loop()
    gone.close()
    rung = asyncio.Event()
    take_down = [
        on_local_commit(partial(loop.call_soon_threadsafe, rung.set)) for loop in (gone, asyncio.get_running_loop())
    ]
    notify_relays()
    await rung.wait()
    for each in take_down:
        each()
