"""The store over HTTP at several equal bridges: who is asked next, and what is never asked twice."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from queuebell.bridge.contract.calls import CARRIES, SERVICE_ABLE_HEADER
from queuebell.bridge.contract.errors import (
    BadInput,
    NotAllowed,
    QueueNotFound,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from queuebell.bridge.queues.base import Claim, NewMessage, Settlement
from queuebell.bridge.queues.http.store import HttpStore
from tests.bridge.queues.scripted_server import Answering, HangUp, ScriptedServer
from tests.support.processes import free_port
from tests.support.web import serving

# Private: `_runner`: stops the bridge without a farewell.

QUEUE = "billing/orders"
PUT = b'{"messages": [{"id": "1", "pop_receipt": "p", "visible_in_ms": 0}]}'
RECEIVED = b'{"messages": [], "depth": {"visible": 0, "invisible": 0}, "next_visible_in_ms": null}'
SETTLED = b'{"delete": [{"ok": true}], "release": [], "extend": []}'
DESCRIBED = b'{"depth": {"visible": 3, "invisible": 0}}'


def well(request: web.Request, body: bytes) -> web.Response:
    """Answer as a bridge with a store that is not its own."""
    if request.method == "GET":
        text = RECEIVED if request.path.endswith("/peek") else DESCRIBED
        return web.Response(body=b'{"queues": ["a/b"]}' if request.path == "/v1/queues" else text)
    if request.method == "PUT":
        return web.Response(status=201, body=PUT if "/messages/" in request.path else b"")
    if request.method == "DELETE":
        return web.Response(status=204)
    named = {"messages": PUT, "receive": RECEIVED, "settle": SETTLED}
    return web.Response(body=named.get(request.path.rpartition("/")[2], b"{}"))


def hanging_up(request: web.Request, body: bytes) -> web.Response:
    """Take the request, and say nothing of it."""
    raise HangUp


def refusing(status: int, code: str, **headers: str) -> Answering:
    """Refuse everything, as a bridge does."""
    problem = json.dumps({"title": "", "status": status, "detail": f"refused: {code}", "code": code})
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda request, body: web.Response(
        status=status, text=problem, headers={"Content-Type": "application/problem+json", **named}
    )


def strange(request: web.Request, body: bytes) -> web.Response:
    """Answer as some other web server."""
    return web.Response(status=404, text="<html>")


CALLS: dict[str, Callable[[HttpStore], Any]] = {
    "put": lambda store: store.put(QUEUE, [b"x"]),
    "put_once": lambda store: store.put_once(QUEUE, "k", b"x"),
    "receive": lambda store: store.receive(QUEUE),
    "settle": lambda store: store.settle(QUEUE, Settlement(delete=[Claim("1", "p")])),
    "peek": lambda store: store.peek(QUEUE),
    "depth": lambda store: store.depth(QUEUE),
    "queues": lambda store: store.queues(),
    "create": lambda store: store.create(QUEUE),
    "delete": lambda store: store.delete(QUEUE),
    "clear": lambda store: store.clear(QUEUE),
    "pause": lambda store: store.pause(QUEUE),
}
REPEATABLE = {"put_once", "peek", "depth", "queues"}


@contextlib.asynccontextmanager
async def among(
    *answers: Answering | None, wire: bool = False
) -> AsyncIterator[tuple[HttpStore, list[ScriptedServer]]]:
    """Give a store over servers that answer so, begun with the first; nobody listens where it is None."""
    async with contextlib.AsyncExitStack() as stack:
        servers = [
            ScriptedServer(well) if each is None else await stack.enter_async_context(ScriptedServer(each, wire=wire))
            for each in answers
        ]
        urls = [server.url or f"http://127.0.0.1:{free_port()}" for server in servers]
        store = HttpStore(",".join(urls), draw=lambda: 0.999)
        stack.push_async_callback(store.close)
        yield store, servers


@pytest.mark.parametrize("wire", [True, False])
@pytest.mark.parametrize("call", CALLS)
async def test_only_what_may_be_done_twice_is_asked_of_the_next_where_no_answer_came(call: str, wire: bool) -> None:
    """A put without a key, a receive or a settlement that may have been done is its caller's to judge, as ever."""
    async with among(hanging_up, well, wire=wire) as (store, (first, second)):
        if call in REPEATABLE:
            await CALLS[call](store)
        else:
            with pytest.raises(UnknownOutcome):
                await CALLS[call](store)
            assert second.asked == []
            await CALLS[call](store)
        assert (len(first.asked), len(second.asked)) == (1, 1)


@pytest.mark.parametrize("wire", [True, False])
@pytest.mark.parametrize(
    ("status", "code", "raised"),
    [
        (400, "bad_parameter", BadInput), (404, "queue_not_found", QueueNotFound), (409, "message_conflict", BadInput),
        (413, "message_too_large", BadInput),
    ],
)  # fmt: skip
async def test_what_is_refused_for_itself_is_refused_everywhere(
    status: int, code: str, raised: type[Exception], wire: bool
) -> None:
    """That is an answer: no other is asked, now or the next time."""
    async with among(refusing(status, code), well, wire=wire) as (store, (first, second)):
        for _ in range(3):
            with pytest.raises(raised):
                await store.receive(QUEUE)
        assert (len(first.asked), len(second.asked)) == (3, 0)


