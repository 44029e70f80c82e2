"""The store on PGMQ answers the questions that all stores answer, by a real server and PGMQ's own SQL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from queuebell.bridge.queues.postgres.pgmq import PgmqStore
from tests.bridge.queues.pgmq_rig import database, pgmq_server
from tests.conformance.queue import LetPass, QueueStoreConformance

__all__ = ["database", "pgmq_server"]


@pytest.mark.system
class TestPgmqStore(QueueStoreConformance):
    accounts = ("conformance",)

    @pytest_asyncio.fixture
    async def store(self, database: str) -> AsyncIterator[PgmqStore]:
        address = database.replace("postgres://", "pgmq://")
        async with PgmqStore(f"{address}?account=conformance") as store:
            yield store

    @pytest.fixture
    def let_pass(self) -> LetPass:
        # In real time: a receipt names the end of its lease, so nothing else may move that.
        return lambda seconds: asyncio.sleep(seconds + 0.002)
