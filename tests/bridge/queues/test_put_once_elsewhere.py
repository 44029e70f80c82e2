"""Puts under a key on PostgreSQL and Redis: other processes, lost answers, the end of a key, and what crosses them.

What is asked of every store that puts once is in `tests/conformance/once.py`. Crossed here:

| put once x | PostgreSQL | Redis |
|---|---|---|
| two processes at once, a lost answer, a writer that is killed | here | here |
| delay, time to live, window over, message deleted meanwhile | here | here |
| queue deleted, cleared, made anew; create=False | conformance | conformance; a stream deleted by hand: here |
| partitions, with a publishing queue | here | here |
| export and import | here | here |
| a full memory; a script cache that was flushed | - | here |
| a transaction: commit, rollback, savepoint, each driver | test_postgres_once_in_transaction.py | none there |
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from bridge.contract.errors import BadInput, QueueNotFound, StoreFull, StoreUnavailable, UnknownOutcome
from bridge.producer.partitions import PartitionedQueue
from bridge.producer.publisher import Publisher
from bridge.producer.publishing_queue import PublishingQueue
from bridge.queues import open_store
from bridge.queues.base import PUT_WINDOW_S, Depth, NewMessage, PutOnceStore, Settlement, StoredMessage
from bridge.queues.postgres.schema import init
from bridge.queues.postgres.store import PostgresStore
from bridge.queues.redis.store import RedisStore
from queuebell.command import queue_transfer
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.conformance.leases import bodies, claim
from tests.support.buses import RecordingBus
from tests.support.postgres import PostgresServer, execute
from tests.support.processes import PATIENCE_S, ROOT, environment, until
from tests.support.redis import RedisServer
from tests.support.tcp_proxy import TcpProxy

__all__ = ["schema", "server", "url"]
pytestmark = pytest.mark.system
QUEUE = "billing/orders"
KEY = "order-7"


class Place:
    """One of the servers, and a store on it."""

    def __init__(
        self,
        address: str,
        port: int,
        store: PutOnceStore,
        end_windows: Callable[[], Awaitable[object]],
        keys: Callable[[], Awaitable[int]],
    ) -> None:
        self.address, self.port, self.store = address, port, store
        self.end_windows = end_windows
        """Have the time of every key be over."""
        self.keys = keys
        """How many keys are written down."""

    def through(self, port: int) -> str:
        return self.address.replace(f":{self.port}/", f":{port}/")


@pytest.fixture(params=["postgres", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest_asyncio.fixture
async def place(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    if kind == "postgres":
        address: str = request.getfixturevalue("url")
        running: PostgresServer = request.getfixturevalue("server")
        await init(address)

        async def count() -> int:
            return int((await execute(address, "SELECT count(*) FROM queuebell_once"))[0][0])

        async with PostgresStore(address) as store:
            yield Place(
                address,
                running.port,
                store,
                lambda: execute(address, "UPDATE queuebell_once SET until = clock_timestamp()"),
                count,
            )
        return
    async with RedisServer(tmp_path) as redis, RedisStore(redis.url()) as there, redis.stranger() as stranger:
        windows = f"queuebell:{{{QUEUE}}}:windows"

        async def end() -> None:
            for key in await stranger.zrange(windows, 0, -1):
                await stranger.zadd(windows, {key: 1})

        async def known() -> int:
            found = await stranger.zcard(windows)
            assert found == await stranger.hlen(f"queuebell:{{{QUEUE}}}:once")
            return int(found)

        yield Place(redis.url(), redis.port, there, end, known)


async def take(store: PutOnceStore, queue: str = QUEUE) -> StoredMessage:
    (message,) = (await store.receive(queue, 1)).messages
    return message


async def handle(store: PutOnceStore) -> None:
    await store.settle(QUEUE, Settlement(delete=[claim(await take(store))]))


WRITER = """
import asyncio, sys
from queuebell import open_store

