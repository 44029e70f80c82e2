"""What a connection does as time passes, in virtual time: its peer and its transport are played by hand."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp.web import BaseRequest

from queuebell.bridge.http.server.answer import Answer
from queuebell.bridge.http.server.connection import Connection, ConnectionServer
from queuebell.bridge.http.server.settings import WebSettings
from queuebell.bridge.http.server.sockets import Acceptor, QuietLog
from tests.support.sim_loop import pass_time, simulated
from tests.support.web import Served, request, serving

OK = b'{"storage_account":"a","queue_name":"b"}'


HEAD = b"POST /v1/triggers HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


GET = request("GET", "/")


class Wire(asyncio.Transport):
    """A transport whose peer takes what the test says, and whose end comes a turn of the loop later."""

    def __init__(self, address: str = "192.0.2.1") -> None:
        super().__init__({"peername": (address, 5)})
        self.written = b""
        self.reading = True
        self.unsent = 0
        self.aborted = False
        self.protocol: Connection | None = None
        self._closing = False

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            assert self.protocol is not None
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)

    def abort(self) -> None:
        self.aborted = True
        self.close()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high == 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.written += b"<eof>"

    @property
    def statuses(self) -> list[int]:
        """Of the answers that were written."""
        return [int(part[:3]) for part in self.written.split(b"HTTP/1.1 ")[1:]]


class Door:
    """A server of connections; each request is answered once the test lets it."""

    def __init__(self, connections: int = 100, **settings: Any) -> None:
        loop = asyncio.get_running_loop()
        self.go = asyncio.Event()
        self.go.set()
        self.server = ConnectionServer(
            self._handle,
            connection=Connection,
            settings=WebSettings(**settings),
            connections=connections,
            boot=None,
            quiet=QuietLog(logging.getLogger("queuebell.test"), loop.time),
            loop=loop,
        )

    async def _handle(self, _: BaseRequest) -> Any:
        await self.go.wait()
        return Answer(200, b"{}")

    async def connect(self, address: str = "192.0.2.1") -> tuple[Connection, Wire]:
        """Let somebody connect."""
        wire, connection = Wire(address), self.server()
        wire.protocol = connection
        connection.connection_made(wire)
        await pass_time(0)
        return connection, wire


async def ends_after(wire: Wire, seconds: float) -> None:
    """Hold that the connection ends then, and not before."""
    await pass_time(seconds - 0.01)
    assert not wire.is_closing()
    await pass_time(0.02)
    assert wire.is_closing()


@simulated
async def test_s11_headers_have_their_time_from_the_first_byte() -> None:
    """Whoever says nothing is closed without a word, and whoever is slow with 408, also behind an earlier request."""
    door = Door(header_timeout=8.0)
    _, silent = await door.connect()
    await ends_after(silent, 8.0)
    assert silent.written == b""
    slow, wire = await door.connect()
    for turn in range(7):
        await pass_time(1)
        slow.data_received(GET[turn : turn + 1])
    await ends_after(wire, 1.0)
    assert wire.statuses == [408] and b"Connection: close\r\n" in wire.written
    kept, wire = await door.connect()
    kept.data_received(GET)
    await pass_time(30)
    assert wire.statuses == [200] and not wire.is_closing(), "one that rests has no head that could be late"
    kept.data_received(GET[:5])
    await ends_after(wire, 8.0)
    assert wire.statuses == [200, 408]
    behind, wire = await door.connect()
    door.go.clear()
    behind.data_received(GET)
    await pass_time(0)
    behind.data_received(GET[:5])
    await pass_time(20)
    assert not wire.written and not wire.is_closing(), "its time begins when the answer before it is out"
    door.go.set()
    await pass_time(9)
    assert wire.statuses == [200, 408] and wire.is_closing()
    assert not door.server.open
    await door.server.stop(1)


@simulated
async def test_s12_connections_of_one_address_have_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    """That of all together too; an IPv6 network counts as one, loopback as nobody, and an end gives the place back."""
    door = Door(connections_per_address=2)
    for addresses, bound in (
        (["192.0.2.1"] * 3, 2),
        (["2001:db8::1", "2001:db8::2", "2001:db8::3"], 2),
        (["127.0.0.1"] * 9, 9),
        ([""] * 3, 3),
    ):
        wires = [(await door.connect(address))[1] for address in addresses]
        assert [wire.statuses for wire in wires] == [[]] * bound + [[503]] * (len(wires) - bound), addresses
        for wire in wires[bound:]:
            assert b"Retry-After: 5\r\n" in wire.written and wire.written.endswith(b"<eof>")
            await ends_after(wire, 0.5)
        wires[0].abort()
        await pass_time(0)
        assert not (await door.connect(addresses[0]))[1].written
    assert "too many are open from its address" in caplog.text
    assert door.server.turned_away == 0
    everybody = Door(connections=4, connections_per_address=0)
    wires = [(await everybody.connect())[1] for _ in range(10)]
    assert [wire.statuses for wire in wires] == [[]] * 4 + [[503]] * 4 + [[]] * 2
    assert [wire.aborted for wire in wires] == [False] * 8 + [True] * 2, "of those who are told, so many stay a while"
    await pass_time(1)
    assert everybody.server.turned_away == 0
    for each in (door, everybody):
        await each.server.stop(0)


class Listening(socket.socket):
    """A listening socket that fails to accept while it is told how; ``asked`` counts how often it was tried then."""

    failing = 0
    asked = 0
    address = ""
    """Where those who connect come from, as the acceptor sees it."""

    def accept(self) -> tuple[socket.socket, object]:
        """Fail, or take one."""
        if self.failing:
            self.asked += 1
            raise OSError(self.failing, os.strerror(self.failing))
        connected, peer = super().accept()
        return connected, (self.address, 5) if self.address else peer


class Greeting(asyncio.Protocol):
    """Says hello and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Do it."""
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"hello")
        transport.close()


def beginning() -> set[asyncio.Task[object]]:
    """Return the tasks of connections that are being taken."""
    return {task for task in asyncio.all_tasks() if task.get_name() == "queuebell-accept"}


@contextlib.asynccontextmanager
async def accepting(tls: ssl.SSLContext | None = None, **limits: int) -> AsyncIterator[tuple[Listening, Acceptor, int]]:
    """Listen on a free port."""
    with Listening() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        sock.listen(10)
        acceptor = Acceptor(sock, Greeting, tls, pause_s=0.001, **limits)
        port = sock.getsockname()[1]
        try:
            yield sock, acceptor, port
        finally:
            acceptor.close()
            acceptor.close()
    assert all(task.cancelling() for task in beginning())


async def hello(port: int, tls: ssl.SSLContext | None = None) -> bytes:
    """Connect and return what is said."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls, server_hostname="127.0.0.1" if tls else None
    )
    with contextlib.closing(writer):
        return await reader.read()


