"""A cluster of three NATS servers as store, bus and session channel: while two of them answer, work goes on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queuebell.bridge import Bridge, Publisher
from queuebell.bridge.brokers.nats.access import Servers
from queuebell.bridge.contract.errors import StoreError
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.jetstream.store import JetStreamStore
from queuebell.bridge.service.bridge import BridgeSettings
from queuebell.bridge.triggers.attachment import Attachments
from queuebell.listeners import Listener, Message
from tests.support.brokers import NatsCluster, NatsServer
from tests.support.processes import until

# Private: `_api`, `_ask`: find the server that leads a stream.

QUEUE = "billing/orders"
USER = "me:se%2Ccret@"
PATIENCE_S = 100.0
PARTIES = {"queuebell", "queuebell-bridge", "queuebell-listener", "queuebell-publisher"}
"""Store, bus of the bridge, session channel and bus of the producer, by the names of their connections."""


class Place:
    """A bridge, a worker and a producer that know the cluster by one address, and a store to look with."""

    def __init__(self, address: str, queue: PublishingQueue) -> None:
        self.queue = queue
        self.listener = Listener(address, QUEUE, self.handle, bridge=address, handle_signals=False, grace=1)
        self.handled: dict[bytes, str] = {}
        self._numbers = 0

    async def handle(self, message: Message) -> None:
        self.handled[message.body] = message.wake_source

    async def put(self) -> bytes:
        """Put one message, again until it is acknowledged as a producer would, and return its body."""
        self._numbers += 1
        body = b"%d" % self._numbers

        async def stored() -> bool:
            try:
                await self.queue.put(QUEUE, [body])
            except StoreError:
                return False
            return True

        await until(stored, "a put is acknowledged", PATIENCE_S)
        return body

    async def works(self, what: str) -> None:
        """See that puts are acknowledged, messages handled, and that it is a wake that brings them."""

        async def woken() -> bool:
            body = await self.put()
            await until(lambda: body in self.handled, f"{what}: handled", PATIENCE_S)
            return self.listener.state().mode == "push" and self.handled[body] == "trigger"

        await until(woken, f"{what}: a wake brings it", PATIENCE_S)


@contextlib.asynccontextmanager
async def placed(address: str) -> AsyncIterator[Place]:
    """Run a bridge without sweep, a worker and a producer at ``address``, which reach each other by nothing else."""
    bridge_settings = BridgeSettings(periods=Periods(sweep_s=0))
    async with contextlib.AsyncExitStack() as stack:
        bridge = await stack.enter_async_context(Bridge(settings=bridge_settings))
        await stack.enter_async_context(Attachments(bridge, nats=[address]))
        await until(lambda: bridge.readiness().ready, "the bridge is ready", PATIENCE_S)
        store = await stack.enter_async_context(JetStreamStore(address))
        publisher = await stack.enter_async_context(Publisher(address))
        place = Place(address, PublishingQueue(store, publisher))
        running = asyncio.create_task(place.listener.run(), name="listener")
        try:
            yield place
        finally:
            await place.listener.stop()
            await running


async def leader_of(cluster: NatsCluster) -> NatsServer:
    """Make the queue's stream, on all three, and return the node that leads it."""
    async with JetStreamStore(cluster.url(user=USER)) as store:

        async def made() -> bool:
            try:
                await store.create(QUEUE)
            except StoreError:
                return False
            return True

        await until(made, "the cluster is up", PATIENCE_S)

        async def led() -> NatsServer | None:
            try:
                return cluster.leader(await store._api._ask("STREAM.INFO.queuebell=billing=orders"))
            except (StoreError, KeyError, StopIteration):
                return None

        found: NatsServer = await until(led, "the stream has a leader", PATIENCE_S)
        return found


def address_of(cluster: NatsCluster, first: NatsServer, given: str) -> str:
    """Return an address that begins with one node: of all, or of that node alone."""
    hosts = [f"127.0.0.1:{node.port}" for node in sorted(cluster.nodes, key=lambda node: node is not first)]
    if given == "one":
        return f"nats://{USER}{hosts[0]}"
    return f"nats://{USER}" + f",nats://{USER}".join(hosts)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("how", "given"),
    [("kill", "one"), ("freeze", "addresses")],
)
async def test_a_node_goes_that_all_are_connected_to(
    how: str, given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It also leads the stream. Puts, receives and wakes go on by the other two, told of by the address or by it.

    User and password are for all of them, those that were only told of too.
    """
    made = Servers.__init__
    monkeypatch.setattr(Servers, "__init__", lambda self, hosts, draw: made(self, hosts, lambda: 0.999))
    async with NatsCluster(tmp_path, extra='authorization { user: me, password: "se,cret" }') as cluster:
        leader = await leader_of(cluster)
        async with placed(address_of(cluster, leader, given)) as place:
            await place.works("before")
            assert await cluster.clients(leader) >= PARTIES
            if how == "kill":
                await leader.kill()
            else:
                leader.pause()
            await place.works("with two nodes")

            async def moved() -> bool:
                return set.union(*[await cluster.clients(each) for each in cluster.nodes if each != leader]) >= PARTIES

            await until(moved, "everybody is connected to the other two", PATIENCE_S)
            if how == "freeze":
                leader.resume()
                await place.works("with all again")