@pytest.mark.parametrize("wire", [True, False])
async def test_what_may_have_been_done_at_one_is_never_told_as_not_done(wire: bool) -> None:
    """Although the last that was asked cannot be reached."""
    for last in (None, refusing(503, "draining"), refusing(401, "unauthenticated"), strange):
        async with among(hanging_up, last, wire=wire) as (store, _servers):
            with pytest.raises(UnknownOutcome):
                await store.put_once(QUEUE, "k", b"x")


async def test_two_services_with_messages_of_their_own_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """What was put at one is not at the other. Two addresses of one service are well."""
    caplog.set_level(logging.INFO, "queuebell.store")
    async with serving() as other:
        async with serving() as served:
            store = HttpStore(f"{served.server.url},{other.server.url}", draw=lambda: 0.999)
            await store.put(QUEUE, [b"x"])
            assert store.boot is None and (await store.receive(QUEUE)).boot is None
            assert not store.unnamed(QUEUE)
        await store.depth(QUEUE)
        assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
        assert "have embedded queues of their own" in caplog.messages[1]
        await store.close()


def on_engine(name: str, answer: Answering = well) -> Answering:
    """Answer as a bridge on an engine that names the queue so."""

    def named(request: web.Request, body: bytes) -> web.Response:
        response = answer(request, body)
        response.headers["Queuebell-Store"] = name
        return response

    return named


async def test_bridges_on_one_engine_have_one_name_for_a_queue(caplog: pytest.LogCaptureFixture) -> None:
    """B11: the engine's, whichever was asked; where they have several the log says so."""
    for other, said in (("e" * 32, False), ("f" * 32, True)):
        caplog.clear()
        async with among(on_engine("e" * 32), on_engine(other)) as (store, (first, second)):
            await store.depth(QUEUE)
            assert store.fingerprint(QUEUE) == store.engine(QUEUE) == "e" * 32
            await first._runner.cleanup()
            await store.depth(QUEUE)
            assert len(second.asked) == 1 and store.fingerprint(QUEUE) == other and store.boot is None
        assert any("in another store" in line for line in caplog.messages) is said


ASK = ("GET", "/v1/queues")
PUT_HTTP_OLDER = ("POST", f"/v1/queues/{QUEUE}/messages")
PUT_ONCE = ("PUT", f"/v1/queues/{QUEUE}/messages/k")
WITH = NewMessage("x", headers={"a": "b"})
PUTS: dict[str, tuple[Callable[[HttpStore], Any], tuple[str, str]]] = {
    "put": (lambda store: store.put(QUEUE, ["y", WITH]), PUT_HTTP_OLDER),
    "put_once": (lambda store: store.put_once(QUEUE, "k", WITH), PUT_ONCE),
}


def said(answering: Answering, abilities: str = CARRIES) -> Answering:
    """Answer so as a bridge of this version, which names what it can do."""

    def answer(request: web.Request, body: bytes) -> web.Response:
        response = answering(request, body)
        response.headers[SERVICE_ABLE_HEADER] = abilities
        return response

    return answer


@pytest.mark.parametrize("call", PUTS)
async def test_of_several_bridges_the_older_are_passed_over(call: str) -> None:
    """Only puts with headers pass them over; where all are older the put is refused."""
    does, sent = PUTS[call]
    async with among(well, said(well)) as (store, (older, newer)):
        await does(store)
        assert (older.asked, newer.asked) == ([ASK], [ASK, sent])
    async with among(well, well) as (store, servers):
        with pytest.raises(Unsupported):
            await does(store)
        assert [server.asked for server in servers] == [[ASK], [ASK]]
    async with among(well, None) as (store, (older, _)):
        with pytest.raises(StoreUnavailable):
            await does(store)
        await store.put(QUEUE, ["y"])
        assert older.asked == [ASK, PUT_HTTP_OLDER]


@pytest.mark.parametrize("call", PUTS)
async def test_a_question_that_is_not_answered_has_put_nothing(call: str) -> None:
    """The put is safe to try again, and the error says that."""
    async with among(hanging_up) as (store, (server,)):
        with pytest.raises(StoreUnavailable, match="nothing was put"):
            await PUTS[call][0](store)
        assert server.asked == [ASK]


async def test_a_key_that_may_only_put_is_answered_all_the_same() -> None:
    """Its question is refused, and the refusal names what the bridge can do; a wrong key is refused as such."""

    def putting(request: web.Request, body: bytes) -> web.Response:
        return (refusing(403, "forbidden") if request.method == "GET" else well)(request, body)

    async with among(said(putting)) as (store, (server,)):
        await store.put(QUEUE, [WITH])
        assert server.asked == [ASK, PUT_HTTP_OLDER]
    async with among(putting) as (store, _):
        with pytest.raises(Unsupported):
            await store.put(QUEUE, [WITH])
    async with among(refusing(401, "unauthenticated")) as (store, (server,)):
        with pytest.raises(NotAllowed):
            await store.put(QUEUE, [WITH])
        assert server.asked == [ASK]


async def test_a_bridge_replaced_by_an_older_one_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """One put may meet it before it has said so: its headers are lost, and the log says that; the next is refused."""
    answers = {"now": said(well)}
    async with among(lambda request, body: answers["now"](request, body)) as (store, _):
        await store.put(QUEUE, [WITH])
        answers["now"] = well
        await store.put(QUEUE, [WITH])
        assert [each.levelno for each in caplog.records if "without its headers" in each.message] == [logging.ERROR]
        with pytest.raises(Unsupported):
            await store.put(QUEUE, [WITH])