async def main(address, count):
    async with open_store(address) as store:
        await store.depth("billing/orders")
        print("here", flush=True)
        sys.stdin.readline()
        new = 0
        for number in range(count):
            new += await store.put_once("billing/orders", f"key-{number}", str(number)) is not None
            print(new, flush=True)

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
"""


async def writer(address: str, count: int) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, address, str(count),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=ROOT, env=environment(PYTHONPATH=str(ROOT)),
    )  # fmt: skip
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        assert await process.stdout.readline() == b"here\n"
    return process


async def test_of_two_processes_one_puts(place: Place) -> None:
    """The same keys at the same time: each message stands once, and exactly one process was told so."""
    writers = [await writer(place.address, 30) for _ in range(2)]
    async with asyncio.timeout(PATIENCE_S):
        answers = await asyncio.gather(*(each.communicate(b"\n") for each in writers))
    assert sum(int(out.split()[-1]) for out, _ in answers) == 30
    found = (await place.store.receive(QUEUE, 32)).messages
    assert sorted(message.body for message in found) == sorted(b"%d" % number for number in range(30))
    assert {message.key for message in found} == {f"key-{number}" for number in range(30)}


async def test_a_writer_that_is_killed_leaves_what_another_finishes(place: Place) -> None:
    """By SIGKILL in the middle of its puts: whoever puts all of them again has each once."""
    first = await writer(place.address, 1000)
    assert first.stdin is not None
    assert first.stdout is not None
    first.stdin.write(b"\n")
    async with asyncio.timeout(PATIENCE_S):
        for _ in range(5):
            await first.stdout.readline()
        first.kill()
        await first.communicate()
    for number in range(20):
        await place.store.put_once(QUEUE, f"key-{number}", str(number))
    found = (await place.store.receive(QUEUE, 32)).messages
    assert len({message.key for message in found}) == len(found)
    assert {f"key-{number}" for number in range(20)} <= {message.key for message in found}


async def test_a_lost_answer_is_asked_for_again(place: Place) -> None:
    """The put stood, its answer never came: the same put from elsewhere finds that out, and puts nothing."""
    async with TcpProxy(place.port) as proxy, open_store(place.through(proxy.port)) as far:
        assert isinstance(far, PostgresStore | RedisStore)
        assert await far.put_once("billing/other", KEY, "first") is not None
        proxy.down.swallow = True
        lost = asyncio.create_task(far.put_once(QUEUE, KEY, "one"), name="lost")
        await until(lambda: place.store.exists(QUEUE), "it is put")
        proxy.cut()
        with pytest.raises(UnknownOutcome):
            await lost
    assert await place.store.put_once(QUEUE, KEY, "one") is None
    with pytest.raises(BadInput) as refused:
        await place.store.put_once(QUEUE, KEY, "other")
    assert refused.value.code == "message_conflict"
    assert bodies(await place.store.receive(QUEUE, 32)) == [b"one"]


async def test_a_key_is_known_for_its_window_and_as_long_as_its_message(place: Place) -> None:
    """As in the bridge's own store: time alone forgets no key whose message is there, leased ones too."""
    store = place.store
    await store.put_once(QUEUE, KEY, "one")
    await place.end_windows()
    assert await store.put_once(QUEUE, KEY, "one") is None
    with pytest.raises(BadInput):
        await store.put_once(QUEUE, KEY, "other")
    held = await take(store)
    assert held.key == KEY
    assert await store.put_once(QUEUE, KEY, "one") is None
    await store.settle(QUEUE, Settlement(delete=[claim(held)]))
    assert await store.put_once(QUEUE, KEY, "other") is not None
    assert (await take(store)).body == b"other"


