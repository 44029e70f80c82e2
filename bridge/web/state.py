"""The bridge's state over HTTP: ``GET /v1/listeners``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bridge.web.answer import Answer
from bridge.web.routes import Routes
from bridge.web.served import ServedBridge

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest


class StateRoutes:
    """Who listens."""

    def __init__(self, bridge: ServedBridge) -> None:
        self._bridge = bridge

    def add_to(self, routes: Routes) -> None:
        """Put the route into the table."""
        routes.add("GET", "/v1/listeners", self.listeners)

    async def listeners(self, request: BaseRequest, _: str) -> Answer:
        """Give one object per session."""
        return Answer(200, msgspec.json.encode({"listeners": self._bridge.listeners()}))
