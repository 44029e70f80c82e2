"""The store on Redis answers the questions that all stores answer, by a real server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from queuebell.bridge.queues.base import QueueStore
from queuebell.bridge.queues.redis.store import RedisStore
from tests.conformance.queue import LetPass, QueueStoreConformance
from tests.support.redis import RedisServer


@pytest.mark.system
class TestRedisStore(QueueStoreConformance):
    """In real time: the server's clock is the machine's."""

    @pytest.fixture
    def let_pass(self) -> LetPass:
        return lambda seconds: asyncio.sleep(seconds + 0.002)

    @pytest_asyncio.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[QueueStore]:
        async with RedisServer(tmp_path) as server, RedisStore(server.url()) as store:
            yield store
