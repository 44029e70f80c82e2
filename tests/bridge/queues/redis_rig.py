"""A Redis server, a store on it, and what its tests say often."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest_asyncio

from queuebell.bridge.queues.redis.store import RedisStore
from tests.support.redis import RedisServer

QUEUE = "shop/orders"
STREAM = "queuebell:{shop/orders}"


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with RedisServer(tmp_path) as server:
        yield server


@pytest_asyncio.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    async with RedisStore(server.url()) as store:
        yield store


async def pending(redis: Any) -> list[tuple[str, str, int]]:
    """What the group's list says: id, in whose name, how often delivered."""
    found = await redis.xpending_range(STREAM, "queuebell", "-", "+", 10_000)
    return [(each["message_id"], each["consumer"], each["times_delivered"]) for each in found]
