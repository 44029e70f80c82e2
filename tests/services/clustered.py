"""Bridges of one cluster in this process, on a real NATS server, with sweeps off: only what was told is found."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from queuebell.bridge import Bridge, Publisher
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.brokers import open_broker
from queuebell.bridge.brokers.base import Broker
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.observe.facts import Fact
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import QueueStore
from queuebell.bridge.service.bridge import BridgeSettings
from queuebell.bridge.triggers.attachment import Attachments, BusSettings
from queuebell.listeners import Listener, Message
from tests.support.brokers import NatsServer
from tests.support.processes import until

QUEUE = "billing/orders"
EVENT = CloudQueueWorkDetected("billing", "orders")
PATIENCE_S = 60.0


class Place:
    """One bridge, its facts, its worker."""

    def __init__(self, bridge: Bridge, buses: Attachments) -> None:
        self.bridge = bridge
        self.buses = buses
        self.facts: list[Fact] = []
        bridge.observe(self.facts.append)

    def of(self, kind: type[Fact]) -> list[Any]:
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def members(self) -> set[str]:
        """The boots that it hears, its own among them where it hears itself."""
        told = self.bridge.cluster()
        return {each.boot for each in told.members if not (each.me and told.alone)}


class Cluster:
    """Bridges on one server."""

    def __init__(self, stack: contextlib.AsyncExitStack, url: str, store: QueueStore) -> None:
        self.stack = stack
        self.url = url
        self.store = store
        self.places: list[Place] = []
        self.mqtt = ""
        self.handled: set[str] = set()
        self._puts = 0

    async def join(
        self,
        *,
        name: str | None = "shop",
        url: str | None = None,
        worker: bool = True,
        mqtt: Sequence[str] = (),
        postgres: Sequence[str] = (),
        access: AccessWatch | None = None,
        prefix: str = "queuebell",
        about: dict[str, str | None] | None = None,
        **options: Any,
    ) -> Place:
        """Start one more bridge, with a worker; ``options`` are the bridge's own."""
        said = None if name is None else {"name": name, "address": f"{len(self.places)}", **(about or {})}
        settings = BridgeSettings(periods=Periods(sweep_s=0, start_ack_s=0.5))
        bridge = await self.stack.enter_async_context(Bridge(settings=settings, **options))
        bus = BusSettings(cluster=said, prefix=prefix)
        buses = Attachments(bridge, nats=[url or self.url], mqtt=mqtt, postgres=postgres, access=access, settings=bus)
        place = Place(bridge, await self.stack.enter_async_context(buses))
        await until(lambda: bridge.readiness().ready, "it is on its brokers", PATIENCE_S)
        self.places.append(place)
        if worker:
            await self.hire(place)
        return place

    async def hire(self, place: Place, queue: Any = QUEUE, **options: Any) -> Listener:
        """Run a worker of one bridge."""
        way = {"bridge": place.bridge, "handle_signals": False, "grace": 1, **options}
        listener = Listener(self.store, queue, self._handle, **way)
        running = asyncio.create_task(listener.run(), name="worker")

        async def end() -> None:
            await listener.stop()
            await running

        self.stack.push_async_callback(end)
        await until(lambda: listener.state().mode == "push", "the worker is welcome", PATIENCE_S)
        return listener

    async def _handle(self, message: Message) -> None:
        self.handled.add(message.text())

    async def calm(self, *places: Place) -> None:
        """Wait until these hear each other and themselves."""
        boots = {place.bridge.boot for place in places or self.places}
        await until(
            lambda: all(place.members() >= boots for place in places or self.places), "all are heard", PATIENCE_S
        )

    async def gets(self, *bodies: str) -> None:
        """Wait until these are handled."""
        await until(lambda: self.handled.issuperset(bodies), f"{bodies} are handled", PATIENCE_S)

    async def works(self) -> None:
        """See that what is put is handled: told to each bridge alone, and on the broker, with a name and bare."""
        async with Publisher(self.url) as publisher:
            for place in [*self.places, None, None]:
                self._puts += 1
                body = str(self._puts)
                await self.store.put(QUEUE, [body])
                if place is not None:
                    place.bridge.trigger([EVENT], bus="http")
                else:
                    named = {} if self._puts % 2 else {"id": body}
                    await publisher.publish(QUEUE, **named)
                await self.gets(body)

    @contextlib.asynccontextmanager
    async def stranger(self) -> AsyncIterator[Broker]:
        """Somebody else on the server."""
        broker = open_broker(self.url)
        await broker.connect()
        try:
            yield broker
        finally:
            await broker.close()


@contextlib.asynccontextmanager
async def clustered(
    folder: Path, bridges: int = 2, *, extra: str = "", user: str = "", mqtt: bool = False
) -> AsyncIterator[Cluster]:
    """Run bridges that hear each other."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(NatsServer(folder, extra=extra, jetstream=mqtt, mqtt=mqtt))
        store = open_store(f"memory:{folder}")
        stack.push_async_callback(store.close)
        await store.create(QUEUE)
        cluster = Cluster(stack, f"nats://{user}127.0.0.1:{server.port}", store)
        cluster.mqtt = f"mqtt://127.0.0.1:{server.mqtt_port}"
        for _ in range(bridges):
            await cluster.join()
        if bridges:
            await cluster.calm()
        yield cluster
