"""Processes that end with their test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.sync_api import Browser, sync_playwright

from tests.services.page import CHROMIUM, OPTIONS
from tests.services.register import Register
from tests.support.command import Serving, serving
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


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """One browser for a file; each test has a profile of its own."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(OPTIONS))
        yield browser
        browser.close()


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[Serving]:
    """A bridge in a process of its own."""
    with serving(tmp_path / "data") as started:
        yield started
