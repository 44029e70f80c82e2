"""Whole puts are let in or refused on their arrival; what a client sees is the same as by the longer way."""

from __future__ import annotations

import asyncio

import pytest

from bridge.core.admission import Ticket
from bridge.http.server.overload.shed import _KNOWN_MAX, _known, whole_put
from tests.support.web import JSON, Reply, Served, request

PUT = "/v1/queues/billing/orders/messages/a"
POST = "/v1/queues/billing/orders/messages"
PLAIN = request("PUT", PUT, b"x", media="text/plain")


@pytest.mark.parametrize(
    ("data", "size"),
    [
        (PLAIN, 1),
        (request("PUT", PUT + "?ttl_s=5&visible_after_ms=10", b"four"), 4),
        (request("POST", POST, b'{"messages":[{"body":"x"}]}', media=JSON), 27),
        (request("POST", POST, b""), 0),
        (PLAIN.replace(b"Content-Length: 1", b"content-LENGTH:1"), 1),
    ],
)
def test_plain_puts_are_known(data: bytes, size: int) -> None:
    """By both verbs, with their options; the size is that of the body."""
    assert whole_put(data) == size


def test_known_head_goes_with_the_body_that_it_announces() -> None:
    """A head that was seen before is not read again; the body's length and the request line still are."""
    assert whole_put(PLAIN) == 1
    for other in (PLAIN + b"x", PLAIN[:-1], PLAIN.replace(b"PUT", b"GET"), PLAIN.replace(b"1.1", b"1.0")):
        assert whole_put(other) is None
    assert whole_put(PLAIN) == 1
    for number in range(2 * _KNOWN_MAX):
        assert whole_put(PLAIN.replace(b"Host", b"X-A: %d\r\nHost" % number)) == 1
    assert len(_known) <= _KNOWN_MAX


@pytest.mark.parametrize(
    "data",
    [
        PLAIN[:-1],
        PLAIN + b"x",
        PLAIN + PLAIN,
        PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"),
        PLAIN.replace(b"Content-Length: 1\r\n", b""),
        PLAIN.replace(b"Content-Length: 1\r\n", b"Content-Length: +1\r\n"),
        PLAIN.replace(b"Content-Length: 1\r\n", b"Content-Length: 1\r\nContent-Length: 1\r\n"),
        PLAIN.replace(b"Content-Length: 1\r\n", b"Content-Length : 1\r\nContent-Length: 1\r\n"),
        PLAIN.replace(b"Content-Length: 1\r\n", b"Content-Length: 1\r\n folded\r\n"),
        PLAIN.replace(b"Content-Length", b"Transfer-Encoding: chunked\r\nContent-Length"),
        PLAIN.replace(b"Content-Length", b"Transfer-Encoding : chunked\r\nContent-Length"),
        PLAIN.replace(b"Content-Length", b"Content-Encoding: gzip\r\nContent-Length"),
        PLAIN.replace(b"Content-Length", b"Connection: close\r\nContent-Length"),
        PLAIN.replace(b"Content-Length", b"eXpect: 100-continue\r\nContent-Length"),
        PLAIN.replace(b"Content-Length", b"Upgrade: websocket\r\nContent-Length"),
        PLAIN.replace(b"Content-Length", b"Origin: http://elsewhere\r\nContent-Length"),
        PLAIN.replace(b"Content-Length", b"Queuebell-Hop: 1\r\nContent-Length"),
        PLAIN.replace(b"Host:", b"Host: a\r\nHost:"),
        PLAIN.replace(b"Host:", b"Hast:"),
        request("PUT", PUT + "%2f", b"x"),
        request("PUT", POST, b"x"),
        request("POST", PUT, b"x"),
        request("POST", "/v1/queues/billing/orders/receive", b"{}", media=JSON),
        request("PUT", "/v1/queues/billing/orders", b""),
        request("DELETE", POST, b""),
        request("GET", "/livez"),
        b"",
        b"\r\n" + PLAIN,
    ],
)
def test_everything_else_goes_its_way(data: bytes) -> None:
    """Parts and more than one, other requests, and whatever has something unusual in its head."""
    assert whole_put(data) is None


def but_for_the_date(reply: Reply) -> tuple[int, dict[str, str], bytes]:
    """Return an answer without the one line that differs from second to second."""
    return reply.status, {name: text for name, text in reply.headers.items() if name != "date"}, reply.body


