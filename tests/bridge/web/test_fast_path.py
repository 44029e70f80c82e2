"""The way past aiohttp: what takes it, that it reads as aiohttp does, and that a connection lives on after it."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_parser import HttpRequestParserPy

from bridge.queue import NewMessage
from bridge.queues.calls import Call
from bridge.web.fast_path import FastConnection, plain_request
from tests.support.azure import ACCOUNT, Front, message, messages, serving_azure, signed_headers
from tests.support.certificates import self_signed
from tests.support.web import Client

HEADERS_MAX = 16
LINE = b"GET /a/b?c=d HTTP/1.1\r\n"
HOST = b"Host: localhost\r\n"

PLAIN = {
    "no body": LINE + HOST + b"\r\n",
    "a body": b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabc",
    "an empty body": b"PUT /a HTTP/1.1\r\n" + HOST + b"content-length:0\r\n\r\n",
    "blanks around a value": LINE + HOST + b"X-A: \t b c\t \r\nX-B:\r\n\r\n",
    "kept alive": LINE + HOST + b"Connection: Keep-Alive\r\n\r\n",
    "every sign of a target": b"DELETE /a%20~!$&'()*+,;=:@?/\"\\^`{|} HTTP/1.1\r\n" + HOST + b"\r\n",
}
UNUSUAL = {
    "half a head": LINE + HOST,
    "half a body": b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nab",
    "more than a body": b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\n\r\nabcd",
    "a second request behind": LINE + HOST + b"\r\n" + LINE + HOST + b"\r\n",
    "a body of no length": b"POST /a HTTP/1.1\r\n" + HOST + b"\r\nabc",
    "a length that is none": b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: +3\r\n\r\nabc",
    "a length with a zero before": b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 03\r\n\r\nabc",
    "two lengths": b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nContent-length: 3\r\n\r\nabc",
    "chunks": b"POST /a HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": b"POST /a HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "an encoding": b"POST /a HTTP/1.1\r\n" + HOST + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "an expectation": b"POST /a HTTP/1.1\r\n" + HOST + b"Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
    "an upgrade": LINE + HOST + b"Upgrade: websocket\r\n\r\n",
    "an end": LINE + HOST + b"Connection: close\r\n\r\n",
    "no host": LINE + b"Accept: */*\r\n\r\n",
    "two hosts": LINE + HOST + HOST + b"\r\n",
    "one name twice": LINE + HOST + b"X-A: 1\r\nx-a: 2\r\n\r\n",
    "a folded line": LINE + HOST + b"X-A: 1\r\n 2\r\n\r\n",
    "a blank before a colon": LINE + HOST + b"X-A : 1\r\n\r\n",
    "no colon": LINE + HOST + b"X-A\r\n\r\n",
    "a bare line feed": LINE + HOST + b"X-A: 1\nX-B: 2\r\n\r\n",
    "a bare carriage return": LINE + HOST + b"X-A: 1\r2\r\n\r\n",
    "a zero byte": LINE + HOST + b"X-A: \x00\r\n\r\n",
    "a letter beyond ASCII": LINE + HOST + b"X-A: \xc3\xa4\r\n\r\n",
    "another method": b"HEAD /a HTTP/1.1\r\n" + HOST + b"\r\n",
    "an old version": b"GET /a HTTP/1.0\r\n" + HOST + b"\r\n",
    "an absolute target": b"GET http://localhost/a HTTP/1.1\r\n" + HOST + b"\r\n",
    "a fragment": b"GET /a#b HTTP/1.1\r\n" + HOST + b"\r\n",
    "two blanks": b"GET  /a HTTP/1.1\r\n" + HOST + b"\r\n",
    "a line before": b"\r\n" + LINE + HOST + b"\r\n",
    "too many headers": LINE + HOST + b"".join(b"X-%d: 1\r\n" % n for n in range(HEADERS_MAX)) + b"\r\n",
    "a long head": LINE + HOST + b"X-A: " + b"a" * 4096 + b"\r\n\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("data", PLAIN.values(), ids=PLAIN.keys())
def test_a_plain_request_is_read_as_aiohttp_reads_it(data: bytes) -> None:
    """Method, target, every header and the body are what the strict parser makes of the same bytes."""
    loop = asyncio.new_event_loop()
    try:
        parser = HttpRequestParserPy(BaseProtocol(loop), loop, 2**16)
        ((theirs, payload),), _, _ = parser.feed_data(data)
        body = payload.read_nowait() if payload.is_eof() and data[-1:] == b"c" else b""
    finally:
        loop.close()
    ours = plain_request(data, HEADERS_MAX)
    assert ours is not None
    assert (ours.method, ours.target, ours.body) == (theirs.method, theirs.path, body)
    assert ours.fields == list(theirs.headers.items())
    assert ours.headers == {name.lower(): value for name, value in theirs.headers.items()}


@pytest.mark.parametrize("data", UNUSUAL.values(), ids=UNUSUAL.keys())
def test_whatever_is_unusual_is_left_to_the_parser(data: bytes) -> None:
    """One doubt is enough."""
    assert plain_request(data, HEADERS_MAX) is None


def request(front: Front, method: str, path: str, body: bytes = b"") -> bytes:
    target = f"/{ACCOUNT}{path}"
    lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{front.server.port}"]
    lines += [f"{name}: {value}" for name, value in signed_headers(method, target, body, {}, front.wall()).items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def connections(front: Front) -> list[FastConnection]:
    server = front.server._server
    assert server is not None
    return [each for each in server.open if isinstance(each, FastConnection)]


@contextlib.asynccontextmanager
async def connected(front: Front) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_connection("127.0.0.1", front.server.port))
    try:
        yield client
    finally:
        await client.close()


@pytest.mark.asyncio
async def test_plain_requests_go_past_aiohttp_and_others_do_not() -> None:
    """On one connection, in turn; the parser never saw the plain ones."""
    async with serving_azure() as front:
        await front.bridge.store.create(f"{ACCOUNT}/orders")
        async with connected(front) as client:
            for seen in range(3):
                await client.send(request(front, "POST", "/orders/messages", message("x")))
                assert (await client.reply()).status == 201
                await client.send(request(front, "GET", "/orders/messages"))
                assert len(messages(await client.reply())) == 1
                (connection,) = connections(front)
                assert connection._request_count == seen
                await client.send(
                    request(front, "GET", "/orders/messages").replace(b"\r\n\r\n", b"\r\nTE: gzip\r\n\r\n")
                )
                assert messages(await client.reply()) == []


@pytest.mark.asyncio
async def test_over_tls_a_connection_rests_after_an_answer(tmp_path: pathlib.Path) -> None:
    """It is idle, no time-out for what is unread runs, and the next request is taken here; after aiohttp's too."""
    server, trust = self_signed(tmp_path)
    async with serving_azure(tls=server) as front:
        await front.bridge.store.create(f"{ACCOUNT}/orders")
        client = Client(*await asyncio.open_connection("127.0.0.1", front.server.port, ssl=trust))
        get = request(front, "GET", "/orders/messages")
        # The first may come together with the end of the handshake, before there is anybody to take it.
        await client.send(get)
        await client.reply()
        (connection,) = connections(front)
        first = connection._request_count
        for seen in range(3):
            for _ in range(2):
                await client.send(get)
                assert messages(await client.reply()) == []
                assert connection.idle
                assert connection._rests
                assert connection._stall is None
                assert connection._request_count == first + seen
            await client.send(get.replace(b"\r\n\r\n", b"\r\nTE: gzip\r\n\r\n"))
            assert messages(await client.reply()) == []
        await client.close()


