"""What an outbox promises, by each of its kinds in each of its databases.

Crossed here: kind and database; commit, rollback, savepoint; another process; delays, partitions, large puts; two
relays at once; kill -9 at each step. `tests/bridge/producer/test_outbox.py` crosses the relay with what a store may do.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio

from queuebell.assembly import assemble
from queuebell.bridge.contract.errors import BadInput, ConfigurationError, NotPrepared
from queuebell.bridge.contract.partitioning import Partitions
from queuebell.bridge.queues.base import NewMessage, QueueStore, Settlement
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.settings import Settings
from tests.conformance.headers import HOSTILE, LARGEST
from tests.support.outboxes import (
    BODIES,
    QUEUE,
    RIGS,
    STEPS,
    Rig,
    Writer,
    abandon,
    is_empty,
    opened,
    put,
    within_savepoint,
)
from tests.support.postgres import PostgresServer, execute, running
from tests.support.processes import Processes, until

NEVER_S = 3600.0
"""Where a relay looks only as often, something rang."""


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@pytest_asyncio.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.system)])
async def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database of its own for each test."""
    if request.param == "sqlite":
        return str(tmp_path / "application.db")
    server: PostgresServer = request.getfixturevalue("server")
    name = f"d{uuid.uuid4().hex}"
    await execute(server.url(), f"CREATE DATABASE {name}")
    return server.url(name)


@pytest_asyncio.fixture(params=list(RIGS))
async def rig(request: pytest.FixtureRequest, database: str) -> AsyncIterator[Rig]:
    async with opened(request.param, database) as rig:
        yield rig


@pytest_asyncio.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with MemoryStore("outbox") as store:
        yield store


@pytest_asyncio.fixture
async def service() -> AsyncIterator[str]:
    """The address of a queue service in this process: it is not the one that is killed."""
    made = assemble(Settings(listen="127.0.0.1:0"), in_memory=True)
    await made.service.start()
    await made.web.start()
    try:
        yield f"http://127.0.0.1:{made.web.port}"
    finally:
        await made.web.stop()
        await made.service.stop()


async def take_all(store: QueueStore, queue: str = QUEUE) -> list[bytes]:
    """Take what is visible, and handle it."""
    if await store.depth(queue) is None:
        return []
    taken: list[bytes] = []
    while messages := (await store.receive(queue, 32)).messages:
        taken += [message.body for message in messages]
        await store.settle(queue, Settlement(delete=messages))
    return taken


async def has(store: QueueStore, count: int, queue: str = QUEUE) -> None:
    """Wait until a queue has so many messages."""

    async def there() -> bool:
        depth = await store.depth(queue)
        return depth is not None and depth.visible + depth.invisible >= count

    await until(there, f"{count} messages in {queue}")


async def test_headers_wait_with_their_message(rig: Rig, store: MemoryStore) -> None:
    headers = {**HOSTILE, "places": "% %s :p1 $1 ::text"}
    await rig.write(put(NewMessage("one", headers=headers), "two", NewMessage("three", headers=LARGEST[1])))
    async with rig.relay(store):
        await has(store, 3)
        found = {message.body: message.headers for message in await store.peek(QUEUE)}
        assert found == {b"one": headers, b"two": {}, b"three": LARGEST[1]}


async def test_a_commit_rings(rig: Rig, store: MemoryStore) -> None:
    """Any bytes in their order, two puts and a row of the caller's are one; nothing is there before the commit."""
    await rig.query("CREATE TABLE orders (number int)")
    bodies = ["grün: % %s :p1 $1 \\", b"", bytes(range(256)), b"x" * 65_536]
    async with rig.relay(store, interval_s=NEVER_S, sweep_s=NEVER_S) as relay:

        def nothing_yet(writer: Writer) -> None:
            assert relay.state().sent == 0

        for each in (1, 2):
            await rig.write(
                put(*bodies),
                lambda writer: writer.execute("INSERT INTO orders VALUES (17)"),
                put(NewMessage("short", ttl_s=60), "last"),
                *([nothing_yet] if each == 1 else []),
            )
            await has(store, 6)
            taken = (await store.receive(QUEUE, 32)).messages
            assert [m.body for m in taken] == ["grün: % %s :p1 $1 \\".encode(), *bodies[1:], b"short", b"last"]
            assert [bool(m.expires_at) for m in taken] == [False] * 4 + [True, False]
            await store.settle(QUEUE, Settlement(delete=taken))
        await is_empty(rig)
        await until(lambda: relay.state().sent == 12, "all are counted")
        assert (relay.state().refused, relay.state().failures) == (0, 0)
    assert await rig.query("SELECT number FROM orders") == [(17,), (17,)]


