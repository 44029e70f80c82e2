"""What of the Redis store the conformance suite does not ask: addresses, strangers, and the order of things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queuebell.bridge.contract.errors import (
    ConfigurationError,
    QueuebellError,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import Depth
from queuebell.bridge.queues.redis.connections import RedisAddress, explain
from queuebell.bridge.queues.redis.store import RedisStore
from tests.bridge.queues.redis_rig import QUEUE, STREAM, server, store
from tests.conformance.leases import LONG, bodies, new
from tests.support.certificates import write_self_signed
from tests.support.processes import until
from tests.support.redis import RedisServer
from tests.support.tcp_proxy import TcpProxy

__all__ = ["server", "store"]


@pytest.mark.parametrize(
    "url",
    [
        "redis://",
        "redis://host/x",
        "redis://host/1/2",
        "redis://host/-1",
        "redis://secret@host?colour=red",
        "redis://:secret@host?prefix=a.b",
        "redis://host?pool_size=0",
        "redis://host?pool_size=101",
        "redis://host?tls_ca=/x",
        "rediss://host?tls_hostname=x",
        "redis://[::1",
    ],
)
def test_addresses_that_are_none(url: str) -> None:
    """What cannot be an address is a mistake of the configuration, told without its secrets."""
    with pytest.raises(ConfigurationError) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_addresses_are_read_and_keep_their_secrets() -> None:
    """Host, port and database make the place; user and password are nowhere to be seen."""
    address = RedisAddress("redis://me:secret@localhost/3")
    assert (address.text, address.place) == ("redis://localhost:6379/3", "redis://127.0.0.1:6379/3")
    assert "secret" not in repr(address)
    one, same, other, third = (
        RedisStore(url).fingerprint(QUEUE)
        for url in ("redis://localhost", "redis://:x@127.0.0.1:6379/0", "redis://localhost/1", "redis://h?prefix=x")
    )
    assert one == same
    assert len({one, other, third}) == 3


def test_no_answer_is_misread() -> None:
    """The server's words, at the front or inside, in whatever class the client raises them."""
    from redis import exceptions

    cases: list[tuple[Exception, type[QueuebellError]]] = [
        (exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), StoreFull),
        (
            exceptions.ResponseError("ERR Error running script (call to f_1): @user_script:3: -OOM command not"),
            StoreFull,
        ),
        (exceptions.BusyLoadingError("Redis is loading the dataset in memory"), StoreUnavailable),
        (exceptions.ReadOnlyError("You can't write against a read only replica."), StoreUnavailable),
        (exceptions.ResponseError("MISCONF Errors writing to the AOF file: No space left"), StoreUnavailable),
        (exceptions.ResponseError("NOREPLICAS Not enough good replicas to write."), StoreUnavailable),
        (exceptions.ResponseError("BUSY Redis is busy running a script."), StoreUnavailable),
        (exceptions.MovedError("1234 127.0.0.1:7000"), ConfigurationError),
        (exceptions.ResponseError("WRONGTYPE Operation against a key"), StoreError),
        (exceptions.NoPermissionError("this user has no permissions"), StoreError),
        (exceptions.ResponseError("ERR something else"), StoreError),
    ]
    for error, meaning in cases:
        assert type(explain(error, "redis://host:6379/0", connecting=False)) is meaning, error


@pytest.mark.system
class TestStrangers:
    async def test_who_only_adds_may_say_headers(self, server: RedisServer, store: RedisStore) -> None:
        """As JSON in a field beside the body; what is none is not read, and a field of the body's own stays there."""
        async with server.stranger() as redis:
            await redis.xadd(STREAM, {"headers": '{"Trace": "x", "bad": "\\n", "no": 7}', "body": "one"})
            for none in ("", "[]", "no JSON", b"\xff", '{"a": "' + "x" * 9000 + '"}'):
                await redis.xadd(STREAM, {"body": "none", "headers": none})
            await redis.xadd(STREAM, {"headers": '{"a": "b"}', "order": "2"})
            one, *none, own = (await store.receive(QUEUE, 9, LONG)).messages
            assert (one.body, one.headers) == (b"one", {"trace": "x"})
            assert [each.headers for each in none] == [{}] * 5
            assert (own.body, own.headers) == (b'{"headers":"{\\"a\\": \\"b\\"}","order":"2"}', {})


@pytest.mark.system
class TestIdentity:
    async def test_a_database_says_who_it_is_by_any_address(self, server: RedisServer, store: RedisStore) -> None:
        """C8: other databases and prefixes of one server are others; no queue is made, and nobody's key is touched."""
        mine = await store.identity()
        assert mine is not None
        assert await store.identity() == mine
        async with TcpProxy(server.port) as proxy, RedisStore(f"redis://127.0.0.1:{proxy.port}/0") as alias:
            assert alias.fingerprint(QUEUE) != store.fingerprint(QUEUE)
            assert await alias.identity() == mine
        for other in (server.url(1), server.url(prefix="other")):
            async with RedisStore(other) as another:
                assert await another.identity() not in (None, mine)
        assert await store.queues() == []
        async with server.stranger() as redis:
            await redis.delete("queuebell:identity")
            await redis.hset("queuebell:identity", "some", "body")
        assert await store.identity() is None

    async def test_where_it_cannot_be_asked_that_is_told(self, server: RedisServer, store: RedisStore) -> None:
        await server.kill()
        with pytest.raises(StoreUnavailable):
            await store.identity()