@pytest.mark.usefixtures("parser")
async def test_refusal_on_arrival_is_the_same_and_the_connection_goes_on(served: Served) -> None:
    """Byte for byte but for the date, also as the first word of a connection; it is counted, and nothing is put."""
    rule = served.bridge.gate.rule
    # One waits already, and more than one may not.
    rule.limit, waits = 1.0, served.bridge.gate.admit(0)
    served.bridge.gate.begin(waits, 0)
    async with served.client() as client:
        await client.send(PLAIN)
        at_once = await client.reply()
        # What is in its head makes no difference but the way it goes.
        await client.send(PLAIN.replace(b"Content-Length", b"Connection: keep-alive\r\nContent-Length"))
        by_route = await client.reply()
        assert but_for_the_date(at_once) == but_for_the_date(by_route)
        assert (at_once.status, at_once.code, at_once.headers["retry-after"]) == (429, "too_many_requests", "1")
        metrics = (await served.ask("GET", "/metrics")).body
        assert b'queuebell_puts_refused_total{reason="wait"} 2.0' in metrics
        assert await served.bridge.store.depth("billing/orders") is None
        served.bridge.gate.end(waits)
        await client.send(PLAIN)
        assert (await client.reply()).status == 201
    assert (rule.waiting, rule.bytes) == (0, 0)


@pytest.mark.usefixtures("parser")
async def test_ticket_ends_whatever_becomes_of_its_put(served: Served) -> None:
    """Put, put before, refused by its route, by the guard or by the parser: nothing is counted as waiting after it."""
    rule = served.bridge.gate.rule
    for data, status in (
        (PLAIN, 201),
        (PLAIN, 204),
        (request("PUT", PUT, b"other"), 409),
        (request("PUT", PUT[:-1] + "-a", b"x"), 400),
        (request("PUT", PUT, b"x" * 65_537), 413),
        (request("POST", POST, b"{", media=JSON), 400),
        (PLAIN.replace(b"Host: 127.0.0.1", b"Host: elsewhere.example"), 421),
        (PLAIN.replace(b"Content-Length", b"a\x00b: 1\r\nContent-Length"), 400),
    ):
        async with served.client() as client:
            await client.send(data)
            assert (await client.reply()).status == status
            await gone(served)
    assert (rule.waiting, rule.bytes) == (0, 0)


async def test_what_its_route_refuses_teaches_nothing(served: Served) -> None:
    """However fast it was refused: nothing went to the store."""
    rule = served.bridge.gate.rule
    rule.limit = 2.0
    for data, limit in (
        (request("PUT", PUT + "?nope=1", b"x"), 2.0),
        (request("POST", POST, b"{", media=JSON), 2.0),
        (request("POST", POST, b"{", media=JSON, Connection="keep-alive"), 2.0),
        (PLAIN, 3.0),
    ):
        async with served.client() as client:
            await client.send(data)
            await client.reply()
        await gone(served)
        assert rule.limit == limit


@pytest.mark.usefixtures("parser")
async def test_put_does_not_wait_while_its_sender_leaves_an_answer_unread(
    monkeypatch: pytest.MonkeyPatch, served: Served
) -> None:
    """Behind another request a put waits for us since that was answered, and its answer taken."""
    loop = asyncio.get_running_loop()
    rule = served.bridge.gate.rule
    came: list[float] = []
    begin = rule.begin

    def note(ticket: Ticket, now: float, size: int | None = None, moment: float | None = None) -> None:
        came.append(now)
        begin(ticket, now, size, moment)

    rule.begin = note  # type: ignore[method-assign]
    async with served.client() as client:
        await client.send(request("GET", "/livez"))
        await client.reply()
        (connection,) = served.server.connections.open
        monkeypatch.setattr(type(connection), "unread", lambda _: 1)
        connection.pause_writing()
        await client.send(request("GET", "/livez") + PLAIN)
        assert (await client.reply()).status == 200
        resumed = loop.time()
        monkeypatch.undo()
        connection.resume_writing()
        assert (await client.reply()).status == 201
    assert came[0] >= resumed > connection.arrived


async def test_ticket_ends_with_its_sender(served: Served) -> None:
    """A client that sends and hangs up at once leaves nothing behind that waits."""
    async with served.client() as client:
        await client.send(PLAIN)
    await gone(served)


async def gone(served: Served) -> None:
    """Wait until nothing is counted any more, by asking for what does not pass the gate."""
    async with asyncio.timeout(100):
        while served.bridge.gate.rule.waiting or served.bridge.gate.rule.bytes:
            assert (await served.ask("GET", "/livez")).status == 200