async def test_a_rollback_leaves_nothing(rig: Rig, store: MemoryStore) -> None:
    async with rig.relay(store, interval_s=NEVER_S, sweep_s=NEVER_S):
        await rig.write(put("never"), abandon)
        await rig.write(put("first"), within_savepoint(put("never"), abandon), within_savepoint(put("second")))
        await has(store, 2)
        await is_empty(rig)
    assert await take_all(store) == [b"first", b"second"]


async def test_what_waits_is_found_at_the_start(rig: Rig, store: MemoryStore) -> None:
    """More than one look reads and one statement writes; each once, in order, under the key that the put returned."""
    keys: list[str] = []
    bodies = [f"{number}" for number in range(250)]
    await rig.write(lambda writer: keys.extend(writer.put(QUEUE, bodies)))
    assert await rig.count() == 250
    async with rig.relay(store, interval_s=NEVER_S, sweep_s=NEVER_S):
        await is_empty(rig)
    taken = []
    while messages := (await store.receive(QUEUE, 32)).messages:
        taken += messages
    assert [m.body.decode() for m in taken] == bodies
    assert [m.key for m in taken] == keys


async def test_what_is_committed_before_leaving_is_brought_out(rig: Rig, store: MemoryStore) -> None:
    async with rig.relay(store, interval_s=NEVER_S, sweep_s=NEVER_S):
        await rig.write(put("last"))
    assert await take_all(store) == [b"last"]


async def test_delays_and_partitions(rig: Rig, store: MemoryStore) -> None:
    """A delay counts from the put; a key chooses the partition, and without one all of a put go to one of them."""
    partitions = Partitions("billing/orders", 8)
    await rig.write(
        put("late", queue="billing/late", visible_after_ms=600_000),
        put("overdue", queue="billing/overdue", visible_after_ms=600_000),
        put("keyed", queue="billing/orders:8", key="customer 7"),
        put("a", "b", "c", queue="billing/drawn:8"),
    )
    await rig.query("UPDATE queuebell_outbox SET written_ms = written_ms - 700000 WHERE queue = 'billing/overdue'")
    async with rig.relay(store):
        await is_empty(rig)
    late, overdue = await store.depth("billing/late"), await store.depth("billing/overdue")
    assert late is not None and (late.visible, late.invisible) == (0, 1)
    assert overdue is not None and (overdue.visible, overdue.invisible) == (1, 0)
    assert await take_all(store, partitions.of("customer 7")) == [b"keyed"]
    drawn = [await take_all(store, queue) for queue in Partitions("billing/drawn", 8).references]
    assert sorted(drawn) == [[]] * 7 + [[b"a", b"b", b"c"]]


async def test_two_relays_double_nothing(rig: Rig, store: MemoryStore, database: str) -> None:
    """Both look at each commit, and the order stays that of the commits."""
    kind = next(kind for kind, made in RIGS.items() if made is type(rig))
    async with (
        opened(kind, database, create=False) as other,
        rig.relay(store, interval_s=0.05) as first,
        other.relay(store, interval_s=0.05) as second,
    ):
        for number in range(20):
            await rig.write(put(f"{number}", f"{number}+"))
        await is_empty(rig)
        await until(lambda: first.state().sent + second.state().sent >= 40, "all are counted")
    assert await take_all(store) == [f"{number}{plus}".encode() for number in range(20) for plus in ("", "+")]


async def test_a_table_that_is_missing_or_another(rig: Rig, store: MemoryStore) -> None:
    """Put and relay say so and what to do; the transaction goes on, and the relay runs once the table is right."""
    await rig.query("CREATE TABLE orders (number int)")
    refusals: list[BadInput] = []

    def refused(writer: Writer) -> None:
        with pytest.raises(BadInput) as failure:
            writer.put(QUEUE, ["never"])
        refusals.append(failure.value)
        writer.execute("INSERT INTO orders VALUES (1)")

    await rig.query("ALTER TABLE queuebell_outbox DROP COLUMN ttl_s")
    await rig.write(refused)
    lacks = "from another version of Queuebell: it lacks the column ttl_s: migrate"
    with pytest.raises(ConfigurationError, match=lacks):
        await rig.relay(store).__aenter__()
    await rig.query("DROP TABLE queuebell_outbox")
    await rig.write(refused)
    with pytest.raises(NotPrepared, match=r"finds no table queuebell_outbox: create it"):
        await rig.relay(store).__aenter__()
    assert [each.code for each in refusals] == ["wrong_database"] * 2
    assert "lacks the column ttl_s" in str(refusals[0]) and "this connection finds no table" in str(refusals[1])
    assert await rig.query("SELECT number FROM orders") == [(1,), (1,)]


