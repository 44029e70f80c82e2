"""A shop for each test, with a bridge and a database."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.queuebell.frameworks.django.shop import Shop, sqlite
from tests.support.processes import Processes


@pytest_asyncio.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    """Start processes below the test's own folder, and end them all."""
    async with Processes(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def shop(processes: Processes) -> Shop:
    """A shop on SQLite with orders 1 to 9, whose tasks are the bridge's own messages."""
    bridge = await processes.serve()
    return Shop(processes, bridge, sqlite(processes.folder, range(1, 10)), {"store": bridge.url})
