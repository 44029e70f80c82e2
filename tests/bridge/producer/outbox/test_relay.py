"""A relay and what a store may do: refuse for good, be away, take in batches, say nothing, end.

Crossed with: order within a queue, other queues, more rows than one look reads, stores that put once and others, a
bridge that is told, a bridge that restarts, an outbox in memory, a database that is away.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
import sqlalchemy
from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    QueuebellError,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from bridge.producer.publisher import Publisher
from bridge.producer.publishing_queue import PublishingQueue
from bridge.queues.base import Body, Capabilities, NewMessage, PutReceipt, new_messages
from bridge.queues.http import HttpStore
from queuebell.frameworks.sqlalchemy import Outbox
from tests.support.buses import RecordingBus
from tests.support.outboxes import QUEUE, Rig, SqlAlchemyRig, put
from tests.support.processes import Processes, until


class FakeStore:
    """A store that keeps what it is given, and does to each put what it is told to."""

    def __init__(self, *, once: bool = True, batch_max: int = 32) -> None:
        self.capabilities = Capabilities(put_once=once, batch_max=batch_max)
        self.messages: dict[str, list[str]] = {}
        self.calls: list[int] = []
        self.meddle: Callable[[str, str], QueuebellError | None] = lambda queue, body: None

    async def put(self, queue: str, bodies: Sequence[Body]) -> list[PutReceipt]:
        self.calls.append(len(bodies))
        given = [message.body.decode() for message in new_messages(bodies)]
        for body in given:
            if (error := self.meddle(queue, body)) is not None:
                if isinstance(error, UnknownOutcome):
                    self.messages.setdefault(queue, []).extend(given)
                raise error
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


async def is_empty(rig: Rig) -> None:
    async def empty() -> bool:
        return await rig.count() == 0

    await until(empty, "the outbox is empty")


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("error", [BadInput("message_too_large", "too large for me"), Unsupported("no delays here")])
async def test_what_a_store_refuses_for_good_holds_up_nothing(
    rig: Rig, once: bool, error: QueuebellError, caplog: pytest.LogCaptureFixture
) -> None:
    """The row is kept with the reason, counted, logged once; asked for again, it goes as any other."""
    store = FakeStore(once=once, batch_max=10)
    store.meddle = lambda queue, body: error if body == "bad" else None
    await rig.write(put("1", "bad", "2"), put("x", queue="billing/other"), put("3"))
    async with rig.relay(store, interval_s=0.02) as relay:
        await until(lambda: relay.state().sent == 4, "the others are put")
        await rig.write(put("4"))
        await until(lambda: relay.state().sent == 5, "and those behind")
        assert (relay.state().refused, relay.state().failures) == (1, 0)
        ((body, reason),) = await rig.query("SELECT body, refused FROM queuebell_outbox")
        assert (body, reason) == (b"bad", f"{error.code}: {type(error).__name__}: {error}")
        assert store.messages == {QUEUE: ["1", "2", "3", "4"], "billing/other": ["x"]}
        store.meddle = lambda queue, body: None
        await rig.query("UPDATE queuebell_outbox SET refused = NULL")
        await is_empty(rig)
    assert store.messages[QUEUE] == ["1", "2", "3", "4", "bad"]
    assert [r.levelname for r in caplog.records if "cannot be put and is not tried again" in r.message] == ["ERROR"]


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize(
    "damage",
    ["headers = '{'", "headers = '[1]'", "headers = ''", "body = 'text'", "written_ms = 'then'", "ttl_s = 'x'"],
)
async def test_a_damaged_row_is_refused_and_holds_up_nothing(
    rig: Rig, once: bool, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It is kept with the reason, counted and logged, as one that the store refuses; mended, it goes as any other."""
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


