"""An engine behind two bridges answers, asked in turns, what all stores answer."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from queuebell.bridge.queues.base import QueueStore
from queuebell.bridge.queues.jetstream.store import JetStreamStore
from queuebell.bridge.queues.postgres.schema import init
from queuebell.bridge.queues.postgres.store import PostgresStore
from queuebell.bridge.queues.redis.store import RedisStore
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.conformance.queue import LetPass, QueueStoreConformance
from tests.conformance.served import Turns, served
from tests.support.brokers import NatsServer
from tests.support.postgres import let_pass_in
from tests.support.redis import RedisServer

__all__ = ["schema", "server", "url"]


@pytest.mark.system
class TestPostgresBehindTwoBridges(QueueStoreConformance):
    @pytest.fixture
    def let_pass(self, url: str) -> LetPass:
        let_pass = let_pass_in(url)
        return lambda seconds: let_pass(math.ceil(seconds))  # the wire has whole seconds

    @pytest_asyncio.fixture
    async def store(self, url: str) -> AsyncIterator[QueueStore]:
        await init(url)
        async with served(lambda: PostgresStore(url)) as urls:
            store = Turns(urls)
            yield store
            await store.close()
            assert min(store.asked) >= max(store.asked) - 1


@pytest.mark.system
class TestRedisBehindTwoBridges(QueueStoreConformance):
    """In real time: the server's clock is the machine's."""

    @pytest.fixture
    def let_pass(self) -> LetPass:
        return lambda seconds: asyncio.sleep(math.ceil(seconds) + 0.002)

    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[QueueStore]:
        async with RedisServer(tmp_path) as server, served(lambda: RedisStore(server.url())) as urls:
            store = Turns(urls)
            yield store
            await store.close()


class TestJetStreamBehindTwoBridges(QueueStoreConformance):
    """In real time, in whole seconds; what the engine cannot do is known after the first answer."""

    @pytest.fixture
    def let_pass(self) -> LetPass:
        return lambda seconds: asyncio.sleep(math.ceil(seconds) + 0.2)

    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[QueueStore]:
        async with (
            NatsServer(tmp_path) as server,
            served(lambda: JetStreamStore(f"nats://127.0.0.1:{server.port}")) as urls,
        ):
            store = Turns(urls)
            await store.delete("any/queue")
            able = JetStreamStore.capabilities
            assert store.capabilities == able
            yield store
            await store.close()
