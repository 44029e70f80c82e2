"""The store over HTTP at several equal bridges: who is asked next, and what is never asked twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web

from bridge.contract.errors import (
    BadInput,
    NoQueueService,
    NotAllowed,
    Overloaded,
    QueueNotFound,
    StoreUnavailable,
    UnknownOutcome,
)
from bridge.contract.wire import Hello
from bridge.queues.base import Claim, Settlement
from bridge.queues.http import HttpStore, normalised
from listeners import Listener, Message
from tests.bridge.queues.scripted_server import Answering, HangUp, ScriptedServer
from tests.support.fake_bridge import FakeBridge
from tests.support.processes import free_port
from tests.support.web import serving

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
async def among(*answers: Answering | None) -> AsyncIterator[tuple[HttpStore, list[ScriptedServer]]]:
    """Give a store over servers that answer so, begun with the first; nobody listens where it is None."""
    async with contextlib.AsyncExitStack() as stack:
        servers = [
            ScriptedServer(well) if each is None else await stack.enter_async_context(ScriptedServer(each))
            for each in answers
        ]
        urls = [server.url or f"http://127.0.0.1:{free_port()}" for server in servers]
        store = HttpStore(",".join(urls), draw=lambda: 0.999)
        stack.push_async_callback(store.close)
        yield store, servers


@pytest.mark.parametrize("call", CALLS)
async def test_who_cannot_be_reached_is_passed_over(call: str) -> None:
    """Nothing was sent there, whatever it was; and the one that answers is kept."""
    async with among(None, well, well) as (store, (_, second, third)):
        for _ in range(3):
            await CALLS[call](store)
        assert (len(second.asked), third.asked) == (3, [])


@pytest.mark.parametrize("call", CALLS)
async def test_only_what_may_be_done_twice_is_asked_of_the_next_where_no_answer_came(call: str) -> None:
    """A put without a key, a receive or a settlement that may have been done is its caller's to judge, as ever."""
    async with among(hanging_up, well) as (store, (first, second)):
        if call in REPEATABLE:
            await CALLS[call](store)
        else:
            with pytest.raises(UnknownOutcome):
                await CALLS[call](store)
            assert second.asked == []
            await CALLS[call](store)
        assert (len(first.asked), len(second.asked)) == (1, 1)


@pytest.mark.parametrize("call", ["put", "receive", "settle", "put_once"])
@pytest.mark.parametrize(("status", "code"), [(503, "draining"), (429, "too_many_requests")])
async def test_who_did_nothing_and_says_so_is_passed_over(call: str, status: int, code: str) -> None:
    """A bridge that stops, or has too much to do; it is asked again when it asked to be, and not before."""
    async with among(refusing(status, code, Retry_After="60"), well) as (store, (first, second)):
        for _ in range(3):
            await CALLS[call](store)
        assert (len(first.asked), len(second.asked)) == (1, 3)


async def test_where_all_are_busy_the_caller_hears_when_to_come_again() -> None:
    """The one that asked for the shorter pause is asked first then."""
    busy = [refusing(429, "too_many_requests", Retry_After=pause) for pause in ("60", "7")]
    async with among(*busy) as (store, (first, second)):
        with pytest.raises(Overloaded):
            await store.put(QUEUE, [b"x"])
        with pytest.raises(Overloaded) as told:
            await store.put(QUEUE, [b"x"])
        assert told.value.retry_after == 7.0
        assert (len(first.asked), len(second.asked)) == (2, 2)


@pytest.mark.parametrize(
    ("status", "code", "raised"),
    [
        (400, "bad_parameter", BadInput), (404, "queue_not_found", QueueNotFound), (409, "message_conflict", BadInput),
        (413, "message_too_large", BadInput),
    ],
)  # fmt: skip
async def test_what_is_refused_for_itself_is_refused_everywhere(
    status: int, code: str, raised: type[Exception]
) -> None:
    """That is an answer: no other is asked, now or the next time."""
    async with among(refusing(status, code), well) as (store, (first, second)):
        for _ in range(3):
            with pytest.raises(raised):
                await store.receive(QUEUE)
        assert (len(first.asked), len(second.asked)) == (3, 0)


async def test_a_wrong_key_at_one_is_told_and_the_next_call_goes_elsewhere() -> None:
    """Equal bridges would all refuse it, so that no call is made twice for it; but one may be set up wrongly."""
    async with among(refusing(401, "unauthenticated"), well) as (store, (first, second)):
        with pytest.raises(NotAllowed):
            await store.peek(QUEUE)
        assert second.asked == []
        for _ in range(3):
            await store.put(QUEUE, [b"x"])
        assert (len(first.asked), len(second.asked)) == (1, 3)
    async with among(*[refusing(403, "forbidden")] * 3) as (store, servers):
        for _ in range(3):
            with pytest.raises(NotAllowed):
                await store.peek(QUEUE)
        assert [len(server.asked) for server in servers] == [1, 1, 1]


