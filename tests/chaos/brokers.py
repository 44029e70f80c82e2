"""Faults of the buses: killed, forgetful, deaf, stopped, split, with damaged files or revoked permissions."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from queuebell.bridge.producer.publisher import Publisher
from tests.chaos import pace
from tests.chaos.row import Needs, Row, Story
from tests.chaos.site import QUEUE, Site
from tests.support.brokers import Mosquitto, NatsServer
from tests.support.processes import Service, until
from tests.support.tcp_proxy import TcpProxy

PLACES = "/usr/local/bin:/usr/bin:/usr/local/sbin:/usr/sbin"
SUBJECT = "queuebell.trigger.billing.orders"


class BareNats:
    """A producer that knows nothing of ours: a socket that speaks NATS; an async context manager."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def __aenter__(self) -> Self:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        await self._reader.readline()
        self._writer.write(b'CONNECT {"verbose":false}\r\n')
        await self.flush()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.transport.abort()

    @staticmethod
    def pack(payloads: Sequence[bytes], subject: str = SUBJECT) -> bytes:
        """Return the bytes that publish these."""
        return b"".join(b"PUB %s %d\r\n%s\r\n" % (subject.encode(), len(payload), payload) for payload in payloads)

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self._writer.write(data)

    async def flush(self) -> None:
        """Wait until the server has taken all of it."""
        self._writer.write(b"PING\r\n")
        while await self._reader.readline() != b"PONG\r\n":
            pass


async def nats_site(site: Site, **settings: str) -> NatsServer:
    """Start a NATS server, a bridge on it, and a store."""
    server = await site.enter(NatsServer(site.processes.folder / "nats"))
    await site.elsewhere("--nats", nats_url(server), **settings)
    return server


def nats_url(server: NatsServer, port: int | None = None) -> str:
    """Return its address."""
    return f"nats://127.0.0.1:{port or server.port}"


def mqtt_url(server: NatsServer | Mosquitto) -> str:
    """Return the address of its MQTT listener."""
    return f"mqtt://127.0.0.1:{server.mqtt_port if isinstance(server, NatsServer) else server.port}"


async def ready(service: Service, wanted: int = 200, within_s: float = 30.0) -> float:
    """Wait until `/readyz` says so, and return when."""

    async def is_so() -> bool:
        return (await service.ask("/readyz"))[0] == wanted

    await until(is_so, f"readyz says {wanted}", within_s)
    return time.monotonic()


async def trigger_dropped(site: Site) -> None:
    """F4."""
    server = await nats_site(site)
    await site.worker()
    proxy = await site.enter(TcpProxy(server.port))
    bare = await site.enter(BareNats(proxy.port))
    bodies = await site.put(2, tell=False)
    one = bare.pack([b""])
    proxy.up.drop = len(one)
    bare.write(one)
    await bare.flush()
    await site.wakes(bodies)
    assert (await site.bridge.queue(QUEUE))["triggers"] == 0


async def trigger_repeated(site: Site) -> None:
    """F5."""
    server = await nats_site(site, sweep_s="0")
    await site.worker()
    bare = await site.enter(BareNats(server.port))
    asked = await site.receives()
    draw = random.Random(5)
    for turn in range(3):
        events = [{"storage_account": "billing", "queue_name": "orders", "id": f"{turn}-{n}"} for n in range(5)] * 10
        draw.shuffle(events)
        bodies = await site.put(5, tell=False)
        bare.write(bare.pack([json.dumps(event).encode() for event in events]))
        await bare.flush()
        await site.wakes(bodies)
    triggers = int((await site.bridge.queue(QUEUE))["triggers"])
    receives = await site.receives() - asked
    site.figures["receives a trigger"] = f"{receives}/{triggers}"


