"""One client's connection: aiohttp's, with the time-outs and limits that it lacks.

aiohttp has no time-out for headers, has no limit on all headers together, never aborts a peer that stopped reading,
logs a traceback per malformed request, closes a half-closed socket before the answer, and leaves a handler waiting for
the rest of a body with malformed chunks (C parser). `Connection` adds these around the public hooks of
``asyncio.Protocol``; it works with aiohttp's C parser and its pure-Python one, and both are tested.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from aiohttp import EMPTY_PAYLOAD, StreamReader
from aiohttp.web import BaseRequest, RequestPayloadError, Server, StreamResponse

from queuebell.bridge.access.access_watch import certificate_of
from queuebell.bridge.contract.address import is_loopback, sender_of
from queuebell.bridge.http.server.aiohttp_private import Fault, HttpProtocol, Overlong
from queuebell.bridge.http.server.answer import CLOSE, Answer, Refusal, refuse
from queuebell.bridge.http.server.memory_bounds import AnswerMemory, BodyMemory
from queuebell.bridge.http.server.settings import WebSettings

if TYPE_CHECKING:
    from queuebell.bridge.access.certificates import Certificate
    from queuebell.bridge.http.server.sockets import QuietLog

# The parsers' own limits; the exact ones of the settings are checked once a head is complete. A line may have more than
# `uri_bytes`, so that the refusal can distinguish a long address from a long header.
_LINE_BYTES = 8190
_HEADERS_SLACK = 4

_READ_BYTES = 65_536
_PROGRESS_BYTES = 65_536
_LINGERING_MAX = 64
_PIPELINED_MAX = 16


class Connection(HttpProtocol):
    """One connection; times are those of the loop."""

    __slots__ = (
        "_address",
        "_below",
        "_body",
        "_crowded",
        "_deadline",
        "_half_closed",
        "_head",
        "_held",
        "_reading_pause",
        "_refused",
        "_room_taken",
        "_served_at",
        "_stall",
        "_stall_size",
        "_wire",
        "arrived",
        "certificate",
        "counted",
        "ending",
        "fixed_headers",
        "on_drained",
        "on_hang_up",
        "server",
        "settings",
    )

    def __init__(self, server: ConnectionServer, *, loop: asyncio.AbstractEventLoop) -> None:
        settings = server.settings
        super().__init__(
            server,
            loop=loop,
            keepalive_timeout=settings.keepalive_timeout,
            access_log=cast(Any, None),
            max_line_size=_LINE_BYTES,
            max_field_size=_LINE_BYTES,
            max_headers=settings.headers + _HEADERS_SLACK,
            lingering_time=settings.linger,
            # A compressed body is refused, never inflated (S7); by default aiohttp inflates it first.
            auto_decompress=False,
        )
        self.server = server
        self.settings = settings
        self.fixed_headers = server.fixed_headers
        self.ending = False
        self.arrived = 0.0
        """When the newest request arrived, by the loop's clock."""
        self.on_hang_up: Callable[[], None] | None = None
        """Set by an event stream: called when the peer closes its half or is gone."""
        self.certificate: Certificate | None = None
        """The peer's TLS certificate, None without."""
        self.on_drained: Callable[[], None] | None = None
        """Set by a wire: called when the peer has read everything."""
        self.counted: Callable[[], None] | None = None
        """Set while the connection counts as a session or stream of a principal: called at its end."""
        self._address = ""
        # When the previous answer had been read.
        self._served_at = 0.0
        # The peer has closed its half: its requests are answered, and then the connection ends.
        self._half_closed = False
        self._refused = False
        self._wire: asyncio.Transport | None = None
        # The transport that TLS writes to.
        self._below: asyncio.Transport | None = None
        # Bytes of an incomplete head, and its deadline.
        self._head = b""
        self._deadline: asyncio.TimerHandle | None = None
        # The body of the newest parsed request.
        self._body: StreamReader = EMPTY_PAYLOAD
        self._stall: asyncio.TimerHandle | None = None
        self._stall_size = 0
        self._room_taken = 0
        # Reasons to read nothing: too many pipelined requests, a delayed refusal, a pause after a refused put.
        self._crowded = False
        self._held = False
        self._reading_pause: asyncio.TimerHandle | None = None

    # Coming and going

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or refuse it."""
        wire = self._wire = cast(asyncio.Transport, transport)
        peer = wire.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) else ""
        if not self.server.accepts(self._address):
            self._turn_away(wire)
            return
        self.server.opened(self, self._address)
        self._below = report_every_byte(wire)
        self.certificate = certificate_of(wire.get_extra_info("peercert"))
        # asyncio reads into a new buffer of 256 KiB each time. Mapping and unmapping it costs more than the reading.
        if hasattr(wire, "max_size"):
            wire.max_size = _READ_BYTES
        super().connection_made(transport)
        self._deadline = self._loop.call_later(self.settings.header_timeout, self._head_is_late)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Release timers and limits."""
        self._cancel_deadline()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self._reading_pause is not None:
            self._reading_pause.cancel()
            self._reading_pause = None
        self._wire = self._below = None
        self.server.unread.release(self)
        if self._refused:
            self.server.turned_away -= 1
            self.forget_server()
            return
        self.server.lost(self, self._address)
        if self.counted is not None:
            self.counted()
            self.counted = None
        if self.on_hang_up is not None:
            self.on_hang_up()
        # aiohttp ends only the handler's body; it would wait for the rest of a refused one until its linger is over.
        self._break_body()
        super().connection_lost(exc)

    def _turn_away(self, wire: asyncio.Transport) -> None:
        # No task, no parser: one answer, and half a second before a reset could destroy it (S12).
        self._refused = True
        self.take_no_more()
        self.server.turned_away += 1
        if self.server.turned_away > self.server.lingering_most:
            wire.abort()
            return
        refusal = Refusal("too_many_requests", "too many connections", status=503, retry_after=5)
        wire.write(self.refuse_bare(refusal))
        if wire.can_write_eof():  # TLS has no half-close
            with contextlib.suppress(OSError):  # gone already
                wire.write_eof()
        self._deadline = self._loop.call_later(0.5, wire.abort)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Return True to answer requests from before the peer closed its half; for False asyncio closes at once."""
        if self._refused or self.upgraded or self.on_hang_up is not None or not self.busy:
            return False
        if self._wire is None or not self._wire.can_write_eof():
            # TLS has no half-close: asyncio always ends the connection, and warns of True.
            return False
        self._break_body()
        self._half_closed = True
        if not self.queued:
            self.end_after_this()
        return True

    @property
    def idle(self) -> bool:
        """Whether no request is open; a WebSocket is never idle."""
        return not (self.busy or self.upgraded)

    def _break_body(self) -> None:
        """Fail the reading of the newest body; an end instead would truncate it."""
        if not self._body.is_eof():
            self._body.set_exception(RequestPayloadError("the body is incomplete"))

    # Reading

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and check its progress."""
        if self._refused or self.upgraded:
            if not self._refused:
                super().data_received(data)
            return
        count = self.parsed
        in_head = self._body.is_eof()
        super().data_received(data)
        if self.parsed == count:
            if data and in_head and not self.ends:
                self._head_grew(data)
            return
        if self.pipelined > _PIPELINED_MAX and not self._crowded:
            # A peer that sends without reading answers would fill the memory with parsed requests.
            self._crowded = True
            self._stop_reading()
        self.arrived = self._loop.time()
        if self._deadline is not None:
            self._cancel_deadline()
        message, payload = self.newest
        if isinstance(message, Fault):
            self.replace_by_fault(-1, self._explain(message, data), body=False)
            # The C parser drops a body with malformed chunks without failing its reader.
            self._break_body()
        else:
            if len(self._head) + len(data) > self.settings.header_bytes:
                self._measure_heads()
            self._body = payload
        self._head = b""

    async def take_room(self, size: int) -> None:
        """Wait for room for a large body; it is released when the request has been answered."""
        taken = await self.server.room.take(size)
        self._room_taken += taken

    @property
    def waiting_since(self) -> float:
        """Since when the current request waits for the bridge: it has arrived, and the last answer was read."""
        return max(self.arrived, self._served_at)

    def request_begins(self) -> None:
        """End the connection after this request if the peer has closed its half."""
        if self._half_closed and not self.queued:
            self.end_after_this()

    def request_ended(self) -> None:
        """Release what was held for the request."""
        self._served_at = self._loop.time()
        if self._crowded and self.pipelined <= _PIPELINED_MAX:
            self._crowded = False
            self._continue_reading()
        if self._room_taken:
            taken, self._room_taken = self._room_taken, 0
            self.server.room.give_back(taken)

    async def delay_refusal(self, seconds: float) -> None:
        """Wait before a refusal is sent, and read nothing meanwhile: this slows down a flood."""
        self._held = True
        self._stop_reading()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._held = False
            self._continue_reading()

    def stop_reading_for(self, seconds: float) -> None:
        """Read nothing for so many seconds, or until an earlier pause ends, whichever is later."""
        ends = self._loop.time() + seconds
        if self._reading_pause is not None:
            if self._reading_pause.when() >= ends:
                return
            self._reading_pause.cancel()
        self._reading_pause = self._loop.call_at(ends, self._reading_pause_ended)
        self._stop_reading()

    def _reading_pause_ended(self) -> None:
        self._reading_pause = None
        self._continue_reading()

    def _stop_reading(self) -> None:
        # Not aiohttp's own pause, which concerns the body that is being parsed.
        if self._wire is not None:
            self._wire.pause_reading()

    def _continue_reading(self) -> None:
        if self._wire is not None and not (self._held or self._reading_pause or self._crowded or self.reading_paused):
            self._wire.resume_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Resume only if paused; aiohttp calls this for every body read, and would feed its parser each time."""
        if self.reading_paused:
            super().resume_reading(resume_parser)

    def _head_grew(self, data: bytes) -> None:
        self._head += data
        if self._deadline is None:
            self._deadline = self._loop.call_later(self.settings.header_timeout, self._head_is_late)
        if len(self._head) > 2 * self.settings.header_bytes + self.settings.uri_bytes:
            self._give_up(Refusal("headers_too_large", "the headers of the request are too large"))

    def _head_is_late(self) -> None:
        self._deadline = None
        if self._head and self.busy:
            # A slow head behind an open request: its time starts when that is answered.
            self._deadline = self._loop.call_later(self.settings.header_timeout, self._head_is_late)
        elif not self._head:
            # It has sent nothing.
            self.force_close()
        else:
            self._give_up(Refusal("request_timeout", "the headers did not arrive in time"))

    def _give_up(self, refusal: Refusal) -> None:
        """Answer an incomplete request, and close."""
        self._cancel_deadline()
        if self.transport is not None and not self.busy:
            self.transport.write(self.refuse_bare(refusal))
        self.force_close()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _measure_heads(self) -> None:
        limit = self.settings.header_bytes
        for place, head in self.heads():
            if sum(len(name) + len(value) + 4 for name, value in head.raw_headers) > limit:
                refusal = Refusal("headers_too_large", "the headers of the request are too large")
                self.replace_by_fault(place, Fault(refusal.status, refusal, ""))

    def _explain(self, fault: Fault, data: bytes) -> Fault:
        """Return 414 or 431 for what aiohttp reports as 400; it ends the connection after any of them."""
        if "Too many headers" in fault.message:
            refusal = Refusal("headers_too_large", "the request has too many headers")
        elif isinstance(fault.exc, Overlong):
            line_end = (self._head + data).find(b"\n")
            if 0 <= line_end <= _LINE_BYTES:
                refusal = Refusal("headers_too_large", "a header of the request is too large")
            else:
                refusal = Refusal("uri_too_long", "the address of the request is too long")
        else:
            refusal = Refusal("bad_parameter", "the request is not well-formed HTTP")
        return Fault(refusal.status, refusal, "")

    # Writing

    def pause_writing(self) -> None:
        """Start the write time-out (S11) if something is unread; stop it if nothing is."""
        left = self.unread()
        if left and not self.writing_paused:
            super().pause_writing()
            self._stall_size = left
            self.server.unread.hold(self, left)
            self._stall = self._loop.call_later(self.settings.write_timeout, self._check_stall)
        elif self.writing_paused and not left:
            super().resume_writing()
            self.server.unread.release(self)
            if self._stall is not None:
                self._stall.cancel()
                self._stall = None
            if self.on_drained is not None:
                self.on_drained()

    # With TLS, either call only means that something may have changed.
    resume_writing = pause_writing

    def unread(self) -> int:
        """Return how many bytes the peer has not read."""
        return 0 if self._wire is None else unsent_bytes(self._wire, self._below)

    def cut_off(self) -> None:
        """Abort the connection, and free what its peer has not read."""
        wire = self._below or self._wire
        if wire is not None:
            wire.abort()

    def _check_stall(self) -> None:
        self._stall = None
        left = self.unread()
        if left <= self._stall_size - _PROGRESS_BYTES:
            # A long answer on a slow line makes progress.
            self._stall_size = left
            self._stall = self._loop.call_later(self.settings.write_timeout, self._check_stall)
        else:
            self.cut_off()

    # Answering

    def fits(self, size: int) -> bool:
        """Return whether the server may hold so many more unread bytes."""
        return self.server.unread.fits(size)

    def refuse(self, refusal: Refusal) -> Answer:
        """Return the answer for a refusal; the Azure endpoint has another form."""
        return refuse(refusal)

    def refuse_bare(self, refusal: Refusal) -> bytes:
        """Return the bytes of a refusal for an incomplete request."""
        return self.refuse(refusal).encode(self.fixed_headers + CLOSE)

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        """Answer the refusals of aiohttp itself as problems, without a traceback and without repeating the input."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is under way already")
        if isinstance(exc, ConnectionError) and (self.transport is None or self.transport.is_closing()):
            # The peer is gone: not an error, and there is nobody to answer.
            raise exc
        if isinstance(exc, Refusal):
            self.server.quiet.warn("a malformed request was refused")
            return cast(StreamResponse, self.refuse(exc))
        if status == 400:
            refusal = Refusal("bad_parameter", "the request is not well-formed HTTP")
        else:
            refusal = Refusal("internal", "the request could not be served", close=True)
            if exc is not None:
                self.server.quiet.fault("unexpected error in a request", exc)
        return cast(StreamResponse, self.refuse(refusal))

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Drop aiohttp's traceback for a connection that broke during a request."""
        error = kw.get("exc_info")
        if isinstance(error, Exception) and not isinstance(error, ConnectionError | RequestPayloadError):
            self.server.quiet.fault("unexpected error in a request", error)


