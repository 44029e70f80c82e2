"""Plain subscribers of every channel hear of work, however they came, failed or lagged: through the real bridge."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any, Protocol

import pytest
from aiohttp import web

from queuebell.bridge import NewMessage
from queuebell.bridge.brokers import SCHEMES
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.wire import Wake
from queuebell.bridge.core.commands import Announce
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.http.webhooks.shell import Webhooks
from queuebell.bridge.service.announcing import Announcer
from queuebell.bridge.service.bridge import Bridge, BridgeSettings
from queuebell.bridge.triggers.attachment import Attachments
from tests.bridge.http.api.test_sse import Stream
from tests.support.hooks import hook, receiver
from tests.support.memory_broker import SERVERS, MemoryServer
from tests.support.web import Served

QUEUE = "a/b"
NEVER = 3600.0


@pytest.fixture(autouse=True)
def scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ``nats://one`` and ``mqtt://one`` be brokers in memory."""
    for name in ("nats", "mqtt"):
        monkeypatch.setitem(SCHEMES, name, ("tests.support.memory_broker", "NamedBroker"))
    monkeypatch.setattr("tests.support.memory_broker.SERVERS", SERVERS)
    SERVERS.clear()


class Ear(Protocol):
    """A plain subscriber of one channel."""

    wakes: list[dict[str, Any]]

    async def fail(self) -> None:
        """Become unable to hear."""

    async def recover(self) -> None:
        """Be able to hear again."""


async def until(what: Callable[[], bool]) -> None:
    """Wait for something that is to come."""
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.01)


class HookEar:
    """An HTTP endpoint."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._fine = target.answer

    @property
    def wakes(self) -> list[dict[str, Any]]:
        return [post.verify() for post in self._target.posts]

    async def fail(self) -> None:
        async def busy(request: web.BaseRequest) -> web.StreamResponse:
            return web.Response(status=503)

        self._target.answer = busy

    async def recover(self) -> None:
        self._target.answer = self._fine


class StreamEar:
    """A client of an event stream that comes back with the last id it saw."""

    def __init__(self, served: Served) -> None:
        self.wakes: list[dict[str, Any]] = []
        self._served = served
        self._last: str | None = None
        self._reading: asyncio.Task[None] | None = None

    async def recover(self) -> None:
        opened = asyncio.Event()
        self._reading = asyncio.create_task(self._read(opened), name="event stream of a test")
        await opened.wait()

    async def _read(self, opened: asyncio.Event) -> None:
        async with self._served.client() as client:
            stream = Stream(client)
            await stream.open(f"/v1/wakes?queue={QUEUE}", **({"Last_Event_ID": self._last} if self._last else {}))
            assert await stream.block() == [":"]
            opened.set()
            while (event := await stream.event()) is not None:
                self.wakes.append(event.data)
                self._last = event.id

    async def fail(self) -> None:
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)


class SubjectEar:
    """Whoever subscribes at a broker to the raw subject or topic."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server

    @property
    def wakes(self) -> list[dict[str, Any]]:
        return [json.loads(payload) for topic, payload in self._server.log if topic == ("queuebell", "wake", "a", "b")]

    async def fail(self) -> None:
        self._server.refusing = True
        self._server.kill()

    async def recover(self) -> None:
        self._server.refusing = False


@contextlib.asynccontextmanager
async def listening(bridge: Bridge, channel: str) -> AsyncIterator[Ear]:
    """Subscribe to the queue's wakes by one channel."""
    async with contextlib.AsyncExitStack() as stack:
        if channel == "webhook":
            target = await stack.enter_async_context(receiver())
            webhooks = Webhooks(bridge, [hook(target.url, QUEUE)], draw=lambda: 0.0)
            await webhooks.start()
            stack.push_async_callback(webhooks.stop)
            yield HookEar(target)
        elif channel == "sse":
            settings = WebSettings(port=0, shutdown_timeout=0.2)
            server = await stack.enter_async_context(WebServer(bridge, settings))
            ear = StreamEar(Served(bridge, server))
            await ear.recover()
            stack.push_async_callback(ear.fail)
            yield ear
        else:
            SERVERS["one"] = MemoryServer(channel)
            buses: dict[str, Any] = {channel: [f"{channel}://one"]}
            attachments = await stack.enter_async_context(Attachments(bridge, **buses))
            await until(lambda: attachments.subjects()[0].connected)
            yield SubjectEar(SERVERS["one"])


