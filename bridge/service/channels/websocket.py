"""Sessions over WebSocket (RFC 6455), one JSON text frame a message.

The bridge writes frames straight to the transport, whole and unmasked (RFC 6455 section 5.2), instead of awaiting
aiohttp's writer: sending never blocks, needs no task per session, and one slow reader delays nobody (I5). Reading,
fragments, pings and the closing handshake stay with aiohttp.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import TYPE_CHECKING

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from bridge.contract.errors import BadInput
from bridge.contract.wire import FRAME_BYTES_MAX, SUBPROTOCOL, DownFrame, ErrorFrame, Hello, decode_up, encode_frame
from bridge.core.grants import Verb
from bridge.observe.facts import AccessRefused
from bridge.queues.aiohttp_private.server import Socket
from bridge.service.channels.base import FORBIDDEN, OVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from bridge.service.access.watch import End, Leave
    from bridge.service.bridge import Bridge

log = logging.getLogger("queuebell.bridge")

# Above this much unsent, wakes stay in their slots. The kernel's own buffer (some MiB on loopback) comes on top.
WRITE_BUFFER_MAX = 64 * 1024
# Answers (welcome, heartbeats, errors) are not in slots. A peer that sends and never reads could grow them for ever.
WRITE_BUFFER_ABORT = 1024 * 1024
CLOSE_TIMEOUT_S = 1.0
# aiohttp refuses messages of this size and more.
_MESSAGE_MAX = FRAME_BYTES_MAX + 1
_UNSUPPORTED_DATA = 1003
_POLICY = 1008
_TOO_BIG = 1009
_TEXT_FIN = 0x81


def text_frame(payload: bytes) -> bytes:
    """Return ``payload`` as one unmasked text frame (RFC 6455 section 5.2)."""
    size = len(payload)
    if size < 126:
        return bytes((_TEXT_FIN, size)) + payload
    if size < 65536:
        return struct.pack("!BBH", _TEXT_FIN, 126, size) + payload
    return struct.pack("!BBQ", _TEXT_FIN, 127, size) + payload


class WebSocketOutlet:
    """The bridge's end of one WebSocket session."""

    __slots__ = ("_closing", "_transport", "_ws")

    kind = "websocket"

    def __init__(self, ws: web.WebSocketResponse, transport: asyncio.Transport) -> None:
        self._ws = ws
        self._transport = transport
        self._closing: asyncio.Task[bool] | None = None

    def writable(self) -> bool:
        """Whether little enough is unsent."""
        return self._transport.get_write_buffer_size() < WRITE_BUFFER_MAX

    def send(self, frame: DownFrame) -> None:
        """Write one frame; a peer that lets a whole MiB pile up is cut off."""
        transport = self._transport
        if self._closing is not None or transport.is_closing():
            return
        transport.write(text_frame(encode_frame(frame)))
        if transport.get_write_buffer_size() > WRITE_BUFFER_ABORT:
            log.warning("session cut off: its listener does not read; it will reconnect and nothing is lost")
            transport.abort()

    def close(self, code: int, reason: str) -> None:
        """Start the closing handshake; after a second the connection is cut."""
        if self._closing is None and not self._ws.closed and not self._transport.is_closing():
            self._closing = asyncio.get_running_loop().create_task(
                self._close(code, reason), name="websocket session close"
            )

    async def _close(self, code: int, reason: str) -> bool:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                return await self._ws.close(code=code, message=reason.encode()[:120])
        except TimeoutError:
            self._transport.abort()
            return False

    async def closed(self) -> None:
        """Wait for a closing handshake that was started."""
        if self._closing is not None:
            await self._closing


