"""A way past aiohttp for requests that are whole and plain, which nearly all requests of machines are.

Of what a small request costs, aiohttp's parser, request object, URL, writer and two turns of the loop are more than a
third. Only one whole request with nothing unusual in its head, on a connection where nothing else is under way, is
taken here; whatever else comes goes its usual way, above all everything that is to be refused for its form.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from multidict import CIMultiDict

from bridge.web.answer import CLOSE, Answer
from bridge.web.connection import Connection, ConnectionServer

_HEAD_MAX: Final = 4096
# A strict reading of RFC 9112: one blank or none where others may stand is left to the parser.
_head = re.compile(
    rb"(GET|POST|PUT|DELETE) (/[!\"$-;=?-~]*) HTTP/1\.1\r\n(?:[A-Za-z0-9_-]+:[\t\x20-\x7e]*\r\n)+\r\n"
).fullmatch
# These change how a request or its connection is to be taken, or are refused for what they say.
_UNUSUAL: Final = frozenset({"content-encoding", "expect", "transfer-encoding", "upgrade", "trailer", "te"})


class PlainRequest(msgspec.Struct, frozen=True, gc=False):
    """One whole request; each header came once, so that nothing of it has two meanings."""

    method: str
    target: str
    headers: CIMultiDict[str]
    body: bytes


AnswerPlain = Callable[[PlainRequest, str], Awaitable[Answer]]


def plain_request(data: bytes, headers_max: int) -> PlainRequest | None:
    """Return the request that these bytes are, where they are one and no more; None for everything else."""
    end = data.find(b"\r\n\r\n", 0, _HEAD_MAX) + 4
    if end < 4:
        return None
    match = _head(data, 0, end)
    if match is None:
        return None
    lines = data[match.end(2) + 11 : end - 4].decode("ascii").split("\r\n")
    pairs: list[tuple[str, str]] = []
    names: dict[str, str] = {}
    for line in lines:
        name, _, value = line.partition(":")
        value = value.strip(" \t")
        pairs.append((name, value))
        names[name.lower()] = value
    if len(names) != len(pairs) or len(pairs) > headers_max or "host" not in names or not _UNUSUAL.isdisjoint(names):
        return None
    if names.get("connection", "keep-alive").lower() != "keep-alive":
        return None
    length = names.get("content-length")
    size = len(data) - end
    if size if length is None else length != str(size):
        return None
    return PlainRequest(match[1].decode(), match[2].decode(), CIMultiDict(pairs), data[end:])


class FastConnection(Connection):
    """A connection that has plain requests answered by ``answer_plain``, one at a time, each in a task of its own.

    It gets the request and its sender's address, and raises nothing but `ConnectionError`. Where it is None nothing is
    taken here. What comes while one request is served waits, one read of it here and the rest in the socket.
    """

    __slots__ = ("_answer_plain", "_behind", "_serving")

    def __init__(
        self, server: ConnectionServer, answer_plain: AnswerPlain | None, *, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(server, loop=loop)
        self._answer_plain = answer_plain
        self._serving: asyncio.Task[None] | None = None
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
                answering = answer_plain(request, self._address)
                self._serving = self._loop.create_task(self._run(answering), name="queuebell-request")
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

    async def _run(self, answering: Awaitable[Answer]) -> None:
        keep = False
        try:
            answer = await answering
            wire = self._wire
            if wire is not None and not wire.is_closing():
                keep = answer.keep_alive and self._open
                wire.write(answer.whole(self.fixed_headers if keep else self.fixed_headers + CLOSE))
                if self._paused:
                    await self._drain_helper()
        except ConnectionError:
            # The peer went away before it had its answer.
            keep = False
        finally:
            self._serving = None
            if not (keep and self._open):
                self.force_close()
        if keep and self._open:
            self._rest()

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
