"""When a relay looks, how long it waits, and what it says meanwhile, in virtual time and against a scripted database.

Crossed here: what rings, listens, fails or is busy; `test_relay` and `tests/conformance/test_outboxes` have real ones.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    NotPrepared,
    Overloaded,
    StoreUnavailable,
    Unsupported,
)
from bridge.producer.outbox.bells import ring_here
from bridge.producer.outbox.database import Link
from bridge.producer.outbox.relay import Relay, RelayState
from bridge.producer.outbox.rows import OutboxRow
from bridge.producer.outbox.statements import HELD_S, INSERT_ROWS, LOOK_ROWS, REASON_MAX, Execute, Place, insert
from bridge.queues.base import Body, PutReceipt
from tests.bridge.producer.outbox.test_relay import FakeStore
from tests.support.sim_loop import pass_time, simulated

TABLE = """
    CREATE TABLE queuebell_outbox (id INTEGER PRIMARY KEY, version INTEGER, put_key TEXT, queue TEXT, body BLOB,
    written_ms INTEGER, visible_after_ms INTEGER, ttl_s INTEGER, headers TEXT, refused TEXT)
"""


class Database:
    """An outbox in memory that notes when it is read; ``kind`` postgresql answers what only that knows by script."""

    def __init__(self, kind: str = "sqlite") -> None:
        self.place = Place(kind, "queuebell_outbox", "queuebell_outbox")
        self.rows = sqlite3.connect(":memory:", isolation_level=None)
        self.rows.execute(TABLE)
        self.looks: list[float] = []
        self.said: list[tuple[str, dict[str, object]]] = []
        self.commits: list[bool] = []
        self.busy = self.closed = False
        self.fault: Exception | None = None
        self.deaf: list[Exception] = []
        self.heard: list[float] = []
        self.lost: asyncio.Future[None] | None = None
        self.listening = False

    def execute(self, statement: str, given: Mapping[str, object]) -> list[tuple[Any, ...]]:
        self.said.append((statement, dict(given)))
        if self.place.dialect == "postgresql":
            if "pg_attribute" in statement:
                ((names,),) = self.rows.execute("SELECT group_concat(name, ' ') FROM pragma_table_info(:p1)", given)
                return [(names, "17")]
            if "advisory" in statement:
                return [(not self.busy, "", "")]
            if "ISOLATION" in statement or "pg_notify" in statement:
                return [("",)]
        return self.rows.execute(statement, given).fetchall()

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Link]:
        self.looks.append(asyncio.get_running_loop().time())
        if self.fault is not None:
            raise self.fault
        yield self  # type: ignore[misc]

    async def call(self, work: Callable[[Execute], Any], *, commit: bool = False) -> Any:
        self.commits.append(commit)
        return work(self.execute)

    @asynccontextmanager
    async def listen(self, ring: Callable[[], None]) -> AsyncIterator[asyncio.Future[None]]:
        self.heard.append(asyncio.get_running_loop().time())
        if self.deaf:
            raise self.deaf.pop(0)
        self.lost, self.listening = asyncio.get_running_loop().create_future(), True
        try:
            yield self.lost
        finally:
            self.listening = False

    async def close(self) -> None:
        assert not self.closed
        self.closed = True
        self.rows.close()

    def write(self, *bodies: str, queue: str = "billing/orders") -> None:
        rows = [OutboxRow(f"{queue}-{body}", queue, body.encode(), 0) for body in bodies]
        insert(self.execute, self.place, rows)

    def count(self) -> int:
        ((number,),) = self.rows.execute("SELECT COUNT(*) FROM queuebell_outbox")
        return int(number)


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
async def test_how_often_is_looked_where_nothing_rings() -> None:
    """On SQLite each interval, or each sweep if that is shorter; a bell of this process is heard at once."""
    for options, looks in (
        ({"interval_s": 2.0}, [0, 2, 4, 5.5, 7.5]),
        ({"interval_s": 9.0, "sweep_s": 3.0}, [0, 3, 5.5, 8.5]),
    ):
        database, began = Database(), now()
        async with relay_of(database, **options) as relay:  # type: ignore[arg-type]
            database.looks.clear()
            await pass_time(5.5)
            ring_here()
            await pass_time(3.25)
            assert since(began, database.looks) == looks
            assert relay.state() == RelayState()
        assert database.closed
        assert sum("id < 0" in statement for statement, _ in database.said) == 3, "at the start, the bell, and the end"
        ring_here()  # of nobody any more


@simulated
async def test_a_connection_that_listens_makes_looks_rare_until_it_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """Each sweep while it stands; at once and each interval when it is lost, and it is opened anew by a back-off."""
    caplog.set_level(logging.DEBUG, "queuebell.outbox")
    database, began = Database("postgresql"), now()
    async with relay_of(database, interval_s=2.0, sweep_s=60.0) as relay:
        await pass_time(100)
        assert since(began, database.looks)[-2:] == [0, 60]
        assert relay.state().listening and database.listening
        database.deaf = [OSError("not yet")] * 7
        assert database.lost is not None
        database.lost.set_result(None)
        database.looks.clear()
        database.heard.clear()
        await pass_time(5)
        assert not relay.state().listening and not database.listening
        assert since(began + 100, database.heard) == [0.1, 0.3, 0.7, 1.5, 3.1]
        looks = since(began + 100, database.looks)
        assert looks == [0, 0.1, 0.3, 0.7, 1.5, 3.1]
        await pass_time(60)
        assert relay.state().listening
        assert since(began + 100, database.heard)[5:] == [6.3, 12.7, 25.5]
        database.looks.clear()
        await pass_time(55)
        assert len(database.looks) == 1
    assert not database.listening
    assert [record.getMessage() for record in caplog.records] == [
        "the connection that hears commits is lost; looking every 2 s",
        *["no connection that hears commits: OSError: not yet"] * 7,
    ]


@simulated
async def test_a_driver_that_cannot_be_listened_on_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    """It is looked each interval instead, and one line says so."""
    database, began = Database("postgresql"), now()
    database.deaf = [Unsupported("pg8000: cannot")]
    async with relay_of(database, interval_s=2.0) as relay:
        await pass_time(7)
        assert since(began, database.looks)[-3:] == [2, 4, 6]
        assert len(database.heard) == 1
        assert not relay.state().listening
    assert caplog.messages == ["no commit of another process is heard, looking every 2 s: pg8000: cannot"]


@simulated
async def test_another_relay_that_has_it_for_long_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is asked for each second, and is at work again when it is free; nothing is put meanwhile."""
    caplog.set_level(logging.INFO, "queuebell.outbox")
    database, store, began = Database("postgresql"), FakeStore(), now()
    database.deaf = [Unsupported("none")]
    database.busy = True
    async with relay_of(database, store, interval_s=30.0) as relay:
        await pass_time(0.5)
        caplog.clear()
        database.write("1")
        await pass_time(9)
        assert since(began, database.looks)[-3:] == [7, 8, 9]
        assert relay.state() == RelayState(busy=True)
        assert caplog.messages == []
        await pass_time(10)
        (said,) = caplog.messages
        assert said.startswith("queuebell_outbox: another relay has had it for 10 s; its rows are kept. ")
        assert said.endswith("its transaction after 45 s, and this one goes on")
        database.busy = False
        await pass_time(1)
        assert (relay.state(), store.messages) == (RelayState(sent=1), {"billing/orders": ["1"]})
        assert caplog.messages[1:] == ["behind another relay: it works again"]
        database.busy = True
        ring_here()
        await pass_time(9)
        assert relay.state().busy
        assert len(caplog.messages) == 2, "what was before does not count"
    assert HELD_S == 45
    locks = [given for statement, given in database.said if "advisory" in statement]
    assert locks[0] == {"p1": "queuebell_outbox", "p2": "45s"}
    levels = [statement for statement, _ in database.said if "ISOLATION" in statement]
    assert len(levels) == len(locks)


