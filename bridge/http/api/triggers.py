"""Triggers in over HTTP: ``POST /v1/triggers`` and ``POST /v1/triggers/{account}/{queue}?size=n``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aiohttp import hdrs
from multidict import istr

from queuebell.bridge.access.grants import Verb
from queuebell.bridge.contract.cloudevents import VERSION_HEADER, decode_http, is_cloudevents
from queuebell.bridge.contract.event import PAYLOAD_SIZE_MAX, REQUEST_BYTES_MAX, CloudQueueWorkDetected, decode_events
from queuebell.bridge.contract.names import split_reference
from queuebell.bridge.http.api.routes import TRIGGERS, Routes, number, query_of
from queuebell.bridge.http.server.answer import Answer, Refusal
from queuebell.bridge.http.server.authorizer import TRIGGERED_ANYWAY, Authorizer
from queuebell.bridge.http.server.body import is_json, read_body, require_json
from queuebell.bridge.http.server.guard import Guard

if TYPE_CHECKING:
    from queuebell.bridge.http.server.call import Caller
    from queuebell.bridge.service.bridge import Bridge

BUS = "http"
# An istr is not folded again for each request.
_VERSION = istr(VERSION_HEADER)
_ONE = b'{"accepted":1}'


class TriggerRoutes:
    """The routes of triggers: a trigger takes effect before it is acknowledged (B1)."""

    def __init__(self, bridge: Bridge, guard: Guard, authorizer: Authorizer) -> None:
        self._bridge = bridge
        self._guard = guard
        self._authorizer = authorizer

    def add_to(self, routes: Routes) -> None:
        """Add the two routes."""
        routes.add("POST", TRIGGERS, Verb.RING, self.triggers, call=True)
        routes.add("POST", TRIGGERS + "/{queue}", Verb.RING, self.one, call=True)

    async def triggers(self, request: Caller, _: str) -> Answer:
        """Report work on queues in external stores.

        One trigger, a list of them, or CloudEvents; all are accepted or none. A put to this bridge's own queues needs
        no trigger. At most 1048576 bytes, and 65536 for one trigger. With the header ce-specversion the request is one
        CloudEvent in binary mode, whatever its Content-Type: its attributes are the headers ce-*, its data is the body.
        """
        refuse_while_draining(self._bridge)
        if _VERSION in request.headers or not is_json(request):
            return await self._cloud_events(request)
        events = decode_events(await read_body(request, REQUEST_BYTES_MAX))
        return self._accept(request, events)

    async def _cloud_events(self, request: Caller) -> Answer:
        """Accept CloudEvents: structured or a batch by Content-Type, binary by the header of their version."""
        headers = request.headers
        media = headers.get(hdrs.CONTENT_TYPE)
        # The data of a binary event has any type. No page can send its headers without a preflight (S8, as for JSON).
        if not is_cloudevents(media) and _VERSION not in headers:
            require_json(request)
        return self._accept(request, decode_http(headers, await read_body(request, REQUEST_BYTES_MAX)))

    async def one(self, request: Caller, queue: str) -> Answer:
        """Report work on one queue in an external store.

        For use by hand: the address contains everything, and a body is refused.
        """
        refuse_while_draining(self._bridge)
        size = number(query_of(request), "size", 1, PAYLOAD_SIZE_MAX, 1)
        # A body was meant for the other route; here its fields would be ignored.
        if request.body_exists and await read_body(request, 1024):
            raise Refusal("bad_trigger", "this address takes no body: its path and ?size= contain everything")
        account, name = split_reference(queue)
        return self._accept(request, [CloudQueueWorkDetected(account, name, size)])

    def _accept(self, request: Caller, events: Sequence[CloudQueueWorkDetected]) -> Answer:
        # All or nothing, as with everything else that is wrong with one of them.
        if self._authorizer.requires_key:
            self._authorizer.require(request, Verb.RING, (event.queue for event in events))
        wait = self._guard.seconds_to_wait(request)
        if wait or self._authorizer.past_rate(request):
            # Known queues are triggered anyway (S13, I8): a merged hint costs nothing, a dropped one costs a sweep.
            # A new name costs memory, so it counts towards the rate: its sender tries again.
            events = [event for event in events if self._bridge.scheduler.pending.find(event.queue)]
        accepted = self._bridge.trigger(events, bus=BUS) if events else 0
        if wait:
            raise Refusal("too_many_requests", TRIGGERED_ANYWAY, retry_after=wait)
        return Answer(202, _ONE if accepted == 1 else b'{"accepted":%d}' % accepted)


def refuse_while_draining(bridge: Bridge) -> None:
    """Refuse new work while the bridge stops (S23)."""
    if bridge.draining:
        raise Refusal("draining", "the bridge is stopping", close=True)
