"""An engine behind two bridges answers, asked in turns, what all stores answer."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bridge.queues.base import QueueStore
from bridge.queues.postgres.schema import init
from bridge.queues.postgres.store import PostgresStore
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.conformance.queue import LetPass, QueueStoreConformance
from tests.conformance.served import Turns, served
from tests.support.postgres import let_pass_in

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