@simulated
async def test_a_put_on_postgresql_asks_for_the_table_and_the_transaction() -> None:
    """A table that is none is named with the queue; where no transaction is open, nothing is written."""
    database = Database("postgresql")
    database.write(*map(str, range(INSERT_ROWS + 1)))
    assert database.count() == INSERT_ROWS + 1
    notify = [
        (statement, given) for statement, given in database.said if "pg_notify('queuebell_outbox', '')" in statement
    ]
    assert [given for _, given in notify] == [{"p1": "17"}]
    assert sum("INSERT" in statement for statement, _ in database.said) == 2
    database.rows.execute("ALTER TABLE queuebell_outbox DROP COLUMN refused")
    with pytest.raises(
        BadInput, match=r"^billing/orders: nothing was put: the table queuebell_outbox is of .* refused:"
    ):
        database.write("x")
    assert database.count() == INSERT_ROWS + 1
    lite = Database()
    with pytest.raises(BadInput, match=r"^a/q: nothing was put: no transaction is open") as refused:
        insert(lite.execute, lite.place, [OutboxRow("k", "a/q", b"x", 0)], in_transaction=False)
    assert (refused.value.code, lite.count()) == ("no_transaction", 0)
    lite.rows.execute("DROP TABLE queuebell_outbox")
    with pytest.raises(BadInput, match=r"^a/q: nothing was put: there is no table queuebell_outbox"):
        insert(lite.execute, lite.place, [OutboxRow("k", "a/q", b"x", 0)])


