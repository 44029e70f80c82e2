"""A way past aiohttp for requests that are whole and plain, which nearly all requests of machines are.

Of what a small request costs, aiohttp's parser, request object, URL, writer and two turns of the loop are more than a
third. Only one whole request with nothing unusual in its head, on a connection where nothing else is under way, is
taken here; whatever else comes goes its usual way, above all everything that is to be refused for its form.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from bridge.web.answer import CLOSE, Answer
from bridge.web.connection import Connection, ConnectionServer

_HEAD_MAX: Final = 4096
# A strict reading of RFC 9112: one blank or none where others may stand is left to the parser.
_head = re.compile(
    r"(GET|POST|PUT|DELETE) (/[!\"$-;=?-~]*) HTTP/1\.1\r\n((?:[A-Za-z0-9_-]+:[\t\x20-\x7e]*\r\n)+)\r\n"
).fullmatch
# Of lines that the head's pattern let through.
_fields = re.compile(r"([^:]+):[\t ]*([^\r]*[^\t\r ])?[\t ]*\r\n").findall
# These change how a request or its connection is to be taken, or are refused for what they say.
_UNUSUAL: Final = frozenset({"content-encoding", "expect", "transfer-encoding", "upgrade", "trailer", "te"})


class PlainRequest(msgspec.Struct, frozen=True, gc=False):
    """One whole request; each header came once, so that nothing of it has two meanings."""

    method: str
    target: str
    headers: dict[str, str]
    """Names in lower case."""
    fields: list[tuple[str, str]]
    """The same with the names as they were spelled."""
    body: bytes


class Pending:
    """An answer that stands when ``future`` is done, and is made by `answer` then."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self.future = future

    def answer(self) -> Answer:
        """Make the answer; asked once, and raises nothing but `ConnectionError` or the cancellation of the future."""
        raise NotImplementedError


AnswerPlain = Callable[[PlainRequest, str], Answer | Pending | Coroutine[Any, Any, Answer]]


def plain_request(data: bytes, headers_max: int) -> PlainRequest | None:
    """Return the request that these bytes are, where they are one and no more; None for everything else."""
    end = data.find(b"\r\n\r\n", 0, _HEAD_MAX) + 4
    if end < 4:
        return None
    match = _head(data[:end].decode("latin-1"))
    if match is None:
        return None
    method, target, lines = match.groups()
    fields: list[tuple[str, str]] = _fields(lines)
    headers = {name.lower(): value for name, value in fields}
    if (
        len(headers) != len(fields)
        or len(fields) > headers_max
        or "host" not in headers
        or not _UNUSUAL.isdisjoint(headers)
    ):
        return None
    if "connection" in headers and headers["connection"].lower() != "keep-alive":
        return None
    length = headers.get("content-length")
    size = len(data) - end
    if size if length is None else length != str(size):
        return None
    return PlainRequest(method, target, headers, fields, data[end:])


class FastConnection(Connection):
    """A connection that has plain requests answered by ``answer_plain``, one at a time.

    It gets the request and its sender's address, and returns the answer, or what the answer waits for: a future, or a
    coroutine, which gets a task of its own. It and they raise nothing but `ConnectionError`. Where it is None nothing
    is taken here. What comes while one request is served waits, one read of it here and the rest in the socket.
    """

    __slots__ = ("_answer_plain", "_behind", "_pending", "_serving")

    def __init__(
        self, server: ConnectionServer, answer_plain: AnswerPlain | None, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(server, loop=loop)
        self._answer_plain = answer_plain
        self._serving: asyncio.Future[Any] | None = None
        self._pending: Pending | None = None
        self._behind = b""

    def data_received(self, data: bytes) -> None:
        """Serve what is plain; all else is the parser's."""
        if self._serving is not None:
            self._behind += data
            if self._wire is not None:
                self._wire.pause_reading()
            return
        answer_plain = self._answer_plain
        if answer_plain is not None and self._rests:
            request = plain_request(data, self.settings.headers)
            if request is not None:
                self._cancel_deadline()
                self._serve(answer_plain(request, self._address))
                return
        super().data_received(data)

    async def shutdown(self, timeout: float | None = 15.0) -> None:
        """End as aiohttp's connections do; what is served after that is cancelled."""
        await super().shutdown(timeout)
        if self._serving is not None:
            self._serving.cancel()

    @property
    def _busy(self) -> bool:
        return self._serving is not None or super()._busy

    def _process_keepalive(self) -> None:
        if self._serving is None:
            super()._process_keepalive()
        else:
            self._keepalive_handle = self._loop.call_later(self._keepalive_timeout, self._process_keepalive)

    def _serve(self, answering: Answer | Pending | Coroutine[Any, Any, Answer]) -> None:
        if isinstance(answering, Pending):
            # No task: there is nothing to run until the store has answered.
            self._pending = answering
            self._serving = answering.future
            answering.future.add_done_callback(self._answered)
        elif isinstance(answering, Answer):
            self._finish(self._write(answering))
        else:
            self._serving = self._loop.create_task(self._run(answering), name="queuebell-request")

    def _answered(self, _: asyncio.Future[Any]) -> None:
        pending, self._pending = self._pending, None
        keep = False
        try:
            if pending is not None:
                keep = self._write(pending.answer())
        except (ConnectionError, asyncio.CancelledError):
            # The peer went away before it had its answer, or the server has no more time for it.
            keep = False
        finally:
            self._finish(keep)

    async def _run(self, answering: Coroutine[Any, Any, Answer]) -> None:
        keep = False
        try:
            keep = self._write(await answering)
        except ConnectionError:
            keep = False
        finally:
            self._finish(keep)

    def _write(self, answer: Answer) -> bool:
        """Write an answer, and say whether another request may follow."""
        wire = self._wire
        if wire is None or wire.is_closing():
            return False
        answer.find_room(self)
        keep = answer.keep_alive and self._open
        wire.write(answer.whole(self.fixed_headers if keep else self.fixed_headers + CLOSE))
        return keep

    def _finish(self, keep: bool) -> None:
        if self._paused and self._wire is not None:
            self._serving = self._loop.create_task(self._drained(keep), name="queuebell-request")
        else:
            self._rest_or_close(keep)

    async def _drained(self, keep: bool) -> None:
        """Wait until the peer has taken what was written, before anything else is read from it."""
        try:
            await self._drain_helper()
        except ConnectionError:
            keep = False
        finally:
            self._rest_or_close(keep)

    def _rest_or_close(self, keep: bool) -> None:
        self._serving = None
        if keep and self._open:
            self._rest()
        else:
            self.force_close()

    @property
    def _open(self) -> bool:
        return not (self.ending or self._close or self._force_close)

    def _rest(self) -> None:
        """Wait for the next request, which may be here already."""
        self._keep_alive_for_next()
        if self._behind:
            behind, self._behind = self._behind, b""
            if self._wire is not None:
                self._wire.resume_reading()
            self.data_received(behind)