def bridged(again_s: float = NEVER, data: pathlib.Path | None = None) -> Bridge:
    """Return a bridge that tells again after ``again_s``."""
    return Bridge(data, settings=BridgeSettings(periods=Periods(again_s=again_s)))


async def work(bridge: Bridge, own: bool) -> None:
    """Put one message on the own queue, or say that one was put elsewhere."""
    if own:
        await bridge.store.put(QUEUE, [NewMessage(b"x")])
    else:
        bridge.trigger([CloudQueueWorkDetected("a", "b")], bus="test")


CHANNELS = pytest.mark.parametrize("channel", ["webhook", "sse", "nats", "mqtt"])
PLACES = pytest.mark.parametrize("own", [True, False], ids=["own", "elsewhere"])


@CHANNELS
@PLACES
async def test_who_comes_back_is_told_of_what_waits(channel: str, own: bool) -> None:
    """An endpoint that failed, a stream that broke, a broker that was away: the last wake was lost with them."""
    async with bridged() as bridge, listening(bridge, channel) as ear:
        await work(bridge, own)
        await until(lambda: bool(ear.wakes))
        await ear.fail()
        await work(bridge, own)
        await ear.recover()
        newest = bridge.newest(QUEUE)[0]
        await until(lambda: ear.wakes[-1]["gen"] >= newest)


class Source:
    """A bridge that announces what it is told to."""

    boot = "b" * 32

    def __init__(self) -> None:
        self.hearing: list[Callable[[Announce], None]] = []
        self.by_queue: dict[str, tuple[int, bool]] = {}

    def subscribe(self, hear: Callable[[Announce], None]) -> Callable[[], None]:
        self.hearing.append(hear)
        return lambda: self.hearing.remove(hear)

    def newest(self, queue: str) -> tuple[int, bool]:
        return self.by_queue.get(queue, (0, False))

    @property
    def scheduler(self) -> SimpleNamespace:
        by_queue = {queue: SimpleNamespace(queue=queue, waits=waits) for queue, (_, waits) in self.by_queue.items()}
        return SimpleNamespace(turns=None, ledger=SimpleNamespace(by_queue=by_queue))

    def announce(self, queue: str, gen: int, size: int = 1, trace: str | None = None) -> None:
        now = asyncio.get_running_loop().time()
        for hear in self.hearing:
            hear(Announce(queue, gen, "trigger", size, now, trace))


class EarAnnouncing:
    """A subscriber with a door that can be shut."""

    def __init__(self) -> None:
        self.open = True
        self.heard: list[Wake] = []
        self.arrived = asyncio.Event()

    def writable(self) -> bool:
        return self.open

    def send(self, wake: Wake) -> None:
        self.heard.append(wake)
        self.arrived.set()

    async def next(self) -> None:
        async with asyncio.timeout(100):
            await self.arrived.wait()
        self.arrived.clear()


async def test_what_is_announced_in_one_turn_is_one_wake() -> None:
    """The newest generation with all the work that was hinted at; in the order of generations."""
    source, ear, deaf = Source(), EarAnnouncing(), EarAnnouncing()
    announcer = Announcer(source)
    announcer.subscribe(["a/x", "a/y"], writable=ear.writable, send=ear.send)
    announcer.subscribe(["a/z"], writable=deaf.writable, send=deaf.send)
    for gen, queue in enumerate(["a/x", "a/y", "a/x", "a/other"], 1):
        source.announce(queue, gen, gen, "t1" if gen == 1 else None)
    await ear.next()
    assert [(wake.queue, wake.gen, wake.size, wake.traceparent) for wake in ear.heard] == [
        ("a/y", 2, 2, None),
        ("a/x", 3, 4, "t1"),
    ]
    assert {wake.boot for wake in ear.heard} == {source.boot}
    assert deaf.heard == []
    announcer.close()