@simulated
async def test_a_start_closes_what_it_cannot_use_and_tells_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    """A table that is missing or another ends it; a database that is away does not; rows that are left are named."""
    for kind, drop, error in (
        ("sqlite", "DROP TABLE queuebell_outbox", NotPrepared),
        ("postgresql", "ALTER TABLE queuebell_outbox DROP COLUMN headers", ConfigurationError),
    ):
        database = Database(kind)
        database.rows.execute(drop)
        with pytest.raises(error, match=r"^outbox: nothing is relayed: the"):
            async with relay_of(database):
                pass
        assert database.closed and database.looks == [now()]
    database = Database()
    database.write("1", "2", "3")
    database.rows.execute("UPDATE queuebell_outbox SET version = 2 WHERE id < 3")
    database.rows.execute("UPDATE queuebell_outbox SET refused = 'x' WHERE id = 3")
    async with relay_of(database) as relay:
        await pass_time(1)
        assert (relay.state(), database.count()) == (RelayState(), 3)
    assert caplog.messages == [
        "queuebell_outbox: 1 rows were refused and are kept; see the column refused",
        "queuebell_outbox: 2 rows are of another version of Queuebell and are left: run a relay of that version",
    ]
    caplog.clear()
    database, began = Database(), now()
    database.fault = OSError("away")
    async with relay_of(database, interval_s=30.0) as relay:
        await pass_time(2)
        assert since(began, database.looks) == [0, 0, 0.1, 0.3, 0.7, 1.5]
        assert relay.state() == RelayState(failures=6)
        assert caplog.messages == ["the outbox: it cannot be read, its rows are kept: OSError: away"]
        database.fault = None
        await pass_time(1.5)
        database.fault = OSError("away")
        ring_here()
        await pass_time(0.15)
        assert since(began, database.looks)[6:] == [3.1, 3.5, 3.6], "a back-off that begins anew"
        database.fault = None
    assert len(caplog.messages) == 2


@simulated
async def test_a_queue_that_fails_rests_and_the_others_do_not() -> None:
    """By a back-off of its own, or as long as its store asks; one that works begins anew."""
    store, times = FakeStore(), []
    faults = [StoreUnavailable("x"), StoreUnavailable("x"), Overloaded("x", 20.0), None, StoreUnavailable("x"), None]

    def meddle(queue: str, body: str) -> Any:
        if queue == "billing/orders":
            times.append(now())
            return faults.pop(0)
        return None

    store.meddle = meddle
    database, began = Database(), now()
    database.write("1", "2")
    async with relay_of(database, store, interval_s=30.0) as relay:
        await pass_time(0.05)
        database.write("x", queue="a/other")
        ring_here()
        await pass_time(0.01)
        assert store.messages == {"a/other": ["x"]}
        await pass_time(30)
        assert since(began, times) == [0, 0.1, 0.3, 20.7, 20.7, 20.8]
        assert relay.state() == RelayState(sent=3, failures=4)
    assert store.messages["billing/orders"] == ["1", "2"]


