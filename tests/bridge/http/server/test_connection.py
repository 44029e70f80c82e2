"""What a connection does as time passes, in virtual time: its peer and its transport are played by hand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp.web import BaseRequest

from bridge.http.server.answer import Answer
from bridge.http.server.connection import Connection, ConnectionServer
from bridge.http.server.guard import Guard
from bridge.http.server.quiet import QuietLog
from bridge.http.server.settings import WebSettings
from tests.support.sim_loop import pass_time, simulated
from tests.support.web import request

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
async def test_s10_a_head_without_end_is_given_up_long_before_its_time() -> None:
    """At twice what headers may have, in however small pieces; nothing that comes after it is looked at."""
    door = Door(header_bytes=1000, uri_bytes=500)
    connection, wire = await door.connect()
    connection.data_received(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: ")
    sent = 40
    while not wire.is_closing():
        connection.data_received(b"x" * 50)
        sent += 50
    assert 2500 < sent < 2700
    assert wire.statuses == [431] and b"Connection: close\r\n" in wire.written
    await pass_time(0.1)
    assert not door.server.open and connection.unread() == 0
    await door.server.stop(1)


@simulated
async def test_an_idle_connection_is_kept_for_so_long() -> None:
    """By its own time-out, counted from the newest answer."""
    door = Door(keepalive_timeout=75.0)
    connection, wire = await door.connect()
    for _ in range(2):
        connection.data_received(GET)
        await pass_time(40)
    assert wire.statuses == [200, 200]
    await ends_after(wire, 35.0)
    await door.server.stop(1)


@simulated
async def test_nothing_is_read_while_any_reason_stands() -> None:
    """An answer that is held, a rest and requests that wait each keep it so; a longer rest is not cut short."""
    door = Door()
    connection, wire = await door.connect()
    connection.rest(2.0)
    connection.rest(1.0)
    holding = asyncio.create_task(connection.hold(3.0), name="hold")
    await pass_time(1.5)
    assert not wire.reading
    connection.rest(1.0)
    await pass_time(0.9)
    assert not wire.reading, "the answer is held still"
    await pass_time(0.7)
    assert holding.done() and wire.reading
    connection.rest(1.0)
    holding = asyncio.create_task(connection.hold(0.5), name="hold")
    await pass_time(0.75)
    assert holding.done() and not wire.reading, "it rests still"
    await pass_time(0.5)
    assert wire.reading
    door.go.clear()
    connection.data_received(GET * 40)
    assert not wire.reading, "so many wait"
    connection.rest(1.0)
    await pass_time(2)
    assert not wire.reading
    door.go.set()
    await pass_time(0.1)
    assert wire.reading and wire.statuses == [200] * 40
    connection.rest(1.0)
    wire.abort()
    await pass_time(5)
    await door.server.stop(1)


@simulated
async def test_s11_a_peer_that_takes_nothing_is_cut_off() -> None:
    """After `write_timeout`, and not while it takes 64 KiB in that time; what it left unread is counted until then."""
    door = Door(write_timeout=10.0, header_timeout=1000.0)
    connection, wire = await door.connect()
    wire.unsent = 200_000
    connection.pause_writing()
    assert (connection.unread(), door.server.unread.taken) == (200_000, 200_000)
    await pass_time(9)
    wire.unsent -= 65_536
    await pass_time(10)
    assert not wire.is_closing()
    wire.unsent -= 65_535
    await ends_after(wire, 1.0)
    assert wire.aborted and not wire.written
    assert (connection.unread(), door.server.unread.taken) == (0, 0)
    connection, wire = await door.connect()
    wire.unsent = 10
    connection.pause_writing()
    wire.unsent = 0
    connection.resume_writing()
    assert door.server.unread.taken == 0
    wire.unsent = 10
    await pass_time(7)
    connection.pause_writing()
    await ends_after(wire, 10.0)
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
    assert "there are too many from its address" in caplog.text
    assert door.server.turned_away == 0
    everybody = Door(connections=4, connections_per_address=0)
    wires = [(await everybody.connect())[1] for _ in range(10)]
    assert [wire.statuses for wire in wires] == [[]] * 4 + [[503]] * 4 + [[]] * 2
    assert [wire.aborted for wire in wires] == [False] * 8 + [True] * 2, "of those who are told, so many stay a while"
    await pass_time(1)
    assert everybody.server.turned_away == 0
    for each in (door, everybody):
        await each.server.stop(0)


@simulated
async def test_the_end_of_a_server_waits_for_answers_and_not_for_ever() -> None:
    """Whoever rests is closed at once, whoever waits for an answer gets it, and after the time-out nobody is left."""
    door = Door()
    _, idle = await door.connect()
    busy, wire = await door.connect()
    door.go.clear()
    busy.data_received(GET)
    await pass_time(0)
    stopping = [asyncio.create_task(door.server.stop(5.0), name="stop") for _ in range(2)]
    await pass_time(1)
    assert idle.is_closing() and not wire.is_closing()
    door.go.set()
    await pass_time(0.1)
    assert wire.statuses == [200] and b"Connection: close\r\n" in wire.written
    assert all(task.done() for task in stopping)
    door = Door()
    busy, wire = await door.connect()
    door.go.clear()
    busy.data_received(GET)
    await pass_time(0)
    stopping = [asyncio.create_task(door.server.stop(5.0), name="stop")]
    await pass_time(4.9)
    assert not wire.is_closing()
    await pass_time(0.4)
    assert wire.is_closing() and stopping[0].done()


def test_s13_each_address_has_a_rate_of_its_own() -> None:
    """An IPv6 network is one; without a rate nobody waits."""
    now = 5.0

    def asks(guard: Guard) -> Callable[[str | None], int]:
        return lambda remote: guard.seconds_to_wait(SimpleNamespace(remote=remote))  # type: ignore[arg-type]

    guard = Guard(WebSettings(requests_per_second=0.5, request_burst=2), lambda: now)
    ask = asks(guard)
    assert guard.limits_rates
    assert [ask("192.0.2.1") for _ in range(3)] == [0, 0, 2]
    assert [ask(address) for address in ("2001:db8::1", "2001:db8::2", "2001:db8::3")] == [0, 0, 2]
    assert [ask(None) for _ in range(3)] == [0, 0, 2]
    now += 2
    assert [ask("192.0.2.1") for _ in range(2)] == [0, 2]
    free = Guard(WebSettings(), lambda: now)
    assert not free.limits_rates
    assert {asks(free)("192.0.2.1") for _ in range(1000)} == {0}
