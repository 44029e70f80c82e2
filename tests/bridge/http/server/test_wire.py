"""Malformed, slow and too many: what aiohttp leaves open (S9 to S12), with both of its parsers."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from tests.support.azure import message, serving_azure, signed_headers
from tests.support.web import JSON, Client, Served, request, serving

OK = b'{"storage_account":"a","queue_name":"b"}'
HEAD = b"POST /v1/triggers HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


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


async def test_s9_a_bad_chunk_after_a_good_one_does_not_wait_for_the_body_timeout(parser: str) -> None:
    """aiohttp's C parser forgets to tell the body's reader."""
    async with serving(body_timeout=60.0) as served, served.client() as client:
        await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n3\r\n{ \n\r\n")
        await client.send(request("GET", "/livez"))  # where a chunk's size has to be
        reply = await client.reply()
        assert (reply.status, reply.headers["connection"]) == (400, "close")
        assert await client.rest() == b""


@pytest.mark.parametrize("line", [b"X: a\r\n", b"X: " + b"a" * 4000 + b"\r\n", b"Content-Length: 9\r\n"])
async def test_s10_what_follows_the_last_chunk_is_bounded(line: bytes, parser: str) -> None:
    """Trailers without end are refused, and the connection closed; they are no headers of the request."""
    async with serving(body_timeout=60.0) as served, served.client() as client:
        await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n" % (len(OK), OK))
        try:
            for _ in range(2_000_000 // len(line)):
                client.writer.write(line)
                await client.writer.drain()
            await client.send(b"\r\n")
        except ConnectionError:
            pass
        reply = await client.reply()
        assert reply.status in (400, 431)
        assert reply.headers["connection"] == "close"


async def test_malformed_requests_are_one_log_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    """And never a traceback."""
    async with serving() as served:
        for _ in range(20):
            assert (await served.ask_raw(b"rubbish\r\n\r\n")).status == 400
    lines = [record for record in caplog.records if record.name.startswith(("queuebell", "aiohttp", "asyncio"))]
    assert 1 <= len(lines) <= 5
    assert not any(record.exc_info for record in lines)


@pytest.mark.parametrize("length", [2049, 5000, 9000, 30_000])
async def test_s10_a_long_address_is_414(length: int, parser: str, served: Served) -> None:
    """Just past our limit, and past the parser's."""
    reply = await served.ask("GET", "/" + "x" * length)
    assert (reply.status, reply.code, reply.headers["connection"]) == (414, "uri_too_long", "close")


@pytest.mark.parametrize("length", [8200, 9000, 30_000])
async def test_s10_a_long_header_is_431(length: int, parser: str, served: Served) -> None:
    """Just past our limit, and past the parser's."""
    reply = await served.ask("GET", "/livez", X="x" * length)
    assert (reply.status, reply.code, reply.headers["connection"]) == (431, "headers_too_large", "close")


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


async def test_s11_slow_headers_are_408_and_the_connection_closed(parser: str) -> None:
    """aiohttp has no time-out for them at all."""
    async with serving(header_timeout=0.05) as served, served.client() as client:
        await client.send(b"GET /livez HT")
        reply = await client.reply()
        assert (reply.status, reply.code, reply.headers["connection"]) == (408, "request_timeout", "close")
        assert await client.rest() == b""


async def test_s11_a_slow_body_is_408_and_the_connection_closed(parser: str) -> None:
    """However far it got."""
    async with serving(body_timeout=0.05, linger=0.05) as served, served.client() as client:
        await client.send(HEAD + b"Content-Length: 1000\r\n\r\n" + OK[:10])
        reply = await client.reply()
        assert (reply.status, reply.code, reply.headers["connection"]) == (408, "request_timeout", "close")
        assert await client.rest() == b""


async def test_s11_a_reader_that_stops_reading_is_cut_off() -> None:
    """What it left unread must not stay in memory; aiohttp would wait for ever."""
    async with serving(write_timeout=0.05) as served:
        for _ in range(4):
            await served.call("messages", {"messages": [{"body": "x" * 65_000}] * 32})
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        with sock:
            await loop.sock_connect(sock, ("127.0.0.1", served.server.port))
            await loop.sock_sendall(sock, request("GET", "/v1/queues/billing/orders/peek") * 8)
            server = served.server.connections
            async with asyncio.timeout(100):
                while not server.open:
                    await asyncio.sleep(0)
                while server.open:
                    await asyncio.sleep(0)


async def test_a_slow_but_steady_reader_gets_all_of_a_long_answer() -> None:
    """Progress counts: a thin line is no attack."""
    async with serving(write_timeout=1.0) as served:
        await served.call("messages", {"messages": [{"body": "x" * 65_000}] * 32})
        loop = asyncio.get_running_loop()
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            sock.setblocking(False)
            await loop.sock_connect(sock, ("127.0.0.1", served.server.port))
            await loop.sock_sendall(sock, request("GET", "/v1/queues/billing/orders/peek", Connection="close"))
            received = b""
            while part := await loop.sock_recv(sock, 8192):
                received += part
                await asyncio.sleep(0.005)
        assert len(json.loads(received.partition(b"\r\n\r\n")[2])["messages"]) == 32


