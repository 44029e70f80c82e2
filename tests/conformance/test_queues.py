"""Every queue store of this project answers the same questions."""

from __future__ import annotations

import asyncio
import math
import re
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from queuebell.bridge.brokers.base import Incoming
from queuebell.bridge.brokers.wire import WireUser
from queuebell.bridge.contract.errors import StoreUnavailable, UnknownOutcome
from queuebell.bridge.http.api.app import WebServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.queues.azure.store import AzureStore
from queuebell.bridge.queues.base import QueueStore
from queuebell.bridge.queues.embedded.sqlite import SqliteStore
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.queues.jetstream.store import JetStreamStore
from queuebell.bridge.queues.jetstream.wire import Wire
from queuebell.bridge.queues.sqs.store import SqsStore
from queuebell.bridge.service.bridge import Bridge
from tests.bridge.queues.clocks import FakeClock
from tests.conformance.apart import ApartConformance
from tests.conformance.queue import LetPass, QueueStoreConformance
from tests.reference.exchange import DOCUMENT, watch
from tests.support import azure, azurite
from tests.support.azurite import system
from tests.support.background_server import BackgroundServer
from tests.support.brokers import NatsServer
from tests.support.http_proxy import Fault, Faults, HttpProxy
from tests.support.moto import give_keys, let_pass_at, moto

__all__ = ["system"]

WHOLE_S = 1.2
"""A second of a store that counts by seconds, and what its clock may be off."""


class BusyClock(FakeClock):
    """A clock on a busy machine: more than a second passes between two readings."""

    def __call__(self) -> float:
        self.now += 1.1
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def let_pass(clock: FakeClock) -> LetPass:
    return clock.let_pass


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture(scope="module")
def sqs() -> Iterator[BackgroundServer]:
    with moto(HASTY="1") as server:
        yield server


class TestMemoryStore(QueueStoreConformance):
    @pytest.fixture
    def wall(self, clock: FakeClock) -> Callable[[], float]:
        return clock.wall

    @pytest_asyncio.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[QueueStore]:
        store = MemoryStore(uuid.uuid4().hex, clock=clock, wall=clock.wall)
        await store.open()
        yield store
        await store.close()


class TestMemoryStoreOnASlowMachine(TestMemoryStore):
    """Show that no question depends on how fast it is asked: every short lease and delay is over at the next call."""

    @pytest.fixture
    def clock(self) -> FakeClock:
        return BusyClock()


class TestSqliteStore(QueueStoreConformance):
    @pytest.fixture
    def wall(self, clock: FakeClock) -> Callable[[], float]:
        return clock.wall

    @pytest_asyncio.fixture
    async def store(self, clock: FakeClock, tmp_path: Path) -> AsyncIterator[QueueStore]:
        store = SqliteStore(tmp_path / "queue.db", clock=clock, wall=clock.wall)
        await store.open()
        yield store
        await store.close()