async def test_delayed_and_expired_ones_are_known(place: Place) -> None:
    """One that is delayed is there. One that has expired was put all the same: only the window counts then."""
    store = place.store
    receipt = await store.put_once(QUEUE, "delayed", NewMessage("later", visible_after_ms=60_000))
    assert receipt is not None
    assert receipt.visible_in_ms == 60_000
    assert await store.depth(QUEUE) == Depth(0, 1)
    await store.put_once(QUEUE, "brief", NewMessage("brief", ttl_s=1))
    await place.end_windows()
    assert await store.put_once(QUEUE, "delayed", "later") is None

    async def expired() -> bool:
        depth = await store.depth(QUEUE)
        return depth is not None and not depth.visible

    await until(expired, "it has expired")
    await place.end_windows()
    assert await store.put_once(QUEUE, "brief", "brief") is not None
    assert await store.put_once(QUEUE, "brief", "brief") is None


async def test_keys_past_their_time_go_with_later_puts(place: Place) -> None:
    """Four for each put: their number is bounded by the puts of a window. Those of messages that wait stay."""
    store = place.store
    for number in range(12):
        await store.put_once(QUEUE, f"gone-{number}", "x")
        await handle(store)
    await store.put_once(QUEUE, "waits", "x")
    await place.end_windows()
    assert await place.keys() == 13
    for number in range(4):
        await store.put_once(QUEUE, f"new-{number}", "x")
    assert await place.keys() == 5
    assert await store.put_once(QUEUE, "waits", "x") is None
    assert await store.put_once(QUEUE, "gone-3", "y") is not None


async def test_the_window_is_what_is_asked_for(place: Place, kind: str) -> None:
    """600 s unless it is set: then as long."""
    kinds: dict[str, type[PostgresStore | RedisStore]] = {"postgres": PostgresStore, "redis": RedisStore}
    assert PUT_WINDOW_S == 600
    async with kinds[kind](place.address, put_window_s=0.001) as brief:
        await brief.put_once(QUEUE, KEY, "one")
        await handle(brief)

        async def forgotten() -> bool:
            return await brief.put_once(QUEUE, KEY, "one") is not None

        await until(forgotten, "the window is over")
    await place.store.put_once(QUEUE, "long", "two")
    if kind == "postgres":
        ((left,),) = await execute(
            place.address, "SELECT extract(epoch FROM until - clock_timestamp()) FROM queuebell_once WHERE key = 'long'"
        )
        assert 500 < left <= 600


async def test_of_partitions_a_key_belongs_to_one(place: Place) -> None:
    """The key of a partition chooses it; there the message is put once, and told to a bridge where there is one."""
    bus = RecordingBus()
    async with Publisher(bus) as publisher:
        queue = PartitionedQueue(PublishingQueue(place.store, publisher), "billing/orders:4")
        with pytest.raises(QueueNotFound):
            await queue.put_once("customer", KEY, "one", create=False)
        placed = await queue.put_once("customer", KEY, "one")
        assert placed is not None
        assert await queue.put_once("customer", KEY, "one") is None
        assert await queue.put_once("customer", "another", "two", create=False) is not None
        assert await queue.depth() == Depth(2, 0)
        waited = await queue.oldest_ms()
        assert waited is not None
        assert await queue.exists()
        assert queue.state().put[placed.queue] == 2
    assert await place.store.depth(placed.queue) == Depth(2, 0)
    assert bus.taken


async def test_an_export_says_the_key_and_an_import_puts_anew(place: Place, tmp_path: Path) -> None:
    """Keys are of puts, not of messages: what is imported has none, and the keys of the queue stand."""
    store, file = place.store, tmp_path / "messages"
    await store.put_once(QUEUE, KEY, "one")
    args = argparse.Namespace(
        queue=QUEUE, file=str(file), delete=True, partitions=None, bridge=None, key=None, once=False
    )
    await queue_transfer.export(store, args)
    assert f'"key":"{KEY}"' in file.read_text()
    await queue_transfer.import_(store, args)
    message = await take(store)
    assert (message.body, message.key) == (b"one", None)
    assert await store.put_once(QUEUE, KEY, "one") is None


