"""Processes that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.services.register import Register
from tests.support.processes import Processes


@pytest_asyncio.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    """Start processes below the test's own folder, and end them all."""
    async with Processes(tmp_path) as running:
        yield running


@pytest_asyncio.fixture
async def register(processes: Processes) -> Register:
    """Keep count of what is put and handled."""
    return Register(processes)
