"""WebSockets of clients (``GET /v1/sessions``), each with calls and at most one session (docs/reference/clients.md).

Calls are binary frames, frames of the session are text. Neither ends the other: a refused session leaves the calls
alone, a refused call leaves the session alone. Frames are written directly to the transport, whole and unmasked (RFC
6455 section 5.2): sending never blocks and needs no task, and a slow reader delays no others (I5). aiohttp does the
reading, fragments, pings and the closing handshake.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import sys
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from aiohttp import WSMsgType

from queuebell.bridge.access.grants import Principal, Verb
from queuebell.bridge.access.quota_guard import PastLimit
from queuebell.bridge.contract.calls import CALL_BYTES_MAX, CARRIES, HEAD_BYTES_MAX, WINDOW, decode_call
from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.wire import (
    SUBPROTOCOL,
    DownFrame,
    Ended,
    ErrorFrame,
    Goaway,
    Hello,
    Ready,
    UpFrame,
    WireFrame,
    decode_up,
    encode_frame,
)
from queuebell.bridge.http.api.triggers import refuse_while_draining
from queuebell.bridge.http.server.aiohttp_private import Socket
from queuebell.bridge.http.server.answer import Refusal
from queuebell.bridge.http.server.authorizer import Authorizer
from queuebell.bridge.http.server.call import Call
from queuebell.bridge.observe.facts import AccessRefused
from queuebell.bridge.observe.swallowed import swallow
from queuebell.bridge.service.channels.base import FORBIDDEN, OVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from aiohttp.web import BaseRequest, Request, StreamResponse

    from queuebell.bridge.access.access_watch import End, Permit
    from queuebell.bridge.access.certificates import Certificate
    from queuebell.bridge.access.keys import Identity
    from queuebell.bridge.http.api.routes import Routes
    from queuebell.bridge.http.server.answer import Answer, Peer
    from queuebell.bridge.http.server.connection import Connection
    from queuebell.bridge.service.bridge import Bridge
    from queuebell.bridge.service.sessions import BridgeSession

log = logging.getLogger("queuebell.bridge")

WRITE_BUFFER_MAX: Final = 64 * 1024
"""Above this much unsent, wakes stay in their slots. The kernel's own buffer (some MiB on loopback) comes on top."""
WRITE_BUFFER_ABORT: Final = 1024 * 1024
"""Answers to session frames have no slots: a peer that sends and never reads would accumulate them."""
UNSENT_MAX: Final = 32 * 1024
"""Above this much unsent, calls wait to be carried out: their answers would delay wakes."""
SETTLE_BYTES_MAX: Final = 4 * 1024 * 1024
"""Of unanswered settlements."""
SETTLING_MAX: Final = 1024
"""Unanswered settlements; Queuebell's clients have at most 64."""
HELD_MAX: Final = 8
"""Delayed refusals; further ones are answered immediately, because a client has only its window."""
SMALL_BYTES: Final = 4096
"""Larger unread answers raise the limit for a peer that reads nothing."""
CLOSE_TIMEOUT_S: Final = 1.0
IDLE_S: Final = 90.0
"""A wire without a session ends this long after its last call; clients end theirs after 30 s."""
RESTART: Final = 1012
_POLICY: Final = 1008
_TOO_BIG: Final = 1009
_LATER: Final = 1013
_TEXT: Final = 0x81
_BINARY: Final = 0x82
# An eager task saves a turn of the loop.
_AT_ONCE: Final[dict[str, Any]] = {"eager_start": True} if sys.version_info >= (3, 12) else {}
# aiohttp closes at messages of this size and more; a call or frame that is somewhat too large gets an answer instead.
_MESSAGE_MAX: Final = 4 * CALL_BYTES_MAX + HEAD_BYTES_MAX


