"""`queuebell serve --store`: several bridges on one engine, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator

import pytest

from listeners import Listener, Message
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.support.command import perform

__all__ = ["schema", "server", "url"]

QUEUE = "billing/orders"


@contextlib.asynccontextmanager
async def working(address: str) -> AsyncIterator[tuple[set[str], asyncio.Condition]]:
    """A worker of the bridge at this address, and what it handled."""
    handled: set[str] = set()
    more = asyncio.Condition()

    async def handle(message: Message) -> None:
        async with more:
            handled.add(message.text())
            more.notify_all()

    listener = Listener(address, QUEUE, handle, handle_signals=False, visibility_timeout=5)
    running = asyncio.create_task(listener.run(), name="worker")
    try:
        yield handled, more
    finally:
        await listener.stop()
        await running


def test_what_cannot_be_served_is_refused_by_name(tmp_path: pathlib.Path) -> None:
    """Another scheme, a database without tables, an Azure endpoint on what tells no metadata: one line each."""
    for store, more, said in (
        ("sqs://eu-west-1", [], "store: a bridge keeps its queues in an engine"),
        ("sqlite:///x.db", [], "store: a bridge keeps its queues in an engine"),
        ("redis://127.0.0.1:1", ["--azure-queue", "127.0.0.1:0"], "azure_queue: redis://127.0.0.1:1"),
        ("nats://127.0.0.1:1", ["--azure-queue", "127.0.0.1:0"], "azure_queue: nats://127.0.0.1:1"),
    ):
        words = ("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path), "--store", store, *more)
        done = perform(*words, code=78)
        assert said in done.stderr.decode()
        assert len(done.stderr.decode().strip().splitlines()) == 1


@pytest.mark.system
def test_a_database_without_tables_is_refused_with_what_makes_them(tmp_path: pathlib.Path, url: str) -> None:
    """Nothing is served that could not keep a put."""
    done = perform("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path), "--store", url, code=None)
    assert done.returncode and "queuebell queue init" in done.stderr.decode()
