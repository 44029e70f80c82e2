"""The Redis store when its server is killed, slow, full, replaced, or does not let it in."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Connection

from bridge.contract.errors import (
    ConfigurationError,
    QueuebellError,
    QueueNotFound,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from bridge.queues.base import Depth, Extend, Release, Settlement
from bridge.queues.redis.store import RedisStore
from tests.bridge.queues.redis_rig import QUEUE, come, server, store
from tests.conformance.leases import LONG, bodies, claim, new
from tests.support.certificates import write_self_signed
from tests.support.processes import until
from tests.support.redis import RedisServer

__all__ = ["server", "store"]


async def ours(redis: Any) -> set[str]:
    """The connections of our stores, by the server's ids."""
    return {each["id"] for each in await redis.client_list() if each["name"] == "queuebell"}


async def closed(redis: Any, ids: set[str]) -> bool:
    """Whether the server has none of these any more."""
    return not ids & await ours(redis)


async def heard() -> None:
    """Let the loop read what the kernel has for it, such as the end of a connection."""
    for _ in range(4):
        await asyncio.sleep(0)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """What is set with each command that a client sends."""
    send, event = Connection.send_command, asyncio.Event()

    async def noted(connection: Connection, *args: Any, **more: Any) -> None:
        await send(connection, *args, **more)
        event.set()

    monkeypatch.setattr(Connection, "send_command", noted)
    return event


async def calls(redis: Any) -> int:
    """How many scripts were run."""
    stats = await redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("eval", "evalsha"))