@simulated
async def test_a_look_ends_its_puts_in_time_and_goes_on_at_once() -> None:
    """After five seconds no further put begins, what stands is deleted, and the next look takes the rest."""
    begun: list[tuple[float, int]] = []

    class Slow(FakeStore):
        async def put_once(self, queue: str, key: str, body: Body) -> PutReceipt | None:
            begun.append((now(), database.count()))
            await pass_time(2)
            return await super().put_once(queue, key, body)

    database, store, began = Database(), Slow(), now()
    database.write(*"12345")
    async with relay_of(database, store, interval_s=100.0) as relay:
        await pass_time(11)
        assert [(round(time - began), left) for time, left in begun] == [(0, 5), (2, 5), (4, 5), (6, 2), (8, 2)]
        assert relay.state().sent == 5
        assert since(began, database.looks) == [0, 0, 6]
    assert store.messages == {"billing/orders": [*"12345"]}


@simulated
async def test_sixteen_queues_are_put_to_at_a_time_and_a_full_look_is_followed_at_once() -> None:
    """More would be a burst; fewer would let a slow queue hold up the others."""
    most, under_way = 0, 0

    class Slow(FakeStore):
        async def put_once(self, queue: str, key: str, body: Body) -> PutReceipt | None:
            nonlocal most, under_way
            under_way += 1
            most = max(most, under_way)
            await pass_time(0.5)
            under_way -= 1
            return await super().put_once(queue, key, body)

    database, began = Database(), now()
    for number in range(LOOK_ROWS + 20):
        database.write("x", queue=f"a/q{number % 40}")
    async with relay_of(database, Slow(), interval_s=100.0) as relay:
        await pass_time(30)
        assert (most, relay.state().sent) == (16, LOOK_ROWS + 20)
        assert len(database.looks) == 3 and since(began, database.looks)[2] < 6


@simulated
async def test_leaving_waits_for_what_was_committed_and_no_longer(caplog: pytest.LogCaptureFixture) -> None:
    """A put that hangs costs the time for closing; what it was to put stays."""

    class Hanging(FakeStore):
        async def put_once(self, queue: str, key: str, body: Body) -> PutReceipt | None:
            await asyncio.Event().wait()
            return None

    for kind in ("sqlite", "postgresql"):
        database = Database(kind)
        async with relay_of(database, Hanging(), close_timeout=7.0):
            await pass_time(1)
            database.write("1")
            began = now()
        assert (now() - began, database.closed) == (7.0, True)
    assert caplog.messages == []


@simulated
async def test_a_fault_of_the_relay_itself_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Its task ends, and whoever leaves learns why."""
    database = Database()
    async with relay_of(database) as relay:
        relay._behind = None  # type: ignore[assignment, method-assign]
        await relay.ended()
    (record,) = caplog.records
    assert record.getMessage() == "a task of the outbox failed"
    assert record.exc_info is not None and isinstance(record.exc_info[1], TypeError)


@simulated
async def test_a_reason_is_kept_as_far_as_it_fits(caplog: pytest.LogCaptureFixture) -> None:
    """In the column of its own row, and with the queue and the key in the log."""
    store = FakeStore()
    store.meddle = lambda queue, body: BadInput("too_long", "x" * 900) if body == "2" else None
    database = Database()
    database.write("1", "2", "3")
    async with relay_of(database, store) as relay:
        await pass_time(0.5)
        assert (relay.state().sent, relay.state().refused) == (2, 1)
        ((key, reason),) = database.rows.execute("SELECT put_key, refused FROM queuebell_outbox").fetchall()
        assert (key, len(reason)) == ("billing/orders-2", REASON_MAX)
    (record,) = caplog.records
    assert (record.__dict__["queue"], record.__dict__["put_key"]) == ("billing/orders", "billing/orders-2")
