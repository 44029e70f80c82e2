"""However a TLS client ends its connection, nobody is warned of it: it is no news."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
import socket
import ssl
import struct
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.bridge.http.azure.test_server import message
from tests.support.azure import ACCOUNT, Front, serving_azure, signed_headers
from tests.support.certificates import self_signed

GET = b"GET /devstoreaccount1/x HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
End = Callable[[Streams], Awaitable[None]]


async def at_once(streams: Streams) -> None:
    """Close without having asked anything."""
    streams[1].close()


async def when_idle(streams: Streams) -> None:
    """Close once answered, as every client does in the end."""
    streams[1].write(GET)
    await streams[0].readuntil(b"\r\n\r\n")
    streams[1].close()


async def unanswered(streams: Streams) -> None:
    """Ask, and close before the answer."""
    streams[1].write(GET)
    streams[1].close()


async def of_many(streams: Streams) -> None:
    """Ask many times in one go, and close before the answers: each would be written to nobody."""
    streams[1].write(GET * 30)
    streams[1].close()


async def put_to(streams: Streams) -> None:
    """Put in one go, which the plain path answers, and close before the answer."""
    body = message("x")
    target = f"/{ACCOUNT}/orders/messages"
    headers = signed_headers("POST", target, body, {}, time.time())
    lines = [f"POST {target} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    streams[1].write(("\r\n".join(lines).encode() + b"\r\n\r\n" + body) * 30)
    streams[1].close()


async def put_and_idle(streams: Streams) -> None:
    """Put once, read the answer, close."""
    body = message("x")
    target = f"/{ACCOUNT}/orders/messages"
    headers = signed_headers("POST", target, body, {}, time.time())
    lines = [f"POST {target} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    streams[1].write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    await streams[0].readuntil(b"\r\n\r\n")
    streams[1].close()


async def half_a_head(streams: Streams) -> None:
    """Close within the head of a request."""
    streams[1].write(GET[:20])
    await streams[1].drain()
    streams[1].close()


async def half_a_body(streams: Streams) -> None:
    """Close within the body of a request."""
    streams[1].write(
        b"POST /devstoreaccount1/orders/messages HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n123"
    )
    await streams[1].drain()
    streams[1].close()


async def cut(streams: Streams) -> None:
    """Go without a word of TLS, as a process that is killed."""
    streams[1].write(GET)
    streams[1].transport.abort()


async def reset(streams: Streams) -> None:
    """Go with a reset."""
    streams[1].write(GET)
    await streams[0].readuntil(b"\r\n\r\n")
    wire = streams[1].get_extra_info("socket")
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    streams[1].transport.abort()


ENDS = [at_once, when_idle, unanswered, of_many, put_to, put_and_idle, half_a_head, half_a_body, cut, reset]


async def gone(front: Front) -> None:
    """Wait until the server has let go of every connection."""
    async with asyncio.timeout(60):
        while front.server.connections.open:
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def told() -> object:
    """Give what the loop's exception handler was told meanwhile."""
    loop, contexts = asyncio.get_running_loop(), []
    loop.set_exception_handler(lambda _, context: contexts.append(context))
    try:
        yield contexts
    finally:
        loop.set_exception_handler(None)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
async def test_the_end_of_a_client_is_no_news(
    end: End, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither in the log nor by the loop's handler; the next client is served."""
    server, client = self_signed(tmp_path)
    caplog.set_level(logging.DEBUG)
    async with serving_azure(tls=server) as front, told() as contexts:
        await front.bridge.store.create("devstoreaccount1/orders", {})
        for _ in range(3):
            await end(await asyncio.open_connection("127.0.0.1", front.server.port, ssl=client))
            await gone(front)
        await asyncio.sleep(0)
        said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert (said, contexts) == ([], [])
        assert (await front.send(GET, tls=client)).status == 400


@pytest.mark.parametrize("hello", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01"], ids=["nothing", "http", "part"])
async def test_who_never_speaks_tls_is_no_news_either(
    hello: bytes, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Port scanners, probes of load balancers, http:// where https:// was meant."""
    server, client = self_signed(tmp_path)
    async with serving_azure(tls=server) as front, told() as contexts:
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", front.server.port)
            writer.write(hello)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()
        assert (await front.send(GET, tls=client)).status == 400
        said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert (said, contexts) == ([], [])


async def test_a_client_that_trusts_nobody_is_no_news(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """It ends the handshake; what is wrong is for it to say."""
    server, client = self_signed(tmp_path)
    async with serving_azure(tls=server) as front, told() as contexts:
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", front.server.port, ssl=ssl.create_default_context())
        assert (await front.send(GET, tls=client)).status == 400
        said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        assert (said, contexts) == ([], [])