async def bus_killed(site: Site) -> None:
    """F6: sessions and triggers over one server, which is killed three times."""
    server = await nats_site(site, sweep_s="0")
    await ready(site.bridge)
    await site.worker(bridge=nats_url(server))
    async with Publisher(nats_url(server)) as publisher:
        for _ in range(2):
            await server.kill()
            bodies = await site.put(2, tell=False)
            await publisher.publish("billing", "orders")
            await server.start()
            await site.wakes(bodies, time.monotonic())
            await ready(site.bridge)


def bus_forgets(kind: str) -> Story:
    """F7: triggers that a broker took and forgot, with all its sessions."""

    async def inject(site: Site) -> None:
        folder = site.processes.folder / "mqtt"
        server = await site.enter(NatsServer(folder, mqtt=True) if kind == "nats" else Mosquitto(folder))
        await site.elsewhere("--mqtt", mqtt_url(server), sweep_s="0")
        await ready(site.bridge)
        await site.worker()
        asked = await site.receives()
        await server.kill()
        bodies = await site.put(2, tell=False)
        await server.restart(keep_store=False) if server.process is None else await restart(server)
        back = time.monotonic()
        await site.wakes(bodies, back)
        site.figures["receives"] = str(await site.receives() - asked)

    return inject


async def restart(server: NatsServer | Mosquitto) -> None:
    """Start a killed server again, without anything that it had stored."""
    for file in sorted(server.store.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    await server.start()


async def bus_deaf(site: Site) -> None:
    """F8: connected, and nothing comes through."""
    server = await site.enter(NatsServer(site.processes.folder / "nats"))
    proxy = await site.enter(TcpProxy(server.port))
    await site.elsewhere("--nats", nats_url(server, proxy.port), sweep_s="0")
    await ready(site.bridge)
    await site.worker()
    bare = await site.enter(BareNats(server.port))
    proxy.down.swallow = True
    began = time.monotonic()
    bodies = await site.put(2, tell=False)
    bare.write(bare.pack([b""]))
    await bare.flush()
    named = await ready(site.bridge, 503)
    site.figures["found out after"] = f"{named - began:.1f} s"
    proxy.heal()
    await site.wakes(bodies)


async def bus_stopped(site: Site) -> None:
    """F9: until the sessions over it are dead, and then some."""
    server = await nats_site(site, sweep_s="0")
    await ready(site.bridge)
    await site.worker(bridge=nats_url(server))
    server.pause()
    bodies = await site.put(2)
    await site.bridge.has_listeners(0)
    await site.wakes(bodies)
    server.resume()
    await site.bridge.has_listeners(1)
    await site.wakes(await site.put(2))
    state = (await site.bridge.queue(QUEUE))["sessions"]
    assert state == 1, f"double sessions: {state}"


async def two_bridges_split(site: Site) -> None:
    """F13: each with a listener of its own, and the way between them cut."""
    server = await site.enter(NatsServer(site.processes.folder / "nats"))
    proxy = await site.enter(TcpProxy(server.port))
    await site.elsewhere("--nats", nats_url(server))
    other = await site.serve("--nats", nats_url(server, proxy.port), data="other")
    await asyncio.gather(ready(site.bridge), ready(other))
    await site.worker()
    await site.worker(bridge=other.url, settled=False)
    await other.has_listeners(1)
    await other.is_clean(QUEUE)
    proxy.refusing = True
    proxy.cut()
    asked, began = await site.receives(), time.monotonic()
    for bridge in (site.bridge, other):
        bodies = await site.put(2, tell=False)
        await site.trigger(to=bridge)
        await site.wakes(bodies)
    bodies = await site.put(2, tell=False)
    await site.wakes(bodies)
    sweeps = (time.monotonic() - began) / (0.9 * site.pace.sweep_s) + 1
    site.figures["receives, of two bridges' sweeps"] = f"{await site.receives() - asked} / {2 * sweeps:.0f}"
    proxy.refusing = False
    await ready(other)


async def stream_damaged(site: Site) -> None:
    """F36: triggers of QoS 1 that a server stored for the bridge, damaged on its disk."""
    server = await site.enter(NatsServer(site.processes.folder / "nats", mqtt=True))
    options = ("--mqtt", mqtt_url(server))
    await site.elsewhere(*options)
    await ready(site.bridge)
    await site.worker()
    async with Publisher(mqtt_url(server), close_timeout=5) as publisher:
        await publisher.publish("billing", "orders")
        await until(lambda: publisher.state().sent == 1, "a trigger is stored or delivered")
    await site.bridge.kill()
    bodies = await site.put(2, tell=False)
    await server.kill()
    damaged = damage(server.store)
    await server.start()
    back = await site.again(*options)
    await site.wakes(bodies, back)
    site.figures["blocks damaged"] = str(damaged)


def damage(store: Path) -> int:
    """Flip bits in all message blocks of a JetStream store; return how many there were."""
    blocks = [file for file in store.rglob("*.blk") if file.stat().st_size]
    assert blocks, "the server stored nothing"
    for file in blocks:
        data = bytearray(file.read_bytes())
        for at in range(0, len(data), 7):
            data[at] ^= 0xFF
        file.write_bytes(bytes(data))
    return len(blocks)


def access(bridge: str) -> str:
    """Return users of a server, of whom the bridge may do what ``bridge`` says."""
    return (
        f"authorization {{ users = [ {{ user: bridge, password: b, permissions: {{ {bridge} }} }}, "
        "{ user: producer, password: p } ] }"
    )


async def permission_revoked(site: Site) -> None:
    """F39: the bridge may no longer hear the bus, and then may again; its web side goes on meanwhile."""
    free, bound = access('publish: ">", subscribe: ">"'), access('publish: "nothing", subscribe: "nothing"')
    server = await site.enter(NatsServer(site.processes.folder / "nats", extra=free))
    await site.elsewhere("--nats", f"nats://bridge:b@127.0.0.1:{server.port}", sweep_s="0")
    await ready(site.bridge)
    await site.worker()

    def reload(text: str) -> None:
        server.extra = text
        server.command()  # writes the configuration
        server.process.send_signal(signal.SIGHUP)

    reload(bound)
    await ready(site.bridge, 503)
    await site.wakes(await site.put(2))  # by HTTP
    bodies = await site.put(2, tell=False)
    async with Publisher(f"nats://producer:p@127.0.0.1:{server.port}", close_timeout=0.5) as publisher:
        await publisher.publish("billing", "orders")
    reload(free)
    await site.wakes(bodies, time.monotonic())


ROWS = (
    Row("F4", "trigger lost on its way", "proxy drops one PUB on the way to NATS", pace.sweep, trigger_dropped),
    Row("F5", "triggers ten times over and out of order", "50 PUBs shuffled; sweep off", pace.healthy,
        trigger_repeated),
    Row("F6", "bus killed", "kill -9 of nats-server, sessions over it; sweep off", pace.reconnect, bus_killed),
    Row("F7a", "bus restarts without its sessions", "NATS's MQTT, store deleted; sweep off", pace.reconnect,
        bus_forgets("nats")),
    Row("F7b", "bus restarts without its sessions", "mosquitto, store deleted; sweep off", pace.reconnect,
        bus_forgets("mosquitto"), needs=Needs.SYSTEM, command="apt-get install mosquitto",
        possible=lambda: shutil.which("mosquitto", path=PLACES) is not None),
    Row("F8", "bus alive but deaf", "nothing comes from NATS any more; sweep off", pace.probe, bus_deaf),
    Row("F9", "bus stopped", "SIGSTOP of nats-server, sessions over it; sweep off", pace.without_bridge, bus_stopped),
    Row("F13a", "two bridges, split", "one cut off from the bus", pace.sweep, two_bridges_split),
    Row("F36", "stored triggers damaged", "bits flipped in JetStream's blocks", pace.reconnect, stream_damaged),
    Row("F39", "permission revoked and restored", "NATS reloaded twice; sweep off", pace.reconnect, permission_revoked),
)  # fmt: skip
