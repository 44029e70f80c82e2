"""Bridges whose queues are in one PostgreSQL: each hears the others' puts by NOTIFY, and its own once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from bridge.queues.postgres.schema import init
from bridge.queues.postgres.store import PostgresStore
from bridge.service.bridge import Bridge
from bridge.triggers.attachment import Attachments
from tests.bridge.queues.postgres_rig import schema, server, url
from tests.support.postgres import execute
from tests.support.processes import until

__all__ = ["schema", "server", "url"]

QUEUE = "billing/orders"


@contextlib.asynccontextmanager
async def on_database(url: str) -> AsyncIterator[Bridge]:
    """A bridge whose queues are there, which hears what is put there."""
    engine = PostgresStore(url)
    async with Bridge(store=engine) as bridge, Attachments(bridge, postgres=[url], ours={url: engine.puts_by}) as buses:
        await until(lambda: buses.databases["postgres"].check()[0], "the bridge listens")
        yield bridge


def triggers(bridge: Bridge, queue: str = QUEUE) -> int:
    state = bridge.describe(queue)
    return 0 if state is None else state.triggers


@pytest.mark.system
async def test_a_bridge_marks_its_own_put_once_and_another_hears_it(url: str) -> None:
    """Notifications come in the order of the commits: what is heard after them was not heard twice before."""
    await init(url, notify=True)
    async with on_database(url) as one, on_database(url) as two:
        for number in range(10):
            await one.store.put(QUEUE, [f"{number}"])
        await two.store.put(QUEUE, ["of the other"])
        await one.store.pause(QUEUE)
        await one.store.pause(QUEUE, paused=False)
        await execute(url, "SELECT queuebell_put('billing/last', 'x'::text)")
        await until(lambda: triggers(one, "billing/last") and triggers(two, "billing/last"), "both hear a plain put")
        assert (triggers(one), triggers(two)) == (12, 12)


@pytest.mark.system
async def test_many_puts_at_once_are_heard_by_the_other_bridge(url: str) -> None:
    """Also while a promise spares them their notifications: nothing waits for a sweep."""
    await init(url, notify=True)
    async with on_database(url) as one, on_database(url) as two:
        for _ in range(5):
            await asyncio.gather(*(one.store.put(QUEUE, ["x"]) for _ in range(100)))
        before = two.newest(QUEUE)[0]
        await one.store.put(QUEUE, ["last"])
        await until(lambda: two.newest(QUEUE)[0] > before, "the last one is looked for")