class Wires:
    """The open wires of a web server; ``refused`` returns the answer for an error."""

    def __init__(
        self, bridge: Bridge, routes: Routes, authorizer: Authorizer, refused: Callable[[Exception], Answer]
    ) -> None:
        self.bridge = bridge
        self.routes = routes
        self.refused = refused
        self.open: set[Wire] = set()
        self._authorizer = authorizer
        self._ready = Ready(WINDOW, bridge.named_boot, [CARRIES])

    def add_to(self, routes: Routes) -> None:
        """Add the route; it needs no permission, because every call and session does."""
        routes.add("GET", "/v1/sessions", None, self.serve)

    async def serve(self, request: BaseRequest, _: str) -> StreamResponse:
        """Open a WebSocket connection for calls and sessions.

        A WebSocket handshake (RFC 6455) that offers the subprotocol queuebell.v2; any other request is refused. Binary
        messages are calls, with the paths and bodies of this document (docs/reference/clients.md). Text messages are
        the frames of a worker's session, JSON of at most 65536 bytes, described in asyncapi.yaml. With `--auth` it
        requires a key; each call and each session needs its own permission.
        """
        refuse_while_draining(self.bridge)
        if (waits := self._authorizer.authorize(request, None, "")) is not None:
            await waits
        offered = [part.strip() for part in request.headers.get("Sec-WebSocket-Protocol", "").split(",")]
        ws = Socket(
            protocols=(SUBPROTOCOL,), compress=False, max_msg_size=_MESSAGE_MAX, timeout=CLOSE_TIMEOUT_S, autoping=False
        )
        # The requests are of aiohttp's base class, which is all that its WebSockets use.
        handshake = cast("Request", request)
        if SUBPROTOCOL not in offered or not ws.can_prepare(handshake).ok:
            older = ": this client is of an older version; upgrade it" if "queuebell.v1" in offered else ""
            raise BadInput("bad_parameter", f"a WebSocket handshake must offer the subprotocol {SUBPROTOCOL}{older}")
        await ws.prepare(handshake)
        # No isinstance: uvloop's transport is not an asyncio.Transport.
        transport = request.transport
        if transport is None:
            # The peer is already gone.
            return ws
        wire = Wire(self, ws, transport, cast("Connection", request.protocol), request.remote or "")
        self.open.add(wire)
        wire.permit = self._authorizer.permit(
            request, None, lambda name: wire.close(OVER[name].close_code, OVER[name].why)
        )
        try:
            wire.send(self._ready)
            await wire.read()
        finally:
            self.open.discard(wire)
            await wire.closed()
        return ws

    def stop(self) -> None:
        """Have every wire answer the calls that have arrived, accept no more, and close."""
        for wire in list(self.open):
            wire.go_away()

    # For the wires

    def is_expired(self, identity: Identity) -> bool:
        """Return whether the key or token has expired."""
        access = self._authorizer.access
        return access is not None and access.wall() >= identity.until

    def connect(self, principal: Principal) -> Callable[[], None] | None:
        """Count a session of a principal; return a function that ends it. Raises `PastLimit`."""
        access = self._authorizer.access
        return None if access is None else access.connect(principal)

    def permit(self, identity: Identity, end: End) -> Permit | None:
        """Return a permit that ends with the permission to take."""
        access = self._authorizer.access
        return None if access is None else access.permit(identity, Verb.TAKE, end)


