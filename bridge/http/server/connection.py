"""One client's connection: aiohttp's, with the time-outs and limits that it lacks.

aiohttp has no time-out for headers, no limit on all headers together, aborts no reader that stopped reading, logs
a traceback per malformed request, closes on a half-closed socket before it has answered, and leaves a handler waiting
for the rest of a body whose chunks turned out malformed (C parser). `Connection` adds these around the public hooks
of ``asyncio.Protocol``; it works with aiohttp's C parser and its pure-Python one, and both are tested.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from aiohttp import EMPTY_PAYLOAD, StreamReader
from aiohttp.web import BaseRequest, RequestPayloadError, Server, StreamResponse

from bridge.access.access_watch import certificate_of
from bridge.contract.address import is_loopback, sender_of
from bridge.http.server.answer import CLOSE, Answer, refuse
from bridge.http.server.overload.answer_room import AnswerRoom
from bridge.http.server.overload.body_room import BodyRoom
from bridge.http.server.problem import Refusal
from bridge.http.server.settings import WebSettings
from bridge.http.server.unsent import tell_of_every_byte, unsent_bytes
from bridge.queues.aiohttp_private.server import Fault, HttpProtocol, Overlong

if TYPE_CHECKING:
    from bridge.access.certificates import Certificate
    from bridge.http.server.quiet import QuietLog

# Parsers stop here by themselves; the exact limits of the settings are checked once a head is complete. Lines are
# allowed more than `uri_bytes`, so that the refusal can tell a long address from a long header.
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
        "_head",
        "_held",
        "_refused",
        "_rest",
        "_room_taken",
        "_said_all",
        "_served_at",
        "_stall",
        "_stall_size",
        "_wire",
        "arrived",
        "certificate",
        "counted",
        "drained_hook",
        "ending",
        "fixed_headers",
        "hung_up",
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
            # A body that was compressed is refused, never inflated (S7); the default inflates it before we see it.
            auto_decompress=False,
        )
        self.server = server
        self.settings = settings
        self.fixed_headers = server.fixed_headers
        self.ending = False
        self.arrived = 0.0
        """When the newest request was read off the wire, by the loop's clock."""
        self.hung_up: Callable[[], None] | None = None
        """Set while an answer has no end of its own: called when the peer has gone, or has nothing more to say."""
        self.certificate: Certificate | None = None
        """What the peer proved by TLS who it is by, None where nothing."""
        self.drained_hook: Callable[[], None] | None = None
        """Set by a wire: called when the peer has taken all that was written."""
        self.counted: Callable[[], None] | None = None
        """Set once the connection counts as a session or stream of somebody: called when it has ended."""
        self._address = ""
        # When the request before was answered and its answer taken.
        self._served_at = 0.0
        # The peer has closed its half: what it sent is answered, and then the connection ends.
        self._said_all = False
        self._refused = False
        self._wire: asyncio.Transport | None = None
        # The transport that TLS writes to.
        self._below: asyncio.Transport | None = None
        # Bytes of a request whose headers are not complete, and until when they have to be.
        self._head = b""
        self._deadline: asyncio.TimerHandle | None = None
        # The body of the newest request that the parser gave out.
        self._body: StreamReader = EMPTY_PAYLOAD
        self._stall: asyncio.TimerHandle | None = None
        self._stall_size = 0
        self._room_taken = 0
        # Nothing is read: so many requests wait for their turn, the answer to one is held, or what came was too much.
        self._crowded = False
        self._held = False
        self._rest: asyncio.TimerHandle | None = None

    # Coming and going

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection up, or turn it away."""
        wire = self._wire = cast(asyncio.Transport, transport)
        peer = wire.get_extra_info("peername")
        self._address = peer[0] if isinstance(peer, tuple) else ""
        if not self.server.admit(self._address):
            self._turn_away(wire)
            return
        self.server.opened(self, self._address)
        self._below = tell_of_every_byte(wire)
        self.certificate = certificate_of(wire.get_extra_info("peercert"))
        # asyncio reads into a fresh 256 KiB each time, which the allocator maps and unmaps for every request: that
        # costs more than the reading. A transport that knows no such size goes on as it is.
        if hasattr(wire, "max_size"):
            wire.max_size = _READ_BYTES
        super().connection_made(transport)
        self._deadline = self._loop.call_later(self.settings.header_timeout, self._head_is_late)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Let go of timers and of the place that the connection took."""
        self._cancel_deadline()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if self._rest is not None:
            self._rest.cancel()
            self._rest = None
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
        if self.hung_up is not None:
            self.hung_up()
        # aiohttp tells the handler's body only; it would wait for the rest of a refused one until its linger is over.
        self._break_body()
        super().connection_lost(exc)

    def _turn_away(self, wire: asyncio.Transport) -> None:
        # No task, no parser: one answer, and half a second in which its bytes are not destroyed by a reset (S12).
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
        """Answer what was asked before the peer closed its half; asyncio closes at once where this is False."""
        if self._refused or self.upgraded or self.hung_up is not None or not self.busy:
            return False
        if self._wire is None or not self._wire.can_write_eof():
            # TLS has no half-close: asyncio ends the connection whatever is said here, and warns of any other answer.
            return False
        self._break_body()
        self._said_all = True
        if not self.queued:
            self.end_after_this()
        return True

    @property
    def idle(self) -> bool:
        """Whether no request is under way; a session never is idle."""
        return not (self.busy or self.upgraded)

    def _break_body(self) -> None:
        """Tell whoever reads the newest body that its rest will not come; never its end, which would truncate it."""
        if not self._body.is_eof():
            self._body.set_exception(RequestPayloadError("the body is incomplete"))

    # Reading

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and keep watch over what it is in the middle of."""
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
            # Whoever sends on without reading answers would have all of it parsed and kept.
            self._crowded = True
            self._read_no_more()
        self.arrived = self._loop.time()
        if self._deadline is not None:
            self._cancel_deadline()
        message, payload = self.newest
        if isinstance(message, Fault):
            self.spoil(-1, self._explain(message, data), body=False)
            # The C parser drops a body whose chunks are malformed without telling its reader.
            self._break_body()
        else:
            if len(self._head) + len(data) > self.settings.header_bytes:
                self._measure_heads()
            self._body = payload
        self._head = b""

    async def take_room(self, size: int) -> None:
        """Wait for room for a large body; it is given back once the request is answered, for so long it may be held."""
        taken = await self.server.room.take(size)
        self._room_taken += taken

    @property
    def turn_came(self) -> float:
        """Since when the request that is being served waits for us: not while its sender left an answer unread."""
        return max(self.arrived, self._served_at)

    def request_begins(self) -> None:
        """End the connection after this request where its peer has said that it was the last."""
        if self._said_all and not self.queued:
            self.end_after_this()

    def request_ended(self) -> None:
        """Give back what was held for the request."""
        self._served_at = self._loop.time()
        if self._crowded and self.pipelined <= _PIPELINED_MAX:
            self._crowded = False
            self._read_on()
        if self._room_taken:
            taken, self._room_taken = self._room_taken, 0
            self.server.room.give_back(taken)

    async def hold(self, seconds: float) -> None:
        """Wait before the answer to a request, and read nothing meanwhile: whoever floods has to wait as well."""
        self._held = True
        self._read_no_more()
        try:
            await asyncio.sleep(seconds)
        finally:
            self._held = False
            self._read_on()

    def rest(self, seconds: float) -> None:
        """Read nothing for so long from now on, or until an earlier rest ends, whichever is later."""
        ends = self._loop.time() + seconds
        if self._rest is not None:
            if self._rest.when() >= ends:
                return
            self._rest.cancel()
        self._rest = self._loop.call_at(ends, self._rested)
        self._read_no_more()

    def _rested(self) -> None:
        self._rest = None
        self._read_on()

    def _read_no_more(self) -> None:
        # Not aiohttp's own pause, which is about the body that is being parsed.
        if self._wire is not None:
            self._wire.pause_reading()

    def _read_on(self) -> None:
        if self._wire is not None and not (self._held or self._rest or self._crowded or self.reading_paused):
            self._wire.resume_reading()

    def resume_reading(self, resume_parser: bool = True) -> None:
        """Resume what was paused; aiohttp calls this for every body read, and feeds its parser anew each time."""
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
            # A slow head behind a request still being answered: its time starts when that answer is out.
            self._deadline = self._loop.call_later(self.settings.header_timeout, self._head_is_late)
        elif not self._head:
            # It never said a word.
            self.force_close()
        else:
            self._give_up(Refusal("request_timeout", "the headers did not arrive in time"))

    def _give_up(self, refusal: Refusal) -> None:
        """Answer a request that was never complete, and close."""
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
                self.spoil(place, Fault(refusal.status, refusal, ""))

    def _explain(self, fault: Fault, data: bytes) -> Fault:
        """Tell 414 and 431 from 400, which is all that aiohttp says; it ends the connection after any of them."""
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
        """Begin to count the time in which the peer takes nothing (S11), where it has not taken all."""
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
            if self.drained_hook is not None:
                self.drained_hook()

    # Told by TLS, either says no more than that there may be something new.
    resume_writing = pause_writing

    def unread(self) -> int:
        """Return how many bytes the peer has not taken."""
        return 0 if self._wire is None else unsent_bytes(self._wire, self._below)

    def cut_off(self) -> None:
        """End the connection at once, and free what its peer has not taken."""
        wire = self._below or self._wire
        if wire is not None:
            wire.abort()

    def _check_stall(self) -> None:
        self._stall = None
        left = self.unread()
        if left <= self._stall_size - _PROGRESS_BYTES:
            # A long answer over a thin line: slow, but it moves.
            self._stall_size = left
            self._stall = self._loop.call_later(self.settings.write_timeout, self._check_stall)
        else:
            self.cut_off()

    # Telling

    def fits(self, size: int) -> bool:
        """Say whether the server can hold so many more bytes that clients have not read."""
        return self.server.unread.fits(size)

    def refuse(self, refusal: Refusal) -> Answer:
        """Make the answer that tells a refusal; another door has another form."""
        return refuse(refusal)

    def refuse_bare(self, refusal: Refusal) -> bytes:
        """Render it for a peer whose request was never read to its end."""
        return self.refuse(refusal).whole(self.fixed_headers + CLOSE)

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> StreamResponse:
        """Answer what aiohttp itself refuses, as a problem, without a traceback and without repeating the input."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is under way already")
        if isinstance(exc, ConnectionError) and (self.transport is None or self.transport.is_closing()):
            # The peer went away before it had sent all: no fault, and nobody to answer.
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
        """Replace aiohttp's traceback per connection that broke in the middle of a request by nothing."""
        error = kw.get("exc_info")
        if isinstance(error, Exception) and not isinstance(error, ConnectionError | RequestPayloadError):
            self.server.quiet.fault("unexpected error in a request", error)


