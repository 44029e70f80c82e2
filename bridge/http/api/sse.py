"""Wakes for whoever can read a line: Server-Sent Events at ``GET /v1/wakes?queue=account/queue`` (repeatable).

Each wake is one event whose id is ``<boot>:<gen>``. A client that comes back with the last id it saw is told at once of
what is newer or still owed; where the id is of another boot, or none of ours, it is told so in band by an event ``gap``
and has to look at its queues itself. Wakes are hints about a level, so nothing is replayed and nothing is kept: a slow
reader costs one slot per queue, and one that takes nothing for ``write_timeout`` is cut off (S11).
"""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import msgspec
from aiohttp import ClientConnectionResetError, HttpVersion11

from bridge.contract.names import parse_reference
from bridge.contract.wire import Wake, encode_frame
from bridge.core.grants import Verb
from bridge.http.api.routes import Routes, query_pairs
from bridge.http.server.answer import Answer
from bridge.http.server.doorkeeper import Doorkeeper
from bridge.http.server.problem import Refusal
from bridge.http.server.settings import WebSettings
from bridge.service.access.watch import Leave
from bridge.service.announcing import Announcer, Subscriber
from bridge.service.state import ListenerState, Subscribed

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest, StreamResponse

    from bridge.http.server.connection import Connection
    from bridge.service.bridge import Bridge

EVENT_STREAM = "text/event-stream"
QUEUES_MAX = 100
"""Queues of one stream; the length of an address usually ends it earlier."""

_FIELDS_MAX = 256
_KERNEL_BYTES = 64 * 1024
_COMMENT = b":\n\n"
_event_id = re.compile(r"([0-9a-f]{32}):([0-9]{1,18})").fullmatch
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nX-Accel-Buffering: no\r\n"
    b"X-Content-Type-Options: nosniff\r\n"
)


