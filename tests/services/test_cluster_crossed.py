"""A cluster crossed with the rest of Queuebell: from a put to a handler, for each pair, over a real NATS server.

Sweeps are off, so that only what was told is found; wherever it matters the worker is at another bridge than the one
that heard of the put. What is not here is shown elsewhere:

| with a cluster             | shown by                                                                             |
|----------------------------|--------------------------------------------------------------------------------------|
| pools                      | `test_pools`                                                                         |
| partitions                 | `test_partitions`                                                                    |
| MQTT beside NATS           | `test_a_trigger_by_mqtt_that_one_bridge_hears`, `test_mqtt_that_all_bridges_hear`    |
| a JetStream stream         | `test_a_stream_with_a_consumer_for_each_bridge`                                      |
| auth and `key nats` grants | `test_keys_and_the_grants_of_the_broker`                                             |
| delayed puts and triggers  | `test_a_trigger_for_later_that_one_bridge_hears`, `test_delayed_puts_through_a_door` |
| pause                      | `test_pause_at_one_bridge_and_resume_at_another`                                     |
| webhooks                   | `test_webhooks`                                                                      |
| event streams              | `test_event_streams`                                                                 |
| outbox                     | `test_an_outbox`                                                                     |
| the Azure endpoint         | `test_the_azure_endpoint`                                                            |
| workers over NATS          | `tests/services/test_many_bridges.py`, sessions over `nats://a,b`                    |
| a store that several serve | `tests/queuebell/command/test_serve_cluster.py`                                      |
| NOTIFY of a database that one bridge hears | `test_notify_of_a_database_that_one_bridge_hears`                    |
| NOTIFY of the engine       | `tests/queuebell/command/test_serve_cluster.py`, whose tables notify                 |
| a queue in JetStream       | `tests/services/test_turns.py`                                                       |
| bad input, other versions  | `tests/services/test_cluster_strangers.py`                                           |
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest

from queuebell.bridge import Publisher
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.broker_grants import BRIDGE_USER
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.http.webhooks.shell import Webhooks
from queuebell.bridge.producer.partitions import PartitionedQueue
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.queues.postgres.schema import init
from queuebell.bridge.queues.postgres.store import PostgresStore
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.triggers.attachment import Attachments, BusSettings
from queuebell.listeners import Pool
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.services.clustered import EVENT, PATIENCE_S, QUEUE, Cluster, clustered
from tests.services.test_broker_grants import PREFIX, PRINCIPALS
from tests.services.test_broker_grants import server as granting
from tests.support.access import written
from tests.support.azure import serving_azure
from tests.support.hooks import hook, receiver
from tests.support.outboxes import opened, put
from tests.support.processes import until
from tests.support.web import Client, request

__all__ = ["schema", "server", "url"]

OTHER = "billing/refunds"


async def test_pools(tmp_path: Path) -> None:
    """Two queues share one slot at each bridge: what one has no room for another takes, and all is handled."""
    async with clustered(tmp_path, 0) as cluster:
        await cluster.store.create(OTHER)
        for _ in range(3):
            await cluster.hire(await cluster.join(worker=False), [QUEUE, OTHER], pool=Pool(1))
        await cluster.calm()
        async with Publisher(cluster.url) as publisher:
            queue = PublishingQueue(cluster.store, publisher)
            for number in range(20):
                await queue.put((QUEUE, OTHER)[number % 2], [f"pool {number}"])
            await cluster.gets(*(f"pool {number}" for number in range(20)))


async def test_partitions(tmp_path: Path) -> None:
    """Each partition has an order of its own; a logical queue is served at every bridge."""
    async with clustered(tmp_path, 0) as cluster:
        for _ in range(3):
            await cluster.hire(await cluster.join(worker=False), f"{OTHER}:4")
        await cluster.calm()
        async with Publisher(cluster.url) as publisher:
            queue = PartitionedQueue(PublishingQueue(cluster.store, publisher), f"{OTHER}:4")
            for number in range(12):
                await queue.put([f"part {number}"], key=str(number))
                await cluster.gets(f"part {number}")


async def test_a_trigger_by_mqtt_that_one_bridge_hears(tmp_path: Path) -> None:
    """C6: the others have no MQTT; it is told to them, named or not, and to nobody for ever."""
    async with clustered(tmp_path / "a", 0, mqtt=True) as beside, clustered(tmp_path, 0) as cluster:
        hears = await cluster.join(mqtt=[beside.mqtt], worker=False)
        last = await cluster.join()
        await cluster.calm()
        async with Publisher(beside.mqtt) as publisher:
            for number, named in enumerate(({}, {"id": "7"}, {})):
                await cluster.store.put(QUEUE, [f"mqtt {number}"])
                await publisher.publish(QUEUE, **named)  # type: ignore[arg-type]
                await cluster.gets(f"mqtt {number}")
        state = last.bridge.describe(QUEUE)
        assert state is not None and state.triggers == 3
        assert hears.bridge.cluster().name == "shop"


@pytest.mark.system
async def test_notify_of_a_database_that_one_bridge_hears(tmp_path: Path, url: str) -> None:
    """C6: It is no engine of the cluster, and the others are told."""
    async with clustered(tmp_path, 0) as cluster:
        await cluster.join(postgres=[url], worker=False)
        last = await cluster.join()
        await cluster.calm()
        async with Publisher(url) as publisher:
            for number in range(3):
                await cluster.store.put(QUEUE, [f"notify {number}"])
                await publisher.publish(QUEUE)
                await cluster.gets(f"notify {number}")
        # The worker's own looks after the first may find the rest; each has to be told all the same.
        state = last.bridge.describe(QUEUE)
        assert state is not None and state.triggers == 3


async def test_mqtt_that_all_bridges_hear(tmp_path: Path) -> None:
    """Each of them tells the others, who know it by its name already; nobody tells on what was told."""
    async with clustered(tmp_path / "a", 0, mqtt=True) as beside, clustered(tmp_path, 0) as cluster:
        for _ in range(3):
            await cluster.join(mqtt=[beside.mqtt])
        await cluster.calm()
        async with Publisher(beside.mqtt) as publisher:
            for number in range(5):
                await cluster.store.put(QUEUE, [f"all {number}"])
                await publisher.publish(QUEUE, id=str(number))
                await cluster.gets(f"all {number}")
        for place in cluster.places:
            place.bridge.trigger([EVENT], bus="http")
        await cluster.works()
        state = cluster.places[0].bridge.describe(QUEUE)
        # Five by MQTT and at most as many copies of each as there are bridges; a loop would be without end.
        assert state is not None and state.triggers <= 60


async def test_a_stream_with_a_consumer_for_each_bridge(tmp_path: Path) -> None:
    """A consumer that bridges share gives each trigger to one of them: with a cluster each names one of its own."""
    async with clustered(tmp_path, 0, mqtt=True) as cluster:
        client = await nats.connect(cluster.url)
        await client.jetstream().add_stream(name="triggers", subjects=["queuebell.trigger.>"])
        for number in range(2):
            await cluster.join(url=f"{cluster.url}?stream=triggers&durable=bridge-{number}", worker=number > 0)
        await cluster.calm()
        await cluster.works()
        await client.close()
    shared = Bridge()
    for wrong in ("nats://a?stream=triggers", "nats://a,b?stream=triggers&ack_wait=5"):
        with pytest.raises(ConfigurationError, match="durable=NAME, a different one for each bridge"):
            Attachments(shared, nats=[wrong], settings=BusSettings(cluster={}))


async def test_keys_and_the_grants_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `key nats` prints lets the bridges speak to each other, and nobody else there."""
    secrets = written(tmp_path / "access.json", PRINCIPALS)
    async with (
        granting("nats", tmp_path, monkeypatch) as address,
        AccessWatch(tmp_path / "access.json") as watch,
        clustered(tmp_path / "unused", 0) as cluster,
    ):
        for _ in range(2):
            await cluster.join(url=address(BRIDGE_USER), access=watch, prefix=PREFIX, worker=False)
        await cluster.calm()
        worker = await cluster.hire(cluster.places[1], bridge=address("worker"), api_key=secrets["worker"])
        async with Publisher(address("producer")) as publisher:
            for number in range(3):
                await cluster.store.put(QUEUE, [f"granted {number}"])
                await publisher.publish(QUEUE)
                await cluster.gets(f"granted {number}")
        await cluster.store.put(QUEUE, ["told"])
        cluster.places[0].bridge.trigger([EVENT], bus="http")
        cluster.places[1].bridge.trigger([EVENT], bus="http")
        await cluster.gets("told")
        assert worker.state().session


