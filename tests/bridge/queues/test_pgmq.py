"""PGMQ beside producers and readers of theirs: names, bodies, headers, archive, transactions, and who is woken."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queuebell.bridge.brokers.postgres.access import PostgresAccess
from queuebell.bridge.contract.errors import (
    BadInput,
    BadQueueReference,
    ConfigurationError,
    NotPrepared,
    QueueNotFound,
    StoreError,
)
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import Claim, Extend, NewMessage, Release, Settlement, StoredMessage
from queuebell.bridge.queues.postgres import pgmq as pgmq_module
from queuebell.bridge.queues.postgres.pgmq import PgmqAddress, PgmqStore, as_json, body_of
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.triggers.attachment import Attachments
from queuebell.command.main import main
from queuebell.listeners import Listener, Message, Retry
from tests.bridge.queues.pgmq_rig import database, pgmq, pgmq_server, pgmq_url, run_script
from tests.support.postgres import PostgresServer, execute
from tests.support.processes import until

__all__ = ["database", "pgmq", "pgmq_server", "pgmq_url"]

QUEUE = "pgmq/orders"


async def take(store: PgmqStore, lease_s: float = 30.0) -> StoredMessage:
    (message,) = (await store.receive(QUEUE, 1, lease_s)).messages
    return message


def delete(message: StoredMessage) -> Settlement:
    return Settlement(delete=[Claim(message.id, message.pop_receipt)])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["$text", "$base64"]), inner),
)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()) | st.text().map(str.encode))
def test_a_body_comes_back(body: bytes) -> None:
    """Byte for byte; JSON as the same value."""
    stored = as_json(body)
    json.loads(stored)
    assert body_of(stored) == body


@pytest.mark.system
async def test_what_the_database_makes_of_bodies(database: str, pgmq: PgmqStore) -> None:
    """JSON is theirs to read; everything else is wrapped, also what they could not store, and comes back as it was."""
    plain = [b'{"order": 7}', b"[1.50, -3, null, true]", b'"text"', b'{"a": 2, "$text": 1}']
    odd = [
        b"", b"plain", b"\x00\xff", b"NaN", b"1e400", b"1E-9999", b'"\\u0000"', b'"\\ud800"', b'{"a": 1, "a": 2}',
        b'{"$text": "mine"}', b'{"$base64": "!"}', b"[" * 60_000, b"9" * 5000, b"0." + b"1" * 17_000,
        b"[" + b",".join([b"1e99"] * 9000) + b"]",
    ]  # fmt: skip
    await pgmq.put(QUEUE, [*plain, *odd])
    assert [message.body for message in await pgmq.peek(QUEUE)] == [*plain, *odd]
    stored = [row[0] for row in await execute(database, "SELECT message::text FROM pgmq.q_orders ORDER BY msg_id")]
    assert stored[: len(plain)] == [body.decode() for body in plain]
    assert all(len(json.loads(text)) == 1 for text in stored[len(plain) :])
    received = (await pgmq.receive(QUEUE, 32)).messages
    bodies = [Extend(m.id, m.pop_receipt, 30, body) for m, body in zip(received, [*odd, *plain], strict=True)]
    assert all(outcome.ok for outcome in (await pgmq.settle(QUEUE, Settlement(extend=bodies))).extend)
    changed = await execute(database, "SELECT message::text FROM pgmq.q_orders ORDER BY msg_id")
    assert [body_of(text) for (text,) in changed] == [*odd, *plain]


@pytest.mark.system
async def test_nothing_that_another_producer_sends_stops_a_queue(database: str, pgmq: PgmqStore) -> None:
    """Too deep or too long for Python, with times that it does not have: each is received, as its JSON."""
    await execute(database, "SELECT pgmq.create('orders')")
    deep, long = f'{{"$n": {"[" * 1500}{"]" * 1500}}}', f'{{"$n": {"9" * 5000}}}'
    for text in (deep, long, '{"$base64": "!"}'):
        await execute(database, "SELECT pgmq.send('orders', $1::text::jsonb)", text)
    await run_script(
        database,
        "UPDATE pgmq.q_orders SET enqueued_at = '20000-01-01', read_ct = 2147483647 WHERE msg_id = 1;"
        "UPDATE pgmq.q_orders SET vt = '0044-03-15 BC', enqueued_at = '-infinity', read_ct = -5 WHERE msg_id = 2",
    )
    assert len(await pgmq.peek(QUEUE)) == 3
    received = (await pgmq.receive(QUEUE, 3)).messages
    assert [message.body.decode() for message in received] == [long, deep, '{"$base64": "!"}']
    assert [message.inserted_at.year for message in received][:2] == [1970, 9999]
    claims = [Claim(message.id, message.pop_receipt) for message in received]
    assert all(outcome.ok for outcome in (await pgmq.settle(QUEUE, Settlement(delete=claims))).delete)


@pytest.mark.system
async def test_beside_their_producers_and_readers(database: str, pgmq: PgmqStore) -> None:
    """Theirs is handled here and ours there; whoever received last decides, and counts are one."""
    await execute(database, "SELECT pgmq.create('orders')")
    await execute(database, """SELECT pgmq.send('orders', '{"a": 1}', '{"x-pgmq-group": "g", "n": 1}'::jsonb)""")
    await execute(database, "INSERT INTO pgmq.q_orders (vt) VALUES (clock_timestamp())")
    theirs, empty = (await pgmq.receive(QUEUE, 2, 30)).messages
    assert (theirs.body, theirs.headers, theirs.dequeue_count) == (b'{"a": 1}', {"x-pgmq-group": "g"}, 1)
    assert (empty.body, empty.headers) == (b"", {})
    back = [Release(m.id, m.pop_receipt, uncounted=m is empty) for m in (theirs, empty)]
    assert all(outcome.ok for outcome in (await pgmq.settle(QUEUE, Settlement(release=back))).release)
    read = await execute(database, "SELECT msg_id, read_ct FROM pgmq.read('orders', 30, 10)")
    assert sorted((row["msg_id"], row["read_ct"]) for row in read) == [(1, 2), (2, 1)]
    for old in (theirs, empty):
        assert (await pgmq.settle(QUEUE, delete(old))).delete[0].code == "pop_receipt_mismatch"
    # The end of a lease that no session reports is told all the same.
    answer = await pgmq.receive(QUEUE, 1)
    assert answer.next_visible_in_ms is not None
    assert (answer.messages, answer.next_delayed_in_ms) == ([], None)
    await execute(database, "SELECT pgmq.set_vt('orders', 1, 0)")
    again = await take(pgmq)
    await execute(database, "SELECT pgmq.set_vt('orders', 1, 60)")
    assert (await pgmq.settle(QUEUE, delete(again))).delete[0].code == "pop_receipt_mismatch"
    await execute(
        database, "UPDATE pgmq.q_orders SET vt = CASE msg_id WHEN 1 THEN 'infinity' ELSE '-infinity' END::timestamptz"
    )
    assert [message.id for message in (await pgmq.receive(QUEUE, 5)).messages] == [empty.id]
    assert (await pgmq.receive(QUEUE, 1)).next_visible_in_ms is not None
    assert (await pgmq.settle(QUEUE, delete(again))).delete[0].code == "pop_receipt_mismatch"
    await pgmq.put(QUEUE, [NewMessage(b'{"ours": 1}', headers={"tenant": "x"})])
    ((message, headers),) = await execute(
        database, "SELECT message::text, headers::text FROM pgmq.read('orders', 30, 1)"
    )
    assert (message, json.loads(headers)) == ('{"ours": 1}', {"tenant": "x"})


@pytest.mark.system
@pytest.mark.parametrize("how", ["delete", "archive"])
async def test_what_is_done_is_deleted_or_archived(database: str, pgmq_url: str, how: str) -> None:
    async with PgmqStore(f"{pgmq_url}?done={how}") as store:
        await store.put(QUEUE, [b"1", b"2"])
        first, second = (await store.receive(QUEUE, 2)).messages
        release = [Release(second.id, second.pop_receipt)]
        settled = await store.settle(QUEUE, Settlement(delete=delete(first).delete, release=release))
        assert (settled.delete[0].ok, settled.release[0].ok) == (True, True)
    archived = await execute(database, "SELECT msg_id, read_ct, message::text FROM pgmq.a_orders")
    assert [tuple(row) for row in archived] == ([(1, 1, "1")] if how == "archive" else [])


@pytest.mark.system
async def test_names(database: str, pgmq: PgmqStore) -> None:
    """PGMQ would let two spellings share a table: the second is refused, in a transaction too, and nothing is put."""
    await execute(database, "SELECT pgmq.create('Orders')")
    assert await pgmq.queues() == ["pgmq/Orders"]
    await pgmq.put("pgmq/Orders", [b"1"])
    async with joined(database) as connection:
        for given in ({}, {"connection": connection}):
            with pytest.raises(BadQueueReference, match="pgmq/Orders has the same table"):
                await pgmq.put(QUEUE, [b"2"], **given)
    with pytest.raises(QueueNotFound):
        await pgmq.receive(QUEUE)
    assert (await pgmq.depth(QUEUE), await pgmq.exists(QUEUE), await pgmq.oldest_ms(QUEUE)) == (None, False, None)
    assert len(await pgmq.peek("pgmq/Orders")) == 1
    await pgmq.delete(QUEUE)
    assert await pgmq.exists("pgmq/Orders")
    raced = await asyncio.gather(
        *(pgmq.put(f"pgmq/{name}", [b"1"]) for name in ("races", "Races", "RACES", "races")), return_exceptions=True
    )
    assert sum(isinstance(each, BadQueueReference) for each in raced) in (2, 3)
    assert (
        sum(isinstance(each, list) for each in raced) + sum(isinstance(each, BadQueueReference) for each in raced) == 4
    )
    (left,) = [name for name in await pgmq.queues() if name.lower() == "pgmq/races"]
    await pgmq.delete(left)
    longest = "pgmq/" + "q" * 40
    await pgmq.put(f"{longest}-poison", [b"1"])
    for wrong in (f"{longest}q-poison", "pgmq/a--b", "billing/orders"):
        with pytest.raises(BadQueueReference):
            await pgmq.put(wrong, [b"1"])
    await execute(database, "SELECT pgmq.create('no token')")
    assert await pgmq.queues("pgmq/", "pgmq/Orders") == [f"{longest}-poison"]


@contextlib.asynccontextmanager
async def joined(database: str) -> AsyncIterator[Any]:
    connection = await PostgresAccess(database).connect()
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@pytest.mark.system
async def test_a_put_in_a_transaction_of_yours(database: str, pgmq_server: PostgresServer, pgmq: PgmqStore) -> None:
    """Its commit makes the queue and the messages; a rollback neither. Without a transaction nothing is put."""
    headers = NewMessage(b"plain, text", 60_000, headers={"n": "1"})
    with contextlib.suppress(ZeroDivisionError):
        async with joined(database) as connection:
            await pgmq.put(QUEUE, [b"1"], connection=connection)
            raise ZeroDivisionError
    assert not await pgmq.exists(QUEUE)
    async with joined(database) as connection:
        with pytest.raises(QueueNotFound):
            await pgmq.put(QUEUE, [b"1"], connection=connection, create=False)
        receipts = await pgmq.put(QUEUE, [b"1", headers], connection=connection)
        assert not await pgmq.exists(QUEUE)
    assert await pgmq.depth(QUEUE) is not None
    message = await take(pgmq)
    assert (message.body, message.id) == (b"1", receipts[0].id)
    settled = await pgmq.settle(QUEUE, Settlement(delete=[Claim(each.id, each.pop_receipt) for each in receipts]))
    assert [outcome.code for outcome in settled.delete] == ["pop_receipt_mismatch", None]
    connection = await PostgresAccess(database).connect()
    for queue in (QUEUE, "pgmq/other"):
        with pytest.raises(BadInput) as refused:
            await pgmq.put(queue, [b"1"], connection=connection)
        assert refused.value.code == "no_transaction"
    await connection.close()
    async with joined(pgmq_server.url()) as elsewhere:
        with pytest.raises(BadInput) as refused:
            await pgmq.put(QUEUE, [b"1"], connection=elsewhere)
        assert refused.value.code == "wrong_database"
    assert not await pgmq.exists("pgmq/other")


@pytest.mark.system
async def test_what_is_wrong_with_the_database_is_said(
    database: str, pgmq_server: PostgresServer, pgmq_url: str, pgmq: PgmqStore
) -> None:
    """No PGMQ, an old one, a table that somebody altered or dropped, a role without rights: nothing is lost by it."""
    async with PgmqStore(pgmq_server.url().replace("postgres://", "pgmq://")) as bare:
        with pytest.raises(NotPrepared, match="no PGMQ in this database"):
            await bare.put(QUEUE, [b"1"])
    await pgmq.put(QUEUE, [b"1"])
    await run_script(database, "CREATE ROLE stranger LOGIN")
    async with PgmqStore(pgmq_url.replace("postgres@", "stranger@")) as stranger:
        with pytest.raises(ConfigurationError, match="permission denied for schema pgmq"):
            await stranger.receive(QUEUE)
        await run_script(database, "GRANT USAGE ON SCHEMA pgmq TO stranger; GRANT SELECT ON pgmq.meta TO stranger")
        with pytest.raises(StoreError, match="no permission"):
            await stranger.receive(QUEUE)
    await run_script(database, "ALTER TABLE pgmq.q_orders RENAME read_ct TO reads")
    for call in (lambda: pgmq.receive(QUEUE), lambda: pgmq.peek(QUEUE)):
        with pytest.raises(StoreError, match="dropped or altered"):
            await call()
    await run_script(database, "ALTER TABLE pgmq.q_orders RENAME reads TO read_ct")
    assert (await take(pgmq)).body == b"1"
    await run_script(
        database,
        "ALTER TYPE pgmq.message_record DROP ATTRIBUTE last_read_at CASCADE;"
        "ALTER TABLE pgmq.q_orders DROP COLUMN last_read_at; ALTER TABLE pgmq.a_orders DROP COLUMN last_read_at",
    )
    async with PgmqStore(f"{pgmq_url}?done=archive") as older:
        await older.put(QUEUE, [b"2"])
        assert (await older.settle(QUEUE, delete(await take(older)))).delete[0].ok
    await run_script(database, "ALTER TYPE pgmq.message_record DROP ATTRIBUTE headers CASCADE")
    async with PgmqStore(f"{pgmq_url}?pool_size=1") as too_old:
        with pytest.raises(NotPrepared, match=r"older than 1\.5"):
            await too_old.receive(QUEUE)
    await run_script(database, "DROP TABLE pgmq.q_orders")
    with pytest.raises(StoreError, match="dropped or altered"):
        await pgmq.put(QUEUE, [b"1"])
    await pgmq.delete(QUEUE)
    assert await pgmq.queues() == []


@pytest.mark.system
async def test_what_notifies_and_what_cannot(database: str, pgmq_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One queue that cannot be changed is named, and costs the others nothing; no put fails by the trigger."""
    for name in ("good", "gone", "theirs"):
        await execute(database, "SELECT pgmq.create($1)", name)
    await run_script(
        database,
        "DROP TABLE pgmq.q_gone; CREATE ROLE keeper LOGIN; GRANT ALL ON SCHEMA pgmq TO keeper;"
        "ALTER TABLE pgmq.meta OWNER TO keeper; ALTER TABLE pgmq.q_good OWNER TO keeper",
    )
    init = ["queue", "init", pgmq_url.replace("postgres@", "keeper@"), "--notify"]
    assert await asyncio.to_thread(main, init) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first == "every message sent to a queue notifies the channel queuebell"
    assert [line.split(";")[0] for line in others] == ["but not to pgmq/gone", "but not to pgmq/theirs"]
    sends = "SELECT pgmq.send('good', '1', 'infinity'::timestamptz), pgmq.send('good', '1', '-infinity'::timestamptz)"
    async with joined(database) as connection:
        await connection.execute(sends)
    await run_script(
        database,
        "REVOKE EXECUTE ON FUNCTION pgmq.queuebell_notify_put FROM PUBLIC; CREATE ROLE maker;"
        "GRANT ALL ON SCHEMA pgmq TO maker; GRANT ALL ON pgmq.meta TO maker; SET ROLE maker;"
        "SELECT pgmq.create('later')",
    )
    async with open_store(pgmq_url) as store:
        assert await store.queues() == ["pgmq/gone", "pgmq/good", "pgmq/later", "pgmq/theirs"]