class ConnectionServer(Server):
    """Makes and counts connections."""

    def __init__(
        self,
        handler: Callable[[BaseRequest], Any],
        *,
        connection: type[Connection],
        settings: WebSettings,
        connections: int,
        boot: str | None,
        quiet: QuietLog,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(handler, loop=loop)
        self.settings = settings
        self.quiet = quiet
        self.fixed_headers = b"" if boot is None else f"Queuebell-Boot: {boot}\r\n".encode("ascii")
        self.room = BodyMemory()
        self.unread = AnswerMemory(loop.time)
        self.open: set[Connection] = set()
        self.turned_away = 0
        self._connection = connection
        self._limit = connections
        # A refused connection uses a file too while it lingers.
        self.lingering_most = min(_LINGERING_MAX, max(4, connections // 4))
        self._per_address: dict[str, int] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._stopping: asyncio.Task[None] | None = None

    def __call__(self) -> Connection:
        """Return the protocol of a new connection."""
        return self._connection(self, loop=self._loop)

    def accepts(self, address: str) -> bool:
        """Return whether one more connection from ``address`` is within the limits (S12)."""
        if len(self.open) >= self._limit:
            self.quiet.warn("a connection was rejected: too many are open")
            return False
        limit = self.settings.connections_per_address
        if limit and self._per_address.get(sender_of(address), 0) >= limit:
            self.quiet.warn("a connection was rejected: too many are open from its address")
            return False
        return True

    def opened(self, connection: Connection, address: str) -> None:
        """Count a connection."""
        self.open.add(connection)
        self._empty.clear()
        if self.settings.connections_per_address and address and not is_loopback(address):
            sender = sender_of(address)
            self._per_address[sender] = self._per_address.get(sender, 0) + 1

    def lost(self, connection: Connection, address: str) -> None:
        """Stop counting a connection."""
        self.open.discard(connection)
        if not self.open:
            self._empty.set()
        sender = sender_of(address)
        left = self._per_address.get(sender, 0) - 1
        if left > 0:
            self._per_address[sender] = left
        else:
            self._per_address.pop(sender, None)

    async def stop(self, timeout: float) -> None:
        """Close idle connections now, busy ones after their answer, and the rest after ``timeout``.

        The bridge ends its sessions; after ``timeout`` their handlers are cancelled. May be called twice: both calls
        return at the same end, and cancelling one does not interrupt it.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(timeout), name="end of a web server's connections")
        await asyncio.shield(self._stopping)

    async def _stop(self, timeout: float) -> None:
        for connection in list(self.open):
            if connection.idle:
                connection.force_close()
            else:
                # Not aiohttp's `close`, which would discard the rest of a body that is still arriving.
                connection.ending = True
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            pass
        await self.shutdown(0.1)


def report_every_byte(wire: asyncio.Transport) -> asyncio.Transport | None:
    """Have ``pause_writing`` called for every byte that the kernel does not take; return TLS's inner transport.

    asyncio's TLS passes all it can to that transport, where most unread bytes stay, and does not report them. With
    ``high=0`` it alternately pauses and resumes whenever its own buffer is empty: each call is a moment to check.
    There is no public way to the inner transport.
    """
    tls = getattr(wire, "_ssl_protocol", None)
    below = cast("asyncio.Transport | None", getattr(tls, "_transport", None))
    if below is not None:
        # First, so that the first check finds everything.
        below.set_write_buffer_limits(high=0)
    wire.set_write_buffer_limits(high=0)
    return below


def unsent_bytes(wire: asyncio.Transport, below: asyncio.Transport | None) -> int:
    """Return how many bytes the kernel has not taken."""
    if below is None:
        return wire.get_write_buffer_size()
    # A TLS transport that was closed twice no longer has its buffer.
    own = 0 if getattr(wire, "_ssl_protocol", None) is None else wire.get_write_buffer_size()
    return own + below.get_write_buffer_size()