async def serve_session(
    request: web.Request,
    bridge: Bridge,
    given: Callable[[End], Leave | None],
    rest: Callable[[float], None],
) -> web.StreamResponse:
    """Serve one session until it ends (route ``GET /v1/sessions``).

    ``given`` returns by whose leave it is open, and has what it is given called when that ends; None is everybody's.
    ``rest`` has its connection not read for so many seconds: frames past its principal's rate are read later.

    Raises `BadInput` (``bad_parameter``) if this is no WebSocket handshake that offers ``queuebell.v1``, and
    (``draining``) while the bridge stops.
    """
    offered = [part.strip() for part in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
    ws = Socket(
        protocols=(SUBPROTOCOL,), compress=False, max_msg_size=_MESSAGE_MAX, timeout=CLOSE_TIMEOUT_S, autoping=False
    )
    if SUBPROTOCOL not in offered or not ws.can_prepare(request).ok:
        raise BadInput("bad_parameter", f"a session is a WebSocket handshake that offers the subprotocol {SUBPROTOCOL}")
    if bridge.draining:
        raise BadInput("draining", "the bridge is stopping; try again in a moment")
    await ws.prepare(request)
    # Not asked for its class: uvloop's is no asyncio.Transport, and every session ended at once.
    transport = request.transport
    if transport is None:
        # The peer was gone before its session began.
        return ws
    outlet = WebSocketOutlet(ws, transport)
    try:
        session = bridge.connect(outlet)
    except BadInput:
        await ws.close(code=WSCloseCode.TRY_AGAIN_LATER)
        return ws
    reason = "connection closed"

    def end(code: int, name: str, text: str) -> None:
        # At once, and not when the peer has answered: until then work would be handed to it.
        nonlocal reason
        ws.inbox.hear = None
        outlet.close(code, text)
        reason = name
        session.ended(reason)

    def refuse(code: int, name: str, text: str) -> None:
        outlet.send(ErrorFrame(name, text))
        end(code, name, name)

    leave = given(lambda name: end(OVER[name].close_code, name, OVER[name].why))

    def count() -> None:
        if leave is not None and (wait := leave.request_more()):
            rest(wait)

    def hear(text: str) -> None:
        try:
            frame = decode_up(text)
        except BadInput as error:
            bridge.unreadable(session, error)
            refuse(_TOO_BIG if error.code == "too_large" else _POLICY, error.code, str(error))
            return
        count()
        if frame is None:
            return
        if leave is not None and isinstance(frame, Hello):
            # What else a session says is about the queues of its hello, or about none that it has a seat at.
            queue = leave.refused(each.queue for each in frame.queues)
            if queue is not None:
                name = leave.identity.principal.name
                bridge.tell(AccessRefused(FORBIDDEN, name, Verb.TAKE.value, queue, request.remote or ""))
                why = f"'take' is not granted on {queue}"
                queues, instance = [each.queue for each in frame.queues], leave.instance(frame.instance)
                bridge.bell.rejections.add(bridge.now(), queues, frame.listener, FORBIDDEN, why, instance=instance)
                refuse(OVER[FORBIDDEN].close_code, FORBIDDEN, why)
                return
            frame = msgspec.structs.replace(frame, instance=leave.instance(frame.instance))
        session.feed(frame)

    try:
        while True:
            if ws.inbox.empty:
                # What came before the session stood has been read: from here on there is nothing to overtake.
                ws.inbox.hear = hear
            message = await ws.receive()
            if reason != "connection closed":
                break
            if message.type is WSMsgType.TEXT:
                hear(message.data)
                if reason != "connection closed":
                    break
            elif message.type is WSMsgType.PING:
                count()
                await ws.pong(message.data)
            elif message.type is WSMsgType.PONG:
                count()
            elif message.type is WSMsgType.BINARY:
                outlet.close(_UNSUPPORTED_DATA, "frames are text")
                reason = "binary frame"
                break
            else:
                # CLOSE, CLOSING, CLOSED, or an ERROR for which aiohttp has sent the code itself (1002, 1007, 1009).
                break
    finally:
        ws.inbox.hear = None
        if leave is not None:
            leave.close()
        session.ended(reason)
        await outlet.closed()
    return ws