class EventStream:
    """One client's stream: an answer that lasts until either side ends it.

    Written straight to the transport: sending never blocks and needs no task beside aiohttp's own for the request.
    """

    keep_alive = False
    status = 200

    def __init__(self, streams: EventStreams, queues: frozenset[str], last_id: str | None) -> None:
        self.queues = queues
        self.opened_at = 0.0
        self._streams = streams
        self._last_id = last_id
        self._newest = 0
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._chunked = True
        self._connection: Connection | None = None
        self._transport: asyncio.Transport | None = None
        self._subscriber: Subscriber | None = None
        self._leave: Leave | None = None
        self._written_at = 0.0
        self._beat: asyncio.TimerHandle | None = None

    async def prepare(self, request: BaseRequest) -> None:
        """Write the head and a comment at once, for proxies that wait for a first byte; then what was missed."""
        connection = cast("Connection", request.protocol)
        transport = connection.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("the peer is gone")
        # Autotuning would let megabytes of stale wakes pile up in the kernel for a reader that does not read.
        wire = transport.get_extra_info("socket")
        if wire is not None:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        self._connection, self._transport = connection, transport
        self._chunked = request.version == HttpVersion11
        framing = b"Transfer-Encoding: chunked\r\n" if self._chunked else b""
        transport.write(b"%b%b%bConnection: close\r\n\r\n" % (_HEAD, connection.fixed_headers, framing))
        self._write(_COMMENT)
        connection.hung_up = self.end
        self.opened_at = self._written_at
        self._subscriber = self._streams.opened(self)
        self._leave = self._streams.door.leave(request, Verb.LOOK, lambda _: self.end())
        if self._leave is not None:
            self._leave.queues = self.queues
        self._resume()
        self._arm(self._written_at)

    async def write_eof(self) -> None:
        """Wait for the end of the stream."""
        try:
            await self._ended
        finally:
            self.end()

    def end(self) -> None:
        """End the stream, whoever wants it; may be called twice."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        assert self._connection is not None
        self._connection.hung_up = None
        if self._beat is not None:
            self._beat.cancel()
        if self._subscriber is not None:
            self._subscriber.end()
        if self._leave is not None:
            self._leave.close()
        self._streams.closed(self)
        if self._chunked and not transport.is_closing():
            transport.write(b"0\r\n\r\n")
        if not self._ended.done():
            self._ended.set_result(None)

    def writable(self) -> bool:
        """Whether the peer took all that was written: what it did not take yet still merges in its slots (I5)."""
        return self._transport is not None and self._transport.get_write_buffer_size() == 0

    def send(self, wake: Wake) -> None:
        """Write one wake; ids of one stream never go back, or a client would resume from too early."""
        if wake.gen < self._newest:
            wake = msgspec.structs.replace(wake, gen=self._newest)
        self._newest = wake.gen
        self._write(self._streams.encode(wake))

    def _resume(self) -> None:
        assert self._subscriber is not None
        if self._last_id is None:
            # What was owed before anybody listened was announced to nobody: whoever comes first hears of it.
            self._streams.announcer.catch_up(self._subscriber, self._streams.newest(self.queues))
            return
        match = _event_id(self._last_id)
        if match is not None and match[1] == self._streams.boot:
            self._streams.announcer.catch_up(self._subscriber, int(match[2]))
            return
        # The id goes along, so that the next reconnect starts from here and not from the unknown place again.
        self._newest = self._streams.newest(self.queues)
        gap = {"type": "gap", "boot": self._streams.boot, "queues": sorted(self.queues)}
        self._write(_event("gap", f"{self._streams.boot}:{self._newest}", msgspec.json.encode(gap)))

    def _write(self, data: bytes) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        self._written_at = self._loop.time()

    def _arm(self, since: float) -> None:
        due = since + self._streams.pause()
        self._beat = self._loop.call_at(due, self._keep_alive, due)

    def _keep_alive(self, due: float) -> None:
        if self._streams.draining:
            self.end()
            return
        # Traffic meanwhile puts the comment off; whoever takes nothing needs none either.
        if self._written_at > due - 0.5 * self._streams.period:
            self._arm(self._written_at)
            return
        if self.writable():
            self._write(_COMMENT)
        self._arm(due)


class EventStreams:
    """All event streams of one web server."""

    def __init__(
        self, bridge: Bridge, settings: WebSettings, door: Doorkeeper, draw: Callable[[], float] = random.random
    ) -> None:
        self._bridge = bridge
        self.door = door
        self._limit = settings.streams
        self._draw = draw
        self._open: dict[EventStream, None] = {}
        self._encoded: tuple[Wake | None, bytes] = (None, b"")
        self.period = settings.stream_comment
        self.boot = bridge.boot
        self.announcer = Announcer(bridge)

    def add_to(self, routes: Routes) -> None:
        """Put the route into the table."""
        routes.add("GET", "/v1/wakes", Verb.LOOK, self.wakes)

    async def wakes(self, request: BaseRequest, _: str) -> Answer | StreamResponse:
        """Open one stream; a request that names no queue, or one that cannot be, is refused with 400."""
        pairs = query_pairs(request, _FIELDS_MAX)
        named = [parse_reference(value) for name, value in pairs if name == "queue"]
        queues = frozenset(named)
        if not queues:
            raise Refusal("bad_parameter", "?queue=account/queue says whose wakes to send, once or repeated")
        if len(named) > QUEUES_MAX:
            raise Refusal("too_many_items", f"at most {QUEUES_MAX} queues a stream")
        self.door.require(request, Verb.LOOK, queues)
        if request.method == "HEAD":
            return Answer(200, b"", EVENT_STREAM)
        self.door.connect(request)
        # A browser's EventSource gives up for ever at any status but 200; this way it comes again by itself (S23).
        if self.draining:
            return Answer(200, b"retry: 1000\n\n", EVENT_STREAM, close=True)
        if len(self._open) >= self._limit:
            return Answer(200, b"retry: 5000\n: there are too many streams\n\n", EVENT_STREAM, close=True)
        last_id = request.headers.get("Last-Event-ID")
        if last_id is None:
            # EventSource cannot set a header on its first connection.
            last_id = next((value for name, value in pairs if name in ("last_event_id", "lastEventId")), None)
        return cast("StreamResponse", EventStream(self, queues, last_id or None))

    @property
    def draining(self) -> bool:
        """Whether the bridge is stopping."""
        return self._bridge.draining

    def opened(self, stream: EventStream) -> Subscriber:
        """Count a stream and have it hear wakes from now on."""
        self._open[stream] = None
        return self.announcer.subscribe(stream.queues, writable=stream.writable, send=stream.send)

    def closed(self, stream: EventStream) -> None:
        """Stop counting a stream."""
        self._open.pop(stream, None)

    def close(self) -> None:
        """End all streams; their clients reconnect by themselves."""
        for stream in list(self._open):
            stream.end()

    def rows(self) -> list[ListenerState]:
        """Tell of the streams as ``GET /v1/listeners`` does of sessions."""
        now = asyncio.get_running_loop().time()
        return [
            ListenerState(
                listener="event stream",
                channel="sse",
                connected_s=round(now - stream.opened_at, 3),
                queues=[Subscribed(queue=queue) for queue in sorted(stream.queues)],
            )
            for stream in self._open
        ]

    def newest(self, queues: frozenset[str]) -> int:
        """Return the newest generation of these queues."""
        return max(self._bridge.newest(queue)[0] for queue in queues)

    def pause(self) -> float:
        """Return how long a stream may be silent, spread so that comments do not leave in step."""
        return self.period * (0.8 + 0.2 * self._draw())

    def encode(self, wake: Wake) -> bytes:
        """Write a wake as an event; the same object told to a thousand streams is written once."""
        if self._encoded[0] is not wake:
            self._encoded = (wake, _event("wake", f"{wake.boot}:{wake.gen}", encode_frame(wake)))
        return self._encoded[1]


def _event(kind: str, id_: str, data: bytes) -> bytes:
    """Write one event; JSON escapes line breaks, and kind and id are ours, so no field can be forged (S21)."""
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (id_.encode(), kind.encode(), data)
