"""Bridges whose queue service works on JetStream: what they can do they do for every worker, the rest they refuse."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from bridge.contract.errors import Unsupported
from bridge.http.api.app import WebServer
from bridge.http.server.settings import WebSettings
from bridge.queues.base import NewMessage
from bridge.queues.http import SERVICE, HttpStore, able, differences
from bridge.queues.jetstream.store import JetStreamStore
from bridge.queues.postgres.store import PostgresStore
from bridge.queues.redis.store import RedisStore
from bridge.service.bridge import Bridge
from bridge.service.elsewhere import Elsewhere
from bridge.triggers.attachment import Attachments
from listeners import Listener, Message
from tests.support.brokers import NatsServer
from tests.support.processes import PATIENCE_S, until

QUEUE = "shop/orders"


@contextlib.asynccontextmanager
async def two(folder: Path) -> AsyncIterator[list[str]]:
    """Two bridges on one server, which is the engine and the broker, and their addresses."""
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(NatsServer(folder))
        nats = f"nats://127.0.0.1:{server.port}"
        urls = []
        for _ in range(2):
            bridge = await stack.enter_async_context(Bridge(store=JetStreamStore(nats)))
            buses = await stack.enter_async_context(Attachments(bridge, nats=[nats]))
            await until(lambda buses=buses: buses.buses["nats"].check()[0], "the bridge hears", PATIENCE_S)
            urls.append((await stack.enter_async_context(WebServer(bridge, WebSettings(port=0)))).url)
        yield urls


@contextlib.asynccontextmanager
async def working(url: str, seen: asyncio.Queue[str], held: asyncio.Event | None = None) -> AsyncIterator[Listener]:
    """A worker of one bridge, which says what it begins, and waits where it is told to."""

    async def handle(message: Message) -> None:
        seen.put_nowait(message.text())
        if held is not None:
            await held.wait()

    listener = Listener(url, QUEUE, handle, handle_signals=False, concurrency=1, batch=4, grace=0.01)
    task = asyncio.create_task(listener.run(), name="worker")
    try:
        await until(lambda: listener.state().mode == "push", "the worker is welcome", PATIENCE_S)
        yield listener
    finally:
        await listener.stop()
        await task


async def test_a_put_at_one_is_handled_at_the_other_and_given_back_by_who_stops(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A release is no refusal: the worker knows by then that this engine takes no count back."""
    caplog.set_level(logging.ERROR)
    seen: asyncio.Queue[str] = asyncio.Queue()
    async with two(tmp_path) as (one, other), HttpStore(one) as store, asyncio.timeout(PATIENCE_S):
        async with working(other, seen, asyncio.Event()):
            await store.put(QUEUE, ["first"])
            assert await seen.get() == "first"
        async with working(one, seen):
            assert await seen.get() == "first"
            await store.put(QUEUE, ["second"])
            assert await seen.get() == "second"
    assert not [record.message for record in caplog.records]


async def test_what_the_engine_cannot_do_is_refused_and_nothing_is_done(tmp_path: Path) -> None:
    """Each by its name, at both bridges, and the queue is as it was."""
    async with two(tmp_path) as urls:
        for url in urls:
            async with HttpStore(url) as store:
                await store.create(QUEUE)
                for refused in (
                    store.put(QUEUE, [NewMessage("later", 1000), "now"]),
                    store.put(QUEUE, [NewMessage("short", ttl_s=5)]),
                    store.put_once(QUEUE, "one", "body"),
                    store.peek(QUEUE),
                    store.pause(QUEUE),
                    store.pause(QUEUE, False),
                    store.create(QUEUE, {"a": "b"}),
                    store.create("shop/other", {"a": "b"}),
                ):
                    with pytest.raises(Unsupported):
                        await refused
                assert (await store.receive(QUEUE, 32, 30)).messages == []
                assert not await store.exists("shop/other")
                assert not await store.paused(QUEUE)
                assert store.capabilities == JetStreamStore.capabilities


@pytest.mark.parametrize(
    "engine", [PostgresStore("postgres://a/b"), RedisStore("redis://a"), JetStreamStore("nats://a")]
)
async def test_a_client_is_told_what_an_engine_lacks_and_nothing_else(
    engine: PostgresStore | RedisStore | JetStreamStore,
) -> None:
    """PostgreSQL and Redis can do all that a file can; what is read is what was written."""
    served = Elsewhere(engine, lambda events: None, lambda queue: None).capabilities
    assert (differences(served) == "") is not isinstance(engine, JetStreamStore)
    assert able(differences(served) or "{}") == served
    await engine.close()


@pytest.mark.parametrize("said", ["", "[]", "{", '{"peek": 3}', '{"pause": null}'])
def test_what_is_not_understood_is_as_usual(said: str) -> None:
    """A proxy may have written it, or a version to come."""
    assert able(said) == SERVICE
    assert able('{"peek": false, "tomorrow": 1}') == msgspec.structs.replace(SERVICE, peek=False)
