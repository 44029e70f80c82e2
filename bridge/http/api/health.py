"""Health and metrics: ``/livez``, ``/healthz``, ``/readyz``, ``/metrics``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from bridge.access.grants import Verb
from bridge.http.api.routes import Routes
from bridge.http.server.answer import Answer
from bridge.observe.slices import between_others

if TYPE_CHECKING:
    from bridge.http.server.call import Caller
    from bridge.service.bridge import Bridge

_ALIVE = b'{"alive":true}'


class HealthRoutes:
    """What supervisors and scrapers ask."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    def add_to(self, routes: Routes) -> None:
        """Put the routes into the table."""
        routes.add("GET", "/livez", None, self.alive)
        routes.add("GET", "/healthz", None, self.alive)
        routes.add("GET", "/readyz", None, self.ready, call=True)
        routes.add("GET", "/metrics", Verb.OPERATE, self.metrics)

    async def alive(self, request: Caller, _: str) -> Answer:
        """Answer at all: the loop runs."""
        return Answer(200, _ALIVE)

    async def ready(self, request: Caller, _: str) -> Answer:
        """Say whether everything that a site requires works."""
        readiness = self._bridge.readiness()
        answer = Answer(200 if readiness.ready else 503, msgspec.json.encode(readiness))
        if not readiness.ready:
            answer.add_header("Retry-After", "1")
        return answer

    async def metrics(self, request: Caller, _: str) -> Answer:
        """Give the metrics in Prometheus's text format."""
        # Read in slices and written as text beside the loop: thousands of queues take longer than a wake should wait.
        metrics = self._bridge.metrics
        write = await between_others(metrics.snapshot())
        return Answer(200, await asyncio.to_thread(write), metrics.content_type)
