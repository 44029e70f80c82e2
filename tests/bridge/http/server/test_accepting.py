"""Connections are taken as they come; without a file for one it waits a moment, says so once, and tries again."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import pathlib
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from bridge.http.server.accepting import Acceptor
from tests.support.certificates import self_signed


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


async def test_who_gave_up_before_is_passed_over() -> None:
    """That ends no turn for the others, and is no pause."""
    async with accepting() as (sock, acceptor, port), asyncio.timeout(30):
        sock.failing = errno.ECONNABORTED
        waiting = asyncio.create_task(hello(port), name="waiting")
        while not sock.asked:
            await asyncio.sleep(0)
        sock.failing = 0
        assert await waiting == b"hello"
        assert not acceptor.pauses


async def test_a_handshake_that_fails_disturbs_nobody(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """Others get through; one that is under way at the end is let go of."""
    tls, trust = self_signed(tmp_path)
    async with accepting(tls) as (_, acceptor, port), asyncio.timeout(30):
        with socket.create_connection(("127.0.0.1", port)) as silent:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
            assert await hello(port, trust) == b"hello"
            while len(beginning()) > 1:
                await asyncio.sleep(0)
            acceptor.close()
            await asyncio.wait(beginning())
            silent.setblocking(True)
            with contextlib.suppress(ConnectionError):
                assert silent.recv(10) == b""
    assert not caplog.records


@pytest.mark.parametrize(
    ("limits", "address", "most"),
    [
        ({"handshakes": 3}, "127.0.0.1", 3),
        ({"handshakes": 9, "handshakes_per_address": 2}, "192.0.2.1", 2),
        ({"handshakes": 4, "handshakes_per_address": 2}, "127.0.0.1", 4),
        ({"handshakes": 4, "handshakes_per_address": 0}, "192.0.2.1", 4),
    ],
)
async def test_s12_handshakes_under_way_have_a_limit(
    limits: dict[str, int], address: str, most: int, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All together, and those of one address that is not loopback; one that ends gives its place to the next."""
    tls, trust = self_signed(tmp_path)
    async with accepting(tls, **limits) as (sock, _, port), asyncio.timeout(30), contextlib.AsyncExitStack() as stack:
        sock.address = address
        silent = []
        for _ in range(most):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            stack.callback(writer.close)
            silent.append((reader, writer))
        while len(beginning()) < most:
            await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await hello(port, trust)
        assert "too many have not got through their TLS handshake" in caplog.text
        if limits["handshakes"] > most:
            sock.address = "198.51.100.1"
            assert await hello(port, trust) == b"hello", "others get through"
            sock.address = address
        for gone, (_, writer) in enumerate(silent, 1):
            writer.close()
            while len(beginning()) > most - gone:
                await asyncio.sleep(0)
            assert await hello(port, trust) == b"hello"