@pytest.mark.parametrize(
    ("limits", "address", "taken"),
    [
        ({"handshakes": 2}, "", 2),
        ({"handshakes_per_address": 2}, "192.0.2.1", 2),
        ({"handshakes_per_address": 2}, "", 4),
    ],
    ids=["of all", "of one address", "of this machine"],
)
async def test_handshakes_that_never_end_are_bounded(
    limits: dict[str, int], address: str, taken: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Each holds a file before it counts as a connection."""
    async with accepting(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), **limits) as (sock, _, port):
        sock.address = address
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        turned_away = [reader for reader, _ in silent[taken:]]
        async with asyncio.timeout(30):
            assert [await reader.read() for reader in turned_away] == [b""] * len(turned_away)
        assert len(beginning()) == taken
        for _, writer in silent:
            writer.close()
    told = [record.message for record in caplog.records]
    assert told == ["connections were rejected: too many have not finished their TLS handshake"] * (taken < 4)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EPROTO])
async def test_without_a_file_it_waits(number: int, caplog: pytest.LogCaptureFixture) -> None:
    """It tries once a pause and not a thousand times; who came meanwhile is served then."""
    async with accepting() as (sock, acceptor, port), asyncio.timeout(30):
        assert await hello(port) == b"hello"
        sock.failing = number
        waiting = asyncio.create_task(hello(port), name="waiting")
        while acceptor.pauses < 3:
            await asyncio.sleep(0)
        assert sock.asked == acceptor.pauses
        assert not waiting.done()
        sock.failing = 0
        assert await waiting == b"hello"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert os.strerror(number) in caplog.text


async def test_s10_many_headers_are_431(parser: str, served: Served) -> None:
    """64 are accepted, 65 and 1000 are not; nor is more than 8 KiB of them together."""
    many = {f"X-{n}": "v" for n in range(63)}  # with Host
    assert (await served.ask("GET", "/livez", **many)).status == 200
    for count in (64, 80, 1000):
        reply = await served.ask("GET", "/livez", **{f"X-{n}": "v" for n in range(count)})
        assert (reply.status, reply.code, reply.headers["connection"]) == (431, "headers_too_large", "close")
    reply = await served.ask("GET", "/livez", **{f"X-{n}": "v" * 300 for n in range(40)})
    assert (reply.status, reply.code, reply.headers["connection"]) == (431, "headers_too_large", "close")


async def test_s10_headers_in_many_small_pieces_are_bounded_too(parser: str) -> None:
    """A head that never ends is given up at about twice the limit, not at the time-out."""
    async with serving(header_timeout=60.0) as served, served.client() as client:
        await client.send(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n")
        for n in range(60):
            await client.send(b"X-%d: %b\r\n" % (n, b"v" * 500))
        reply = await client.reply()
        assert (reply.status, reply.code) == (431, "headers_too_large")
        await client.rest()


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + b"Content-Length: 40\r\nContent-Length: 41\r\n\r\n" + OK,
        HEAD + b"Content-Length: 40\r\nContent-Length: 40\r\n\r\n" + OK,
        HEAD + b"Content-Length: +40\r\n\r\n" + OK,
        HEAD + b"Content-Length: 4_0\r\n\r\n" + OK,
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n",
        HEAD + b"Transfer-Encoding: gzip, chunked, gzip\r\n\r\n",
        HEAD + b"X: a\r\n  folded\r\nContent-Length: 0\r\n\r\n",
        HEAD + b"X : a\r\nContent-Length: 0\r\n\r\n",
        HEAD + b"X: a\x00b\r\nContent-Length: 0\r\n\r\n",
        HEAD.replace(b"\r\n", b"\n") + b"Content-Length: 0\n\n",
        HEAD + b"Host: other\r\nContent-Length: 0\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n\r\n",
        b"GET /livez HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET /livez\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\x00\x00\x00\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET http://[::1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
async def test_s9_a_malformed_request_is_refused_and_the_connection_closed(data: bytes, parser: str) -> None:
    """The connection is never used again: what follows could be someone else's smuggled request."""
    async with serving() as served, served.client() as client:
        await client.send(data)
        reply = await client.reply()
        assert reply.status == 400
        assert reply.code
        assert reply.headers["connection"] == "close"
        assert await client.rest() == b""