class Wire:
    """The bridge's end of one wire."""

    __slots__ = (
        "_answers_unsent",
        "_closing",
        "_ended_at",
        "_gone",
        "_held",
        "_idle",
        "_in_window",
        "_last",
        "_loop",
        "_over",
        "_settle_bytes",
        "_transport",
        "_used_at",
        "_wires",
        "_ws",
        "address",
        "calls",
        "connection",
        "had_session",
        "permit",
        "session",
        "waiting",
    )

    def __init__(
        self, wires: Wires, ws: Socket, transport: asyncio.Transport, connection: Connection, address: str
    ) -> None:
        self._wires = wires
        self._ws = ws
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self.connection = connection
        self.address = address
        self.permit: Permit | None = None
        """Ends with the key of the wire; None without an access file."""
        self.session: WireSession | None = None
        self.had_session = False
        """Whether there was one: frames sent before its listener knew of the end are not errors."""
        self.calls: dict[Call, asyncio.Task[None]] = {}
        """Running calls."""
        self._in_window = 0
        """Running calls that count towards the window."""
        self.waiting: list[Call] = []
        """Calls that wait until earlier answers have been read."""
        self._held: dict[asyncio.Future[None], None] = {}
        """Delayed refusals."""
        self._over = 0
        """Calls past the window since it was full."""
        self._settle_bytes = 0
        self._answers_unsent = 0
        self._last = -1
        """The number of the newest call."""
        self._ended_at: int | None = None
        """The number of the last call that is carried out."""
        self._gone = False
        self._closing: asyncio.Task[bool] | None = None
        self._used_at = self._loop.time()
        self._idle: asyncio.TimerHandle | None = self._loop.call_later(IDLE_S, self._check_idle)
        connection.on_drained = self._drained

    # The connection of a call

    @property
    def certificate(self) -> Certificate | None:
        """The peer's TLS certificate."""
        return self.connection.certificate

    @property
    def waiting_since(self) -> float:
        """When the newest call arrived."""
        return self._used_at

    @property
    def ending(self) -> bool:
        """Whether no more calls are carried out."""
        return self._ended_at is not None

    async def delay_refusal(self, seconds: float) -> None:
        """Wait before a refusal is sent. It has no place in the window, so good calls do not wait for it."""
        if len(self._held) >= HELD_MAX or self._gone:
            return
        over = self._loop.create_future()
        self._held[over] = None
        try:
            async with asyncio.timeout(seconds):
                await over
        except TimeoutError:
            pass
        finally:
            self._held.pop(over, None)

    def identity(self) -> Identity | None:
        """Return the holder of the wire's key, None once that is no longer valid."""
        permit = self.permit
        if self._gone or permit is None or self._wires.is_expired(permit.identity):
            return None
        return permit.identity

    # Reading

    async def read(self) -> None:
        """Read until the connection ends."""
        ws = self._ws
        while True:
            if ws.inbox.empty:
                # The queue is empty, so no message can be overtaken.
                ws.inbox.on_message = self.on_message
            message = await ws.receive()
            if self._closing is not None:
                break
            if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                self.on_message(message.data)
            elif message.type is WSMsgType.PING:
                self._used_at = self._loop.time()
                self._count()
                await ws.pong(message.data)
            elif message.type is WSMsgType.PONG:
                self._count()
            else:
                # CLOSE, CLOSING, CLOSED, or an ERROR whose code aiohttp has sent (1002, 1007, 1009).
                break

    def on_message(self, data: str | bytes) -> None:
        """Process one message of the peer."""
        if self._gone:
            return
        try:
            if isinstance(data, str):
                self._on_frame(data)
            else:
                self._on_call(data)
        except Exception as error:  # noqa: BLE001 - only this message is lost
            swallow("a WebSocket message", error)

    def _on_call(self, data: bytes) -> None:
        frame = decode_call(data)
        if frame is None:
            self.close(_POLICY, "a call must begin with a line of number, method and path; lines end with LF")
            return
        if frame.n <= self._last:
            self.close(_POLICY, "call numbers must increase")
            return
        if self._ended_at is not None:
            # A `goaway` has told its sender that it is not carried out.
            return
        self._last = frame.n
        self._used_at = self._loop.time()
        call = Call(self, frame)
        if call.content.size > CALL_BYTES_MAX:
            self._answer(
                call, self._wires.refused(Refusal("too_large", f"a call may have at most {CALL_BYTES_MAX} bytes"))
            )
        elif call.settles:
            self._settle_bytes += call.content.size
            if self._settle_bytes > SETTLE_BYTES_MAX or len(self.calls) - self._in_window > SETTLING_MAX:
                self.close(_POLICY, "too many concurrent settlements")
                return
            self._carry_out(call)
        elif self._in_window + len(self.waiting) - len(self._held) >= WINDOW:
            self._over += 1
            if self._over > WINDOW:
                self.close(_POLICY, f"more than {2 * WINDOW} concurrent calls")
                return
            refusal = Refusal("too_many_requests", f"at most {WINDOW} concurrent calls per connection", retry_after=1)
            self._answer(call, self._wires.refused(refusal))
        elif self.waiting or self._transport.get_write_buffer_size() > UNSENT_MAX:
            self.waiting.append(call)
        else:
            self._carry_out(call)

    def _carry_out(self, call: Call) -> None:
        if not call.settles:
            self._in_window += 1
        task = asyncio.Task(self._run(call), loop=self._loop, name="a call over a wire", **_AT_ONCE)
        if not task.done():
            self.calls[call] = task

    def _done(self, call: Call) -> None:
        self.calls.pop(call, None)
        self._over = 0
        if call.settles:
            self._settle_bytes -= call.content.size
        else:
            self._in_window -= 1
        if self._ended_at is not None and not self.calls and not self.waiting:
            self.close(RESTART, "the bridge is stopping")

    async def _run(self, call: Call) -> None:
        try:
            try:
                answer = await self._wires.routes.serve_call(call)
            except Exception as error:  # noqa: BLE001 - every call is answered
                answer = self._wires.refused(error)
            except asyncio.CancelledError:
                unknown = "the outcome is unknown: it may have been carried out"
                self._answer(call, self._wires.refused(Refusal("internal", unknown, status=500)))
                raise
            self._answer(call, answer)
        finally:
            # Not as a callback, which would take one more turn of the loop.
            self._done(call)

    def _answer(self, call: Call, answer: Answer) -> None:
        transport = self._transport
        if transport.is_closing():
            return
        message = answer.encode_for_call(call.n, cast("Peer", self.connection))
        transport.write(ws_frame(message, _BINARY))
        if unsent := transport.get_write_buffer_size():
            if len(message) > SMALL_BYTES:
                self._answers_unsent += len(message)
            self._cut_off(unsent)

    def _drained(self) -> None:
        """Run the waiting calls, until too much is unsent again; the peer has read everything."""
        self._answers_unsent = 0
        while self.waiting and not self._gone and self._transport.get_write_buffer_size() <= UNSENT_MAX:
            self._carry_out(self.waiting.pop(0))

    # The session

    def _on_frame(self, text: str) -> None:
        session = self.session
        try:
            frame = decode_up(text)
        except BadInput as error:
            why = str(error)
            if session is None:
                why += "; text messages are session frames, and calls are binary messages"
            else:
                self._wires.bridge.unreadable(session.inner, error)
            self._refuse(_TOO_BIG if error.code == "too_large" else _POLICY, error.code, why)
            return
        self._count()
        if frame is None:
            return
        if session is None:
            if isinstance(frame, Hello):
                session = self._begin()
            elif not self.had_session:
                self._refuse(_POLICY, "bad_parameter", "a session must begin with a hello")
            if session is None:
                return
        session.feed(frame)

    def _begin(self) -> WireSession | None:
        bridge, permit = self._wires.bridge, self.permit
        counted: Callable[[], None] | None = None
        try:
            if permit is not None:
                counted = self._wires.connect(permit.identity.principal)
            session = WireSession(self, counted)
            session.inner = bridge.connect(session)
        except PastLimit as error:
            self._refuse(_LATER, "too_many_requests", str(error), error.retry_after_s)
            return None
        except BadInput as error:
            if counted is not None:
                counted()
            self._refuse(_LATER, error.code, str(error), 1)
            return None
        self.session = session
        if permit is not None:
            session.permit = self._wires.permit(permit.identity, session.lose)
        return session

    def _refuse(self, code: int, name: str, text: str, retry_after_s: int | None = None) -> None:
        self.send(ErrorFrame(name, text, retry_after_s))
        if self.session is not None:
            self.session.end(code, name, name)
        else:
            self.send(Ended(code, name))

    def _count(self) -> None:
        if self.permit is not None and (wait := self.permit.request_more()):
            self.connection.stop_reading_for(wait)

    # Writing

    def writable(self) -> bool:
        """Return whether little enough is unsent to write a wake."""
        return self._transport.get_write_buffer_size() < WRITE_BUFFER_MAX

    def send(self, frame: DownFrame | WireFrame) -> None:
        """Write one frame; a peer that leaves 1 MiB unread besides its answers is cut off."""
        transport = self._transport
        if self._gone or transport.is_closing():
            return
        transport.write(ws_frame(encode_frame(frame)))
        self._cut_off(transport.get_write_buffer_size())

    def _cut_off(self, unsent: int) -> None:
        if unsent > WRITE_BUFFER_ABORT + self._answers_unsent:
            log.warning("slow client disconnected: it does not read; it reconnects and nothing is lost")
            self._transport.abort()

    # The end

    def go_away(self) -> None:
        """Run the calls that have arrived, ignore later ones, and close."""
        if self._ended_at is None and not self._gone:
            self.send(Goaway(self._last))
            self._ended_at = self._last
            if not self.calls and not self.waiting:
                self.close(RESTART, "the bridge is stopping")

    def close(self, code: int, reason: str) -> None:
        """End the session, start the closing handshake, and abort the connection after a second."""
        if self._gone:
            return
        self._let_go()
        if self.session is not None:
            self.session.over(reason)
        if self._closing is None and not self._ws.closed and not self._transport.is_closing():
            self._closing = self._loop.create_task(self._close(code, reason), name="closing a wire")

    def _let_go(self) -> None:
        """Start nothing more."""
        self._gone = True
        self.waiting.clear()
        for over in self._held:
            if not over.done():
                over.set_result(None)

    async def _close(self, code: int, reason: str) -> bool:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                return await self._ws.close(code=code, message=reason.encode()[:120])
        except TimeoutError:
            self._transport.abort()
            return False

    async def closed(self) -> None:
        """Release everything after the end of the connection; running calls are finished."""
        self._let_go()
        self._ws.inbox.on_message = None
        self.connection.on_drained = None
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self.permit is not None:
            self.permit.close()
        if self.session is not None:
            self.session.over("connection closed")
        try:
            if self._closing is not None:
                await self._closing
            if self.calls:
                await asyncio.wait(list(self.calls.values()))
        finally:
            # Only if the server cannot wait any longer.
            for task in list(self.calls.values()):
                task.cancel()

    def _check_idle(self) -> None:
        left = self._used_at + IDLE_S - self._loop.time()
        if self.session is None and not self.calls and not self.waiting and left <= 0:
            self._idle = None
            self.close(1000, "idle")
            return
        self._idle = self._loop.call_later(left if left > 0 else IDLE_S, self._check_idle)


