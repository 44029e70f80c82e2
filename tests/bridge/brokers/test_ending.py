"""Why a bridge cannot be reached over HTTP: told so that somebody awake at night knows what to change."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import socket
import ssl
from collections.abc import AsyncIterator

import pytest

from bridge.contract.errors import BusUnavailable, ChannelLost, QueuebellError
from bridge.contract.event import CloudQueueWorkDetected
from bridge.producer.buses.http import HttpBus
from bridge.queues.http import HttpStore
from listeners.session.channels.websocket import WebSocketChannel
from queuebell.command.client import BridgeClient
from tests.support.certificates import self_signed


@contextlib.asynccontextmanager
async def standing(tls: ssl.SSLContext | None) -> AsyncIterator[int]:
    """Serve nothing on a port, behind TLS or not."""

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=tls) as server:
        yield server.sockets[0].getsockname()[1]


async def told(url: str) -> set[str]:
    """What the queue store, the way of triggers and the way of wakes say of an address, past what is their own."""
    store, bus, channel = HttpStore(url), HttpBus(url), WebSocketChannel(url)
    said: set[str] = set()
    try:
        for call in (store.depth("a/q"), bus.publish([CloudQueueWorkDetected("a", "q")]), channel.connect()):
            with pytest.raises(QueuebellError) as caught:
                await call
            lead = {BusUnavailable: f"no bridge answers at {url}: ", ChannelLost: "no session: "}
            said.add(
                str(caught.value).removeprefix(
                    lead.get(type(caught.value), f"{url}: the queue service cannot be reached: ")
                )
            )
    finally:
        for each in (store, bus, channel):
            await each.close()
    return said


async def test_a_certificate_that_is_not_trusted_is_no_missing_permission(tmp_path: pathlib.Path) -> None:
    """OpenSSL's number for it is 1, which the system reads as "Operation not permitted"."""
    async with standing(self_signed(tmp_path)[0]) as port:
        assert await told(f"https://127.0.0.1:{port}") == {
            "its certificate is refused: self-signed certificate (SSL_CERT_FILE names one to trust)"
        }


async def test_https_where_there_is_http_is_told() -> None:
    """A bridge without TLS does not understand the greeting, and hangs up or answers in plain."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        (said,) = await told(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert said.startswith("TLS fails (") and said.endswith("): is it http:// there?")


async def test_http_where_there_is_https_is_told(tmp_path: pathlib.Path) -> None:
    """Such a bridge ends the connection without a word, and nobody guesses why from the name of a class."""
    async with standing(self_signed(tmp_path)[0]) as port:
        url = f"http://127.0.0.1:{port}"
        said = await told(url)
        with BridgeClient(url) as client, pytest.raises(BusUnavailable) as caught:
            await asyncio.to_thread(client.get, "/readyz")
    for words in (*said, str(caught.value)):
        assert "it ended the connection without an answer" in words and "does it speak https://" in words


async def test_a_name_that_nobody_knows_is_told_in_the_systems_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of the resolver are none of the system's: -2 would be "Unknown error -2"."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert await told("http://bridge.invalid:8470") == {"Name or service not known"}


async def test_a_bridge_that_is_called_by_another_name_says_what_to_set() -> None:
    """421 of a bridge, as when its certificate has a name that its configuration has not."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 421 No\r\nContent-Type: application/problem+json\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        channel = WebSocketChannel(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(ChannelLost, match="its --allowed-hosts names further ones"):
            await channel.connect()
        await channel.close()
