"""Equal bridges behind one list of addresses: whichever goes, work goes on at another, woken and not polled.

Two or three real `queuebell serve` on one NATS server, in front of queues in JetStream. Sweep and dead-man timers are
off, so that only what a bridge was told is found. What the tests cross:

| what happens            | to whom               | with                                                  |
|-------------------------|-----------------------|-------------------------------------------------------|
| killed (SIGKILL)        | the worker's bridge   | one queue, a pool of two queues with partitions       |
| all gone, one back      | both                  | puts meanwhile, owed by the producer                  |
| stands still (SIGSTOP)  | the worker's bridge   | one queue                                             |

All of them restarted in turn under load: `test_rolling.py`, and rows F47 and F48 of `tests/chaos`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from queuebell.bridge.contract.errors import StoreError
from queuebell.bridge.contract.partitioning import expand
from queuebell.bridge.producer.publisher import Publisher
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.jetstream.store import JetStreamStore
from queuebell.listeners import Listener, Message, Pool
from tests.support.brokers import NatsServer
from tests.support.processes import Processes, Service, until

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

    @contextlib.asynccontextmanager
    async def working(self, queue: Any = QUEUE, **options: Any) -> AsyncIterator[PublishingQueue]:
        """Run a worker at all bridges, and a producer likewise."""
        way = self.urls
        async with JetStreamStore(self.nats) as store, Publisher(way, close_timeout=PATIENCE_S) as publisher:
            self.listener = Listener(store, queue, self.handle, bridge=way, handle_signals=False, **options)
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


@pytest.mark.timeout(600)
@pytest.mark.parametrize("pool", [False, pytest.param(True, marks=pytest.mark.rest)], ids=["one", "pool"])
async def test_the_bridge_that_a_worker_is_with_is_killed(site: Site, pool: bool) -> None:
    """It goes on at the other one, also with what was put while it was with neither; and back again."""
    queues = [f"{QUEUE}:2", "billing/refunds"] if pool else [QUEUE]
    refs = list(expand(queues))
    for _ in range(2):
        await site.serve()
    async with site.working(queues, **({"pool": Pool(4)} if pool else {})) as puts:
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
