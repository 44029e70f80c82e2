"""The client's half of connections to bridges (docs/reference/clients.md): calls, answers, frames of a session.

A `WireUser` is one store's, publisher's or listener's use of them. A `Wire` is one connection: there is one to each
bridge for each event loop, key and TLS context. WebSocket itself (RFC 6455) is the `websockets` library's part without
I/O. A frame is written in the turn of the loop in which it is sent, and an answer wakes its caller in the turn in which
it is read.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import ssl
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol, cast

import msgspec
import websockets.client
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import WebSocketURI

from queuebell.bridge.brokers.connection import why_unreachable
from queuebell.bridge.contract.calls import WINDOW, AnswerFrame, decode_answer, encode_call, settles
from queuebell.bridge.contract.errors import BadInput, Closed
from queuebell.bridge.contract.wire import (
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
    from queuebell.bridge.brokers.credential import Credential
    from queuebell.bridge.contract.address import HttpAddress

PATH: Final = "/v1/sessions"
WITHOUT_S: Final = 60.0
"""How long HTTP is used after no wire could be opened."""
IDLE_S: Final = 30.0
"""A wire without calls and session is closed after this time; the bridge closes its end after 90 s."""
SETTLING_MAX: Final = 64
"""The most settlements without an answer; further ones wait."""
CLOSE_WITHIN_S: Final = 1.0
SILENT_S: Final = 5.0
"""A wire that receives nothing for this time is closed with its session: heartbeats are as frequent."""
_MESSAGE_MAX: Final = 64 * 1024 * 1024
_READ_BYTES: Final = 65_536
_log = logging.getLogger("queuebell.wire")
Key = tuple[str, str | None, ssl.SSLContext | None]


class NotSent(Exception):
    """A call was not sent, or the bridge did not carry it out: it can be repeated, there or at another bridge."""


class Unanswered(Exception):
    """A call was sent, and there was no answer."""


class NoWire(Exception):
    """The server does not open a wire; ``status``, ``headers`` (names in lower case) and ``body`` are its answer."""

    def __init__(self, why: str, status: int = 0, headers: dict[str, str] | None = None, body: bytes = b"") -> None:
        super().__init__(why)
        self.status = status
        self.headers = headers or {}
        self.body = body

    @property
    def refused(self) -> bool:
        """Whether a bridge rejects the key; a proxy may answer with the same status."""
        problem = self.headers.get("content-type", "").startswith("application/problem+json")
        return self.status in (401, 403) and problem


class WireUser:
    """Makes the calls of one store, publisher or listener to its bridges, with its ``credential``."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential
        self._mine: set[Wire] = set()
        self._waiters: set[asyncio.Future[None]] = set()
        """Calls that wait until a wire is open."""
        self._closed = False
        _users.add(self)

    def forget(self) -> None:
        """Drop all wires without closing them: they belong to the parent process."""
        self._mine = set()

    def may_use(self, where: HttpAddress) -> bool:
        """Return whether to try a wire to this address, rather than HTTP."""
        found = _of_loops.get(loop := asyncio.get_running_loop())
        until = 0.0 if found is None else found.without.get(where.url, 0.0)
        return not until or loop.time() >= until

    async def wire(self, where: HttpAddress, within_s: float) -> Wire:
        """Return the wire to this address, and open it if there is none.

        Raises `NotSent` where the bridge cannot be reached, and `NoWire` where the server does not open one, which is
        remembered for a minute unless the key was rejected.
        """
        wires = _of_loops.setdefault(asyncio.get_running_loop(), _Wires())
        key = (where.url, self._credential.headers().get("Authorization"), self._tls(where))
        wire = wires.open.get(key)
        if wire is None or not wire.open:
            wire = await self._opened(wires, key, where, within_s)
        await self._use(wire)
        return wire

    async def open_session(self, where: HttpAddress, session: WireSession, within_s: float) -> Wire:
        """Start a session on the shared wire, or on a wire of its own if that has one, and return the wire."""
        wire = await self.wire(where, within_s)
        if wire.has_session:
            try:
                async with asyncio.timeout(within_s):
                    wire = await _dial(where, self._credential.headers().get("Authorization"), self._tls(where))
            except TimeoutError:
                raise NotSent("time-out") from None
            except OSError as error:
                raise NotSent(why_unreachable(error)) from error
            await self._use(wire)
        if not wire.open:
            raise NotSent("it closed the connection")
        wire.attach(session)
        return wire

    def _tls(self, where: HttpAddress) -> ssl.SSLContext | None:
        return self._credential.tls() or (_default_tls() if where.scheme == "https" else None)

    async def _use(self, wire: Wire) -> None:
        if self._closed:
            if not wire.users:
                await wire.close()
            raise Closed("the store was closed")
        if self not in wire.users:
            wire.users.add(self)
            self._mine = {each for each in self._mine if each.open}
            self._mine.add(wire)

    async def _opened(self, wires: _Wires, key: Key, where: HttpAddress, within_s: float) -> Wire:
        loop = asyncio.get_running_loop()
        opening = wires.opening.get(key)
        if opening is None:
            opening = wires.opening[key] = _Opening(loop.create_task(_open(wires, key, where), name="opening a wire"))
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        opening.waiting[waiter] = None
        try:
            if not opening.task.done():
                async with asyncio.timeout(within_s):
                    await waiter
            return opening.task.result()
        except TimeoutError:
            # A proxy may drop WebSockets silently.
            wires.without[where.url] = loop.time() + WITHOUT_S
            raise NotSent("time-out") from None
        except OSError as error:
            raise NotSent(why_unreachable(error)) from error
        except NoWire as error:
            if not error.refused:
                wires.without[where.url] = loop.time() + WITHOUT_S
            raise
        finally:
            self._waiters.discard(waiter)
            del opening.waiting[waiter]
            if not opening.waiting and not opening.task.done():
                wires.opening.pop(key, None)
                opening.task.cancel()

    async def close(self) -> None:
        """Fail this user's calls, and close the wires without other users; may be called twice."""
        self._closed = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(Closed("the store was closed"))
        loop = asyncio.get_running_loop()
        # Wires of a loop that has ended have ended with it.
        mine, self._mine = {wire for wire in self._mine if wire.loop is loop}, set()
        left = []
        for wire in mine:
            wire.fail_calls(self)
            if wire.release(self):
                left.append(wire)
        if left:
            await asyncio.gather(*(wire.close() for wire in left))