@pytest.mark.system
async def test_a_round_sees_what_a_receive_sees(database: str, pgmq_url: str, pgmq: PgmqStore) -> None:
    """Tables with parts, but no rows that are hidden from the bridge's user; by the index, whatever is delayed."""
    await pgmq.put("pgmq/parts", [NewMessage(b"1", 60_000)])
    await run_script(
        database,
        "CREATE TABLE pgmq.part () INHERITS (pgmq.q_parts); TRUNCATE ONLY pgmq.q_parts;"
        "INSERT INTO pgmq.part (msg_id, vt, message) VALUES (7, clock_timestamp(), '1')",
    )
    found = await pgmq.visible_queues()
    assert found is not None
    assert found.queues == ["pgmq/parts"] and found.place == (await pgmq.receive("pgmq/parts")).place
    await pgmq.create(QUEUE)
    await run_script(
        database,
        "INSERT INTO pgmq.q_orders (vt, message) SELECT clock_timestamp() + interval '1 h', '1'"
        " FROM generate_series(1, 20000); ANALYZE pgmq.q_orders; CREATE ROLE watcher LOGIN;"
        "GRANT USAGE ON SCHEMA pgmq TO watcher; GRANT SELECT ON ALL TABLES IN SCHEMA pgmq TO watcher",
    )
    plan = await execute(database, "EXPLAIN " + pgmq_visible("orders"))
    assert "Index Only Scan" in str(plan) or "Index Scan" in str(plan)
    async with PgmqStore(pgmq_url.replace("postgres@", "watcher@")) as watcher:
        assert await watcher.visible_queues() == found._replace(queues=[])
        await run_script(database, "ALTER TABLE pgmq.q_orders ENABLE ROW LEVEL SECURITY")
        assert await watcher.visible_queues() is None


