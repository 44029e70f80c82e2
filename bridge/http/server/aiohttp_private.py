"""All that depends on private names of aiohttp's server: connections and WebSockets, under public names.

Read this file before another release of aiohttp: the pin in ``pyproject.toml`` is as narrow as it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, cast

from aiohttp import StreamReader, WebSocketError, WSCloseCode, WSMsgType, web
from aiohttp._websocket.reader import WebSocketDataQueue, WebSocketReader
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import EMPTY_PAYLOAD
from aiohttp.web_protocol import _ErrInfo

Fault = _ErrInfo
"""Takes the place of a request that the parser refused: ``status``, ``exc`` and ``message``."""

Overlong = LineTooLong
"""The ``exc`` of a fault if the first line or a header is too long for the parser."""


class HttpProtocol(web.RequestHandler):
    """A server's connection with its state made public."""

    __slots__ = ()

    # State

    @property
    def queued(self) -> bool:
        """Whether parsed requests wait for a handler, or one whose handler is just being started."""
        return bool(self._messages)

    @property
    def pipelined(self) -> int:
        """How many parsed requests wait for a handler."""
        return len(self._messages)

    @property
    def busy(self) -> bool:
        """Whether a request is open or waits for its turn."""
        # `_request_in_progress` is not yet true while the task of a request is only being started.
        return bool(self._messages) or self._waiter is None

    @property
    def upgraded(self) -> bool:
        """Whether the connection is a WebSocket."""
        return self._upgraded or self._payload_parser is not None

    @property
    def ends(self) -> bool:
        """Whether the connection ends now, or after the open request."""
        return self._close or self._force_close

    @property
    def parsed(self) -> int:
        """How many requests were parsed, faults included."""
        return self._request_count

    @property
    def reading_paused(self) -> bool:
        """Whether reading is paused."""
        return self._reading_paused

    @property
    def newest(self) -> tuple[RawRequestMessage | _ErrInfo, StreamReader]:
        """The request parsed last, which waits for a handler."""
        return self._messages[-1]

    def heads(self) -> Iterator[tuple[int, RawRequestMessage]]:
        """Yield the requests that wait for a handler, except faults, each with its place."""
        for place, (head, _) in enumerate(self._messages):
            if not isinstance(head, Fault):
                yield place, head

    # Changes

    def replace_by_fault(self, place: int, fault: _ErrInfo, *, body: bool = True) -> None:
        """Replace a request by a fault; with ``body`` its body is still read to its end."""
        self._messages[place] = (fault, self._messages[place][1] if body else EMPTY_PAYLOAD)

    def end_after_this(self) -> None:
        """End the connection after the open request."""
        self._close = True

    def take_no_more(self) -> None:
        """Have aiohttp do nothing more with this connection."""
        self._force_close = True

    def forget_server(self) -> None:
        """Detach a connection that was never registered with the server."""
        self._manager = None

    async def drained(self) -> None:
        """Wait until writing is not paused; raises `ConnectionResetError` if the peer is gone."""
        await self._drain_helper()

    # Hooks

    def request_begins(self) -> None:
        """Called when a handler starts."""

    def request_ended(self) -> None:
        """Called when the handler has ended."""

    async def _handle_request(self, *args: Any) -> tuple[web.StreamResponse, bool]:
        self.request_begins()
        try:
            return await super()._handle_request(*args)
        finally:
            self.request_ended()


_FRAMES = frozenset({WSMsgType.TEXT, WSMsgType.BINARY})


class Inbox(WebSocketDataQueue):
    """aiohttp's queue of messages; with ``on_message`` set, frames go there as they are parsed.

    Through the queue each frame would cost a future, a turn of the loop and the resumption of several coroutines: for
    ten thousand idle sessions a third of the cost of their heartbeats.
    """

    on_message: Callable[[str | bytes], None] | None = None

    @property
    def empty(self) -> bool:
        """Whether every message was received."""
        return not self._buffer

    def feed_data(self, data: Any, size: int) -> None:
        """Accept one message from the parser."""
        on_message = self.on_message
        if on_message is not None and data[0] in _FRAMES:
            on_message(data[1])
        else:
            super().feed_data(data, size)


class _Masked:
    """Feeds aiohttp's reader, and fails for a client's frame without a mask (RFC 6455 5.1), which aiohttp accepts."""

    def __init__(self, reader: WebSocketReader, inbox: Inbox) -> None:
        self._reader = reader
        self._inbox = inbox
        # The part of a frame's head that has arrived, or how much of a frame is missing.
        self._head = b""
        self._rest = 0

    def feed_eof(self) -> None:
        self._reader.feed_eof()

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        if self._well_formed(data):
            return self._reader.feed_data(data)
        self._inbox.set_exception(WebSocketError(WSCloseCode.PROTOCOL_ERROR, "a client's frame has no mask"))
        return True, b""

    def _well_formed(self, data: bytes) -> bool:
        if self._rest >= len(data):
            self._rest -= len(data)
            return True
        data, at = self._head + data[self._rest :], 0
        self._rest = 0
        while len(data) - at >= 2:
            size = data[at + 1] - 0x80
            if size < 0:
                return False
            extended = 2 if size == 126 else 8 if size == 127 else 0
            if len(data) - at < 2 + extended:
                break
            if extended:
                size = int.from_bytes(data[at + 2 : at + 2 + extended], "big")
            at += 6 + extended + size
            if at >= len(data):
                self._head, self._rest = b"", at - len(data)
                return True
        self._head = data[at:]
        return True


class Socket(web.WebSocketResponse):
    """A WebSocket whose messages, each of fewer than ``max_msg_size`` bytes, come by an `Inbox`."""

    inbox: Inbox

    def _post_start(self, request: web.BaseRequest, protocol: str | None, writer: Any) -> None:
        self._ws_protocol = protocol
        self._writer = writer
        self.inbox = self._reader = Inbox(request.protocol, self._max_msg_size, loop=asyncio.get_running_loop())
        self._parser = WebSocketReader(self.inbox, self._max_msg_size, compress=False, decode_text=True)
        request.protocol.set_parser(cast(WebSocketReader, _Masked(self._parser, self.inbox)))
        request.protocol.keep_alive(False)