class ConnectionServer(Server):
    """Makes connections and knows how many there are."""

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
        self.room = BodyRoom()
        self.unread = AnswerRoom(loop.time)
        self.open: set[Connection] = set()
        self.turned_away = 0
        self._connection = connection
        self._limit = connections
        # Who is turned away has a file for so long as well.
        self.lingering_most = min(_LINGERING_MAX, max(4, connections // 4))
        self._per_address: dict[str, int] = {}
        self._empty = asyncio.Event()
        self._empty.set()
        self._stopping: asyncio.Task[None] | None = None

    def __call__(self) -> Connection:
        """Make the protocol of one connection."""
        return self._connection(self, loop=self._loop)

    def admit(self, address: str) -> bool:
        """Say whether one more connection from ``address`` is borne (S12)."""
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
        """Close idle connections at once, those under way after their answer, and what is left after ``timeout``.

        Sessions end when the bridge ends them; after ``timeout`` their handlers are cancelled. May be called twice:
        both return at the same end, which a caller that is cancelled does not cut short.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(timeout), name="end of a web server's connections")
        await asyncio.shield(self._stopping)

    async def _stop(self, timeout: float) -> None:
        for connection in list(self.open):
            if connection.idle:
                connection.force_close()
            else:
                # Not aiohttp's `close`, which would throw away the rest of a body that is still coming.
                connection.ending = True
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            pass
        await self.shutdown(0.1)