@pytest.mark.asyncio
async def test_what_comes_behind_a_plain_request_is_answered_after_it() -> None:
    """A request that arrives while another is served waits for its turn, whole or in pieces."""
    async with serving_azure() as front:
        await front.bridge.store.create(f"{ACCOUNT}/orders")
        async with connected(front) as client:
            first = request(front, "POST", "/orders/messages", message("one"))
            second = request(front, "GET", "/orders/messages")
            await client.send(request(front, "GET", "/orders/messages"))
            await client.reply()
            (connection,) = connections(front)
            # As if the socket had brought them in these pieces while the first was being served.
            for piece in (first, second[:40], second[40:], request(front, "GET", "/orders?comp=metadata")):
                connection.data_received(piece)
            assert (await client.reply()).status == 201
            (found,) = messages(await client.reply())
            assert found.text == "one"
            assert (await client.reply()).headers["x-ms-approximate-messages-count"] == "1"
            await client.send(second)
            assert messages(await client.reply()) == []


@pytest.mark.asyncio
async def test_a_peer_that_closed_its_half_has_its_answer() -> None:
    """What was asked before the end of the peer's half is answered, and the connection is closed then."""
    async with serving_azure() as front:
        await front.bridge.store.create(f"{ACCOUNT}/orders")
        async with connected(front) as client:
            client.writer.write(request(front, "POST", "/orders/messages", message("x")))
            client.writer.write_eof()
            assert (await client.reply()).status == 201
            assert await client.rest() == b""