async def test_a_trigger_for_later_that_one_bridge_hears(tmp_path: Path) -> None:
    """C6, B2: the others know its time too, and it is looked at when it is due, where the worker is."""
    async with clustered(tmp_path, 0) as cluster:
        hears = await cluster.join(worker=False)
        await cluster.join()
        await cluster.calm()
        await cluster.store.put(QUEUE, [NewMessage("later", visible_after_ms=400)])
        hears.bridge.trigger([CloudQueueWorkDetected("billing", "orders", not_before_ms=450)], bus="http")
        await cluster.gets("later")


async def test_webhooks(tmp_path: Path) -> None:
    """Configured at one bridge, told of what another one heard; a worker gets the message all the same."""
    async with clustered(tmp_path) as cluster, receiver() as target:
        webhooks = Webhooks(cluster.places[0].bridge, [hook(target.url, QUEUE)], draw=lambda: 0.0)
        await webhooks.start()
        try:
            await cluster.store.put(QUEUE, ["hooked"])
            cluster.places[1].bridge.trigger([EVENT], bus="http")
            got = await target.until(1)
            assert got[0].verify()["queue"] == QUEUE
            await cluster.gets("hooked")
        finally:
            await webhooks.stop()


async def test_event_streams(tmp_path: Path) -> None:
    """Each bridge feeds its own from its own marks (C10), whoever looks."""
    async with clustered(tmp_path, 3) as cluster, contextlib.AsyncExitStack() as stack:
        streams: list[Client] = []
        for place in cluster.places:
            web = await stack.enter_async_context(WebServer(place.bridge, WebSettings(port=0, shutdown_timeout=0.2)))
            stream = Client(*await asyncio.open_connection("127.0.0.1", web.port))
            stack.push_async_callback(stream.close)
            await stream.send(request("GET", f"/v1/wakes?queue={QUEUE}"))
            async with asyncio.timeout(PATIENCE_S):
                await stream.reader.readuntil(b"\r\n\r\n")
            streams.append(stream)
        await cluster.store.put(QUEUE, ["streamed"])
        async with Publisher(cluster.url) as publisher:
            await publisher.publish(QUEUE)
            for stream in streams:
                async with asyncio.timeout(PATIENCE_S):
                    assert b"event: wake" in await stream.reader.readuntil(b"event: wake")
        await cluster.gets("streamed")


