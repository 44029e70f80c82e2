"""Who would get a trigger now: ``GET /v1/queues/{account}/{queue}/explain``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from bridge import explaining
from bridge.web.answer import Answer
from bridge.web.problem import Refusal
from bridge.web.routes import Routes
from bridge.web.served import ServedBridge
from bridge.web.state import Rows

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest


class ExplainRoutes:
    """Sessions as the bridge's rules see them, and plain subscribers as their channels do."""

    def __init__(self, bridge: ServedBridge, subscribers: Sequence[Rows], subjects: Sequence[Rows]) -> None:
        self._bridge = bridge
        self._subscribers = subscribers
        self._subjects = subjects

    def add_to(self, routes: Routes) -> None:
        """Put the route into the table."""
        routes.add("GET", "/v1/queues/{queue}/explain", self.explain)

    async def explain(self, request: BaseRequest, queue: str) -> Answer:
        """Give the object of `explaining.explain` and `explaining.plain`; 404 for a queue never heard of."""
        explained = self._bridge.explain(queue)
        if explained is None:
            raise Refusal("queue_not_found", "there is no such queue")
        subscribers = [row for tell in self._subscribers for row in tell()]
        subjects = [row for tell in self._subjects for row in tell()]
        return Answer(200, msgspec.json.encode(explaining.plain(explained, subscribers, subjects)))
