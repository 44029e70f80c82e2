"""Processes that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.support.processes import Processes


@pytest_asyncio.fixture
async def processes(tmp_path: Path) -> AsyncIterator[Processes]:
    async with Processes(tmp_path) as running:
        yield running