async def test_rows_of_another_version_are_left(rig: Rig, store: MemoryStore, caplog: pytest.LogCaptureFixture) -> None:
    await rig.write(put("newer", "this"))
    await rig.query("UPDATE queuebell_outbox SET version = 2 WHERE id = (SELECT MIN(id) FROM queuebell_outbox)")
    async with rig.relay(store):
        await has(store, 1)
    assert await take_all(store) == [b"this"]
    assert await rig.query("SELECT version, refused FROM queuebell_outbox") == [(2, None)]
    assert "1 rows are from another version" in caplog.text


async def test_a_put_outside_a_transaction_is_refused(rig: Rig) -> None:

    def refused(writer: Writer) -> None:
        with pytest.raises(BadInput, match="nothing was put: no transaction is open") as failure:
            writer.put(QUEUE, ["never"])
        assert failure.value.code == "no_transaction"

    await rig.write(refused, begin=False)
    assert await rig.count() == 0


async def test_what_no_store_takes_is_refused_at_once(rig: Rig) -> None:

    def refused(code: str, queue: str, bodies: object, **options: object) -> None:
        async_write: list[BadInput] = []

        def step(writer: Writer) -> None:
            with pytest.raises(BadInput) as failure:
                writer.put(queue, bodies, **options)
            async_write.append(failure.value)

        steps.append(step)
        expected.append((code, async_write))

    steps: list[object] = []
    expected: list[tuple[str, list[BadInput]]] = []
    refused("message_too_large", QUEUE, [b"x" * 65_537])
    refused("bad_queue_reference", "billing", ["x"])
    refused("bad_parameter", QUEUE, "x")
    refused("bad_parameter", QUEUE, [])
    refused("too_many_items", QUEUE, ["x"] * 10_001)
    refused("bad_parameter", QUEUE, ["x"], visible_after_ms=-1)
    refused("bad_parameter", QUEUE, ["x"], ttl_s=0)
    refused("bad_parameter", QUEUE, ["x"], key="of no partition")
    refused("bad_parameter", "billing/orders:8", ["x"], key="")
    await rig.write(*steps, put("good"))  # type: ignore[arg-type]
    assert [code for code, _ in expected] == [found[0].code for _, found in expected]
    assert await rig.count() == 1


