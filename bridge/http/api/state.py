"""The bridge's state over HTTP: health, metrics, listeners, findings, the cluster, explanations; and ``forget``."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from bridge.access.grants import Verb
from bridge.http.api.routes import Routes
from bridge.http.server.answer import Answer, Refusal
from bridge.observe.slices import between_others
from bridge.service.state import explain
from bridge.service.state.answers import Listeners, ListenerState, Subject
from bridge.service.state.status import findings, with_webhooks

if TYPE_CHECKING:
    from bridge.http.server.call import Caller
    from bridge.service.bridge import Bridge

Rows = Callable[[], list[ListenerState]]
"""Tells of the listeners of a channel."""
Subjects = Callable[[], list[Subject]]


class StateRoutes:
    """Who listens, sessions first and plain subscribers after them; what a person should know of, and may end."""

    def __init__(self, bridge: Bridge, plain: Sequence[Rows], subjects: Sequence[Subjects]) -> None:
        self._bridge = bridge
        self._plain = plain
        self._subjects = subjects

    def add_to(self, routes: Routes) -> None:
        """Put the routes into the table."""
        routes.add("GET", "/v1/listeners", Verb.OPERATE, self.listeners, call=True)
        routes.add("GET", "/v1/findings", Verb.OPERATE, self.findings, call=True)
        routes.add("GET", "/v1/cluster", Verb.OPERATE, self.cluster, call=True)
        routes.add("POST", "/v1/queues/{queue}/forget", Verb.OPERATE, self.forget, call=True)
        routes.add("GET", "/v1/queues/{queue}/explain", Verb.LOOK, self.explain, call=True)

    async def findings(self, request: Caller, _: str) -> Answer:
        """Give what a person should know of, also of webhooks."""
        found = await between_others(
            findings(
                self._bridge.scheduler,
                self._bridge.now(),
                stalled=self._bridge.flushes.stalled,
                notices_suspend=self._bridge.suspends.noticed,
            )
        )
        return Answer(200, msgspec.json.encode(with_webhooks(found, self._rows())))

    async def explain(self, request: Caller, queue: str) -> Answer:
        """Say who would get a trigger now, of sessions and of plain subscribers; 404 for a queue never heard of."""
        explained = explain.of(self._bridge, queue)
        if explained is None:
            raise Refusal("queue_not_found", "there is no such queue")
        subjects = [subject for tell in self._subjects for subject in tell()]
        return Answer(200, msgspec.json.encode(explain.plain(explained, self._rows(), subjects)))

    async def forget(self, request: Caller, queue: str) -> Answer:
        """Forget a queue elsewhere that is gone; 404 for one never heard of, 409 where it stands or has listeners."""
        self._bridge.forget(queue)
        return Answer(204)

    async def cluster(self, request: Caller, _: str) -> Answer:
        """Give the cluster as this bridge sees it; one without a name for a bridge without others."""
        return Answer(200, msgspec.json.encode(self._bridge.cluster()))

    async def listeners(self, request: Caller, _: str) -> Answer:
        """Give one object per session and plain subscriber."""
        return Answer(200, msgspec.json.encode(Listeners(self._bridge.listeners() + self._rows())))

    def _rows(self) -> list[ListenerState]:
        return [row for tell in self._plain for row in tell()]


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
