"""One connection to a bridge: calls up, answers down, and the frames of one session.

WebSocket itself (RFC 6455) is the `websockets` library's, of which only the part without I/O is used. A frame is
written in the turn of the loop in which it is sent, and an answer wakes its caller in the turn in which it is read.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

import websockets.client
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from bridge.brokers.ending import why_unreachable
from bridge.contract.calls import WINDOW, AnswerFrame, decode_answer, encode_call, settles
from bridge.contract.errors import BadInput, Closed
from bridge.contract.wire import (
    SUBPROTOCOL,
    Bye,
    DownFrame,
    Ended,
    Goaway,
    Hello,
    Ready,
    UpFrame,
    decode_wire,
    encode_frame,
)

if TYPE_CHECKING:
    from bridge.contract.address import HttpAddress

PATH: Final = "/v1/sessions"
IDLE_S: Final = 30.0
"""A wire that carries nothing ends after so long; the bridge ends its own after 90 s."""
SETTLING_MAX: Final = 64
"""Settlements that are not answered; further ones wait for their turn."""
CLOSE_WITHIN_S: Final = 1.0
SILENT_S: Final = 5.0
"""A wire on which nothing came for so long is given up with its session: heartbeats are as frequent."""
_MESSAGE_MAX: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 65_536
_ABNORMAL: Final = 1006
_log = logging.getLogger("queuebell.wire")


class NotSent(Exception):
    """A call was not sent, or the bridge did not carry it out: it may be made again, there or elsewhere."""


class Unanswered(Exception):
    """A call was sent, and its answer did not come."""


class NoWire(Exception):
    """What answers opens no wire; ``status``, ``headers`` (in lower case) and ``body`` are what it answered, if any."""

    def __init__(self, why: str, status: int = 0, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        super().__init__(why)
        self.status = status
        self.headers = headers or {}
        self.body = body

    @property
    def refused(self) -> bool:
        """Whether it is a bridge, which does not accept the key; anything else between may answer the same."""
        problem = self.headers.get("content-type", "").startswith("application/problem+json")
        return self.status in (401, 403) and problem


class _Sent:
    """One call; ``n`` is 0 while it waits for its turn."""

    __slots__ = ("body", "deadline", "future", "media", "method", "n", "owner", "settles", "target")

    def __init__(
        self,
        owner: object,
        future: asyncio.Future[AnswerFrame],
        method: str,
        target: str,
        body: bytes,
        media: str,
        deadline: float,
    ) -> None:
        self.owner = owner
        self.future = future
        self.method = method
        self.target = target
        self.body = body
        self.media = media
        self.deadline = deadline
        self.settles = settles(method, target)
        self.n = 0


class WireSession(Protocol):
    """The listener's end of the session that a wire carries."""

    def on_frame(self, frame: DownFrame) -> None:
        """Process one frame; frames come in order."""

    def on_end(self, code: int | None, why: str) -> None:
        """Process the end of the session; called once, with a WebSocket close code if there was one."""


