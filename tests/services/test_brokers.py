"""Triggers in by every bus, sessions out over every channel, on real brokers that are killed and come back."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from queuebell.bridge import Bridge, Publisher
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.service.bridge import BridgeSettings
from queuebell.bridge.service.state.answers import QueueState
from queuebell.bridge.triggers.attachment import Attachments
from queuebell.listeners import Listener, Message
from tests.services.register import Register
from tests.support.brokers import Mosquitto, NatsServer
from tests.support.processes import Processes, Service, until

QUEUE = "billing/orders"
BUSES = ("memory", "http", "nats", "mqtt")
CHANNELS = ("local", "websocket", "nats", "mqtt")
SYSTEM = pytest.mark.system


class Site:
    """A bridge with all buses, and the ways to it by name."""

    def __init__(self, bridge: Bridge, web: WebServer, nats: str, mqtt: str, brokers: Attachments) -> None:
        self.bridge = bridge
        self.brokers = brokers
        self.nats = nats
        self.mqtt = mqtt
        self.ways: dict[str, Any] = {
            "memory": bridge, "local": bridge, "http": web.url, "websocket": web.url, "nats": nats, "mqtt": mqtt
        }  # fmt: skip

    async def ready(self) -> None:
        await until(lambda: self.bridge.readiness().ready, "the bridge is ready")

    def state(self) -> QueueState:
        return self.bridge.describe(QUEUE) or QueueState(queue=QUEUE, dirty=True)


@asynccontextmanager
async def bridged(nats: str, mqtt: str, **periods: float) -> AsyncIterator[Site]:
    """Run a bridge on both brokers; its sweep is off, so that only what is told is found."""
    settings = BridgeSettings(periods=Periods(sweep_s=0, **periods))
    async with (
        Bridge(settings=settings) as bridge,
        WebServer(bridge, WebSettings(port=0)) as web,
        Attachments(bridge, nats=[nats], mqtt=[mqtt]) as brokers,
    ):
        yield Site(bridge, web, nats, mqtt, brokers)
        bridge.end_sessions()


@asynccontextmanager
async def working(store: Any, way: Any, handled: list[bytes], **options: Any) -> AsyncIterator[Listener]:
    async def handle(message: Message) -> None:
        handled.append(message.body)

    listener = Listener(store, QUEUE, handle, bridge=way, handle_signals=False, **options)
    running = asyncio.create_task(listener.run(), name="worker")
    try:
        yield listener
    finally:
        await listener.stop()
        await asyncio.wait([running])
        running.result()


async def cross(site: Site, bus: str, channel: str, name: str) -> None:
    """Bring one message from a bus to a handler, once, and without another look than it takes."""
    handled: list[bytes] = []
    store = open_store(f"memory:{name}")
    async with working(store, site.ways[channel], handled) as worker:
        await until(lambda: worker.state().session, "a session")
        await until(lambda: site.state().dirty is False, "the first look is over")
        async with Publisher(site.ways[bus]) as publisher:
            for number in range(3):
                await store.put(QUEUE, [NewMessage(b"%d" % number)])
                await publisher.publish("billing", "orders")
                await until(lambda count=number: len(handled) > count, f"{bus} to {channel}")
        await until(lambda: not site.state().dirty, "the queue is clean")
        assert handled == [b"0", b"1", b"2"]
        assert site.state().triggers == 3, "one event on several buses is one mark"
    await store.close()


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("bus", BUSES)
async def test_from_every_bus_over_every_channel(bus: str, channel: str, tmp_path: Path) -> None:
    async with NatsServer(tmp_path, mqtt=True) as server:
        async with bridged(f"nats://127.0.0.1:{server.port}", f"mqtt://127.0.0.1:{server.mqtt_port}") as site:
            await site.ready()
            await cross(site, bus, channel, f"{tmp_path}{bus}{channel}")


@pytest.mark.parametrize("channel", ["nats", pytest.param("mqtt", marks=pytest.mark.rest)])
async def test_a_killed_broker_changes_nothing_but_the_latency(channel: str, tmp_path: Path) -> None:
    """What is put while it is away is handled when it is back; one line for each change of state."""
    handled: list[bytes] = []
    store = open_store(f"memory:{tmp_path}{channel}")
    async with NatsServer(tmp_path, mqtt=True) as server:
        async with bridged(f"nats://127.0.0.1:{server.port}", f"mqtt://127.0.0.1:{server.mqtt_port}") as site:
            await site.ready()
            facts: list[str] = []
            site.bridge.observe(lambda fact: facts.append(type(fact).__name__))
            async with (
                working(store, site.ways[channel], handled) as worker,
                Publisher(site.nats) as publisher,
            ):
                await until(lambda: worker.state().session, "a session")
                for number in range(3):
                    await store.put(QUEUE, [NewMessage(b"before %d" % number)])
                    await publisher.publish("billing", "orders")
                    await until(lambda count=number: len(handled) == 2 * count + 1, "handled before", 50)
                    await server.kill()
                    await until(lambda: not worker.state().session, "the worker knows")
                    await store.put(QUEUE, [NewMessage(b"during %d" % number)])
                    await publisher.publish("billing", "orders")
                    await server.start()
                    await until(lambda count=number: len(handled) == 2 * count + 2, "handled after", 50)
                    await until(lambda: worker.state().session, "a session again")
                    await until(lambda count=number: facts.count("BusUp") == 2 * count + 2, "both buses are up")
            assert facts.count("BusDown") == facts.count("BusUp") == 6
            assert site.bridge.listeners() == []
    await store.close()


async def test_a_restarted_bridge_is_found_by_its_workers_and_publishers(processes: Processes, tmp_path: Path) -> None:
    """Over NATS alone: nobody needs its address, and nobody is restarted."""
    async with NatsServer(tmp_path / "broker") as server:
        url = f"nats://127.0.0.1:{server.port}"
        store = await processes.serve(data="store")
        service = await processes.serve("--nats", url, data="bridge", sweep_s="0", heartbeat_s="1")
        register = Register(processes)
        workers = [await register.worker(over(url), store=store) for _ in range(2)]
        await service.has_listeners(2)
        async with Publisher(url) as publisher:
            await told(register, store, publisher)
            for _ in range(2):
                await service.kill()
                names = await register.put(store, 3)
                await publisher.publish("billing", "orders")
                service = await processes.serve("--nats", url, data="bridge", sweep_s="0", heartbeat_s="1")
                await register.all_have("done", names)
                await service.has_listeners(2)
        assert [await worker.stop() for worker in workers] == [0, 0]
        await service.has_listeners(0)
    assert register.numbers().duplicated == 0


def over(url: str) -> Service:
    """Name a broker where a test's register wants a bridge."""
    return cast(Service, SimpleNamespace(url=url))


