"""Plain subscribers of every channel hear of work, however they came, failed or lagged: through the real bridge."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import pytest
from aiohttp import web

from bridge import NewMessage
from bridge.brokers import SCHEMES
from bridge.contract.event import CloudQueueWorkDetected
from bridge.core.settings import Periods
from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.http.webhooks.shell import Webhooks
from bridge.queues.base import Release, Settlement
from bridge.service.bridge import Bridge, BridgeSettings
from bridge.triggers.attachment import Attachments
from listeners import Listener
from tests.bridge.http.api.test_sse import Stream
from tests.support.hooks import hook, receiver
from tests.support.memory_broker import SERVERS, MemoryServer
from tests.support.web import Served

QUEUE = "a/b"
NEVER = 3600.0
SOON = 0.2


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
@pytest.mark.parametrize("session", [False, True], ids=["alone", "beside a session"])
async def test_each_piece_of_work_is_heard(channel: str, own: bool, session: bool) -> None:
    """Without the queue having been emptied between; a worker without room beside them changes nothing."""

    async def handle(message: object) -> None:
        await asyncio.Event().wait()

    async with bridged() as bridge, contextlib.AsyncExitStack() as stack:
        if session:
            store = bridge if own else "memory:elsewhere"
            listener = Listener(store, QUEUE, handle, bridge=bridge, concurrency=1, grace=0.0)
            running = asyncio.create_task(listener.run(), name="worker of a test")
            stack.push_async_callback(asyncio.gather, running)
            stack.push_async_callback(listener.stop)
            await work(bridge, own)
            await until(lambda: bool(bridge.listeners()))
        ear = await stack.enter_async_context(listening(bridge, channel))
        for _ in range(4):
            before = len(ear.wakes)
            await work(bridge, own)
            await until(lambda before=before: len(ear.wakes) > before)  # type: ignore[misc]
        gens = [wake["gen"] for wake in ear.wakes]
        assert gens == sorted(set(gens)), "each under a newer name"


@CHANNELS
@PLACES
async def test_who_comes_late_is_told_of_what_waits(channel: str, own: bool) -> None:
    """Also the second that comes, when the first was told long ago."""
    async with bridged() as bridge:
        await work(bridge, own)
        for _ in range(2):
            async with listening(bridge, channel) as ear:
                await until(lambda ear=ear: bool(ear.wakes))  # type: ignore[misc]


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


@CHANNELS
async def test_what_stays_is_told_again(channel: str) -> None:
    """To all who hear, and without a put, for nobody knows what a subject's subscribers heard."""
    async with bridged(SOON) as bridge, listening(bridge, channel) as ear:
        await work(bridge, own=True)
        await until(lambda: [wake["reason"] for wake in ear.wakes].count("resync") >= 3)
        assert ear.wakes[-1]["size"] == 1


@CHANNELS
async def test_what_comes_back_on_top_of_work_is_heard(channel: str) -> None:
    """A release, a lease that lapses and a delay that ends, while another message is visible all along."""
    async with bridged() as bridge, listening(bridge, channel) as ear:
        for _ in range(3):
            await work(bridge, own=True)
        first = (await bridge.store.receive(QUEUE, 1, 30.0)).messages[0]
        await until(lambda: bool(ear.wakes))

        async def heard(before: int) -> None:
            await until(lambda: any(wake["gen"] > before and wake["reason"] == "due" for wake in ear.wakes))

        newest = bridge.newest(QUEUE)[0]
        await bridge.store.settle(QUEUE, Settlement(release=[Release(first.id, first.pop_receipt)]))
        await heard(newest)
        newest = bridge.newest(QUEUE)[0]
        await bridge.store.receive(QUEUE, 1, 1.0)
        await heard(newest)
        newest = bridge.newest(QUEUE)[0]
        await bridge.store.put(QUEUE, [NewMessage(b"later", visible_after_ms=200)])
        await heard(newest)


@CHANNELS
async def test_a_paused_queue_is_told_of_when_it_is_resumed(channel: str) -> None:
    """What was put meanwhile rises then."""
    async with bridged() as bridge, listening(bridge, channel) as ear:
        await work(bridge, own=True)
        await until(lambda: bool(ear.wakes))
        await bridge.store.pause(QUEUE, True)
        heard = len(ear.wakes)
        await work(bridge, own=True)
        assert bridge.newest(QUEUE)[1] is False
        await bridge.store.pause(QUEUE, False)
        await until(lambda: len(ear.wakes) > heard)
        assert ear.wakes[heard]["size"] == 2


@CHANNELS
async def test_after_a_restart_of_the_bridge_what_waits_is_told(channel: str, tmp_path: pathlib.Path) -> None:
    """It stands in the file; nobody puts anything."""
    async with bridged(data=tmp_path) as bridge:
        await work(bridge, own=True)
    async with bridged(data=tmp_path) as bridge, listening(bridge, channel) as ear:
        await until(lambda: bool(ear.wakes))


async def test_an_endpoint_slower_than_the_puts_hears_of_all_of_them() -> None:
    """They merge in its one slot while it answers, and go when it has."""
    async with bridged() as bridge, receiver() as target:
        webhooks = Webhooks(bridge, [hook(target.url, QUEUE)], draw=lambda: 0.0)
        await webhooks.start()
        let = asyncio.Event()

        async def wait(request: web.BaseRequest) -> web.StreamResponse:
            await let.wait()
            return web.Response(status=204)

        target.answer = wait
        await work(bridge, own=True)
        await target.until(1)
        for _ in range(20):
            await work(bridge, own=True)
        newest = bridge.newest(QUEUE)[0]
        let.set()
        wake = (await target.until(2))[1].verify()
        assert (wake["gen"], wake["size"]) == (newest, 20)
        await webhooks.stop()


async def test_two_subscribers_of_each_channel_hear_the_same() -> None:
    """One that fails takes nothing from the others."""
    async with bridged() as bridge, contextlib.AsyncExitStack() as stack:
        ears = [
            await stack.enter_async_context(listening(bridge, channel))
            for channel in ("webhook", "webhook", "sse", "sse", "nats")
        ]
        await ears[0].fail()
        for _ in range(3):
            await work(bridge, own=True)
        newest = bridge.newest(QUEUE)[0]
        for ear in ears[1:]:
            await until(lambda ear=ear: bool(ear.wakes) and ear.wakes[-1]["gen"] == newest)  # type: ignore[misc]