async def test_an_outbox(tmp_path: Path) -> None:
    """What a transaction wrote is relayed and told to one bridge; the worker is at another."""
    async with clustered(tmp_path, 0) as cluster, opened("sqlalchemy", str(tmp_path / "shop.db")) as rig:
        hears = await cluster.join(worker=False)
        await cluster.join()
        await cluster.calm()
        async with Publisher(hears.bridge) as publisher:
            async with rig.relay(PublishingQueue(cluster.store, publisher)):
                for number in range(3):
                    await rig.write(put(f"outbox {number}", queue=QUEUE))
                    await cluster.gets(f"outbox {number}")


@contextlib.asynccontextmanager
async def on_engine(folder: Path, url: str) -> AsyncIterator[Cluster]:
    """Run three bridges on one database whose tables do not notify, and a worker at the last: NATS tells it all."""
    await init(url)
    async with PostgresStore(url) as store, clustered(folder, 0) as cluster:
        cluster.store = store
        await store.create(QUEUE)
        for place in range(3):
            await cluster.join(store=PostgresStore(url), worker=place == 2)
        await cluster.calm()
        yield cluster


@contextlib.asynccontextmanager
async def doors(cluster: Cluster) -> AsyncIterator[list[HttpStore]]:
    """Clients of each bridge's own HTTP API."""
    async with contextlib.AsyncExitStack() as stack:
        found = []
        for place in cluster.places:
            web = await stack.enter_async_context(WebServer(place.bridge, WebSettings(port=0, shutdown_timeout=0.2)))
            found.append(await stack.enter_async_context(HttpStore(web.url)))
        yield found


@pytest.mark.system
async def test_delayed_puts_through_a_door(tmp_path: Path, url: str) -> None:
    """A delay is a time that all know, also where one bridge alone was told of it."""
    async with on_engine(tmp_path, url) as cluster, doors(cluster) as stores:
        for place, store in enumerate(stores):
            await store.put(QUEUE, [NewMessage(f"at once {place}"), NewMessage(f"later {place}", visible_after_ms=300)])
            await cluster.gets(f"at once {place}", f"later {place}")


@pytest.mark.system
async def test_pause_at_one_bridge_and_resume_at_another(tmp_path: Path, url: str) -> None:
    """The engine knows it; what was put meanwhile through a third is handled then, and its history says so."""
    async with on_engine(tmp_path, url) as cluster, doors(cluster) as stores:
        await stores[0].pause(QUEUE)
        await stores[1].put(QUEUE, ["paused"])
        await stores[1].put(QUEUE, ["too"])
        await until(
            lambda: not any(
                work.dirty and len(work.sessions)
                for place in cluster.places if (work := place.bridge.scheduler.pending.find(QUEUE)) is not None
            ),
            "nothing is found there", PATIENCE_S,
        )  # fmt: skip
        assert not cluster.handled
        await stores[1].pause(QUEUE, False)
        await cluster.gets("paused", "too")
        await stores[1].pause(QUEUE, False)
        marks = [mark.what for mark in cluster.places[1].bridge.history.read(QUEUE, "1h").marks]
        assert marks.count("resumed") == 1


@pytest.mark.system
async def test_the_azure_endpoint(tmp_path: Path, url: str) -> None:
    """A put there, a delay, and a message that is made visible again, at a bridge that has no worker."""
    async with on_engine(tmp_path, url) as cluster:
        queue = "devstoreaccount1/orders"
        await cluster.store.create(queue)
        await cluster.hire(cluster.places[2], queue)
        async with serving_azure(cluster.places[0].bridge) as front:
            await front.put("orders", "azure")
            await cluster.gets("azure")
            await front.put("orders", "azure later", "?visibilitytimeout=1")
            await cluster.gets("azure later")
