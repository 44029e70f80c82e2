"""A server's connections and its WebSockets."""

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
"""What stands in a request's place where the parser refused it: ``status``, ``exc`` and ``message``."""

Overlong = LineTooLong
"""What a fault holds where the first line or a header is longer than the parser takes."""


class HttpProtocol(web.RequestHandler):
    """A server's connection, of which more can be asked than aiohttp tells."""

    __slots__ = ()

    # Asked

    @property
    def queued(self) -> bool:
        """Whether requests were parsed that no handler has taken yet, or one whose handler is just being started."""
        return bool(self._messages)

    @property
    def pipelined(self) -> int:
        """How many requests were parsed that no handler has taken yet."""
        return len(self._messages)

    @property
    def busy(self) -> bool:
        """Whether a request is under way or waits for its turn."""
        # `_request_in_progress` is not yet true while the task of a request is only being started.
        return bool(self._messages) or self._waiter is None

    @property
    def upgraded(self) -> bool:
        """Whether what comes is no HTTP any more."""
        return self._upgraded or self._payload_parser is not None

    @property
    def ends(self) -> bool:
        """Whether the connection is to end, at once or after what is under way."""
        return self._close or self._force_close

    @property
    def parsed(self) -> int:
        """How many requests were parsed, faults included."""
        return self._request_count

    @property
    def reading_paused(self) -> bool:
        """Whether nothing is read off the wire for now."""
        return self._reading_paused

    @property
    def newest(self) -> tuple[RawRequestMessage | _ErrInfo, StreamReader]:
        """The request parsed last, which no handler has taken yet."""
        return self._messages[-1]

    def heads(self) -> Iterator[tuple[int, RawRequestMessage]]:
        """Give the requests that no handler has taken yet, but for faults, each with its place."""
        for place, (head, _) in enumerate(self._messages):
            if not isinstance(head, Fault):
                yield place, head

    # Said

    def spoil(self, place: int, fault: _ErrInfo, *, body: bool = True) -> None:
        """Put a fault in a request's place, with its ``body`` to be read to its end or without."""
        self._messages[place] = (fault, self._messages[place][1] if body else EMPTY_PAYLOAD)

    def end_after_this(self) -> None:
        """End the connection once what is under way was answered."""
        self._close = True

    def take_no_more(self) -> None:
        """Have aiohttp do nothing more with this connection, whose bytes are written past it."""
        self._force_close = True

    def forget_server(self) -> None:
        """Undo that the server was told of this connection, where it never was."""
        self._manager = None

    async def drained(self) -> None:
        """Wait until writing is not paused; raises `ConnectionResetError` where the peer is gone."""
        await self._drain_helper()

    # Heard

    def request_begins(self) -> None:
        """Hear that a request is being handled now."""

    def request_ended(self) -> None:
        """Hear that it was answered, or never will be."""

    async def _handle_request(self, *args: Any) -> tuple[web.StreamResponse, bool]:
        self.request_begins()
        try:
            return await super()._handle_request(*args)
        finally:
            self.request_ended()


_FRAMES = frozenset({WSMsgType.TEXT, WSMsgType.BINARY})


class Inbox(WebSocketDataQueue):
    """aiohttp's queue of messages, which hands frames over as they are parsed, once somebody hears them.

    Through the queue each frame would cost a future, a turn of the loop and the resumption of a stack of coroutines:
    for ten thousand idle sessions a third of their heartbeats' cost.
    """

    hear: Callable[[str | bytes], None] | None = None

    @property
    def empty(self) -> bool:
        """Whether all that came was received."""
        return not self._buffer

    def feed_data(self, data: Any, size: int) -> None:
        """Take one message from the parser."""
        hear = self.hear
        if hear is not None and data[0] in _FRAMES:
            hear(data[1])
        else:
            super().feed_data(data, size)


class _Masked:
    """Feeds aiohttp's reader, and fails for a client's frame without a mask (RFC 6455 5.1), which that one takes."""

    def __init__(self, reader: WebSocketReader, inbox: Inbox) -> None:
        self._reader = reader
        self._inbox = inbox
        # The part of a frame's head that has come, or how much of a frame has not.
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