def pgmq_visible(name: str) -> str:
    # Private: the statement of a round, for its plan.
    return pgmq_module._VISIBLE.replace("{name}", name).replace("{q}", f"pgmq.q_{name}")


def test_rounds_of_two_accounts_are_not_alike() -> None:
    """They name the same queues differently, so a queue that one found would be missing for the other."""
    one, same, other = (PgmqStore(f"pgmq://h/db{more}") for more in ("", "?account=pgmq", "?account=shop"))
    assert one.scope == same.scope != other.scope


@pytest.mark.parametrize("wrong", ["?done=keep", "?account=a/b", "?pool_size=0", "?what=1"])
def test_a_wrong_address_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError):
        PgmqAddress(f"pgmq://app@host/jobs{wrong}")


@pytest.mark.system
async def test_a_plain_send_wakes_a_worker(database: str, pgmq_server: PostgresServer, pgmq_url: str) -> None:
    """Also on a queue that is made later, in batches, delayed, and after a crash of the server.

    PGMQ's own NOTIFY tells of one of five sends, and after a crash of none.
    """
    assert await asyncio.to_thread(main, ["queue", "init", pgmq_url, "--notify"]) == 0
    seen: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def handle(message: Message) -> None:
        seen.put_nowait((message.text(), message.attempt))
        if message.text() == "9" and message.attempt == 1:
            raise Retry(after=0.2)

    async def sent(*expected: tuple[str, int]) -> None:
        async with asyncio.timeout(200):
            assert sorted([await seen.get() for _ in expected]) == sorted(expected)

    async with Bridge() as bridge, Attachments(bridge, postgres=[database]):
        await until(lambda: bridge.readiness().ready, "the bridge listens")
        listener = Listener(pgmq_url, QUEUE, handle, bridge=bridge, handle_signals=False)
        task = asyncio.create_task(listener.run(), name="worker")
        try:
            await until(lambda: (state := bridge.describe(QUEUE)) and not state.dirty, "it has looked once")
            asked = listener.state().queues[QUEUE].total_receives
            await execute(database, "SELECT pgmq.create('orders')")
            for number in range(3):
                await execute(database, "SELECT pgmq.send('orders', $1::int::text::jsonb)", number)
            await sent(("0", 1), ("1", 1), ("2", 1))
            await execute(database, "SELECT pgmq.send_batch('orders', ARRAY['4', '5']::jsonb[])")
            await execute(database, "SELECT pgmq.send('orders', '6', clock_timestamp() + interval '300 ms')")
            await sent(("4", 1), ("5", 1), ("6", 1))
            await execute(database, "SELECT pgmq.send('orders', '9')")
            await sent(("9", 1), ("9", 2))
            theirs: list[str] = []
            hears = await PostgresAccess(database).connect()
            await hears.add_listener("pgmq.q_orders.INSERT", lambda *_: theirs.append("heard"))
            await execute(database, "SELECT pgmq.enable_notify_insert('orders', 600000)")
            for number in range(10, 15):
                await execute(database, "SELECT pgmq.send('orders', $1::int::text::jsonb)", number)
            await sent(*((str(number), 1) for number in range(10, 15)))
            await hears.execute("SELECT 1")
            assert theirs == ["heard"]
            await hears.close()
            assert listener.state().queues[QUEUE].total_receives - asked <= 40
            pgmq_server.stop("immediate")
            pgmq_server.start()
            await until(lambda: bridge.readiness().ready, "the bridge listens again")
            ((left,),) = await execute(database, "SELECT count(*) FROM pgmq.notify_insert_throttle")
            await execute(database, "SELECT pgmq.send('orders', '20')")
            await sent(("20", 1))
            assert left == 0
        finally:
            await listener.stop()
            await task
    assert await asyncio.to_thread(main, ["queue", "init", pgmq_url, "--no-notify"]) == 0
    connection = await asyncpg.connect(database.replace("postgres://", "postgresql://"))
    heard: list[str] = []
    await connection.add_listener("queuebell", lambda *_: heard.append("heard"))
    await connection.execute(
        "SELECT pgmq.create('late'); SELECT pgmq.send('late', '1'); SELECT pgmq.send('orders', '1')"
    )
    await connection.execute("SELECT 1")
    await connection.close()
    assert heard == []
    async with open_store(pgmq_url) as store:
        assert await store.queues() == ["pgmq/late", "pgmq/orders"]