async def ours(redis: Any) -> set[str]:
    """The connections of our stores, by the server's ids."""
    return {each["id"] for each in await redis.client_list() if each["name"] == "queuebell"}


async def closed(redis: Any, ids: set[str]) -> bool:
    """Whether the server has none of these any more."""
    return not ids & await ours(redis)


async def calls(redis: Any) -> int:
    """How many scripts were run."""
    stats = await redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


@pytest.mark.system
class TestTroubles:
    @staticmethod
    async def _ran(redis: Any, count: int) -> bool:
        return await calls(redis) >= count

    async def test_a_replica_takes_nothing_and_is_left(self, server: RedisServer, store: RedisStore) -> None:
        """After a failover the next call makes a new connection, which may lead to the new master."""
        await store.put(QUEUE, new(b"one"))
        async with server.stranger() as redis:
            kept = await ours(redis)
            assert kept
            await redis.replicaof("127.0.0.1", "1")
            with pytest.raises(StoreUnavailable, match="replica"):
                await store.put(QUEUE, new(b"two"))
            await until(lambda: closed(redis, kept), "none of its connections is kept")
            await redis.replicaof("NO", "ONE")
        assert bodies(await store.receive(QUEUE, 5, LONG)) == [b"one"]

    async def test_who_is_not_let_in_is_told(self, server: RedisServer) -> None:
        """No password, a wrong one, no such database: mistakes of the configuration, told without the secret."""
        server.extra = "requirepass right"
        await server.restart()
        for url in (
            server.url(),
            f"redis://:wrong@127.0.0.1:{server.port}",
            f"redis://:right@127.0.0.1:{server.port}/99",
        ):
            async with RedisStore(url) as store:
                with pytest.raises(ConfigurationError) as refused:
                    await store.put(QUEUE, new(b"one"))
                assert "wrong" not in str(refused.value)
        async with RedisStore(f"redis://default:right@127.0.0.1:{server.port}/1") as store:
            await store.put(QUEUE, new(b"one"))
            assert await store.depth(QUEUE) == Depth(1, 0)

    async def test_over_tls_only_to_whom_it_should_be(self, tmp_path: Path) -> None:
        """The server's certificate is checked, and ours is shown."""
        cert, key = write_self_signed(tmp_path)
        server = RedisServer(tmp_path / "server")
        server.extra = (
            f"port 0\ntls-port {server.port}\ntls-cert-file {cert}\ntls-key-file {key}\ntls-ca-cert-file {cert}\n"
        )
        async with server:
            where = f"rediss://127.0.0.1:{server.port}/0"
            async with RedisStore(f"{where}?tls_ca={cert}&tls_cert={cert}&tls_key={key}") as store:
                await store.put(QUEUE, new(b"one"))
                assert bodies(await store.receive(QUEUE, 1, LONG)) == [b"one"]
            async with RedisStore(where) as store:
                with pytest.raises(ConfigurationError, match="certificate"):
                    await store.depth(QUEUE)
            async with RedisStore(f"{where}?tls_ca={tmp_path}/none") as store:
                with pytest.raises(ConfigurationError, match="tls_ca"):
                    await store.depth(QUEUE)


@pytest.mark.system
async def test_a_round_of_many_queues_and_of_many_delays(store: RedisStore) -> None:
    """Script after script; a thousand delayed messages are no visible one."""
    names = [f"shop/q{number}" for number in range(250)]
    for name in names:
        await store.put(name, new(b"1"))
        await store.receive(name, 1, LONG)
    assert (none := await store.visible_queues()) and none.queues == []
    for name in names[::50]:
        await store.put(name, new(b"2"))
    for _ in range(32):
        await store.put(QUEUE, new(*[b"later"] * 32, delay_ms=60_000))
    found = await store.visible_queues()
    assert found is not None
    assert sorted(found.queues) == sorted(names[::50])


@pytest.mark.system
async def test_a_round_finds_what_a_receive_would_find(server: RedisServer, store: RedisStore) -> None:
    """Also what another program read with the group; and it asks no replica, which may be behind."""
    await store.put(QUEUE, new(b"1"))
    async with server.stranger() as redis:
        await redis.xreadgroup("queuebell", "another", {STREAM: ">"}, count=1)
        place = (await redis.info("server"))["run_id"]
        assert await store.visible_queues() == ([QUEUE], place)
        assert (await store.receive(QUEUE, 1, LONG)).place == place
        assert await store.visible_queues() == ([], place)
        await redis.replicaof("127.0.0.1", "1")
        with pytest.raises(StoreUnavailable):
            await store.visible_queues()
        await redis.replicaof("NO", "ONE")
        await redis.flushall()
        await redis.replicaof("127.0.0.1", "1")
        with pytest.raises(StoreUnavailable):
            await store.visible_queues()
