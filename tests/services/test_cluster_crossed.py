"""A cluster crossed with the rest of Queuebell: from a put to a handler, for each pair, over a real NATS server.

Sweeps are off, so that only what was told is found; wherever it matters the worker is at another bridge than the one
that heard of the put. What is not here is shown elsewhere:

| with a cluster             | shown by                                                                             |
|----------------------------|--------------------------------------------------------------------------------------|
| webhooks                   | `tests/services/test_plain_turns.py`                                                 |
| workers with many bridges  | `tests/services/test_many_bridges.py`                                                |
| a store that several serve, whose tables notify | `tests/queuebell/command/test_serve_cluster.py`                 |
| a queue in JetStream       | `tests/services/test_turns.py`                                                       |
| bad input, other versions  | `tests/services/test_cluster_strangers.py`                                           |
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import nats
import pytest

from bridge import Publisher
from bridge.contract.errors import ConfigurationError
from bridge.contract.event import CloudQueueWorkDetected
from bridge.core.broker_grants import BRIDGE_USER
from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.queues.base import NewMessage
from bridge.queues.http import HttpStore
from bridge.queues.postgres.schema import init
from bridge.queues.postgres.store import PostgresStore
from bridge.service.access.watch import AccessWatch
from bridge.service.bridge import Bridge
from bridge.triggers.attachment import Attachments, BusSettings
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.services.clustered import EVENT, PATIENCE_S, QUEUE, Cluster, clustered
from tests.services.test_broker_grants import PREFIX, PRINCIPALS
from tests.services.test_broker_grants import server as granting
from tests.support.access import written
from tests.support.processes import until

__all__ = ["schema", "server", "url"]


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
        with pytest.raises(ConfigurationError, match="durable=NAME, another one for each bridge"):
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
    """The engine knows it; what was put meanwhile through a third is handled then."""
    async with on_engine(tmp_path, url) as cluster, doors(cluster) as stores:
        await stores[0].pause(QUEUE)
        await stores[1].put(QUEUE, ["paused"])
        await stores[1].put(QUEUE, ["too"])
        await until(
            lambda: not any(
                debt.dirty for place in cluster.places if (debt := place.bridge.bell.ledger.find(QUEUE)) is not None
                and len(debt.seats)
            ),
            "nothing is found there", PATIENCE_S,
        )  # fmt: skip
        assert not cluster.handled
        await stores[1].pause(QUEUE, False)
        await cluster.gets("paused", "too")
