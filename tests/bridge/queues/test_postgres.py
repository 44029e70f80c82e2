"""What only a database does: locks of others, plain INSERTs, schemas, connections that break."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from queuebell.bridge.brokers.postgres.access import PostgresAccess
from queuebell.bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    StoreError,
    StoreUnavailable,
)
from queuebell.bridge.queues.base import Claim, Depth, NewMessage, Received, Settlement, digest_of
from queuebell.bridge.queues.postgres import sql as postgres_sql
from queuebell.bridge.queues.postgres.connections import SCHEMA_VERSION, PostgresConnections
from queuebell.bridge.queues.postgres.schema import init
from queuebell.bridge.queues.postgres.store import FEW, PostgresStore
from tests.bridge.queues.postgres_rig import QUEUE, new, schema, server, store, url
from tests.support.postgres import PostgresServer, execute
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.system

__all__ = ["schema", "server", "store", "url"]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All nodes of a plan."""
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


async def test_init_makes_migrates_and_refuses(url: str) -> None:
    """Made once, nothing to do the second time; an older schema is not used and a newer one not touched."""
    schema = url.partition("search_path=")[2]
    both = f"{url},public"
    assert await init(both) == [f'schema "{schema}" created', f"tables of schema {SCHEMA_VERSION} created"]
    assert await init(both) == await init(url) == []
    assert await init(url, notify=True, prefix="shop") == ["every put notifies the channel shop"]
    assert await init(url, notify=False) == ["puts send no notifications"]
    await execute(url, "UPDATE queuebell_schema SET version = 99")
    with pytest.raises(ConfigurationError, match="newer version"):
        await init(url)
    async with PostgresStore(url) as store:
        with pytest.raises(ConfigurationError, match="newer version"):
            await store.put(QUEUE, new(b"x"))
        await execute(url, "UPDATE queuebell_schema SET version = 0")
        with pytest.raises(ConfigurationError, match="queuebell queue init"):
            await store.put(QUEUE, new(b"x"))


async def test_what_init_may_not_do_is_said(url: str, server: PostgresServer) -> None:
    """A server that is not there was not asked; one that refuses has changed nothing."""
    await init(url)
    who = f"u{uuid.uuid4().hex}"
    await execute(url, f"CREATE ROLE {who} LOGIN")
    with pytest.raises(StoreError, match="this user has no permission"):
        await init(url.replace("postgres@", f"{who}@").replace("search_path=", "search_path=other_"))
    server.stop("fast")
    try:
        with pytest.raises(StoreUnavailable) as failed:
            await init(url)
    finally:
        server.start()
    assert type(failed.value) is StoreUnavailable


async def test_many_messages_under_keys_are_one_request(url: str, store: PostgresStore) -> None:
    """Each is put once, in order, beside `put_once` too; another body under a known key is told, and not put."""
    given = [(f"key-{number}", NewMessage(b"%d" % number)) for number in range(store.capabilities.call_max)]
    assert await store.put_once(QUEUE, "key-1", NewMessage(b"1")) is not None
    assert await store.put_each_once(QUEUE, given) == len(given) - 1
    assert await store.put_each_once(QUEUE, given) == 0
    assert await store.put_once(QUEUE, "key-2", NewMessage(b"2")) is None
    assert [message.body for message in (await store.receive(QUEUE, 4)).messages] == [b"1", b"0", b"2", b"3"]
    twice = [("new", NewMessage(b"new", visible_after_ms=60_000)), ("new", NewMessage(b"new")), given[0]]
    assert await store.put_each_once(QUEUE, twice) == 1, "also where one statement names it twice"
    with pytest.raises(BadInput) as refused:
        await store.put_each_once(QUEUE, [given[0], ("key-1", NewMessage(b"other"))])
    assert refused.value.code == "message_conflict"
    for wrong in ([], [*given, ("more", NewMessage(b""))], [("no key", NewMessage(b""))]):
        with pytest.raises(BadInput):
            await store.put_each_once(QUEUE, wrong)
    assert await store.depth(QUEUE) == Depth(len(given) - 4, 5)
    await store.clear(QUEUE)
    assert await store.put_each_once(QUEUE, given[:2]) == 2