async def test_s12_connections_are_capped_and_the_place_is_given_back() -> None:
    """503 with Retry-After, at once and without a task or a parser."""
    async with serving(connections=2) as served:
        async with served.client() as one, served.client() as two:
            for client in (one, two):
                await client.send(request("GET", "/livez"))
                assert (await client.reply()).status == 200
            async with served.client() as third:
                await third.send(request("GET", "/livez"))
                reply = await third.reply()
                assert (reply.status, reply.code) == (503, "too_many_requests")
                assert int(reply.headers["retry-after"]) >= 1
                assert await third.rest() == b""
        server = served.server.connections
        async with asyncio.timeout(50):
            while server.open:
                await asyncio.sleep(0)
        assert (await served.ask("GET", "/livez")).status == 200


async def test_a_half_closed_client_still_gets_its_answer(parser: str) -> None:
    """``printf ... | nc`` closes its half when it has said all; asyncio would close the other at once."""
    async with serving() as served, served.client() as client:
        await client.send(request("POST", "/v1/triggers", OK, media=JSON))
        client.writer.write_eof()
        assert (await client.reply()).status == 202
        assert await client.rest() == b""
    async with serving() as served, served.client() as client:
        await client.send(HEAD + b"Content-Length: 1000\r\n\r\n" + OK)
        client.writer.write_eof()
        assert (await client.reply()).status == 400


async def test_half_closed_client_gets_all_its_answers(parser: str) -> None:
    """Whatever it sent before, at both doors; then the connection ends, and what is not whole is refused."""
    async with serving() as served, serving_azure(served.bridge) as front:
        many = b"".join(request("POST", f"/v1/triggers/a/q{n}") for n in range(60))
        cut = HEAD + b"Content-Length: 1000\r\n\r\n" + OK
        for more, statuses in ((b"", [202] * 60), (b"GET /li", [202] * 60), (cut, [202] * 60 + [400])):
            async with served.client() as client:
                await client.send(many + more)
                client.writer.write_eof()
                assert [(await client.reply()).status for _ in statuses] == statuses
                assert await client.rest() == b""
        client = Client(*await asyncio.open_connection("127.0.0.1", front.server.port))
        await client.send(request("GET", "/devstoreaccount1?comp=list") * 3)
        client.writer.write_eof()
        replies = [await client.reply() for _ in range(3)]
        assert len({reply.status for reply in replies}) == 1
        assert await client.rest() == b""
        await client.close()


async def test_client_that_resets_in_the_middle_of_a_body_is_no_fault(
    parser: str, caplog: pytest.LogCaptureFixture
) -> None:
    """At both doors: there is nobody to answer, and nothing to mend."""
    async with serving() as served, serving_azure(served.bridge) as front:
        await front.ask("PUT", "/orders")
        rule = served.bridge.gate.rule
        target, body = "/devstoreaccount1/orders/messages", message("x" * 1000)
        signed = signed_headers("POST", target, body, {}, front.wall())
        azure = request("POST", target, body, **{name.replace("-", "_"): value for name, value in signed.items()})
        native = request("POST", "/v1/queues/a/q/messages", body, media="text/plain")
        for server, data in ((served.server, native), (front.server, azure)):
            client = Client(*await asyncio.open_connection("127.0.0.1", server.port))
            await client.send(data[:-2])
            async with asyncio.timeout(100):
                while not rule.bytes:
                    await served.ask("GET", "/livez")
                (connection,) = (each for each in server.connections.open if not each.idle)
                wire = connection.transport
                assert wire is not None
                # More of the body and the reset come in the same turn of the loop.
                connection.data_received(data[-2:-1])
                connection.connection_lost(ConnectionResetError())
                wire.set_protocol(asyncio.Protocol())
                wire.abort()
                while rule.bytes:
                    await served.ask("GET", "/livez")
            await client.close()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_pipelined_requests_are_answered_in_order(parser: str) -> None:
    """Ours and the parser's buffers agree."""
    async with serving() as served, served.client() as client:
        many = b"".join(request("POST", f"/v1/triggers/a/q{n}") for n in range(100))
        await client.send(many + request("GET", "/nowhere") + request("GET", "/livez"))
        assert [(await client.reply()).status for _ in range(102)] == [202] * 100 + [404, 200]


async def test_http_1_0_is_served(parser: str, served: Served) -> None:
    """Old clients say Host too; without keep-alive the connection closes."""
    async with served.client() as client:
        await client.send(b"GET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n")
        assert (await client.reply()).status == 200
        assert await client.rest() == b""
    async with served.client() as client:
        for _ in range(2):
            await client.send(b"GET /livez HTTP/1.0\r\nHost: localhost\r\nConnection: keep-alive\r\n\r\n")
            assert (await client.reply()).headers["connection"] == "keep-alive"
    assert (await served.ask_raw(b"GET /livez HTTP/1.0\r\n\r\n")).status == 421


async def test_a_declined_upgrade_leaves_the_connection_usable(parser: str) -> None:
    """An Upgrade header on any other route is nobody's business."""
    async with serving() as served, served.client() as client:
        await client.send(request("GET", "/livez", Connection="Upgrade", Upgrade="websocket"))
        assert (await client.reply()).status == 200
        await client.send(request("GET", "/livez"))
        assert (await client.reply()).status == 200
        await client.send(request("GET", "/v1/sessions", Connection="Upgrade", Upgrade="websocket"))
        assert (await client.reply()).status == 400
        await client.send(request("GET", "/livez", Connection="Upgrade", Upgrade="websocket") + b"rubbish\r\n\r\n")
        assert (await client.reply()).status == 200
        reply = await client.reply()
        assert (reply.status, reply.code, reply.headers["connection"]) == (400, "bad_parameter", "close")
        assert await client.rest() == b""