@pytest.mark.asyncio
async def test_a_peer_that_went_away_leaves_nothing() -> None:
    """Its request is carried out, and its connection forgotten."""
    async with serving_azure() as front:
        store = front.bridge.store
        await store.create(f"{ACCOUNT}/orders")
        async with connected(front) as client:
            await client.send(request(front, "GET", "/orders/messages"))
            await client.reply()
            (connection,) = connections(front)
            connection.data_received(request(front, "POST", "/orders/messages", message("x")))
            serving = connection._serving
            assert serving is not None
            assert connection._wire is not None
            connection._wire.abort()
            await serving
        assert connections(front) == []
        assert len((await store.receive(f"{ACCOUNT}/orders")).messages) == 1


@pytest.mark.asyncio
async def test_a_stop_lets_a_plain_request_end() -> None:
    """It is answered with an end of the connection; an idle connection is closed at once."""
    async with serving_azure() as front:
        await front.bridge.store.put(f"{ACCOUNT}/orders", [NewMessage(b"x")])
        async with connected(front) as client, connected(front) as idle:
            for each in (client, idle):
                await each.send(request(front, "GET", "/orders?comp=metadata"))
                await each.reply()
            own = client.writer.get_extra_info("sockname")
            (at_work,) = [
                each for each in connections(front) if each._wire and each._wire.get_extra_info("peername") == own
            ]
            at_work.data_received(request(front, "GET", "/orders/messages"))
            await front.server.stop()
            reply = await client.reply()
            assert reply.headers["connection"] == "close"
            assert len(messages(reply)) == 1
            assert await client.rest() == b""
            assert await idle.rest() == b""
            assert at_work._serving is None


@pytest.mark.asyncio
async def test_a_peer_that_reads_slowly_is_not_read_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it sends behind an answer that it did not take waits until it has."""
    async with serving_azure() as front:
        await front.bridge.store.create(f"{ACCOUNT}/orders")
        async with connected(front) as client:
            await client.send(request(front, "GET", "/orders/messages"))
            await client.reply()
            (connection,) = connections(front)
            connection.data_received(request(front, "GET", "/orders/messages"))
            monkeypatch.setattr(FastConnection, "unread", lambda _: 1)
            connection.pause_writing()
            assert messages(await client.reply()) == []
            connection.data_received(request(front, "POST", "/orders/messages", message("x")))
            depth = await front.bridge.store.depth(f"{ACCOUNT}/orders")
            assert depth is not None
            assert depth.visible == 0
            assert connection._behind
            monkeypatch.undo()
            connection.resume_writing()
            assert (await client.reply()).status == 201
            # aiohttp would have taken it at once.
            assert connection._request_count == 0


@pytest.mark.asyncio
@pytest.mark.parametrize("target", ["/orders/messages", "/orders/messages?timeout=20"])
async def test_what_the_store_does_not_answer_is_cancelled_at_the_end(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop waits as long as it may; then the connection is closed, and nothing is left that waits for the store."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    async with serving_azure() as front:
        store = front.bridge.store
        await store.create(f"{ACCOUNT}/orders")
        async with connected(front) as client:
            await client.send(request(front, "GET", "/orders/messages"))
            await client.reply()
            (connection,) = connections(front)
            monkeypatch.setattr(store, "_submit", lambda call: None)
            connection.data_received(request(front, "GET", target))
            while connection._serving is None:
                await asyncio.sleep(0)
            server = front.server._server
            assert server is not None
            await server.stop(0)
            assert await client.rest() == b""
            assert connection._serving is None
            assert told == []
            monkeypatch.undo()


@pytest.mark.asyncio
async def test_a_defect_is_told_and_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it shows before the store was asked or after."""
    async with serving_azure() as front:
        store = front.bridge.store
        await store.create(f"{ACCOUNT}/orders")
        for name in ("ask_receive", "_submit"):

            def fail(*args: object) -> None:
                raise ZeroDivisionError

            def answer_nonsense(call: Call) -> None:
                assert call.future is not None
                call.future.set_result(None)

            async with connected(front) as client:
                monkeypatch.setattr(store, name, fail if name == "ask_receive" else answer_nonsense)
                await client.send(request(front, "GET", "/orders/messages"))
                reply = await client.reply()
                assert (reply.status, reply.headers["connection"]) == (500, "close")
                assert await client.rest() == b""
                monkeypatch.undo()
