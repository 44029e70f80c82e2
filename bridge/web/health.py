"""Health and metrics: ``/livez``, ``/healthz``, ``/readyz``, ``/metrics``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from bridge.web.answer import Answer
from bridge.web.routes import Routes
from bridge.web.served import ServedBridge

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

_ALIVE = b'{"alive":true}'


class HealthRoutes:
    """What supervisors and scrapers ask."""

    def __init__(self, bridge: ServedBridge) -> None:
        self._bridge = bridge

    def add_to(self, routes: Routes) -> None:
        """Put the routes into the table."""
        routes.add("GET", "/livez", self.alive)
        routes.add("GET", "/healthz", self.alive)
        routes.add("GET", "/readyz", self.ready)
        routes.add("GET", "/metrics", self.metrics)

    async def alive(self, request: BaseRequest, _: str) -> Answer:
        """Answer at all: the loop runs."""
        return Answer(200, _ALIVE)

    async def ready(self, request: BaseRequest, _: str) -> Answer:
        """Say whether everything that a site requires works."""
        ready, checks = self._bridge.readiness()
        answer = Answer(200 if ready else 503, msgspec.json.encode({"ready": ready, "checks": checks}))
        if not ready:
            answer.add_header("Retry-After", "1")
        return answer

    async def metrics(self, request: BaseRequest, _: str) -> Answer:
        """Give the metrics in Prometheus's text format."""
        metrics = self._bridge.metrics
        return Answer(200, metrics.render(), metrics.content_type)