@pytest.mark.system
class TestTroubles:
    async def test_a_killed_server_has_all_it_acknowledged(self, server: RedisServer, store: RedisStore) -> None:
        """With an append-only file flushed always, puts, leases, deletes, delays and the pause are there again."""
        held = await store.put(QUEUE, new(b"leased", b"gone", b"new"))
        leased, gone = (await store.receive(QUEUE, 2, LONG)).messages
        await store.settle(QUEUE, Settlement(delete=[claim(gone)]))
        await store.put(QUEUE, new(b"later", delay_ms=60_000))
        await store.pause(QUEUE)
        await server.restart()
        # The first call meets the broken connection before it is sent, or finds the server back.
        assert await store.depth(QUEUE) == Depth(0, 3)
        await store.pause(QUEUE, False)
        assert await store.depth(QUEUE) == Depth(1, 2)
        settling = await store.settle(QUEUE, Settlement(delete=[claim(leased)]))
        assert settling.delete[0].ok
        received = await store.receive(QUEUE, 5, LONG)
        assert [message.id for message in received.messages] == [held[2].id]

    async def test_a_server_that_is_away(self, server: RedisServer, store: RedisStore) -> None:
        """Nothing was sent, and the next call finds the server when it is back."""
        await store.put(QUEUE, new(b"one"))
        await server.kill()
        await heard()
        with pytest.raises(StoreUnavailable) as failed:
            await store.receive(QUEUE, 1, LONG)
        assert type(failed.value) is StoreUnavailable
        await server.start()
        assert bodies(await store.receive(QUEUE, 1, LONG)) == [b"one"]

    async def test_a_connection_that_the_server_closed_is_not_used(
        self, server: RedisServer, store: RedisStore
    ) -> None:
        """Servers close idle connections (``timeout``); no call is lost to that."""
        await store.put(QUEUE, new(b"one"))
        async with server.stranger() as redis:
            kept = await ours(redis)
            assert kept
            await redis.client_kill_filter(_type="normal", skipme=True)
            await until(lambda: closed(redis, kept), "the server has closed it")
        await heard()
        assert bodies(await store.receive(QUEUE, 1, LONG)) == [b"one"]

    async def test_an_answer_that_does_not_come(self, server: RedisServer) -> None:
        """The outcome is unknown, nothing is sent twice, and the late answer is nobody's."""
        async with RedisStore(server.url(pool_size="1"), timeout=2.0) as store:
            await store.put(QUEUE, new(b"one", b"two"))
            async with server.stranger() as redis:
                await store.receive(QUEUE, 1, LONG)
                await store.depth(QUEUE)
                before = await calls(redis)
                server.pause()
                with pytest.raises(UnknownOutcome):
                    await store.receive(QUEUE, 1, LONG)
                server.resume()
                await until(lambda: self._ran(redis, before + 1), "the server has read what was sent")
                assert await store.depth(QUEUE) == Depth(0, 2)
                assert await calls(redis) == before + 2

    @staticmethod
    async def _ran(redis: Any, count: int) -> bool:
        return await calls(redis) >= count

    async def test_a_cancelled_call_leaves_no_answer_behind(self, server: RedisServer, sent: asyncio.Event) -> None:
        """The next call on the only connection there may be makes a new one, and gets its own answer."""
        async with RedisStore(server.url(pool_size="1")) as store, server.stranger() as redis:
            await store.put(QUEUE, new(b"one", b"two"))
            await store.receive(QUEUE, 1, LONG)
            before = await ours(redis)
            assert len(before) == 1
            server.pause()
            sent.clear()
            task = asyncio.create_task(store.receive(QUEUE, 1, LONG), name="cancelled receive")
            await sent.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            server.resume()
            found = await store.depth(QUEUE)
            assert found.visible + found.invisible == 2
            await until(lambda: closed(redis, before), "the connection of the cancelled call is gone")

    async def test_close_ends_what_is_under_way(self, server: RedisServer, sent: asyncio.Event) -> None:
        """A call that waits for its answer ends as closed."""
        store = RedisStore(server.url())
        await store.put(QUEUE, new(b"one"))
        server.pause()
        sent.clear()
        try:
            task = asyncio.create_task(store.receive(QUEUE, 1, LONG), name="receive")
            await sent.wait()
            await store.close()
            with pytest.raises(QueuebellError, match="closed"):
                await task
        finally:
            server.resume()

    async def test_flushed_scripts_are_sent_again(self, server: RedisServer, store: RedisStore) -> None:
        """A server that forgot a script has done nothing, and is told it."""
        await store.put(QUEUE, new(b"one"))
        async with server.stranger() as redis:
            await redis.script_flush()
            await store.put(QUEUE, new(b"two"))
        assert bodies(await store.receive(QUEUE, 5, LONG)) == [b"one", b"two"]

    async def test_full_memory_takes_nothing_and_gives_out_all(self, server: RedisServer, store: RedisStore) -> None:
        """No put, and no trace of one; but leases, renewals, releases and deletes go on, so that room comes again."""
        await store.put(QUEUE, new(b"one", b"two", b"three", b"four"))
        (lapsed,) = (await store.receive(QUEUE, 1, LONG)).messages
        async with server.stranger() as redis:
            await come(redis, lapsed.id)
            await redis.config_set("maxmemory", "1")
            for queue in (QUEUE, "shop/others"):
                with pytest.raises(StoreFull, match="memory is full"):
                    await store.put(queue, new(b"five"))
            one, two = (await store.receive(QUEUE, 2, LONG)).messages
            assert one.dequeue_count == 2
            (three,) = (await store.receive(QUEUE, 1, LONG)).messages
            # Each alone: after its first command a script may do anything.
            for settlement in (
                Settlement(release=[Release(two.id, two.pop_receipt)]),
                Settlement(extend=[Extend(three.id, three.pop_receipt, LONG)]),
                Settlement(delete=[claim(one)]),
            ):
                settling = await store.settle(QUEUE, settlement)
                assert [each.ok for each in (*settling.delete, *settling.release, *settling.extend)] == [True]
            settling = await store.settle(QUEUE, Settlement(release=[Release(two.id, "0" * 18)]))
            assert settling.release[0].code == "pop_receipt_mismatch"
            await redis.config_set("maxmemory", "0")
        assert bodies(await store.receive(QUEUE, 5, LONG)) == [b"four", b"two"]
        with pytest.raises(QueueNotFound):
            await store.receive("shop/others", 1, LONG)

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