async def test_a_server_says_who_it_is_by_any_address(
    server: PostgresServer, url: str, schema: str, store: PostgresStore
) -> None:
    """C8: what `initdb` drew, which a dump does not carry; whoever may not ask is told nothing."""
    ((number,),) = await execute(url, "SELECT system_identifier FROM pg_control_system()")
    mine = await store.identity()
    assert mine == digest_of("postgres", str(number))
    async with TcpProxy(server.port) as proxy, PostgresStore(url.replace(f":{server.port}", f":{proxy.port}")) as alias:
        assert alias.fingerprint(QUEUE) != store.fingerprint(QUEUE)
        assert await alias.identity() == mine
    who = f"u{uuid.uuid4().hex}"
    await execute(url, f"CREATE ROLE {who} LOGIN")
    await execute(url, f"GRANT USAGE ON SCHEMA {schema} TO {who}")
    await execute(url, f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {who}")
    await execute(url, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    try:
        async with PostgresStore(url.replace("postgres@", f"{who}@")) as restricted:
            assert await restricted.identity() is None
            assert await restricted.queues() == []
    finally:
        await execute(url, "GRANT EXECUTE ON FUNCTION pg_control_system() TO PUBLIC")


@pytest.fixture(autouse=True)
def beside_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Django block in a test, where a loop runs; a program of Django's has none there."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")


GONE = FEW + 5_000


@contextlib.asynccontextmanager
async def pinned(url: str, store: PostgresStore) -> AsyncIterator[None]:
    """A transaction stays open, and what many messages left behind cannot be removed; a receive has found it out."""
    await execute(url, "ALTER TABLE queuebell_messages SET (autovacuum_enabled = false)")
    await store.create(QUEUE)
    holder = await PostgresAccess(url).connect()
    try:
        async with holder.transaction(isolation="repeatable_read", readonly=True):
            await holder.fetch("SELECT count(*) FROM queuebell_messages")
            await leave_behind(url)
            await store.receive(QUEUE, 32)
            yield
    finally:
        await holder.close()


async def leave_behind(url: str) -> None:
    await execute(
        url,
        "INSERT INTO queuebell_messages (queue, text, visible_at)"
        " SELECT $1, '', clock_timestamp() - interval '1 hour' FROM generate_series(1, $2::int)",
        QUEUE,
        GONE,
    )
    await execute(url, "DELETE FROM queuebell_messages")


def bodies(received: Received) -> list[bytes]:
    return [message.body for message in received.messages]


async def test_full_batches_and_a_pause_behind_a_mark(url: str, store: PostgresStore) -> None:
    """Full batches say that there is more and bring it; a pause counts at once; what expired is not given out."""
    async with pinned(url, store):
        await store.put(QUEUE, [*new(*(b"%02d" % n for n in range(6))), NewMessage(b"expires", ttl_s=600)])
        first = await store.receive(QUEUE, 3, 600)
        assert first.depth is not None
        assert (bodies(first), first.depth.visible) == ([b"00", b"01", b"02"], 4)
        await store.pause(QUEUE)
        assert bodies(await store.receive(QUEUE, 3, 600)) == []
        await store.pause(QUEUE, False)
        await execute(url, "UPDATE queuebell_messages SET expires_at = clock_timestamp() WHERE expires_at IS NOT NULL")
        last = await store.receive(QUEUE, 3, 600)
        assert last.depth is not None
        assert (bodies(last), last.depth.visible) == ([b"03", b"04", b"05"], 1), "a full batch proves nothing"
        assert bodies(await store.receive(QUEUE, 3, 600)) == []


async def test_what_a_broken_second_look_had_taken_is_handed_out(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages leased behind a mark are not lost to their leases because the look from the beginning fails."""
    await store.put(QUEUE, new(b"1", b"2", b"3"))
    await store.receive(QUEUE, 1)
    with monkeypatch.context() as patch:
        fail(patch, postgres_sql.RECEIVE)
        received = await store.receive(QUEUE, 3)
    assert [message.body for message in received.messages] == [b"2", b"3"]
    assert received.depth == Depth(1, 2), "it must not pass for the proof that nothing is left"
    with monkeypatch.context() as patch:
        fail(patch, postgres_sql.RECEIVE)
        with pytest.raises(StoreUnavailable):
            await store.receive(QUEUE, 3)


async def test_a_settlement_half_done_says_what_is_done(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the first statement deleted something and the second fails, only the rest is to be tried again."""
    await store.put(QUEUE, new(b"1", b"2"))
    one, two = (await store.receive(QUEUE, 2)).messages
    wrong = Claim(two.id, "0" * 32)
    with monkeypatch.context() as patch:
        fail(patch, postgres_sql.SETTLE)
        with pytest.raises(StoreUnavailable):
            await store.settle(QUEUE, Settlement(delete=[wrong]))
        settled = await store.settle(QUEUE, Settlement(delete=[wrong, Claim(one.id, one.pop_receipt), wrong]))
        assert [(one.ok, one.code) for one in settled.delete] == [
            (False, "storage_unavailable"), (True, None), (False, "storage_unavailable"),
        ]  # fmt: skip
    assert await store.depth(QUEUE) == Depth(0, 1)


def fail(patch: pytest.MonkeyPatch, statement: str) -> None:
    """Close the way to the database for one statement."""
    there = PostgresConnections.fetch

    async def fetch(connections: PostgresConnections, sql: str, *rest: Any) -> list[Any]:
        if sql == statement:
            raise StoreUnavailable("the database cannot be reached")
        return await there(connections, sql, *rest)

    patch.setattr(PostgresConnections, "fetch", fetch)


async def test_a_round_tells_which_tables_it_read(url: str, server: PostgresServer, store: PostgresStore) -> None:
    """For another user the same address may lead to other tables, or to fewer rows, of which nothing is said."""
    await store.put(QUEUE, new(b"1"))
    found = await store.visible_queues()
    assert found is not None
    assert found.queues == [QUEUE] and found.place == (await store.receive(QUEUE)).place
    user = f"u{uuid.uuid4().hex}"
    await execute(url, f"CREATE ROLE {user} LOGIN")
    theirs = server.url().replace("postgres@", f"{user}@")
    await init(server.url(search_path=user))
    for own in (user, await schema_of(url)):
        await execute(url, f"GRANT USAGE ON SCHEMA {own} TO {user}")
        await execute(url, f"GRANT SELECT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {own} TO {user}")
    async with PostgresStore(theirs) as other:
        found = await other.visible_queues()
        assert found is not None
        assert found.queues == [] and found.place != (await store.receive(QUEUE)).place
    async with PostgresStore(url.replace("postgres@", f"{user}@")) as same:
        assert (await same.visible_queues()) == ([], (await store.receive(QUEUE)).place)
        await execute(url, "ALTER TABLE queuebell_messages ENABLE ROW LEVEL SECURITY")
        assert await same.visible_queues() is None
    assert await store.visible_queues() is not None


async def schema_of(url: str) -> str:
    ((found,),) = await execute(url, "SELECT current_schema()::text")
    return str(found)