async def test_refused_rows_are_told_of_at_the_start(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """So that nobody has to look for them."""
    await rig.write(put("1", "2"))
    await rig.query("UPDATE queuebell_outbox SET refused = 'a reason'")
    async with rig.relay(FakeStore()):
        pass
    assert "2 rows were refused and are kept" in caplog.text
    assert await rig.count() == 2


@pytest.mark.parametrize("once", [True, False])
async def test_a_store_that_is_away(rig: Rig, once: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is lost, the order stands, one line says so and one that it is back; other queues do not wait."""
    caplog.set_level(logging.INFO)
    store = FakeStore(once=once)
    away = True
    store.meddle = lambda queue, body: StoreUnavailable("away") if away and queue == QUEUE else None
    await rig.write(put(*map(str, range(150))), put("x", queue="billing/other"))
    async with rig.relay(store, interval_s=0.05) as relay:
        # Behind more rows of the queue that fails than one look reads.
        await until(lambda: "billing/other" in store.messages, "another queue goes on")
        await until(lambda: relay.state().failures >= 3, "it is tried again")
        away = False
        await is_empty(rig)
        await until(lambda: relay.state().sent == 151, "all are counted")
    assert store.messages[QUEUE] == list(map(str, range(150)))
    said = [record.getMessage() for record in caplog.records]
    assert len([line for line in said if "its rows are kept and tried again: StoreUnavailable: away" in line]) == 1
    assert len([line for line in said if line == f"{QUEUE}: it works again"]) == 1


async def test_a_put_without_an_answer_is_asked_again(rig: Rig) -> None:
    """Under the same key where the store puts once; at least once elsewhere."""
    store = FakeStore(once=False)
    errors = [UnknownOutcome("no answer")]
    store.meddle = lambda queue, body: errors.pop() if errors else None
    async with rig.relay(store):
        await rig.write(put("1", "2"))
        await is_empty(rig)
    assert store.messages[QUEUE] == ["1", "2", "1", "2"]


async def test_a_store_with_a_fault_of_its_own_loses_nothing(rig: Rig) -> None:
    """What it does not promise to raise is a put that failed."""
    store = FakeStore()
    errors = [RuntimeError("a fault")]

    def meddle(queue: str, body: str) -> QueuebellError | None:
        if errors:
            raise errors.pop()
        return None

    store.meddle = meddle
    async with rig.relay(store) as relay:
        await rig.write(put("1"))
        await is_empty(rig)
        await until(lambda: relay.state().failures == 1, "it is counted")
    assert store.messages[QUEUE] == ["1"]


async def test_batches_are_those_of_the_store(rig: Rig) -> None:
    """As large as it takes; of one that is refused each message is asked about."""
    store = FakeStore(once=False, batch_max=10)
    store.meddle = lambda queue, body: BadInput("message_too_large", "x") if body == "13" else None
    await rig.write(put(*map(str, range(25))))
    async with rig.relay(store) as relay:
        await until(lambda: relay.state().sent == 24, "all others are put")
    assert store.calls == [10, 10, *[1] * 10, 5]
    assert store.messages[QUEUE] == [str(number) for number in range(25) if number != 13]


@pytest.mark.parametrize("once", [True, False])
async def test_a_bridge_is_told_of_each_put(rig: Rig, once: bool) -> None:
    """For a store whose puts do not ring by themselves."""
    bus = RecordingBus()
    async with Publisher(bus) as publisher, rig.relay(PublishingQueue(FakeStore(once=once), publisher)):  # type: ignore[arg-type]
        await rig.write(put("1", "2"))
        await is_empty(rig)
        await until(lambda: sum(event.payload_size or 0 for event in bus.taken) == 2, "it is told")


async def test_a_bridge_that_restarts(rig: Rig, tmp_path: Path) -> None:
    """What is committed meanwhile waits; each message is there once, in order."""
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


async def test_a_database_that_is_away_is_tried_again(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    """Here its table goes and comes back."""
    store = FakeStore()
    async with rig.relay(store, interval_s=0.02) as relay:
        await rig.query("ALTER TABLE queuebell_outbox RENAME TO elsewhere")
        await until(lambda: relay.state().failures >= 2, "it cannot be read")
        await rig.query("ALTER TABLE elsewhere RENAME TO queuebell_outbox")
        await rig.write(put("1"))
        await is_empty(rig)
    assert caplog.text.count("the outbox: it cannot be read, its rows are kept") == 1


async def test_run_ends_when_it_is_stopped(rig: Rig) -> None:
    """With what was committed before; a store that is away does not keep it."""
    store = FakeStore()
    relay = rig.relay(store)
    running = asyncio.create_task(relay.run(), name="relay")
    await rig.write(put("1"))
    await is_empty(rig)
    store.meddle = lambda queue, body: StoreUnavailable("away")
    await rig.write(put("2"))
    relay.stop()
    await running
    assert store.messages == {QUEUE: ["1"]}
    assert await rig.count() == 1


async def test_a_cancelled_run_gives_way(rig: Rig) -> None:
    """Also amid a put; the row stays."""
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
    """Before anything is read."""
    with pytest.raises(BadInput, match=next(iter(options))):
        rig.relay(FakeStore(), **options)


async def test_what_cannot_be_relayed_from_or_to() -> None:
    """A database in memory, one of another kind, and what is no store."""
    outbox = Outbox(MetaData())
    for engine in (sqlalchemy.create_engine("sqlite://"), create_async_engine("sqlite+aiosqlite://")):
        with pytest.raises(ConfigurationError, match="in memory"):
            outbox.relay(engine, FakeStore())  # type: ignore[arg-type]
    other = sqlalchemy.create_mock_engine("mysql://", lambda *_: None)
    with pytest.raises(BadInput, match="this is mysql") as failure:
        outbox.relay(other, FakeStore())  # type: ignore[arg-type]
    assert failure.value.code == "wrong_database"


async def test_a_store_is_needed(rig: Rig) -> None:
    """An address is none."""
    with pytest.raises(ConfigurationError, match="to a store"):
        rig.relay("http://127.0.0.1:8470")


async def test_what_cannot_be_put_with(tmp_path: Path) -> None:
    """A closed connection, an engine, an asynchronous session for the blocking put, and the other way round."""
    outbox = Outbox(MetaData())
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/application.db")
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/application.db")
    outbox.table.metadata.create_all(engine)
    with engine.connect() as connection:
        pass
    with pytest.raises(BadInput, match="nothing was put: the connection cannot be used") as failure:
        outbox.put(connection, QUEUE, ["x"])
    assert failure.value.code == "connection_unusable"
    async with AsyncSession(async_engine) as session:
        for wrong in (session, engine):
            with pytest.raises(BadInput, match="cannot be used here") as failure:
                outbox.put(wrong, QUEUE, ["x"])  # type: ignore[arg-type]
            assert failure.value.code == "unknown_connection"
        with Session(engine) as blocking, pytest.raises(BadInput, match="cannot be used here") as failure:
            await outbox.aput(blocking, QUEUE, ["x"])  # type: ignore[arg-type]
        assert failure.value.code == "unknown_connection"
        assert len(await outbox.aput(session, QUEUE, ["x"])) == 1
        await session.commit()
    async with async_engine.begin() as async_connection:
        await outbox.aput(async_connection, QUEUE, ["y"])
    with engine.connect() as connection:
        assert connection.scalar(sqlalchemy.text("SELECT COUNT(*) FROM queuebell_outbox")) == 2
    engine.dispose()
    await async_engine.dispose()


async def test_a_database_that_is_locked_is_told(tmp_path: Path) -> None:
    """Another writer holds it for longer than the driver waits."""
    outbox = Outbox(MetaData())
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/application.db", connect_args={"timeout": 0})
    outbox.table.metadata.create_all(engine)
    with engine.begin() as holder, Session(engine) as session:
        outbox.put(holder, QUEUE, ["x"])
        with pytest.raises(
            StoreUnavailable, match="the database did not take it: OperationalError: database is locked"
        ):
            outbox.put(session, QUEUE, ["y"])
    engine.dispose()
