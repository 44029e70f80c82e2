"""The bridge's state over HTTP: ``GET /v1/listeners`` and ``GET /v1/findings``; ``POST /v1/queues/{a}/{q}/forget``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from bridge.web.answer import Answer
from bridge.web.routes import Routes
from bridge.web.served import ServedBridge

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest


Rows = Callable[[], list[dict[str, object]]]
"""Tells one object per listener of a channel, with at least ``listener``, ``channel`` and ``queues``."""


class StateRoutes:
    """Who listens, sessions first and plain subscribers after them; what a person should know of, and may end."""

    def __init__(self, bridge: ServedBridge, plain: Sequence[Rows] = ()) -> None:
        self._bridge = bridge
        self._plain = plain

    def add_to(self, routes: Routes) -> None:
        """Put the routes into the table."""
        routes.add("GET", "/v1/listeners", self.listeners)
        routes.add("GET", "/v1/findings", self.findings)
        routes.add("POST", "/v1/queues/{queue}/forget", self.forget)

    async def findings(self, request: BaseRequest, _: str) -> Answer:
        """Give the object of `standing.findings`."""
        return Answer(200, msgspec.json.encode(self._bridge.findings()))

    async def forget(self, request: BaseRequest, queue: str) -> Answer:
        """Forget a queue elsewhere that is gone; 404 for one never heard of, 409 where it stands or has listeners."""
        self._bridge.forget(queue)
        return Answer(204)

    async def listeners(self, request: BaseRequest, _: str) -> Answer:
        """Give one object per session and plain subscriber."""
        rows = self._bridge.listeners() + [row for tell in self._plain for row in tell()]
        return Answer(200, msgspec.json.encode({"listeners": rows}))