@pytest.mark.system
@pytest.mark.parametrize("kind", RIGS)
class TestPostgres:
    """What only PostgreSQL has: transactions side by side, and a server that may go away."""

    async def test_a_failed_transaction_is_told(self, kind: str, server: PostgresServer) -> None:
        """A statement before has failed: roll back, and do all of it again."""
        async with opened(kind, await new_database(server)) as rig:

            def failing(writer: Writer) -> None:
                with pytest.raises(Exception, match="no_such_table"):
                    writer.execute("SELECT * FROM no_such_table")
                with pytest.raises(BadInput, match="an earlier statement has failed") as failure:
                    writer.put(QUEUE, ["never"])
                assert failure.value.code == "transaction_failed"
                abandon(writer)

            await rig.write(failing)
            assert await rig.count() == 0

    async def test_an_id_that_commits_late_is_not_passed_over(
        self, kind: str, server: PostgresServer, store: MemoryStore
    ) -> None:
        """The first id is given, the second one committed and put; then the first one commits."""
        url = await new_database(server)
        connection = await asyncpg.connect(url)
        async with opened(kind, url) as rig, rig.relay(store, interval_s=NEVER_S, sweep_s=NEVER_S):
            async with connection.transaction():
                await connection.execute(
                    "INSERT INTO queuebell_outbox (version, put_key, queue, body, written_ms, visible_after_ms, ttl_s)"
                    f" VALUES (1, 'early', '{QUEUE}', 'early', 0, 0, -1)"
                )
                await connection.execute("NOTIFY queuebell_outbox")
                await rig.write(put("late"))
                await has(store, 1)
                await is_empty(rig)
            await has(store, 2)
        await connection.close()
        assert await take_all(store) == [b"late", b"early"]

    async def test_a_server_that_restarts(self, kind: str, store: MemoryStore) -> None:
        """The relay listens again, and nothing is lost."""
        with running() as server:
            async with opened(kind, server.url()) as rig, rig.relay(store, interval_s=0.2, sweep_s=NEVER_S) as relay:
                await until(lambda: relay.state().listening, "it listens")
                await rig.write(put("before"))
                await has(store, 1)
                await asyncio.to_thread(server.stop)
                await until(lambda: not relay.state().listening, "it knows")
                await asyncio.to_thread(server.start)
                await until(lambda: relay.state().listening, "it listens again")

                async def written() -> bool:
                    try:
                        await rig.write(put("after"))
                    except Exception:
                        return False  # a connection of the application's pool, from before
                    return True

                await until(written, "the application goes on")
                await has(store, 2)
            assert await take_all(store) == [b"before", b"after"]

    async def test_a_relay_that_is_stopped_holds_up_no_other(
        self,
        kind: str,
        server: PostgresServer,
        store: MemoryStore,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """Stopped amid its puts it keeps its connection; the server ends its transaction, and another goes on."""
        monkeypatch.setattr("queuebell.bridge.producer.outbox.relay.BEHIND_S", 0.1)
        url = await new_database(server)
        command = ("-m", "tests.support.outboxes", kind, url, "memory:elsewhere", "after the first put", "stopped")
        async with opened(kind, url) as rig, Processes(tmp_path) as processes:
            program = await processes.start(sys.executable, *command)
            state = Path(f"/proc/{program.process.pid}/stat")
            await until(lambda: ") T " in state.read_text(), "the relay stands still")
            async with rig.relay(store, interval_s=NEVER_S, sweep_s=NEVER_S) as relay:
                await until(lambda: relay.state().busy, "it knows that another has the outbox")
                await until(lambda: "another relay has used it" in caplog.text, "and says so")
                await has(store, len(BODIES))
                await is_empty(rig)
                await until(lambda: not relay.state().busy, "it has the outbox to itself")
            assert await take_all(store) == [body.encode() for body in BODIES]


async def new_database(server: PostgresServer) -> str:
    name = f"d{uuid.uuid4().hex}"
    await execute(server.url(), f"CREATE DATABASE {name}")
    return server.url(name)


async def died_at(step: str, rig: Rig, database: str, service: str, folder: Path, fault: str = "") -> list[bytes]:
    """Have another process write and relay until it is killed at a step, then relay here; return what was handled.

    What the other process put is handled before this one looks, so that only the key can tell that it was there.
    """
    kind = next(kind for kind, made in RIGS.items() if made is type(rig))
    command = ("-m", "tests.support.outboxes", kind, database, service, step, fault)
    async with Processes(folder) as processes, HttpStore(service) as store:
        program = await processes.start(sys.executable, *command)
        assert await program.ended() == -9, program.errors
        handled = await take_all(store)
        async with rig.relay(store, interval_s=0.05):
            await is_empty(rig)
        return handled + await take_all(store)


@pytest.mark.parametrize("step", STEPS)
async def test_a_kill_at_each_step(step: str, rig: Rig, database: str, service: str, tmp_path: Path) -> None:
    """Lost 0, doubled 0: all of it where the commit was reached, and nothing otherwise."""
    committed = step not in STEPS[:2]
    expected = [body.encode() for body in BODIES] if committed else []
    assert await died_at(step, rig, database, service, tmp_path) == expected


@pytest.mark.parametrize(
    ("step", "fault", "found"),
    [("after the read", "marked before", 0), ("after the puts", "without a key", 6)],
)
async def test_a_relay_that_is_wrong_is_found(step: str, fault: str, found: int, service: str, tmp_path: Path) -> None:
    """Deleted before the put, rows are lost; put without their keys, they are doubled."""
    database = str(tmp_path / "application.db")
    async with opened("sqlalchemy", database) as rig:
        assert len(await died_at(step, rig, database, service, tmp_path, fault)) == found


async def test_a_commit_of_another_process(rig: Rig, store: MemoryStore, database: str, tmp_path: Path) -> None:
    """PostgreSQL tells of it; on SQLite it is seen within the interval."""
    kind = next(kind for kind, made in RIGS.items() if made is type(rig))
    interval_s = NEVER_S if database.startswith("postgres") else 0.05
    async with Processes(tmp_path) as processes, rig.relay(store, interval_s=interval_s, sweep_s=NEVER_S) as relay:
        if database.startswith("postgres"):
            await until(lambda: relay.state().listening, "it listens")
        command = ("-m", "tests.support.outboxes", kind, database, "memory:elsewhere", "after the commit")
        program = await processes.start(sys.executable, *command)
        assert await program.ended() == -9, program.errors
        await has(store, len(BODIES))
    assert await take_all(store) == [body.encode() for body in BODIES]
