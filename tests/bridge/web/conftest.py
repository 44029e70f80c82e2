"""Both of aiohttp's parsers: the compiled one, and the pure-Python one of installations without it."""

from __future__ import annotations

import aiohttp.web_protocol
import pytest
from aiohttp.http_parser import HttpRequestParserPy


@pytest.fixture(params=["compiled", "python"])
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test once with each parser."""
    kind = str(request.param)
    if kind == "python":
        monkeypatch.setattr(aiohttp.web_protocol, "HttpRequestParser", HttpRequestParserPy)
    return kind
