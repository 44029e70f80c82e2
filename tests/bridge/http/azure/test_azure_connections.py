"""Connections of the Azure endpoint, over many requests and to their end."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bridge.http.server.connection import Connection
from bridge.queues.base import NewMessage
from tests.support.azure import ACCOUNT, Front, message, messages, serving_azure, signed_headers
from tests.support.certificates import self_signed
from tests.support.web import Client

pytestmark = pytest.mark.usefixtures("parser")


def request(front: Front, method: str, path: str, body: bytes = b"") -> bytes:
    target = f"/{ACCOUNT}{path}"
    lines = [f"{method} {target} HTTP/1.1", f"Host: 127.0.0.1:{front.server.port}"]
    lines += [f"{name}: {value}" for name, value in signed_headers(method, target, body, {}, front.wall()).items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def connections(front: Front) -> list[Connection]:
    return list(front.server.connections.open)


@contextlib.asynccontextmanager
async def connected(front: Front, tls: ssl.SSLContext | None = None) -> AsyncIterator[Client]:
    client = Client(*await asyncio.open_connection("127.0.0.1", front.server.port, ssl=tls))
    try:
        yield client
    finally:
        await client.close()


async def test_over_tls_a_connection_rests_after_an_answer(tmp_path: pathlib.Path) -> None:
    """It is idle, no time-out for what is unread runs, and the next request is taken."""
    server, trust = self_signed(tmp_path)
    async with serving_azure(tls=server) as front:
        await front.bridge.store.create(f"{ACCOUNT}/orders")
        async with connected(front, trust) as client:
            for _ in range(3):
                await client.send(request(front, "GET", "/orders/messages"))
                assert messages(await client.reply()) == []
                (connection,) = connections(front)
                async with asyncio.timeout(60):
                    while not connection.idle:
                        await asyncio.sleep(0)
                assert not connection.writing_paused


async def test_what_comes_behind_a_request_is_answered_after_it(front: Front) -> None:
    """A request that arrives while another is served waits for its turn, whole or in pieces."""
    await front.bridge.store.create(f"{ACCOUNT}/orders")
    async with connected(front) as client:
        first = request(front, "POST", "/orders/messages", message("one"))
        second = request(front, "GET", "/orders/messages")
        await client.send(second)
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


async def test_a_peer_that_went_away_leaves_nothing(front: Front) -> None:
    """Its request is carried out, and its connection forgotten."""
    store = front.bridge.store
    await store.create(f"{ACCOUNT}/orders")
    async with connected(front) as client:
        await client.send(request(front, "GET", "/orders/messages"))
        await client.reply()
        (connection,) = connections(front)
        connection.data_received(request(front, "POST", "/orders/messages", message("x")))
        connection.transport.abort()
        async with asyncio.timeout(60):
            while connections(front) or not (await store.receive(f"{ACCOUNT}/orders")).messages:
                await asyncio.sleep(0)


async def test_a_stop_lets_a_request_end(monkeypatch: pytest.MonkeyPatch, front: Front) -> None:
    """It is answered with an end of the connection; an idle connection is closed at once."""
    store = front.bridge.store
    await store.put(f"{ACCOUNT}/orders", [NewMessage(b"x")])
    async with connected(front) as client, connected(front) as idle:
        for each in (client, idle):
            await each.send(request(front, "GET", "/orders?comp=metadata"))
            await each.reply()
        receive, asked, let = store.receive_stamped, asyncio.Event(), asyncio.Event()

        async def held(*args: Any, **more: Any) -> object:
            asked.set()
            await let.wait()
            return await receive(*args, **more)

        monkeypatch.setattr(store, "receive_stamped", held)
        await client.send(request(front, "GET", "/orders/messages"))
        async with asyncio.timeout(60):
            await asked.wait()
        stop = asyncio.create_task(front.server.stop(), name="stop")
        assert await idle.rest() == b""
        let.set()
        reply = await client.reply()
        assert reply.headers["connection"] == "close"
        assert len(messages(reply)) == 1
        assert await client.rest() == b""
        await stop


async def test_a_peer_that_reads_slowly_is_not_served(monkeypatch: pytest.MonkeyPatch, front: Front) -> None:
    """What it sends behind an answer that it did not take waits until it has."""
    await front.bridge.store.create(f"{ACCOUNT}/orders")
    async with connected(front) as client:
        await client.send(request(front, "GET", "/orders/messages"))
        await client.reply()
        (connection,) = connections(front)
        connection.data_received(request(front, "GET", "/orders/messages"))
        monkeypatch.setattr(Connection, "unread", lambda _: 1)
        connection.pause_writing()
        assert messages(await client.reply()) == []
        connection.data_received(request(front, "POST", "/orders/messages", message("x")))
        for _ in range(10):
            depth = await front.bridge.store.depth(f"{ACCOUNT}/orders")
            assert depth.visible == 0
        monkeypatch.undo()
        connection.resume_writing()
        assert (await client.reply()).status == 201


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
            asked, answer = asyncio.Event(), asyncio.get_running_loop().create_future()

            async def unanswered(*_: object, **__: object) -> object:
                asked.set()
                return await answer

            monkeypatch.setattr(store, "receive_stamped", unanswered)
            await client.send(request(front, "GET", target))
            async with asyncio.timeout(60):
                await asked.wait()
            await front.server.connections.stop(0)
            assert await client.rest() == b""
            assert answer.cancelled()
            assert told == []
            monkeypatch.undo()


async def test_a_defect_is_told_and_ends_the_connection(monkeypatch: pytest.MonkeyPatch, front: Front) -> None:
    """Whether it shows before the store was asked or after."""
    store = front.bridge.store
    await store.create(f"{ACCOUNT}/orders")

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async def answer_nonsense(*_: object, **__: object) -> None:
        return None

    for broken in (fail, answer_nonsense):
        async with connected(front) as client:
            monkeypatch.setattr(store, "receive_stamped", broken)
            await client.send(request(front, "GET", "/orders/messages"))
            reply = await client.reply()
            assert (reply.status, reply.headers["connection"]) == (500, "close")
            assert await client.rest() == b""
            monkeypatch.undo()
