"""Every queue store of this project answers the same questions."""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from bridge.queue import QueueStore
from bridge.queues.http import HttpStore
from bridge.queues.memory import MemoryStore
from bridge.queues.sqlite import SqliteStore
from bridge.service import Bridge
from bridge.web.app import WebServer
from bridge.web.settings import WebSettings
from tests.bridge.queues.clocks import FakeClock
from tests.conformance.queue import LetPass, QueueStoreConformance


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def let_pass(clock: FakeClock) -> LetPass:
    return clock.let_pass


class TestMemoryStore(QueueStoreConformance):
    @pytest_asyncio.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[QueueStore]:
        store = MemoryStore(uuid.uuid4().hex, clock=clock, wall=clock.wall)
        await store.open()
        yield store
        await store.close()


class TestSqliteStore(QueueStoreConformance):
    @pytest_asyncio.fixture
    async def store(self, clock: FakeClock, tmp_path: Path) -> AsyncIterator[QueueStore]:
        store = SqliteStore(tmp_path / "queue.db", clock=clock, wall=clock.wall)
        await store.open()
        yield store
        await store.close()


class TestHttpStore(QueueStoreConformance):
    """The same questions through the queue service, over a socket."""

    @pytest.fixture
    def let_pass(self, clock: FakeClock) -> LetPass:
        # On the wire leases are whole seconds: the short ones of these questions last one.
        return lambda seconds: clock.let_pass(math.ceil(seconds))

    @pytest_asyncio.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[QueueStore]:
        bridge = Bridge()
        bridge.store = MemoryStore(uuid.uuid4().hex, boot=bridge.boot, clock=clock, wall=clock.wall)
        async with bridge, WebServer(bridge, WebSettings(port=0)) as server:
            store = HttpStore(server.url)
            yield store
            await store.close()
