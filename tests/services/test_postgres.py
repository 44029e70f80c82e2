"""A whole system on PostgreSQL: an INSERT by anybody, a bridge that listens, a worker that polls nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from bridge.attachment import Attachments
from bridge.queues.postgres_schema import init
from bridge.service import Bridge
from listeners import Listener, Message, Retry
from tests.support.postgres import PostgresServer, execute, running
from tests.support.processes import until

QUEUE = "billing/orders"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@pytest.mark.system
@pytest.mark.asyncio
async def test_an_insert_wakes_a_worker_that_sleeps(server: PostgresServer) -> None:
    """Inserts, delayed ones and retries reach the handler by the bell; between them nobody asks the database."""
    url = server.url(search_path="bell")
    await init(url, notify=True)
    seen: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def handle(message: Message) -> None:
        seen.put_nowait((message.text(), message.attempt))
        if message.text() == "again" and message.attempt == 1:
            raise Retry(after=0.2)

    async with Bridge() as bridge, Attachments(bridge, postgres=[server.url()]):
        await until(lambda: bridge.readiness()[0], "the bridge listens")
        listener = Listener(url, QUEUE, handle, bridge=bridge, handle_signals=False)
        task = asyncio.create_task(listener.run(), name="worker")
        try:
            await until(lambda: bridge.listeners(), "the worker is there")
            await until(lambda: not (bridge.describe(QUEUE) or {"dirty": True})["dirty"], "it has looked once")
            asked = listener.state().queues[QUEUE].total_receives
            async with asyncio.timeout(20):
                await execute(url, "SELECT queuebell_put($1, 'now'::text)", QUEUE)
                assert await seen.get() == ("now", 1)
                await execute(url, "SELECT queuebell_put($1, 'later'::text, '300 ms')", QUEUE)
                assert await seen.get() == ("later", 1)
                await execute(url, "INSERT INTO queuebell_messages (queue, body) VALUES ($1, 'again')", QUEUE)
                assert [await seen.get(), await seen.get()] == [("again", 1), ("again", 2)]
            await until(lambda: drained(url), "all is deleted")
            # Each of four wakes is a receive that finds and one or two that do not; a poller would ask for ever.
            assert listener.state().queues[QUEUE].total_receives - asked <= 16
        finally:
            await listener.stop()
            await task


async def drained(url: str) -> bool:
    return not await execute(url, "SELECT FROM queuebell_messages")