class Wire(asyncio.Protocol):
    """A connection to the bridge at ``where``; made by `bridge.brokers.wire.wires`."""

    def __init__(self, where: HttpAddress, authorization: str | None) -> None:
        self.loop = asyncio.get_running_loop()
        self._where = where
        uri = WebSocketURI(where.scheme == "https", where.host, where.port, PATH, "")
        self._socket = websockets.client.ClientProtocol(
            uri, subprotocols=[Subprotocol(SUBPROTOCOL)], max_size=_MESSAGE_MAX, logger=_log
        )
        self._authorization = authorization
        self._transport: asyncio.Transport | None = None
        self.ready: asyncio.Future[Ready] = self.loop.create_future()
        # Whoever asked may be gone.
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())
        """Set once calls and a session may go; fails with `NoWire` or `NotSent`."""
        self.gone: Callable[[], object] | None = None
        """Called once it has ended."""
        self.users: set[object] = set()
        """Those who have it open: without any it is closed."""
        self.session: WireSession | None = None
        self._greeted = False
        self._leaving = False
        """Whether the bridge has not yet said that the session before has ended."""
        self.retired = False
        """Whether nothing new goes over it: it ends once everything is answered."""
        self._closed = self.loop.create_future()
        self._n = 0
        self._window = WINDOW
        self._sent: dict[int, _Sent] = {}
        self._in_window = 0
        self._settling = 0
        self._first: deque[_Sent] = deque()
        self._then: deque[_Sent] = deque()
        self._paused = False
        self._parts: list[bytes] = []
        self._part_of: Opcode = Opcode.BINARY
        self._timer: asyncio.TimerHandle | None = None
        self._used_at = self._heard_at = self.loop.time()
        self._idle: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        """Whether calls may go."""
        return not self.retired and self._transport is not None and not self._transport.is_closing()

    # Calls

    async def call(
        self, owner: object, method: str, target: str, body: bytes, media: str, within_s: float
    ) -> AnswerFrame:
        """Make one call and wait for its answer, for ``within_s`` seconds at most.

        Raises `NotSent` or `Unanswered`, and `Closed` where its owner went meanwhile. Who is cancelled does not wait
        any more; a call that was sent may be carried out all the same.
        """
        if not self.open:
            raise NotSent("it closed the connection")
        now = self.loop.time()
        future: asyncio.Future[AnswerFrame] = self.loop.create_future()
        sent = _Sent(owner, future, method, target, body, media, now + within_s)
        self._used_at = now
        (self._first if sent.settles else self._then).append(sent)
        self._pump()
        if self._timer is None or self._timer.when() > sent.deadline:
            self._arm(sent.deadline)
        return await future

    def _pump(self) -> None:
        """Send what may go: settlements first, so that no lease lapses behind other calls."""
        if self._socket.state is not State.OPEN:
            return  # what waits was not sent, and is told so when the connection has ended
        while self._first and self._settling < SETTLING_MAX and not self._paused:
            self._send_call(self._first.popleft())
        while self._then and self._in_window < self._window and not self._paused:
            self._send_call(self._then.popleft())

    def _send_call(self, sent: _Sent) -> None:
        if sent.future.done():
            return
        self._n = sent.n = self._n + 1
        self._socket.send_binary(encode_call(sent.n, sent.method, sent.target, sent.body, sent.media))
        self._sent[sent.n] = sent
        if sent.settles:
            self._settling += 1
        else:
            self._in_window += 1
        sent.body = b""
        self._write()

    def _answered(self, data: bytes) -> None:
        answer = decode_answer(data)
        sent = None if answer is None else self._sent.pop(answer.n, None)
        if answer is None or sent is None:
            return
        self._no_longer(sent)
        if not sent.future.done():
            sent.future.set_result(answer)
        if self._first or self._then:
            self._pump()
        if self.retired:
            self._end_if_done()

    def _no_longer(self, sent: _Sent) -> None:
        if sent.settles:
            self._settling -= 1
        else:
            self._in_window -= 1

    def forsake(self, owner: object) -> None:
        """Fail the calls of an owner that goes."""
        for sent in [*self._sent.values(), *self._first, *self._then]:
            if sent.owner is owner and not sent.future.done():
                sent.future.set_exception(Closed("the store was closed"))

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now = self.loop.time()
        silent = False
        for lane in (self._first, self._then):
            for sent in [sent for sent in lane if sent.deadline <= now]:
                lane.remove(sent)
                if not sent.future.done():
                    sent.future.set_exception(NotSent("time-out"))
        for sent in self._sent.values():
            if sent.deadline <= now:
                if not sent.future.done():
                    sent.future.set_exception(Unanswered("time-out"))
                # It keeps its place, for the bridge counts it until it is answered.
                sent.deadline = math.inf
                silent = True
        if silent and (self._heard_at < self._used_at or self._in_window >= self._window):
            # Nothing came for as long as a call may take, or no call can go any more.
            self.retire()
        self._pump()
        if self.retired:
            self._end_if_done()
        deadline = min((each.deadline for each in (*self._sent.values(), *self._first, *self._then)), default=math.inf)
        if deadline < math.inf:
            self._arm(deadline)

    # The session

    @property
    def taken(self) -> bool:
        """Whether it has a session, or the one before has not ended at the bridge."""
        return self.session is not None or self._leaving

    def attach(self, session: WireSession) -> None:
        """Begin the session of this wire."""
        self.session, self._greeted = session, False

    def detach(self, session: WireSession) -> None:
        """End its session: the frames that follow are nobody's. A wire on which nothing comes is given up."""
        if self.session is not session:
            return
        now = self.loop.time()
        self.session, self._used_at = None, now
        if self._greeted:
            self._leaving = True
            self.send(Bye())
        if now - self._heard_at > SILENT_S:
            self.retire()
        elif self.retired:
            self._end_if_done()

    def send(self, frame: UpFrame) -> None:
        """Put a frame of the session on its way; after a break it is dropped."""
        if self._socket.state is State.OPEN:
            self._greeted = self._greeted or isinstance(frame, Hello)
            self._socket.send_text(encode_frame(frame))
            self._write()

    def _on_frame(self, text: bytes) -> None:
        session = self.session
        try:
            frame = decode_wire(text)
        except BadInput as error:
            if not self.ready.done():
                self._fail_opening(NoWire(f"its first frame cannot be read: {error}"))
            elif session is not None:
                self.session = None
                session.on_end(None, f"the bridge sent a frame that cannot be read: {error}")
                self.retire()
            return
        if isinstance(frame, Ready):
            self._window = max(1, frame.window)
            if not self.ready.done():
                self.ready.set_result(frame)
        elif isinstance(frame, Goaway):
            self._go_away(frame.last)
        elif isinstance(frame, Ended) and self._leaving:
            self._leaving = False
        elif session is None or frame is None:
            return
        elif isinstance(frame, Ended):
            self.session, self._used_at = None, self.loop.time()
            session.on_end(frame.code, frame.reason)
            if self.retired:
                self._end_if_done()
        else:
            session.on_frame(frame)

    def _go_away(self, last: int) -> None:
        for n in [n for n in self._sent if n > last]:
            sent = self._sent.pop(n)
            self._no_longer(sent)
            if not sent.future.done():
                sent.future.set_exception(NotSent("the bridge is stopping"))
        self._fail_waiting(NotSent("the bridge is stopping"))
        self.retire()

    def _fail_waiting(self, error: Exception) -> None:
        for lane in (self._first, self._then):
            for sent in lane:
                if not sent.future.done():
                    sent.future.set_exception(error)
            lane.clear()

    # The end

    def retire(self) -> None:
        """Take nothing new, and end once everything that was sent is answered or out of time."""
        self.retired = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        waiting = (*self._sent.values(), *self._first, *self._then)
        if self.session is None and all(each.future.done() for each in waiting):
            self.end()

    def end(self) -> None:
        """Close the connection; what was written leaves first."""
        self.retired = True
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._socket.state is State.OPEN:
            self._socket.send_close(1000)
            self._write()
        transport.close()
        # A peer that does not read keeps nobody waiting.
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self.loop.call_later(CLOSE_WITHIN_S, transport.abort)

    async def close(self) -> None:
        """Close the connection, and wait for its end, a second at most."""
        self.end()
        if self._transport is not None:
            await asyncio.wait([self._closed], timeout=CLOSE_WITHIN_S)
            self._transport.abort()

    def leave(self, user: object) -> bool:
        """Let go of a user; say whether nobody is left who has it open."""
        self.users.discard(user)
        return not self.users

    def _check_idle(self) -> None:
        left = self._used_at + IDLE_S - self.loop.time()
        idle = all(each.future.done() for each in (*self._sent.values(), *self._first, *self._then))
        if left <= 0 and self.session is None and idle:
            self._idle = None
            self.end()
            return
        self._idle = self.loop.call_later(left if left > 0 else IDLE_S, self._check_idle)

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask for the wire."""
        self._transport = cast(asyncio.Transport, transport)
        if hasattr(transport, "max_size"):
            # asyncio reads into fresh 256 KiB each time, which costs more than the reading.
            transport.max_size = _READ_BYTES
        request = self._socket.connect()
        if self._authorization is not None:
            request.headers["Authorization"] = self._authorization
        self._socket.send_request(request)
        self._write()

    def data_received(self, data: bytes) -> None:
        """Take what came; an exception while one frame is processed costs that frame."""
        self._heard_at = self.loop.time()
        self._socket.receive_data(data)
        if self._socket.handshake_exc is not None and not self._socket.events:
            self._fail_opening(NoWire("its answer is not HTTP/1.1"))
        for event in self._socket.events_received():
            try:
                self._take(event)
            except Exception:  # noqa: BLE001 - it costs this frame
                _log.exception(
                    "unexpected error in a frame from the bridge at %s; other frames are not affected", self._where.url
                )
        if self._socket.writes:
            self._write()
        if self._socket.state is State.CLOSING and self._transport is not None:
            self._transport.close()

    def _take(self, event: object) -> None:
        if isinstance(event, Frame):
            opcode = event.opcode
            if (opcode is Opcode.TEXT or opcode is Opcode.BINARY) and event.fin:
                self._whole(opcode, bytes(event.data))
            elif opcode is Opcode.TEXT or opcode is Opcode.BINARY:
                self._part_of, self._parts = opcode, [bytes(event.data)]
            elif opcode is Opcode.CONT:
                self._parts.append(bytes(event.data))
                if event.fin:
                    whole, self._parts = b"".join(self._parts), []
                    self._whole(self._part_of, whole)
        elif isinstance(event, Response) and self._socket.handshake_exc is not None:
            headers = {name.lower(): value for name, value in event.headers.raw_items()}
            why = f"it returned status {event.status_code}"
            self._fail_opening(NoWire(why, event.status_code, headers, bytes(event.body or b"")))
        elif isinstance(event, Response) and self._socket.subprotocol != SUBPROTOCOL:
            self._fail_opening(NoWire(f"it does not support {SUBPROTOCOL}"))

    def _whole(self, opcode: Opcode, data: bytes) -> None:
        if opcode is Opcode.BINARY:
            self._answered(data)
        else:
            self._on_frame(data)

    def _fail_opening(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
        self.retired = True
        if self._transport is not None:
            self._transport.close()

    def eof_received(self) -> bool:
        """Hear that the bridge writes no more."""
        self._socket.receive_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail what waits, each by whether it was sent."""
        self.retired = True
        for timer in (self._timer, self._idle):
            if timer is not None:
                timer.cancel()
        self._timer = self._idle = None
        self._socket.receive_eof()
        received = self._socket.close_rcvd
        code = None if received is None else received.code
        why = "it closed the connection" if exc is None else why_unreachable(exc)
        if not self.ready.done():
            self.ready.set_exception(exc if isinstance(exc, OSError) else NoWire("it closed the connection"))
        sent, self._sent = self._sent, {}
        for each in sent.values():
            if not each.future.done():
                each.future.set_exception(Unanswered(why))
        self._fail_waiting(NotSent(why))
        session, self.session = self.session, None
        if session is not None:
            session.on_end(code, "" if received is None else received.reason)
        if self.gone is not None:
            self.gone()
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """Send no more calls until the bridge has read some of them; frames of the session go on."""
        self._paused = True

    def resume_writing(self) -> None:
        """Send on."""
        self._paused = False
        self._pump()
        if self.retired:
            self._end_if_done()

    def _write(self) -> None:
        transport = self._transport
        if transport is None:
            return
        for data in self._socket.data_to_send():
            if data:
                transport.write(data)

    def begin_idling(self) -> None:
        """Count the time in which nothing is carried, from now on."""
        self._idle = self.loop.call_later(IDLE_S, self._check_idle)
