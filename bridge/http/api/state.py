"""The bridge's state over HTTP: health, metrics, listeners, findings, the cluster, explanations; and ``forget``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from queuebell.bridge.access.grants import Verb
from queuebell.bridge.contract.errors import QueueNotFound, Unsupported
from queuebell.bridge.http.api.routes import Routes, number, only_query_of
from queuebell.bridge.http.server.answer import Answer, Refusal
from queuebell.bridge.observe.history import SPANS
from queuebell.bridge.observe.slices import between_others
from queuebell.bridge.queues.base import is_key
from queuebell.bridge.service.state import explain
from queuebell.bridge.service.state.answers import Listeners, ListenerState, Subject
from queuebell.bridge.service.state.status import findings, with_webhooks

if TYPE_CHECKING:
    from queuebell.bridge.http.server.call import Caller
    from queuebell.bridge.service.bridge import Bridge

Rows = Callable[[], list[ListenerState]]
"""Returns the listeners of a channel."""
Subjects = Callable[[], list[Subject]]


class StateRoutes:
    """Health, metrics, listeners, findings, the cluster, explanations, and ``forget``."""

    def __init__(self, bridge: Bridge, plain: Sequence[Rows], subjects: Sequence[Subjects]) -> None:
        self._bridge = bridge
        self._plain = plain
        self._subjects = subjects

    def add_to(self, routes: Routes) -> None:
        """Add the routes."""
        routes.add("GET", "/livez", None, self.alive)
        routes.add("GET", "/healthz", None, self.alive)
        routes.add("GET", "/readyz", None, self.ready, call=True)
        routes.add("GET", "/metrics", Verb.OPERATE, self.metrics)
        routes.add("GET", "/v1/listeners", Verb.OPERATE, self.listeners, call=True)
        routes.add("POST", "/v1/listeners/drain", Verb.OPERATE, self.drain, call=True)
        routes.add("GET", "/v1/findings", Verb.OPERATE, self.findings, call=True)
        routes.add("GET", "/v1/cluster", Verb.OPERATE, self.cluster, call=True)
        routes.add("POST", "/v1/queues/{queue}/forget", Verb.OPERATE, self.forget, call=True)
        routes.add("GET", "/v1/queues/{queue}/explain", Verb.LOOK, self.explain, call=True)
        routes.add("GET", "/v1/queues/{queue}/history", Verb.LOOK, self.history, call=True)
        routes.add("GET", "/v1/queues/{queue}/events", Verb.LOOK, self.events, call=True)

    async def findings(self, request: Caller, _: str) -> Answer:
        """Show findings that need attention."""
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
        """Explain which workers a trigger would wake now."""
        explained = explain.of(self._bridge, queue)
        if explained is None:
            raise Refusal("queue_not_found", "there is no such queue")
        subjects = [subject for tell in self._subjects for subject in tell()]
        return Answer(200, msgspec.json.encode(explain.plain(explained, self._rows(), subjects)))

    async def history(self, request: Caller, queue: str) -> Answer:
        """Show what happened on a queue in the last minutes, hours or days.

        Steps without an event are left out. It is kept for the 500 busiest queues, and survives a restart where the
        bridge has a data file. Outcomes, failures and waits are as workers reported them.
        """
        span = only_query_of(request, "span").get("span", "1h")
        if span not in SPANS:
            raise Refusal("bad_parameter", f"span is one of {', '.join(SPANS)}")
        history = self._bridge.history
        if queue not in history and self._bridge.scheduler.pending.find(queue) is None:
            raise Refusal("queue_not_found", "there is no such queue")
        return Answer(200, msgspec.json.encode(history.read(queue, span)))

    async def events(self, request: Caller, queue: str) -> Answer:
        """Watch what happens to the messages of a queue.

        Puts, wakes, receives and settlements from the first call on, for two minutes after the last one, of ten queues
        at a time. At most 200 events: those after the number `after`, or the newest; with `id` those of one message, by
        its id or that of its put. In external stores only wakes.
        """
        query = only_query_of(request, "after", "id")
        after = number(query, "after", 0, 9_999_999_999, 0)
        if self._bridge.scheduler.pending.find(queue) is None:
            raise Refusal("queue_not_found", "there is no such queue")
        events, id_ = self._bridge.events, query.get("id", "")
        found = events.read(queue, after, id_)
        if found is None:
            raise Refusal("too_many_requests", "ten queues are watched already; try again in two minutes")
        if id_ and is_key(id_) and not events.knows(queue, id_):
            with contextlib.suppress(Unsupported, QueueNotFound):
                if (looked := await self._bridge.store.look(queue, id_)) is not None:
                    events.name(queue, id_, looked.message.id)
                    found = events.read(queue, after, id_) or found
        return Answer(200, msgspec.json.encode(found))

    async def forget(self, request: Caller, queue: str) -> Answer:
        """Forget a queue of an external store that no longer exists."""
        self._bridge.forget(queue)
        return Answer(204)

    async def cluster(self, request: Caller, _: str) -> Answer:
        """Show the bridges of this cluster."""
        return Answer(200, msgspec.json.encode(self._bridge.cluster()))

    async def listeners(self, request: Caller, _: str) -> Answer:
        """List workers, event streams and webhooks.

        Webhooks are added in the configuration file only, never over HTTP.
        """
        return Answer(200, msgspec.json.encode(Listeners(self._bridge.listeners() + self._rows())))

    async def drain(self, request: Caller, _: str) -> Answer:
        """Ask a worker to stop.

        It receives nothing more, finishes what it handles, and leaves; whatever started it may start another. Only
        workers with a session at this bridge. A scaler and a worker of an older version are refused (`conflict`).
        """
        asked = self._bridge.drain_worker(only_query_of(request, "instance").get("instance", ""))
        if asked is None:
            raise Refusal("not_found", "no worker of this instance has a session at this bridge")
        if not asked:
            raise Refusal("conflict", "this is a scaler, or a worker of an older version: stop it where it runs")
        return Answer(204)

    async def alive(self, request: Caller, _: str) -> Answer:
        """Check that the bridge answers."""
        return Answer(200, b'{"alive":true}')

    async def ready(self, request: Caller, _: str) -> Answer:
        """Check that all required parts work.

        The data file and each configured bus; a setting decides which of them are required.
        """
        readiness = self._bridge.readiness()
        answer = Answer(200 if readiness.ready else 503, msgspec.json.encode(readiness))
        if not readiness.ready:
            answer.add_header("Retry-After", "1")
        return answer

    async def metrics(self, request: Caller, _: str) -> Answer:
        """Return the metrics."""
        # Read in slices and formatted in a thread: with thousands of queues it takes longer than a wake should wait.
        metrics = self._bridge.metrics
        write = await between_others(metrics.snapshot())
        return Answer(200, await asyncio.to_thread(write), metrics.content_type)

    def _rows(self) -> list[ListenerState]:
        return [row for tell in self._plain for row in tell()]
