"""Equal bridges behind one list of addresses: whichever goes, work goes on at another, woken and not polled.

Two or three real `queuebell serve` on one NATS server, in front of queues in JetStream. Sweep and dead-man timers are
off, so that only what a bridge was told is found. What the tests cross:

| what happens            | to whom               | with                                                  |
|-------------------------|-----------------------|-------------------------------------------------------|
| killed (SIGKILL)        | the worker's bridge   | plain, a pool of two queues, partitions, batches      |
| ended in order, in turn | every bridge          | a worker and a producer under load                    |
| all gone, one back      | both                  | puts meanwhile, owed by the producer                  |
| stands still (SIGSTOP)  | the worker's bridge   | plain                                                 |
| answers 503 for long    | one                   | worker and producer                                   |
| does not know the key   | one                   | worker, producer                                      |
| killed                  | the command's bridge  | `listen` and `publish` over TLS with a key            |
| the NATS server of one  | the worker's bridge   | sessions and producer over `nats://a,b` of a cluster  |
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from bridge.contract.errors import StoreError
from bridge.contract.partitioning import expand
from bridge.producer.publisher import Publisher
from bridge.producer.publishing_queue import PublishingQueue
from bridge.queues.jetstream.store import JetStreamStore
from listeners import Listener, Message, Pool
from tests.support.access import written
from tests.support.brokers import NatsCluster, NatsServer
from tests.support.certificates import write_self_signed
from tests.support.processes import Processes, Program, Service, environment, free_port, until

QUEUE = "billing/orders"
PATIENCE_S = 100.0
QUIET = {"sweep_s": "0", "slack_s": "86400"}


class Site:
    """Bridges on one NATS server, and what is put and handled."""

    def __init__(self, processes: Processes, nats: str) -> None:
        self.processes = processes
        self.nats = nats
        self.bridges: dict[str, Service] = {}
        self.handled: dict[str, str] = {}
        self.put: list[str] = []
        self.listener: Listener[Any]

    @property
    def urls(self) -> list[str]:
        return list(self.bridges)

    async def serve(self, **settings: str) -> Service:
        """Start one more."""
        bridge = await self.processes.serve(
            "--nats", self.nats, data=f"bridge-{len(self.bridges)}", **{**QUIET, **settings}
        )
        self.bridges[bridge.url] = bridge
        return bridge

    async def again(self, url: str) -> None:
        """Start one anew where it was."""
        number = self.urls.index(url)
        port = self.bridges[url].port
        self.bridges[url] = await self.processes.serve("--nats", self.nats, data=f"bridge-{number}", port=port, **QUIET)

    async def handle(self, message: Message) -> None:
        self.handled.setdefault(message.text(), message.wake_source)

    async def handle_all(self, messages: list[Message]) -> None:
        for message in messages:
            await self.handle(message)

    @contextlib.asynccontextmanager
    async def working(self, queue: Any = QUEUE, *, way: Any = None, **options: Any) -> AsyncIterator[PublishingQueue]:
        """Run a worker at all bridges, and a producer likewise."""
        way = way or self.urls
        handle = self.handle_all if options.pop("batches", False) else self.handle
        key = {"api_key": options["api_key"]} if "api_key" in options else {}
        async with (
            JetStreamStore(self.nats) as store,
            Publisher(way, close_timeout=PATIENCE_S, **key) as publisher,
        ):
            self.listener = Listener(store, queue, handle, bridge=way, handle_signals=False, **options)
            running = asyncio.create_task(self.listener.run(), name="worker")
            try:
                yield PublishingQueue(store, publisher)
            finally:
                await self.listener.stop()
                await running

    async def puts(self, queue: PublishingQueue, *refs: str) -> list[str]:
        """Put one message to each, again until it is acknowledged: the store may elect a leader meanwhile."""
        bodies = []

        async def stored(ref: str, body: str) -> bool:
            try:
                await queue.put(ref, [body])
            except StoreError:
                return False
            return True

        for ref in refs or (QUEUE,):
            body = f"{len(self.put)}"
            self.put.append(body)
            bodies.append(body)
            await until(functools.partial(stored, ref, body), "a put is acknowledged", PATIENCE_S)
        return bodies

    async def steady(self, queue: PublishingQueue, what: str, *refs: str) -> str:
        """See that the worker has a session, that a wake brings what is put, and return where the session is."""
        await until(lambda: self.listener.state().mode == "push", f"{what}: it has a session", PATIENCE_S)

        async def woken() -> bool:
            bodies = await self.puts(queue, *refs)
            await until(lambda: self.handled.keys() >= set(bodies), f"{what}: handled", PATIENCE_S)
            return all(self.handled[body] == "trigger" for body in bodies)

        await until(woken, f"{what}: woken", PATIENCE_S)
        where = self.listener.state().bridge
        assert where is not None
        return where

    async def all_handled(self) -> None:
        await until(lambda: self.handled.keys() >= set(self.put), "all is handled", PATIENCE_S)


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[str]:
    """Start a NATS server that lasts."""
    (tmp_path / "nats").mkdir()
    async with NatsServer(tmp_path / "nats") as server:
        yield f"nats://127.0.0.1:{server.port}"


@pytest.fixture
async def site(processes: Processes, nats: str) -> Site:
    """Give a place without bridges."""
    return Site(processes, nats)


CROSSED: dict[str, tuple[Any, dict[str, Any]]] = {
    "plain": (QUEUE, {}),
    "pool": ([QUEUE, "billing/refunds"], {"pool": 4}),
    "partitions": (f"{QUEUE}:2", {}),
    "batches": (QUEUE, {"batches": True}),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "crossed", ["plain", *(pytest.param(each, marks=pytest.mark.rest) for each in list(CROSSED)[1:])]
)
async def test_the_bridge_that_a_worker_is_with_is_killed(site: Site, crossed: str) -> None:
    """It goes on at the other one, also with what was put while it was with neither; and back again."""
    queue, options = CROSSED[crossed]
    refs = list(expand([queue] if isinstance(queue, str) else queue))
    if "pool" in options:
        options = {"pool": Pool(options["pool"])}
    for _ in range(2):
        await site.serve()
    async with site.working(queue, **options) as puts:
        for _ in range(2):
            where = await site.steady(puts, "before", *refs)
            await site.bridges[where].kill()
            await site.puts(puts, *refs)
            assert await site.steady(puts, "after", *refs) != where
            await site.all_handled()
            await site.again(where)
        assert site.listener.state().mode == "push"


@pytest.mark.timeout(600)
@pytest.mark.rest
async def test_a_rolling_restart_of_all_under_load(site: Site) -> None:
    """Each ends in order and comes back while messages are put; all are handled, and nothing is left unsent."""
    for _ in range(2):
        await site.serve()
    rolled = asyncio.Event()
    async with site.working() as puts:
        await site.steady(puts, "before")

        async def load() -> None:
            while not rolled.is_set():
                await site.puts(puts)
                await asyncio.sleep(0.01)

        loading = asyncio.create_task(load(), name="load")
        try:
            for url in site.urls:
                earlier = len(site.put)
                assert await site.bridges[url].stop(PATIENCE_S) == 0
                await site.again(url)
                await until(lambda: site.listener.state().mode == "push", "it has a session", PATIENCE_S)
                await until(lambda n=earlier: len(site.put) > n, "messages were put meanwhile", PATIENCE_S)
        finally:
            rolled.set()
            await loading
        await site.all_handled()
        await site.steady(puts, "after")


@pytest.mark.timeout(600)
@pytest.mark.rest
async def test_all_are_gone_and_one_comes_back(site: Site) -> None:
    """What was published meanwhile is owed, and reaches the one that is back, as do its workers."""
    for _ in range(2):
        await site.serve(heartbeat_s="0.5")
    async with site.working() as puts:
        await site.steady(puts, "before")
        for bridge in site.bridges.values():
            await bridge.kill()
        await until(lambda: site.listener.state().mode == "degraded", "there is no bridge", PATIENCE_S)
        await site.puts(puts)
        back = site.urls[1]
        await site.again(back)
        assert await site.steady(puts, "after") == back
        await site.all_handled()


@pytest.mark.timeout(600)
@pytest.mark.rest
async def test_the_bridge_that_a_worker_is_with_stands_still(site: Site) -> None:
    """Its silence is heard after three heartbeats, and its time-out by the producer; then both go on at the other."""
    for _ in range(2):
        await site.serve(heartbeat_s="1")
    async with site.working() as puts:
        where = await site.steady(puts, "before")
        site.bridges[where].signal(signal.SIGSTOP)
        await site.puts(puts)
        assert await site.steady(puts, "after") != where
        await site.all_handled()
        site.bridges[where].signal(signal.SIGCONT)
        await site.steady(puts, "both")


@pytest.mark.timeout(600)
@pytest.mark.rest
async def test_the_commands_go_on_at_the_other_one(site: Site, tmp_path: Path) -> None:
    """`listen` and `publish` over TLS with a key, by one variable of the environment."""
    cert, key = write_self_signed(tmp_path)
    access = tmp_path / "access.json"
    grants = {"take": ["billing/*"], "ring": ["billing/*"]}
    secret = written(access, {"worker": grants})["worker"]
    settings = {
        "auth": "true",
        "access": str(access),
        "trust_brokers": "true",
        "tls_cert": str(cert),
        "tls_key": str(key),
    }
    ports = [free_port(), free_port()]
    bridges = [
        await site.processes.serve("--nats", site.nats, data=f"tls-{port}", port=port, **QUIET, **settings)
        for port in ports
    ]
    env = environment(
        QUEUEBELL_BRIDGE=f"https://127.0.0.1:{ports[0]},127.0.0.1:{ports[1]}",
        QUEUEBELL_API_KEY=secret,
        SSL_CERT_FILE=str(cert),
    )
    worker: Program = await site.processes.start(
        sys.executable, "-m", "queuebell", "listen", site.nats, QUEUE, "--exec", "cat; echo", env=env
    )
    async with JetStreamStore(site.nats) as store:

        async def put(body: str) -> None:
            await store.put(QUEUE, [body.encode()])
            command = await site.processes.start(sys.executable, "-m", "queuebell", "publish", QUEUE, env=env)
            assert await command.ended(PATIENCE_S) == 0
            await worker.line(body, within_s=PATIENCE_S)

        await worker.complains("listens to")
        await put("one")
        await bridges[0].kill()
        await put("two")
        await put("three")


@pytest.mark.timeout(600)
@pytest.mark.rest
async def test_several_servers_of_a_nats_cluster_are_the_way(processes: Processes, tmp_path: Path) -> None:
    """Worker, producer and bridges know the cluster by a list: a node is killed, then the worker's bridge."""
    async with NatsCluster(tmp_path) as cluster:
        site = Site(processes, cluster.url())
        for _ in range(2):
            await site.serve()
        async with site.working(way=cluster.url()) as puts:
            await site.steady(puts, "before")
            await cluster.nodes[0].kill()
            await site.steady(puts, "without a node")
            boot = site.listener.state().boot

            async def only_one() -> Service | None:
                # A hello again is heard by all: for some seconds each may have a session for it.
                asked = [(bridge, await bridge.ask("/v1/listeners")) for bridge in site.bridges.values()]
                found = [bridge for bridge, (_, told) in asked if told["listeners"]]
                return found[0] if len(found) == 1 else None

            await (await until(only_one, "one bridge has the session", PATIENCE_S)).kill()
            await until(lambda: site.listener.state().boot not in (None, boot), "the other bridge", PATIENCE_S)
            await site.steady(puts, "without a bridge")
            await site.all_handled()