class _Opening:
    """A wire that is being opened; cancelled with the last caller that waits for it."""

    def __init__(self, task: asyncio.Task[Wire]) -> None:
        self.task = task
        self.waiting: dict[asyncio.Future[None], None] = {}
        """In the order of their calls."""
        task.add_done_callback(self._wake)

    def _wake(self, task: asyncio.Task[Wire]) -> None:
        if not task.cancelled():
            task.exception()  # retrieved: its callers may be gone
        for waiter in self.waiting:
            if not waiter.done():
                waiter.set_result(None)


class _Wires:
    """The wires of one event loop."""

    def __init__(self) -> None:
        self.open: dict[Key, Wire] = {}
        self.opening: dict[Key, _Opening] = {}
        self.without: dict[str, float] = {}
        """Until when HTTP is used, by address."""


# Wires remove themselves at their end, so that their loop can be freed.
_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Wires] = weakref.WeakKeyDictionary()
_users: weakref.WeakSet[WireUser] = weakref.WeakSet()


def _forget_all() -> None:
    """Drop the connections of the parent process without closing them."""
    _of_loops.clear()
    for user in _users:
        user.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


async def _open(wires: _Wires, key: Key, where: HttpAddress) -> Wire:
    try:
        wire = await _dial(where, key[1], key[2])
    finally:
        mine = wires.opening.get(key)
        if mine is not None and mine.task is asyncio.current_task():
            del wires.opening[key]
    wires.open[key] = wire
    wire.gone = functools.partial(_forget, wires, key, wire)
    return wire


def _forget(wires: _Wires, key: Key, wire: Wire) -> None:
    if wires.open.get(key) is wire:
        del wires.open[key]


async def _dial(where: HttpAddress, authorization: str | None, tls: ssl.SSLContext | None) -> Wire:
    loop = asyncio.get_running_loop()
    # A name may have addresses that lead nowhere.
    delay = 0.25 if where.host.strip("0123456789.:[]") else None
    _, wire = await loop.create_connection(
        lambda: Wire(where, authorization), where.host, where.port, ssl=tls, happy_eyeballs_delay=delay
    )
    try:
        await wire.ready
    except BaseException:
        wire.end()
        raise
    wire.begin_idling()
    return wire


@functools.lru_cache(1)
def _default_tls() -> ssl.SSLContext:
    return ssl.create_default_context()


class _Call(msgspec.Struct, eq=False):
    """One call; ``n`` is 0 until it is sent."""

    owner: object
    future: asyncio.Future[AnswerFrame]
    method: str
    target: str
    body: bytes
    media: str
    deadline: float
    settles: bool
    n: int = 0

    def fail(self, error: Exception) -> None:
        """Raise ``error`` in the caller, unless the call has its answer."""
        if not self.future.done():
            self.future.set_exception(error)


class WireSession(Protocol):
    """The listener's end of a wire's session."""

    def on_frame(self, frame: DownFrame) -> None:
        """Process one frame; frames come in order."""

    def on_end(self, code: int | None, why: str) -> None:
        """Process the end of the session; called once, with a WebSocket close code if there was one."""


