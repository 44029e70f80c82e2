"""Triggers in by every bus, sessions out over every channel, on real brokers that are killed and come back."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bridge import Bridge, Publisher
from bridge.core.settings import Periods
from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.queues import open_store
from bridge.queues.base import NewMessage
from bridge.service.bridge import BridgeSettings
from bridge.service.state import QueueState
from bridge.triggers.attachment import Attachments
from listeners import Listener, Message
from tests.services.register import Register
from tests.support.brokers import Mosquitto, NatsServer
from tests.support.processes import Processes, Service, environment, until

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
    """With NATS and its own MQTT listener, where each trigger comes by both, and is one."""
    async with NatsServer(tmp_path, mqtt=True) as server:
        async with bridged(f"nats://127.0.0.1:{server.port}", f"mqtt://127.0.0.1:{server.mqtt_port}") as site:
            await site.ready()
            await cross(site, bus, channel, f"{tmp_path}{bus}{channel}")


@SYSTEM
@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("bus", BUSES)
async def test_from_every_bus_over_every_channel_with_mosquitto(bus: str, channel: str, tmp_path: Path) -> None:
    """Two brokers that know nothing of each other."""
    async with NatsServer(tmp_path / "nats") as nats, Mosquitto(tmp_path / "mqtt") as mqtt:
        async with bridged(f"nats://127.0.0.1:{nats.port}", f"mqtt://127.0.0.1:{mqtt.port}") as site:
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


@pytest.mark.rest
async def test_a_hanging_broker_is_named_and_the_rest_goes_on(processes: Processes, tmp_path: Path) -> None:
    """`/readyz` is 503 and says which; `/livez` is good; a trigger by HTTP is taken."""
    async with NatsServer(tmp_path / "one") as hanging, NatsServer(tmp_path / "two") as good:
        urls = [f"nats://127.0.0.1:{server.port}" for server in (hanging, good)]
        service = await processes.serve("--nats", urls[0], "--nats", urls[1])

        async def ready() -> bool:
            status, _ = await service.ask("/readyz")
            return status == 200

        await until(ready, "ready")
        hanging.pause()

        async def named() -> bool:
            status, state = await service.ask("/readyz")
            checks = {name: check["ok"] for name, check in state["checks"].items()}
            assert checks["nats-2"]
            return status == 503 and not checks["nats"]

        await until(named, "503")
        assert (await service.ask("/livez"))[0] == 200
        async with service.asking.post(f"{service.url}/v1/triggers/{QUEUE}") as answer:
            assert answer.status == 202
        hanging.resume()
        await until(ready, "ready again")
        assert await service.stop() == 0
        for words in ("a bus is down", "a bus is up"):
            assert service.errors.count(words) == (1 if "down" in words else 3), service.errors


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


def trigger(port: int, count: int) -> None:
    """Publish so many triggers as fast as a bare socket takes them."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.recv(65536)
        sock.sendall(b'CONNECT {"verbose":false}\r\n')
        one = b"PUB queuebell.trigger.billing.orders 0\r\n\r\n"
        for _ in range(count // 500):
            sock.sendall(one * 500)
        # Until the server has read all of it: a socket closed earlier takes back what is on its way.
        sock.sendall(b"PING\r\n")
        while b"PONG" not in (heard := sock.recv(65536)):
            assert heard


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
        assert service.errors.count("a bus is down") == service.errors.count("a bus is up") - 2 == 6


@pytest.mark.parametrize("count", [5_000, pytest.param(100_000, marks=pytest.mark.rest)])
async def test_a_flood_of_triggers_with_one_of_a_hundred_listeners_stopped(
    processes: Processes, tmp_path: Path, count: int
) -> None:
    """100,000 over NATS, fewer in short: each is marked, everybody else is woken, and the stopped one costs a slot."""
    async with NatsServer(tmp_path / "broker") as server:
        url = f"nats://127.0.0.1:{server.port}"
        store = await processes.serve(data="store")
        service = await processes.serve("--nats", url, data="bridge", sweep_s="0")
        register = Register(processes)
        stopped = await register.worker(over(url), store=store, concurrency=1)
        await service.has_listeners(1)
        await register.worker(over(url), store=store, listeners=99, concurrency=1)
        await service.has_listeners(100)
        stopped.signal(signal.SIGSTOP)
        names = await register.put(store, 64, batch=32)
        flood = asyncio.create_task(asyncio.to_thread(trigger, server.port, count), name="flood")
        await register.all_have("done", names)
        await flood

        async def all_marked() -> bool:
            return int((await service.queue(QUEUE))["triggers"]) == count

        await until(all_marked, "each trigger is marked")
        await register.all_have("done", await register.put(store, 1), within_s=400)
        stopped.signal(signal.SIGCONT)
        await service.has_listeners(100)
        assert register.numbers().lost == 0


async def test_the_commands_take_a_brokers_address(processes: Processes, tmp_path: Path) -> None:
    """`publish`, `listen` and `status`, with a prefix that all of them share."""
    async with NatsServer(tmp_path / "broker") as server:
        url = f"nats://127.0.0.1:{server.port}"
        store = await processes.serve(data="store")
        service = await processes.serve("--nats", url, "--prefix", "site7", data="bridge", sweep_s="0")
        ours = f"{url}?prefix=site7"
        command = (sys.executable, "-m", "queuebell")
        note = tmp_path / "handled"
        worker = await processes.start(
            *command, "listen", store.url, QUEUE, "--bridge", ours, "--exec", f"cat >> {note}", env=environment()
        )
        await service.has_listeners(1)
        assert await store.put(QUEUE, "hello") == 201
        publish = await processes.start(*command, "publish", QUEUE, "--bridge", ours, env=environment())
        assert await publish.ended() == 0, publish.errors
        assert publish.lines == [f"published {QUEUE}: 1"]
        await until(lambda: note.exists() and note.read_text() == "hello", "the command ran")
        status = await processes.start(*command, "status", "--bridge", service.url, env=environment())
        assert await status.ended() == 0
        assert any(f"nats: ok {url}: connected" in line for line in status.lines), status.lines
        assert any("nats" in line and QUEUE in line for line in status.lines), status.lines
        nobody = await processes.start(*command, "publish", QUEUE, "--bridge", url, env=environment())
        assert await nobody.ended() == 69, "there is no bridge under that prefix"
        assert await worker.stop() == 0
        wrong = await processes.start(*command, "serve", "--nats", "mqtt://127.0.0.1", env=environment())
        assert await wrong.ended() == 78
