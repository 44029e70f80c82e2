"""Server-Sent Events: answers that last until either side ends them.

Events are written directly to the transport: sending never blocks and needs no task besides aiohttp's own for the
request. Nothing is written to a slow reader until it has read what was sent; one that reads nothing for
``write_timeout`` is cut off (S11).
"""

from __future__ import annotations

import abc
import asyncio
import random
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from aiohttp import ClientConnectionResetError, HttpVersion11

from queuebell.bridge.access.access_watch import Permit
from queuebell.bridge.access.grants import Verb
from queuebell.bridge.http.server.answer import Answer
from queuebell.bridge.http.server.authorizer import Authorizer
from queuebell.bridge.http.server.settings import WebSettings

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

    from queuebell.bridge.http.server.connection import Connection
    from queuebell.bridge.service.bridge import Bridge

EVENT_STREAM = "text/event-stream"

_KERNEL_BYTES = 64 * 1024
_COMMENT = b":\n\n"
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nX-Accel-Buffering: no\r\n"
    b"X-Content-Type-Options: nosniff\r\n"
)


class StreamAnswer(abc.ABC):
    """One client's event stream about ``queues``; it ends with the sender's permission to ``verb``."""

    keep_alive = False
    status = 200

    def __init__(self, kept: StreamAnswers, verb: Verb, queues: frozenset[str] = frozenset()) -> None:
        self.queues = queues
        self.opened_at = 0.0
        self._kept = kept
        self._verb = verb
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._chunked = True
        self._connection: Connection | None = None
        self._transport: asyncio.Transport | None = None
        self._permit: Permit | None = None
        self._written_at = 0.0
        self._comment_timer: asyncio.TimerHandle | None = None

    async def prepare(self, request: BaseRequest) -> None:
        """Write the head and a comment, for proxies that wait for a first byte; then begin."""
        connection = cast("Connection", request.protocol)
        transport = connection.transport
        if transport is None or transport.is_closing():
            raise ClientConnectionResetError("the peer is gone")
        # Autotuning would let megabytes of stale events pile up in the kernel for a reader that does not read.
        wire = transport.get_extra_info("socket")
        if wire is not None:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BYTES)
        self._connection, self._transport = connection, transport
        self._chunked = request.version == HttpVersion11
        framing = b"Transfer-Encoding: chunked\r\n" if self._chunked else b""
        transport.write(b"%b%b%bConnection: close\r\n\r\n" % (_HEAD, connection.fixed_headers, framing))
        self.write(_COMMENT)
        connection.on_hang_up = self.end
        self.opened_at = self._written_at
        self._kept.open[self] = None
        self._permit = self._kept.authorizer.permit(request, self._verb, lambda _: self.end())
        if self._permit is not None:
            self._permit.queues = self.queues
        self._begin()
        self._arm(self._written_at)

    async def write_eof(self) -> None:
        """Wait for the end."""
        try:
            await self._ended
        finally:
            self.end()

    def end(self) -> None:
        """End the stream; may be called twice."""
        transport, self._transport = self._transport, None
        if transport is None:
            return
        assert self._connection is not None
        self._connection.on_hang_up = None
        if self._comment_timer is not None:
            self._comment_timer.cancel()
        if self._permit is not None:
            self._permit.close()
        self._kept.open.pop(self, None)
        self._finish()
        if self._chunked and not transport.is_closing():
            transport.write(b"0\r\n\r\n")
        if not self._ended.done():
            self._ended.set_result(None)

    def writable(self) -> bool:
        """Return whether the peer has read everything; until then further events must be merged (I5)."""
        return self._transport is not None and self._transport.get_write_buffer_size() == 0

    def write(self, data: bytes) -> None:
        """Write whole events, however much is unread."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else data)
        self._written_at = self._loop.time()

    @abc.abstractmethod
    def _begin(self) -> None:
        """Begin to send events."""

    @abc.abstractmethod
    def _finish(self) -> None:
        """Stop sending events."""

    def _arm(self, since: float) -> None:
        due = since + self._kept.comment_interval()
        self._comment_timer = self._loop.call_at(due, self._keep_alive, due)

    def _keep_alive(self, due: float) -> None:
        if self._kept.draining:
            self.end()
            return
        # Events delay the comment; a peer that reads nothing needs none.
        if self._written_at > due - 0.5 * self._kept.period:
            self._arm(self._written_at)
            return
        if self.writable():
            self.write(_COMMENT)
        self._arm(due)


class StreamAnswers:
    """All event streams of one kind of one web server, at most ``settings.streams``."""

    def __init__(
        self, bridge: Bridge, settings: WebSettings, authorizer: Authorizer, draw: Callable[[], float] = random.random
    ) -> None:
        self._bridge = bridge
        self._limit = settings.streams
        self._draw = draw
        self.authorizer = authorizer
        self.open: dict[StreamAnswer, None] = {}
        self.period = settings.stream_comment

    @property
    def draining(self) -> bool:
        """Whether the bridge is stopping."""
        return self._bridge.draining

    def instead(self, request: BaseRequest) -> Answer | None:
        """Return another answer in place of a stream: to HEAD, while stopping, and past the limit.

        A browser's EventSource gives up at any status but 200; these make it reconnect (S23).
        """
        if request.method == "HEAD":
            return Answer(200, b"", EVENT_STREAM)
        self.authorizer.connect(request)
        if self.draining:
            return Answer(200, b"retry: 1000\n\n", EVENT_STREAM, close=True)
        if len(self.open) >= self._limit:
            return Answer(200, b"retry: 5000\n: there are too many streams\n\n", EVENT_STREAM, close=True)
        return None

    def close(self) -> None:
        """End all streams; their clients reconnect by themselves."""
        for answer in list(self.open):
            answer.end()

    def comment_interval(self) -> float:
        """Return how long a stream may be silent, randomized so that comments are spread."""
        return self.period * (0.8 + 0.2 * self._draw())