class Wire(asyncio.Protocol):
    """A connection to the bridge at ``where``, opened by a `WireUser`."""

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
        """Set when calls and a session can start; fails with `NoWire` or `NotSent`."""
        self.ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())  # its callers may be gone
        self.gone: Callable[[], object] | None = None
        """Called at its end."""
        self.users: set[object] = set()
        """Closed without any."""
        self.session: WireSession | None = None
        self._greeted = False
        self._leaving = False
        """Whether the bridge has not yet confirmed the end of the previous session."""
        self.retired = False
        """Whether it accepts nothing new, and ends once everything is answered."""
        self._closed = self.loop.create_future()
        self._n = 0
        self._window = WINDOW
        self._sent: dict[int, _Call] = {}
        self._in_window = 0
        self._settling = 0
        self._first: deque[_Call] = deque()
        self._then: deque[_Call] = deque()
        self._paused = False
        self._parts: list[bytes] = []
        self._part_of: Opcode = Opcode.BINARY
        self._timer: asyncio.TimerHandle | None = None
        self._used_at = self._heard_at = self.loop.time()
        self._idle_timer: asyncio.TimerHandle | None = None

    @property
    def open(self) -> bool:
        """Whether it accepts calls."""
        return not self.retired and self._transport is not None and not self._transport.is_closing()

    # Calls

    async def call(
        self, owner: object, method: str, target: str, body: bytes, media: str, within_s: float
    ) -> AnswerFrame:
        """Make one call and wait for its answer, for ``within_s`` seconds at most.

        Raises `NotSent` or `Unanswered`, and `Closed` if its owner closed meanwhile. A call that was sent and then
        cancelled may be carried out.
        """
        if not self.open:
            raise NotSent("it closed the connection")
        now = self.loop.time()
        future: asyncio.Future[AnswerFrame] = self.loop.create_future()
        sent = _Call(owner, future, method, target, body, media, now + within_s, settles(method, target))
        self._used_at = now
        (self._first if sent.settles else self._then).append(sent)
        self._pump()
        if self._timer is None or self._timer.when() > sent.deadline:
            self._arm(sent.deadline)
        return await future

    def _pump(self) -> None:
        """Send calls within the limits: settlements first, so that no lease lapses behind other calls."""
        if self._socket.state is not State.OPEN:
            return  # waiting calls fail as not sent at the end of the connection
        while self._first and self._settling < SETTLING_MAX and not self._paused:
            self._send_call(self._first.popleft())
        while self._then and self._in_window < self._window and not self._paused:
            self._send_call(self._then.popleft())

    def _send_call(self, sent: _Call) -> None:
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

    def _on_answer(self, data: bytes) -> None:
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

    def _no_longer(self, sent: _Call) -> None:
        if sent.settles:
            self._settling -= 1
        else:
            self._in_window -= 1

    def fail_calls(self, owner: object) -> None:
        """Fail the calls of an owner that closes."""
        for sent in self._calls():
            if sent.owner is owner:
                sent.fail(Closed("the store was closed"))

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
                sent.fail(NotSent("time-out"))
        for sent in self._sent.values():
            if sent.deadline <= now:
                sent.fail(Unanswered("time-out"))
                # It keeps its place: the bridge counts it until it is answered.
                sent.deadline = math.inf
                silent = True
        if silent and (self._heard_at < self._used_at or self._in_window >= self._window):
            # Nothing arrived for as long as a call may take, or the window stays full.
            self.retire()
        self._pump()
        if self.retired:
            self._end_if_done()
        deadline = min((each.deadline for each in self._calls()), default=math.inf)
        if deadline < math.inf:
            self._arm(deadline)

    # The session

    @property
    def has_session(self) -> bool:
        """Whether it has a session, or the previous one has not ended at the bridge."""
        return self.session is not None or self._leaving

    def attach(self, session: WireSession) -> None:
        """Start the session of this wire."""
        self.session, self._greeted = session, False

    def detach(self, session: WireSession) -> None:
        """End its session and drop the frames that follow. A wire that receives nothing is closed."""
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
        """Send a frame of the session; dropped after the end of the connection."""
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
            sent.fail(NotSent("the bridge is stopping"))
        self._fail_waiting(NotSent("the bridge is stopping"))
        self.retire()

    def _fail_waiting(self, error: Exception) -> None:
        for lane in (self._first, self._then):
            for sent in lane:
                sent.fail(error)
            lane.clear()

    # The end

    def retire(self) -> None:
        """Accept nothing new, and end once every call is answered or out of time."""
        self.retired = True
        self._end_if_done()

    def _end_if_done(self) -> None:
        if self._idle():
            self.end()

    def _idle(self) -> bool:
        return self.session is None and all(each.future.done() for each in self._calls())

    def _calls(self) -> list[_Call]:
        """Return all calls without an answer: sent, or waiting for their turn."""
        return [*self._sent.values(), *self._first, *self._then]

    def end(self) -> None:
        """Close the connection after sending what was written."""
        self.retired = True
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._socket.state is State.OPEN:
            self._socket.send_close(1000)
            self._write()
        transport.close()
        # A peer that does not read must not delay the end.
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer = self.loop.call_later(CLOSE_WITHIN_S, transport.abort)

    async def close(self) -> None:
        """Close the connection and wait for its end, one second at most."""
        self.end()
        if self._transport is not None:
            await asyncio.wait([self._closed], timeout=CLOSE_WITHIN_S)
            self._transport.abort()

    def release(self, user: object) -> bool:
        """Remove a user; return whether it was the last one."""
        self.users.discard(user)
        return not self.users

    def _check_idle(self) -> None:
        left = self._used_at + IDLE_S - self.loop.time()
        if left <= 0 and self._idle():
            self._idle_timer = None
            self.end()
            return
        self._idle_timer = self.loop.call_later(left if left > 0 else IDLE_S, self._check_idle)

    # asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the handshake."""
        self._transport = cast(asyncio.Transport, transport)
        if hasattr(transport, "max_size"):
            # asyncio would allocate 256 KiB for each read, which costs more than the read.
            transport.max_size = _READ_BYTES
        request = self._socket.connect()
        if self._authorization is not None:
            request.headers["Authorization"] = self._authorization
        self._socket.send_request(request)
        self._write()

    def data_received(self, data: bytes) -> None:
        """Process received data; an exception in one frame costs that frame."""
        self._heard_at = self.loop.time()
        self._socket.receive_data(data)
        if self._socket.handshake_exc is not None and not self._socket.events:
            self._fail_opening(NoWire("its answer is not HTTP/1.1"))
        for event in self._socket.events_received():
            try:
                self._process(event)
            except Exception:  # noqa: BLE001 - it costs this frame
                _log.exception(
                    "unexpected error in a frame from the bridge at %s; other frames are not affected", self._where.url
                )
        if self._socket.writes:
            self._write()
        if self._socket.state is State.CLOSING and self._transport is not None:
            self._transport.close()

    def _process(self, event: object) -> None:
        if isinstance(event, Frame):
            opcode = event.opcode
            if (opcode is Opcode.TEXT or opcode is Opcode.BINARY) and event.fin:
                self._on_message(opcode, bytes(event.data))
            elif opcode is Opcode.TEXT or opcode is Opcode.BINARY:
                self._part_of, self._parts = opcode, [bytes(event.data)]
            elif opcode is Opcode.CONT:
                self._parts.append(bytes(event.data))
                if event.fin:
                    whole, self._parts = b"".join(self._parts), []
                    self._on_message(self._part_of, whole)
        elif isinstance(event, Response) and self._socket.handshake_exc is not None:
            headers = {name.lower(): value for name, value in event.headers.raw_items()}
            why = f"it returned status {event.status_code}"
            self._fail_opening(NoWire(why, event.status_code, headers, bytes(event.body or b"")))
        elif isinstance(event, Response) and self._socket.subprotocol != SUBPROTOCOL:
            self._fail_opening(NoWire(f"it does not support {SUBPROTOCOL}"))

    def _on_message(self, opcode: Opcode, data: bytes) -> None:
        if opcode is Opcode.BINARY:
            self._on_answer(data)
        else:
            self._on_frame(data)

    def _fail_opening(self, error: Exception) -> None:
        if not self.ready.done():
            self.ready.set_exception(error)
        self.retired = True
        if self._transport is not None:
            self._transport.close()

    def eof_received(self) -> bool:
        """Process the end of the bridge's data."""
        self._socket.receive_eof()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail all calls, by whether they were sent, and the session."""
        self.retired = True
        for timer in (self._timer, self._idle_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._idle_timer = None
        self._socket.receive_eof()
        received = self._socket.close_rcvd
        code = None if received is None else received.code
        why = "it closed the connection" if exc is None else why_unreachable(exc)
        if not self.ready.done():
            self.ready.set_exception(exc if isinstance(exc, OSError) else NoWire("it closed the connection"))
        sent, self._sent = self._sent, {}
        for each in sent.values():
            each.fail(Unanswered(why))
        self._fail_waiting(NotSent(why))
        session, self.session = self.session, None
        if session is not None:
            session.on_end(code, "" if received is None else received.reason)
        if self.gone is not None:
            self.gone()
        if not self._closed.done():
            self._closed.set_result(None)

    def pause_writing(self) -> None:
        """Pause calls until the bridge has read more; frames of the session continue."""
        self._paused = True

    def resume_writing(self) -> None:
        """Resume calls."""
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
        """Start the idle timer."""
        self._idle_timer = self.loop.call_later(IDLE_S, self._check_idle)