class WireSession:
    """The bridge's end of the session on a wire."""

    __slots__ = ("_counted", "_wire", "inner", "permit")

    kind = "websocket"

    def __init__(self, wire: Wire, counted: Callable[[], None] | None) -> None:
        self._wire = wire
        self._counted = counted
        self.inner: BridgeSession = cast("BridgeSession", None)
        self.permit: Permit | None = None

    def feed(self, frame: UpFrame) -> None:
        """Process a frame of the listener, within the permissions of its key."""
        permit = self.permit
        if permit is not None and isinstance(frame, Hello):
            # Other frames concern the queues of the hello, or are ignored.
            queue = permit.use_queues(each.queue for each in frame.queues)
            if queue is not None:
                self._forbid(permit, frame, queue)
                return
            frame = msgspec.structs.replace(frame, instance=permit.instance(frame.instance))
        self.inner.feed(frame)

    def _forbid(self, permit: Permit, frame: Hello, queue: str) -> None:
        bridge = self._wire._wires.bridge
        bridge.emit(
            AccessRefused(FORBIDDEN, permit.identity.principal.name, Verb.TAKE.value, queue, self._wire.address)
        )
        why = f"'take' is not granted on {queue}"
        queues, instance = [each.queue for each in frame.queues], permit.instance(frame.instance)
        bridge.scheduler.rejections.add(bridge.now(), queues, frame.listener, FORBIDDEN, why, instance=instance)
        self._wire.send(ErrorFrame(FORBIDDEN, why))
        self.end(OVER[FORBIDDEN].close_code, FORBIDDEN, FORBIDDEN)

    def lose(self, code: str) -> None:
        """End it because its key lost permissions."""
        self.end(OVER[code].close_code, code, OVER[code].why)

    def end(self, code: int, name: str, text: str) -> None:
        """End it now instead of after the peer's answer: until then work would be dispatched to it."""
        self.close(code, text)
        self.inner.ended(name)

    def over(self, reason: str) -> None:
        """End it after its wire; may be called twice."""
        if self._wire.session is self:
            self._let_go()
            self.inner.ended(reason)

    def _let_go(self) -> None:
        self._wire.session = None
        self._wire.had_session = True
        if self.permit is not None:
            self.permit.close()
        if self._counted is not None:
            self._counted()

    # The `Outlet` of the rules

    def writable(self) -> bool:
        """Whether little enough is unsent."""
        return self._wire.writable()

    def send(self, frame: DownFrame) -> None:
        """Write one frame."""
        if self._wire.session is self:
            self._wire.send(frame)

    def close(self, code: int, reason: str) -> None:
        """Send the end to the listener; the wire stays open."""
        wire = self._wire
        if wire.session is self:
            wire.send(Ended(code, reason))
            self._let_go()


def ws_frame(payload: bytes, first: int = _TEXT) -> bytes:
    """Return ``payload`` as one unmasked frame (RFC 6455 section 5.2)."""
    size = len(payload)
    if size < 126:
        return bytes((first, size)) + payload
    if size < 65536:
        return struct.pack("!BBH", first, 126, size) + payload
    return struct.pack("!BBQ", first, 127, size) + payload
