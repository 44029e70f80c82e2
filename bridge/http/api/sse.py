"""Wakes as Server-Sent Events at ``GET /v1/wakes?queue=account/queue`` (repeatable).

Each wake is one event whose id is ``<boot>:<gen>``. A client that reconnects with its last id receives newer and
pending wakes. For an id of another boot, or an invalid one, it receives an event ``gap`` and must check its queues
itself. Wakes are hints about a backlog, so nothing is stored or replayed: a slow reader costs one slot per queue.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import msgspec

from queuebell.bridge.access.grants import Verb
from queuebell.bridge.contract.names import parse_reference
from queuebell.bridge.contract.wire import Wake, encode_frame
from queuebell.bridge.http.api.event_stream import StreamAnswer, StreamAnswers
from queuebell.bridge.http.api.routes import Routes, query_pairs
from queuebell.bridge.http.server.answer import Answer, Refusal
from queuebell.bridge.http.server.authorizer import Authorizer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.service.announcing import Announcer, Subscriber
from queuebell.bridge.service.state.answers import ListenerState, Subscribed

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse

    from queuebell.bridge.service.bridge import Bridge

QUEUES_MAX = 100
"""Queues of one stream; the length of an address usually ends it earlier."""

_FIELDS_MAX = 256
_event_id = re.compile(r"([0-9a-f]{32}):([0-9]{1,18})").fullmatch


class EventStream(StreamAnswer):
    """One client's stream of wakes."""

    def __init__(self, streams: EventStreams, queues: frozenset[str], last_id: str | None) -> None:
        super().__init__(streams, Verb.LOOK, queues)
        self._streams = streams
        self._last_id = last_id
        self._newest = 0
        self._subscriber: Subscriber | None = None

    def send(self, wake: Wake) -> None:
        """Write one wake; ids of one stream never go back, or a client would resume from too early."""
        if wake.gen < self._newest:
            wake = msgspec.structs.replace(wake, gen=self._newest)
        self._newest = wake.gen
        self.write(self._streams.encode(wake))

    def _begin(self) -> None:
        streams = self._streams
        self._subscriber = streams.announcer.subscribe(self.queues, writable=self.writable, send=self.send)
        if self._last_id is None:
            # Work that was pending before the first subscriber has not been announced.
            streams.announcer.catch_up(self._subscriber, streams.newest(self.queues))
            return
        match = _event_id(self._last_id)
        if match is not None and match[1] == streams.boot:
            streams.announcer.catch_up(self._subscriber, int(match[2]))
            return
        # With its id the next reconnect starts from here.
        self._newest = streams.newest(self.queues)
        gap = {"type": "gap", "boot": streams.boot, "queues": sorted(self.queues)}
        self.write(_event("gap", f"{streams.boot}:{self._newest}", msgspec.json.encode(gap)))

    def _finish(self) -> None:
        if self._subscriber is not None:
            self._subscriber.end()


class EventStreams(StreamAnswers):
    """All event streams of one web server."""

    def __init__(
        self, bridge: Bridge, settings: WebSettings, authorizer: Authorizer, draw: Callable[[], float] = random.random
    ) -> None:
        super().__init__(bridge, settings, authorizer, draw)
        self._encoded: tuple[Wake | None, bytes] = (None, b"")
        self.boot = bridge.boot
        self.announcer = Announcer(bridge)

    def add_to(self, routes: Routes) -> None:
        """Add the route."""
        routes.add("GET", "/v1/wakes", Verb.LOOK, self.wakes)

    async def wakes(self, request: BaseRequest, _: str) -> Answer | StreamResponse:
        """Receive wakes of queues, as server-sent events.

        The stream stays open; each event `wake` reports that a queue has work. If you send its id back in
        Last-Event-ID, the bridge sends what was missed; an event `gap` means that it cannot know. The events are
        described in asyncapi.yaml.
        """
        pairs = query_pairs(request, _FIELDS_MAX)
        named = [parse_reference(value) for name, value in pairs if name == "queue"]
        queues = frozenset(named)
        if not queues:
            raise Refusal(
                "bad_parameter",
                "?queue=account/queue is missing: it names the queue whose wakes to send; repeat it for several",
            )
        if len(named) > QUEUES_MAX:
            raise Refusal("too_many_items", f"at most {QUEUES_MAX} queues per stream")
        self.authorizer.require(request, Verb.LOOK, queues)
        instead = self.instead(request)
        if instead is not None:
            return instead
        last_id = request.headers.get("Last-Event-ID")
        if last_id is None:
            # EventSource cannot set a header on its first connection.
            last_id = next((value for name, value in pairs if name in ("last_event_id", "lastEventId")), None)
        return cast("StreamResponse", EventStream(self, queues, last_id or None))

    def rows(self) -> list[ListenerState]:
        """Return the streams for ``GET /v1/listeners``."""
        now = asyncio.get_running_loop().time()
        return [
            ListenerState(
                listener="event stream",
                channel="sse",
                connected_s=round(now - stream.opened_at, 3),
                queues=[Subscribed(queue=queue) for queue in sorted(stream.queues)],
            )
            for stream in self.open
        ]

    def newest(self, queues: frozenset[str]) -> int:
        """Return the newest generation of these queues."""
        return max(self._bridge.newest(queue)[0] for queue in queues)

    def encode(self, wake: Wake) -> bytes:
        """Encode a wake as an event, once for all streams."""
        if self._encoded[0] is not wake:
            self._encoded = (wake, _event("wake", f"{wake.boot}:{wake.gen}", encode_frame(wake)))
        return self._encoded[1]


def _event(kind: str, id_: str, data: bytes) -> bytes:
    """Return one event; JSON escapes line breaks, and kind and id contain no input, so no field can be forged (S21)."""
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id_.encode(), kind.encode(), data)