async def told(register: Register, store: Service, publisher: Publisher) -> None:
    names = await register.put(store, 1)
    await publisher.publish("billing", "orders")
    await register.all_have("done", names, within_s=50)


@SYSTEM
async def test_from_mosquitto_pub_to_a_worker_that_knows_only_nats(processes: Processes, tmp_path: Path) -> None:
    """The whole point: `kill -9` of either broker in between changes nothing but the latency."""
    async with NatsServer(tmp_path / "nats") as nats, Mosquitto(tmp_path / "mqtt") as mqtt:
        urls = f"nats://127.0.0.1:{nats.port}", f"mqtt://127.0.0.1:{mqtt.port}"
        store = await processes.serve(data="store")
        service = await processes.serve("--nats", urls[0], "--mqtt", urls[1], data="bridge", sweep_s="0")
        register = Register(processes)
        worker = await register.worker(over(urls[0]), store=store)
        await service.has_listeners(1)

        async def put_and_publish() -> list[str]:
            names = await register.put(store, 1)
            topic = "queuebell/trigger/billing/orders"
            program = shutil.which("mosquitto_pub")
            assert program is not None
            command = (program, "-h", "127.0.0.1", "-p", str(mqtt.port), "-q", "1", "-t", topic, "-n")
            assert await (await processes.start(*command)).ended() == 0
            return names

        for _ in range(3):
            await register.all_have("done", await put_and_publish(), within_s=50)
            # The worker's broker: what is triggered meanwhile waits in its slot.
            await nats.kill()
            names = await put_and_publish()
            await nats.start()
            await register.all_have("done", names, within_s=150)
            # The producer's: nobody could say anything, so that the bridge looks when it is back.
            await mqtt.kill()
            names = await register.put(store, 1)
            await mqtt.start()
            await register.all_have("done", names, within_s=150)
        assert await worker.stop() == 0
        assert await service.stop() == 0
        assert register.numbers().duplicated == 0
        assert service.errors.count("bus disconnected") == service.errors.count("bus connected") - 2 == 6