async def test_a_put_without_a_key_leaves_none(place: Place) -> None:
    """Nor does it look at any: what is past its time waits for a put with one."""
    store = place.store
    await store.put_once(QUEUE, KEY, "one")
    await place.end_windows()
    await handle(store)
    await store.put(QUEUE, ["two"])
    assert await place.keys() == 1


async def test_a_stream_that_is_deleted_by_hand_takes_its_keys_along(tmp_path: Path) -> None:
    """The next put makes the queue anew, and forgets what the old one knew; an odd entry has no key."""
    async with RedisServer(tmp_path) as server, RedisStore(server.url()) as store, server.stranger() as stranger:
        await store.put_once(QUEUE, KEY, "one")
        await stranger.delete(f"queuebell:{{{QUEUE}}}")
        assert await store.put_once(QUEUE, KEY, "other") is not None
        await stranger.delete(f"queuebell:{{{QUEUE}}}")
        await store.put(QUEUE, ["plain"])
        assert await store.put_once(QUEUE, KEY, "third") is not None
        await stranger.xadd(f"queuebell:{{{QUEUE}}}", {"body": "odd", "key": "no-key"})
        keys = {message.body: message.key for message in (await store.receive(QUEUE, 32)).messages}
        assert keys == {b"plain": None, b"third": KEY, b"odd": None}
        await stranger.script_flush()
        assert await store.put_once(QUEUE, KEY, "third") is None


async def test_where_memory_is_full_nothing_is_put_and_no_key_is_left(tmp_path: Path) -> None:
    """Also on a queue that has to be there, whose look for it needs no memory; afterwards the same put goes."""
    async with RedisServer(tmp_path) as server, RedisStore(server.url()) as store, server.stranger() as stranger:
        await store.put_once(QUEUE, "before", "one")
        await stranger.config_set("maxmemory", "1")
        for create in (True, False):
            with pytest.raises(StoreFull):
                await store.put_once(QUEUE, KEY, "two", create=create)
            with pytest.raises(StoreFull):
                await store.put(QUEUE, ["two"], create=create)
        assert await store.put_once(QUEUE, "before", "one") is None
        await stranger.config_set("maxmemory", "0")
        assert await store.put_once(QUEUE, KEY, "two", create=False) is not None
        assert bodies(await store.receive(QUEUE, 32)) == [b"one", b"two"]


async def test_a_replica_refuses_what_it_may_know_wrongly(tmp_path: Path) -> None:
    """Of a key, and of a queue that is missing: `READONLY`, and the next call may get to the master."""
    folders = [tmp_path / name for name in ("master", "replica")]
    for folder in folders:
        folder.mkdir()
    async with RedisServer(folders[0]) as master, RedisStore(master.url()) as store:
        await store.put_once(QUEUE, KEY, "one")
        async with (
            RedisServer(folders[1], extra=f"replicaof 127.0.0.1 {master.port}") as server,
            RedisStore(server.url()) as replica,
        ):
            await until(lambda: replica.exists(QUEUE), "it has what the master has")
            with pytest.raises(StoreUnavailable, match="replica"):
                await replica.put_once(QUEUE, KEY, "one")
            with pytest.raises(StoreUnavailable, match="replica"):
                await replica.put("billing/missing", ["one"], create=False)


async def test_a_plain_put_asks_for_nothing_more(tmp_path: Path) -> None:
    """Without a key it is one script of the commands that it was; a receive of its message likewise."""
    async with RedisServer(tmp_path) as server, RedisStore(server.url()) as store, server.stranger() as stranger:
        await store.put_once(QUEUE, KEY, "one")
        await store.put(QUEUE, ["warm"])
        await stranger.config_resetstat()
        await store.put(QUEUE, ["two"])
        counted = await stranger.info("commandstats")
        calls = {name.removeprefix("cmdstat_"): row["calls"] for name, row in counted.items()}
        assert {name: count for name, count in calls.items() if not name.startswith(("info", "config"))} == {
            "evalsha": 1, "time": 1, "exists": 1, "xadd": 1,
        }  # fmt: skip