@pytest.mark.parametrize("last", [None, refusing(503, "draining")], ids=["gone", "stopping"])
async def test_a_refusal_is_told_whoever_was_asked_before(last: Answering | None) -> None:
    """An equal bridge that is away would refuse it too: to try again would be for nothing, whichever is asked first."""
    for servers in ((last, refusing(403, "forbidden")), (refusing(403, "forbidden"), last)):
        async with among(*servers) as (store, _):
            with pytest.raises(NotAllowed):
                await store.put(QUEUE, [b"x"])


async def test_another_web_server_is_passed_over_but_told_of_where_nobody_else_is() -> None:
    """One wrong address in a list ends no worker while there is a right one, nor while that is away."""
    async with among(strange, well) as (store, (_, second)):
        await store.put(QUEUE, [b"x"])
        assert len(second.asked) == 1
    async with among(strange, None) as (store, _servers):
        with pytest.raises(StoreUnavailable):
            await store.put(QUEUE, [b"x"])
    async with among(strange, strange) as (store, _servers):
        with pytest.raises(NoQueueService):
            await store.put(QUEUE, [b"x"])


async def test_what_may_have_been_done_at_one_is_never_told_as_not_done() -> None:
    """Although the last that was asked cannot be reached."""
    for last in (None, refusing(503, "draining"), refusing(401, "unauthenticated"), strange):
        async with among(hanging_up, last) as (store, _servers):
            with pytest.raises(UnknownOutcome):
                await store.put_once(QUEUE, "k", b"x")


async def test_one_that_hangs_costs_a_look_half_of_its_time_and_a_receive_all_of_it() -> None:
    """All calls together end within R; the next goes to another one at once."""
    released = asyncio.Event()

    async def hold(request: web.Request) -> web.Response:
        held.append(request.path)
        await released.wait()
        return web.Response()

    held: list[str] = []
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", hold)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with ScriptedServer(well) as server:
            for call, raises in (("depth", False), ("put_once", False), ("receive", True), ("put", True)):
                url = f"http://127.0.0.1:{runner.addresses[0][1]},{server.url}"
                store = HttpStore(url, timeout=0.5, draw=lambda: 0.999)
                with pytest.raises(UnknownOutcome) if raises else contextlib.nullcontext():
                    await CALLS[call](store)
                before = len(held)
                await CALLS[call](store)
                assert len(held) == before
                await store.close()
    finally:
        released.set()
        await runner.cleanup()


async def test_a_bridge_goes_and_comes_back(caplog: pytest.LogCaptureFixture) -> None:
    """One line says which is asked from now on; back, it is asked when the other one goes."""
    caplog.set_level(logging.INFO, "queuebell.store")
    first, second = ScriptedServer(well), ScriptedServer(well)
    async with second:
        async with first:
            store = HttpStore(f"{first.url},{second.url}", draw=lambda: 0.999)
            await store.put(QUEUE, [b"x"])
        for _ in range(3):
            await store.depth(QUEUE)
    assert (len(first.asked), len(second.asked)) == (1, 3)
    (said,) = caplog.messages
    assert first.url in said and second.url in said
    with pytest.raises(StoreUnavailable):
        await store.put(QUEUE, [b"x"])
    await store.close()


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
        assert "each hold messages of their own" in caplog.messages[1]
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


async def test_a_worker_names_no_store_before_it_knows_the_engine() -> None:
    """B11: by a name made of addresses it would be refused beside those who know the engine's, or have them refused."""

    async def nothing(message: Message) -> None:
        pass

    async with among(on_engine("e" * 32), on_engine("e" * 32)) as (store, _):
        assert store.unnamed(QUEUE)
        bridge = FakeBridge()
        listener = Listener(store, QUEUE, nothing, bridge=bridge, handle_signals=False)
        running = asyncio.create_task(listener.run(), name="listener")
        while not bridge.hellos or bridge.hellos[-1].queues[0].store is None:
            await bridge.until(Hello, len(bridge.hellos) + 1)
        assert {hello.queues[0].store for hello in bridge.hellos} <= {None, "e" * 32}
        assert not store.unnamed(QUEUE)
        await listener.stop()
        await running


async def test_the_order_of_the_addresses_names_no_other_queue() -> None:
    """B11: workers of one queue may list their bridges in any order, but list the same ones."""
    urls = ("http://localhost:1,b:2", "http://b:2,http://127.0.0.1:1/", "http://B:2,localhost:1,b:2")
    stores = [HttpStore(url) for url in urls]
    assert {str(store) for store in stores} == {normalised(urls[0])} == {"http://127.0.0.1:1,b:2"}
    assert len({store.fingerprint(QUEUE) for store in stores}) == 1
    assert stores[0].fingerprint(QUEUE) != HttpStore("http://b:2").fingerprint(QUEUE)
    assert stores[0].bridge_url == "http://localhost:1,b:2"