class TestHttpStore(QueueStoreConformance):
    """The same questions through the queue service, over a wire; what is said there is in the OpenAPI file."""

    @pytest.fixture
    def wall(self, clock: FakeClock) -> Callable[[], float]:
        return clock.wall

    @pytest.fixture
    def let_pass(self, clock: FakeClock) -> LetPass:
        # On the wire leases are whole seconds: the short ones of these questions last one.
        return lambda seconds: clock.let_pass(math.ceil(seconds))

    @pytest_asyncio.fixture
    async def store(self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[QueueStore]:
        watch(monkeypatch, DOCUMENT)
        bridge = Bridge()
        bridge.store = MemoryStore(uuid.uuid4().hex, boot=bridge.boot, clock=clock, wall=clock.wall)
        async with bridge, WebServer(bridge, WebSettings(port=0)) as server:
            store = HttpStore(server.url)
            yield store
            await store.close()


class TestHttpStoreWithoutAWire(TestHttpStore):
    """Where a proxy lets no WebSocket through."""

    @pytest.fixture(autouse=True)
    def no_wire(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(WireUser, "may_use", lambda *_: False)


class TestSqsStore(QueueStoreConformance):
    """Against a server of moto; each test has a prefix of its own."""

    @pytest.fixture
    def let_pass(self, sqs: BackgroundServer) -> LetPass:
        let_pass = let_pass_at(sqs)
        return lambda seconds: let_pass(math.ceil(seconds) * WHOLE_S)

    @pytest_asyncio.fixture
    async def store(self, sqs: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[QueueStore]:
        give_keys(monkeypatch)
        async with SqsStore(f"sqs://eu-central-1/{uuid.uuid4().hex[:12]}-?endpoint={sqs.url}") as store:
            yield store


class TestSqsStoreInRequests(ApartConformance):
    """The same server behind a proxy."""

    @pytest_asyncio.fixture
    async def store(
        self, sqs: BackgroundServer, faults: Faults, monkeypatch: pytest.MonkeyPatch
    ) -> AsyncIterator[QueueStore]:
        give_keys(monkeypatch)
        settling = re.compile("DeleteMessage|ChangeMessageVisibility").search
        async with (
            HttpProxy(sqs.url, faults, lambda asked: bool(settling(asked.headers["X-Amz-Target"]))) as proxy,
            SqsStore(f"sqs://eu-central-1/{uuid.uuid4().hex[:12]}-?endpoint={proxy.url}") as store,
        ):
            yield store


class TestJetStreamStoreInRequests(ApartConformance):
    """A server of its own, and requests that fail on their way there or back."""

    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[QueueStore]:
        ask = Wire.ask

        async def asking(wire: Wire, subject: str, payload: bytes = b"", *more: Any) -> Incoming:
            fault = faults.take() if payload.startswith((b"+", b"-")) else None
            if fault is Fault.REFUSED:
                raise StoreUnavailable("not now")
            if fault is Fault.UNHEARD:
                raise UnknownOutcome("lost on its way there")
            answer = await ask(wire, subject, payload, *more)
            if fault is Fault.UNANSWERED:
                raise UnknownOutcome("lost on its way back")
            return answer

        monkeypatch.setattr(Wire, "ask", asking)
        async with NatsServer(tmp_path) as server, JetStreamStore(f"nats://127.0.0.1:{server.port}") as store:
            yield store


class TestJetStreamStore(QueueStoreConformance):
    """Against a server of its own, in real time."""

    @pytest.fixture
    def let_pass(self) -> LetPass:
        return lambda seconds: asyncio.sleep(seconds + 2 * JetStreamStore.capabilities.resolution_ms / 1000)

    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[QueueStore]:
        async with NatsServer(tmp_path) as server, JetStreamStore(f"nats://127.0.0.1:{server.port}") as store:
            yield store


class AzureConformance(QueueStoreConformance):
    """The names that Azure takes, and one account as one connection string has it."""

    accounts = ("conformance",)
    names = ("qu1", "qu10", "qu2")
    word = "plain"


class TestAzureStore(AzureConformance):
    """Against the Azure endpoint of our own queue service."""

    @pytest.fixture
    def wall(self, clock: FakeClock) -> Callable[[], float]:
        return clock.wall

    @pytest.fixture
    def let_pass(self, clock: FakeClock) -> LetPass:
        return lambda seconds: clock.let_pass(math.ceil(seconds))

    @pytest_asyncio.fixture
    async def store(self, clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[QueueStore]:
        bridge = Bridge()
        bridge.store = MemoryStore(uuid.uuid4().hex, boot=bridge.boot, clock=clock, wall=clock.wall)
        async with bridge, azure.serving_azure(bridge) as front:
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure.connection_string(front.server.port))
            async with AzureStore("azure:?account=conformance") as store:
                yield store


class TestAzureStoreInRequests(ApartConformance):
    """The same front door behind a proxy."""

    @pytest_asyncio.fixture
    async def store(self, faults: Faults, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[QueueStore]:
        async with azure.serving_azure() as front, azure.failing(front, faults) as port:
            monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure.connection_string(port))
            async with AzureStore("azure:?account=conformance") as store:
                yield store


@pytest.mark.system
class TestAzureStoreOnAzurite(AzureConformance):
    """Against Azurite, in real time; each test begins without queues."""

    @pytest.fixture
    def let_pass(self) -> LetPass:
        return lambda seconds: asyncio.sleep(math.ceil(seconds) * WHOLE_S)

    @pytest_asyncio.fixture
    async def store(self, system: BackgroundServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[QueueStore]:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azurite.connection_string(system.url))
        async with AzureStore(f"azure:?account=conformance&api_version={azurite.API_VERSION}") as store:
            for queue in await store.queues():
                await store.delete(queue)
            yield store
