"""`queuebell serve --store`: several bridges on one engine, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator

import pytest

from queuebell.bridge.contract.errors import StoreError
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.queues.postgres.schema import init
from queuebell.listeners import Listener, Message
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.support.command import perform, serving
from tests.support.processes import PATIENCE_S

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
        ("sqs://eu-west-1", [], "store: a bridge keeps its queues in postgres://"),
        ("sqlite:///x.db", [], "store: a bridge keeps its queues in postgres://"),
        ("redis://127.0.0.1:1", ["--azure-queue", "127.0.0.1:0"], "azure_queue: redis://127.0.0.1:1"),
        ("nats://127.0.0.1:1", ["--azure-queue", "127.0.0.1:0"], "azure_queue: nats://127.0.0.1:1"),
    ):
        words = ("serve", "--listen", "127.0.0.1:0", "--data", str(tmp_path), "--store", store, *more)
        done = perform(*words, code=78)
        assert said in done.stderr.decode()
        assert len(done.stderr.decode().strip().splitlines()) == 1


@pytest.mark.system
async def test_a_bridge_that_is_killed_loses_nothing(tmp_path: pathlib.Path, url: str) -> None:
    """What it acknowledged is handled by a worker of the other one, also what its own worker had in hand."""
    await init(url, notify=True)
    env = {"QUEUEBELL_STORE": url}
    acknowledged: set[str] = set()
    with serving(tmp_path / "a", env=env) as one, serving(tmp_path / "b", env=env) as two:
        async with HttpStore(one.url) as first, working(two.url) as (handled, more):
            await first.put(QUEUE, [NewMessage("first")])
            held = await first.receive(QUEUE, 1, 1.0)
            acknowledged.add("first")
            half = asyncio.Event()

            async def put(worker: int) -> None:
                for number in range(100):
                    body = f"{worker}-{number}"
                    try:
                        await first.put(QUEUE, [body])
                    except StoreError:
                        return
                    acknowledged.add(body)
                    if len(acknowledged) > 100:
                        half.set()

            putting = asyncio.gather(*(put(worker) for worker in range(4)))
            async with asyncio.timeout(PATIENCE_S):
                await half.wait()
            one.process.kill()
            await putting
            assert len(acknowledged) < 401, "it was killed under load"
            async with asyncio.timeout(PATIENCE_S), more:
                await more.wait_for(lambda: acknowledged <= handled)
        assert len(held.messages) <= 1
        two.stop()
        one.process.wait()
