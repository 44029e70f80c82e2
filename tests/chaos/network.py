"""Faults of the network: cut, half-open, reset, slow, sliced, one way; and what a store answers over it."""

from __future__ import annotations

import asyncio
import time
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

from tests.chaos import pace
from tests.chaos.row import Needs, Row
from tests.chaos.site import QUEUE, Site
from tests.support.processes import Service, until
from tests.support.tcp_proxy import TcpProxy

EMPTY = b'{"messages": [], "depth": {"visible": 0, "invisible": 0}, "next_visible_in_ms": null}'
PASSED_ON = ("Content-Type", "Authorization")
KEPT = ("Content-Type", "Queuebell-Boot", "Queuebell-Able", "Retry-After")


class FaultyStore:
    """A queue service that fails on demand: stands at ``url`` for ``service``, and carries requests and answers.

    An async context manager. Faults hold for calls of the kind ``on``.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self.url = ""
        self.on = ("messages", "receive", "settle")
        """The last part of the paths that are hit."""
        self.script: list[int | str] = []
        """What becomes of the next calls, one each: a status; ``lose`` carries it out and drops the connection;
        ``hang`` carries it out and never answers; ``empty`` says that there is nothing, without asking."""
        self.forever: int | str | None = None
        """What becomes of all calls once the script is over."""
        self.answering = asyncio.Event()
        """Cleared: calls are carried out, and their answers wait."""
        self.answering.set()
        self.held = asyncio.Event()
        """Set while an answer waits."""
        self.hits = 0
        self._closing = asyncio.Event()
        self._client: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        self._client = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
        app = web.Application(client_max_size=1 << 22)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None and self._client is not None
        self._closing.set()
        self.answering.set()
        await self._runner.cleanup()
        await self._client.close()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        fate: int | str | None = None
        if request.path.rpartition("/")[2] in self.on:
            fate = self.script.pop(0) if self.script else self.forever
        if fate is not None:
            self.hits += 1
        if isinstance(fate, int):
            return web.Response(status=fate, headers={"Retry-After": "1"})
        if fate == "empty":
            return web.Response(body=EMPTY, content_type="application/json")
        answer = await self._carry(request, body)
        if fate == "lose":
            request.transport.abort()
        elif fate == "hang":
            await self._closing.wait()
        elif not self.answering.is_set():
            self.held.set()
            await self.answering.wait()
        return answer

    async def _carry(self, request: web.Request, body: bytes) -> web.Response:
        assert self._client is not None
        headers = {name: request.headers[name] for name in PASSED_ON if name in request.headers}
        url = self._service.url + request.path_qs
        async with self._client.request(request.method, url, data=body, headers=headers) as answer:
            kept = {name: answer.headers[name] for name in KEPT if name in answer.headers}
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)


async def put_unanswered(site: Site) -> None:
    """F2: sweep off, so that only the publish of an unknown outcome finds it."""
    await site.elsewhere(sweep_s="0")
    await site.worker()
    front = await site.enter(FaultyStore(site.store))
    producer = await site.producer(store=front.url)
    front.script = ["lose", "hang", "lose"]
    for _ in range(3):
        producer.tell(f"put {' '.join(site.tally.names(2))}")
    bodies = list(site.tally.attempted)
    await site.tally.all_started(bodies)
    await until(lambda: len(producer.events["unknown"]) == 3, "three unknown outcomes")
    for event in producer.events["unknown"]:
        site.tally.measure(event["bodies"], event["at"])
    await site.tally.all_done(bodies)
    await producer.kill()


async def put_at_idle_commit(site: Site) -> None:
    """F18: the message becomes visible, and is told, after the empty receive was carried out and before it is heard."""
    await site.elsewhere(sweep_s="0")
    front = await site.enter(FaultyStore(site.store))
    await site.worker(store=front.url)
    for _ in range(5):
        front.held.clear()
        front.answering.clear()
        assert await site.trigger() == 202
        await front.held.wait()
        bodies = await site.put(1)
        front.answering.set()
        await site.wakes(bodies)
        await site.bridge.is_clean(QUEUE)


async def put_while_subscribing(site: Site) -> None:
    """F19: put and told between the hello that left and the hello that arrived, and before the first receive ended."""
    await site.elsewhere(sweep_s="0")
    proxy = await site.enter(TcpProxy(site.bridge.port))
    front = await site.enter(FaultyStore(site.store))
    proxy.freeze()
    await site.worker(bridge=f"http://127.0.0.1:{proxy.port}", store=front.url, settled=False)
    front.answering.clear()
    first = await site.put(1)
    proxy.heal()
    await site.bridge.has_listeners(1)
    healed = time.monotonic()
    second = await site.put(1)
    front.answering.set()
    await site.wakes([*first, *second], healed)


async def half_open(site: Site) -> None:
    """F21, the session: nothing arrives any more, and nobody says so."""
    await site.elsewhere(sweep_s="0")
    proxy = await site.enter(TcpProxy(site.bridge.port))
    worker = await site.worker(bridge=f"http://127.0.0.1:{proxy.port}")
    proxy.black_hole()
    began = time.monotonic()
    bodies = await site.put(2)
    await site.bridge.has_listeners(0)
    site.figures["bridge found out after"] = f"{time.monotonic() - began:.1f} s"
    await site.wakes(bodies)
    await worker.complains("no bridge answers at")
    proxy.heal()
    proxy.cut()
    await site.bridge.has_listeners(1)
    await site.wakes(await site.put(2))


async def half_open_beside_another(site: Site) -> None:
    """F21, own queue: what was carried into the void comes to the other."""
    await site.own()
    proxy = await site.enter(TcpProxy(site.bridge.port))
    await site.worker(bridge=f"http://127.0.0.1:{proxy.port}")
    await site.worker()
    proxy.black_hole()
    await site.wakes(await site.put(8, batch=1))


async def one_way(site: Site) -> None:
    """F21, one way: the bridge hears the listener, and the listener hears nothing."""
    await site.elsewhere(sweep_s="0")
    proxy = await site.enter(TcpProxy(site.bridge.port))
    await site.worker(bridge=f"http://127.0.0.1:{proxy.port}")
    proxy.down.swallow = True
    await site.wakes(await site.put(2))
    proxy.heal()
    proxy.cut()


async def reset_storm(site: Site) -> None:
    """F22."""
    await site.elsewhere(sweep_s="0")
    proxy = await site.enter(TcpProxy(site.bridge.port))
    await site.worker(bridge=f"http://127.0.0.1:{proxy.port}")
    asked = await site.receives()
    bodies: list[str] = []
    for _ in range(10):
        bodies += await site.put(1)
        proxy.cut()
        await site.lasts(0.1)
    await site.bridge.has_listeners(1)
    await site.wakes(bodies)
    site.figures["receives for 10 resets"] = str(await site.receives() - asked)


async def sliced(site: Site) -> None:
    """F24: wakes that carry messages, one byte at a time."""
    await site.own()
    proxy = await site.enter(TcpProxy(site.bridge.port))
    proxy.up.one_byte = proxy.down.one_byte = True
    await site.worker(bridge=f"http://127.0.0.1:{proxy.port}", store=f"http://127.0.0.1:{proxy.port}")
    await site.wakes(await site.put(20, batch=4))


async def slow(site: Site) -> None:
    """F24: a path of 50 ms each way."""
    await site.elsewhere()
    proxy = await site.enter(TcpProxy(site.bridge.port))
    proxy.up.latency_s = proxy.down.latency_s = 0.05
    await site.worker(bridge=f"http://127.0.0.1:{proxy.port}")
    for _ in range(3):
        await site.wakes(await site.put(2))


async def store_errors(site: Site) -> None:
    """F25: refusals, broken answers and no answers; the wake is not forgotten."""
    await site.elsewhere(sweep_s="0")
    front = await site.enter(FaultyStore(site.store))
    await site.worker(store=front.url)
    front.script = [503, 429, 500, "lose"]
    first = await site.put(2)
    await site.wakes(first)
    front.on = ("receive",)
    front.forever = "hang"
    second = await site.put(2)
    await until(lambda: front.hits >= 6, "receives hang")
    front.forever = None
    healed = time.monotonic()
    await site.tally.all_started(second)
    site.tally.measure(second, healed)
    site.figures["failed calls"] = str(front.hits)


async def store_down(site: Site) -> None:
    """F25: the store is killed and comes back."""
    await site.elsewhere(sweep_s="0")
    await site.worker()
    bodies = await site.put(2, tell=False)
    await site.store.kill()
    assert await site.trigger() == 202
    await site.lasts(1.5)
    site.store = await site.serve(data="store", port=site.store.port)
    await site.wakes(bodies, time.monotonic())


async def false_empty(site: Site) -> None:
    """F26: the store says twice that there is nothing, and there is."""
    await site.elsewhere()
    front = await site.enter(FaultyStore(site.store))
    front.on = ("receive",)
    await site.worker(store=front.url)
    front.script = ["empty", "empty"]
    await site.wakes(await site.put(2))


async def store_errors_at_settle(site: Site) -> None:
    """F25, deletes: an acknowledgement that is lost costs a second handling at most."""
    await site.own()
    front = await site.enter(FaultyStore(site.store))
    front.on = ("settle",)
    front.script = ["lose", 503, "hang"]
    await site.worker(store=front.url)
    await site.wakes(await site.put(6, batch=2))


NAMESPACES = (
    "ip netns add a; ip netns add b; ip link add va netns a type veth peer name vb netns b; queuebell serve --nats "
    "in each; then ip -n a link set va down"
)

ROWS = (
    Row("F2", "put whose outcome is unknown", "answer dropped, or never given; sweep off", pace.healthy,
        put_unanswered),
    Row("F13b", "two bridges, split by the kernel", "network namespaces, veth down", pace.sweep, None,
        needs=Needs.KERNEL, command=NAMESPACES, possible=lambda: False),
    Row("F18", "put exactly at the idle commit", "empty answer held back; sweep off", pace.healthy, put_at_idle_commit),
    Row("F19", "put while the listener subscribes", "hello and receive held back; sweep off", pace.reconnect,
        put_while_subscribing),
    Row("F21a", "half-open session", "every byte vanishes, no FIN; sweep off", pace.without_bridge, half_open),
    Row("F21b", "half-open session, another is well", "every byte vanishes; own queue", pace.death,
        half_open_beside_another),
    Row("F21c", "session deaf one way", "bytes to the listener vanish; sweep off", pace.without_bridge, one_way),
    Row("F22", "resets again and again", "RST ten times; sweep off", pace.without_bridge, reset_storm),
    Row("F24a", "one byte at a time", "proxy slices both ways", pace.later(pace.healthy, 5.0, "slices"), sliced),
    Row("F24b", "slow path", "50 ms each way", pace.healthy, slow),
    Row("F25a", "store answers 503, 429, 500, or not at all", "HTTP front; sweep off", pace.store_back, store_errors),
    Row("F25b", "store killed and back", "kill -9, 1.5 s; sweep off", pace.store_back, store_down),
    Row("F25c", "deletes fail or go unanswered", "HTTP front", pace.healthy, store_errors_at_settle),
    Row("F26", "store says empty and is not", "two false answers", pace.sweeps(3), false_empty),
)  # fmt: skip
