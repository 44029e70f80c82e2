"""The same worker program on every store: nothing but the store's URL changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from queuebell.bridge import Publisher
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.queues.postgres.schema import init
from queuebell.bridge.service.bridge import Bridge
from queuebell.listeners import PULL_ONLY, Bury, Listener, Message, Replay, Retry
from tests.support import azure, azurite
from tests.support.brokers import NatsServer
from tests.support.http_proxy import Fault, Faults
from tests.support.moto import give_keys, moto
from tests.support.postgres import running
from tests.support.redis import RedisServer

QUEUE = "billing/orders"
PATIENCE_S = 300.0
Place = Callable[[Path, pytest.MonkeyPatch], contextlib.AbstractAsyncContextManager[str]]


class Work:
    """A worker: it finishes most messages, puts one off for a moment, and does another only after it was replayed."""

    def __init__(self) -> None:
        self.attempts: dict[str, int] = {}
        self.buried: list[Message] = []
        self.finished: list[str] = []
        self.ended = asyncio.Event()

    async def do(self, message: Message) -> None:
        """Handle a message of the queue."""
        text = message.text()
        self.attempts[text] = message.attempt
        if text == "not now" and message.attempt == 1:
            raise Retry(after=0.05)
        if text == "not yet" and message.burial is None:
            raise Bury("cannot be done")
        self.finished.append(text)
        self._see()

    async def bury(self, message: Message) -> None:
        """Have what was buried put back."""
        self.buried.append(message)
        raise Replay

    def _see(self) -> None:
        if len(self.finished) == 4:
            self.ended.set()


async def work_through(url: str) -> Work:
    """Put four messages to the store at ``url``, with a bridge and two listeners, and wait until all are dealt with."""
    work = Work()
    async with Bridge() as bridge, open_store(url) as store, Publisher(bridge) as publisher:
        options = {"bridge": bridge, "visibility_timeout": 30.0, "handle_signals": False}
        listeners = [
            Listener(url, QUEUE, work.do, **options),
            Listener(url, QUEUE + "-poison", work.bury, **options),
        ]
        running = [asyncio.create_task(listener.run(), name="worker") for listener in listeners]
        try:
            bodies = [b"one", b"two", b"not now", b"not yet"]
            await PublishingQueue(store, publisher).put(QUEUE, [NewMessage(body) for body in bodies])
            async with asyncio.timeout(PATIENCE_S):
                await work.ended.wait()
        finally:
            for listener in listeners:
                await listener.stop()
            await asyncio.gather(*running)
        for queue in (QUEUE, QUEUE + "-poison"):
            depth = await store.depth(queue)
            assert depth.visible + depth.invisible == 0
    return work


@contextlib.asynccontextmanager
async def memory(folder: Path, _: pytest.MonkeyPatch) -> AsyncIterator[str]:
    yield f"memory:{folder.name}"


@contextlib.asynccontextmanager
async def http(_: Path, __: pytest.MonkeyPatch) -> AsyncIterator[str]:
    async with Bridge() as bridge, WebServer(bridge, WebSettings(port=0)) as server:
        yield server.url


@contextlib.asynccontextmanager
async def sqs(_: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    give_keys(monkeypatch)
    with moto() as server:
        yield f"sqs://eu-central-1?endpoint={server.url}"


@contextlib.asynccontextmanager
async def jetstream(folder: Path, _: pytest.MonkeyPatch) -> AsyncIterator[str]:
    async with NatsServer(folder) as server:
        yield f"nats://127.0.0.1:{server.port}"


@contextlib.asynccontextmanager
async def redis(folder: Path, _: pytest.MonkeyPatch) -> AsyncIterator[str]:
    async with RedisServer(folder) as server:
        yield server.url()


@contextlib.asynccontextmanager
async def postgres(_: Path, __: pytest.MonkeyPatch) -> AsyncIterator[str]:
    with running() as server:
        await init(server.url())
        yield server.url()


@contextlib.asynccontextmanager
async def azure_endpoint(_: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    async with azure.serving_azure() as front:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure.connection_string(front.server.port))
        yield "azure:?account=billing"


@contextlib.asynccontextmanager
async def emulator(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    with azurite.azurite_queue(folder) as server:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string(server.url))
        yield f"azure:?account=billing&api_version={azurite.API_VERSION}"


NEED_SERVERS = (postgres, emulator, redis)


def stores(at_length: Place | None = None) -> pytest.MarkDecorator:
    """Ask a test of every store; of the one that is slow at it under `make test-rest`."""
    marks = dict.fromkeys(NEED_SERVERS, pytest.mark.system) | ({at_length: pytest.mark.rest} if at_length else {})
    places = (memory, http, sqs, jetstream, azure_endpoint, *NEED_SERVERS)
    return pytest.mark.parametrize("place", [pytest.param(place, marks=marks.get(place, ())) for place in places])


@stores()
async def test_one_program_on_every_store(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is done, put off, buried and replayed alike wherever the queue is, and nothing is left behind."""
    async with place(tmp_path, monkeypatch) as url:
        work = await work_through(url)
    assert sorted(work.finished) == ["not now", "not yet", "one", "two"]
    assert work.attempts["not now"] == 2
    assert work.attempts["not yet"] == 1
    (buried,) = work.buried
    assert (buried.text(), buried.burial.queue, buried.burial.failure) == ("not yet", QUEUE, "poisoned")
    assert buried.burial.reason == "cannot be done"


@pytest.mark.parametrize(
    ("renewed", "fault"), [*((False, fault) for fault in Fault), (True, Fault.REFUSED), (True, Fault.UNANSWERED)]
)
async def test_a_request_that_fails_beside_others_costs_no_message(
    renewed: bool, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where each settlement is a request, all handlers go on and each message is handled once.

    Only a renewal that was carried out without an answer costs its own: the receipt that it gave is not known.
    """
    faults, started, go = Faults(), [], asyncio.Event()
    faults.planned = [*[None] * 7, fault]

    async def work(message: Message) -> None:
        started.append(message.text())
        if len(started) == 8 and not renewed:
            go.set()
        await go.wait()

    async with azure.serving_azure() as front, azure.failing(front, faults) as port:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure.connection_string(port))
        async with open_store("azure:?account=billing") as store:
            await store.put(QUEUE, [f"{number}" for number in range(8)])
        options = {"bridge": PULL_ONLY, "visibility_timeout": 4.0 if renewed else 30.0, "handle_signals": False}
        listener = Listener("azure:?account=billing", QUEUE, work, **options)
        running = asyncio.create_task(listener.run(), name="worker")
        try:
            lost = int(renewed and fault is Fault.UNANSWERED)
            async with asyncio.timeout(PATIENCE_S):
                while faults.asked < 9:
                    await asyncio.sleep(0.01)
                go.set()
                while listener.state().queues[QUEUE].handled + listener.state().queues[QUEUE].lost_leases < 8:
                    await asyncio.sleep(0.01)
            figures = listener.state().queues[QUEUE]
        finally:
            await listener.stop()
            await running
    assert (figures.handled >= 8 - lost, figures.lost_leases) == (True, lost)
    assert sorted(set(started)) == [f"{number}" for number in range(8)]
    assert lost or len(started) == 8
