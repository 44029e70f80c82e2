"""What tests of the doors share: a door that is open, and both of aiohttp's parsers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp.web_protocol
import pytest
import pytest_asyncio
from aiohttp.http_parser import HttpRequestParserPy

from tests.support.azure import Front, serving_azure
from tests.support.web import Served, serving


@pytest.fixture(params=["compiled", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test once with each parser: that of an installation, and that of one without the compiled part."""
    kind = str(request.param)
    if kind == "python":
        monkeypatch.setattr(aiohttp.web_protocol, "HttpRequestParser", HttpRequestParserPy)
    return kind


@pytest_asyncio.fixture
async def served() -> AsyncIterator[Served]:
    """A bridge in memory behind its own door."""
    async with serving() as served:
        yield served


@pytest_asyncio.fixture
async def front() -> AsyncIterator[Front]:
    """A bridge in memory behind the Azure endpoint."""
    async with serving_azure() as front:
        yield front
