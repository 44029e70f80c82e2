"""Connections that the stores of one address share in a process: one bound for all, and the last store ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from typing import Any, ClassVar

import pytest

from bridge.contract.errors import Closed, QueuebellError, StoreUnavailable
from bridge.queues import connections, open_store
from bridge.queues.connections import Connections
from bridge.queues.postgres.schema import init
from bridge.queues.postgres.store import POOL
from bridge.service.bridge import Bridge
from listeners.listener import Listener
from tests.support.postgres import execute, running
from tests.support.processes import until


class Line:
    """A connection that ends when it is told to."""

    def __init__(self) -> None:
        self.ended = False


class Lines(Connections):
    """Connections that are made at once, and kept in a list."""

    made: ClassVar[list[Line]] = []

    def __init__(self, key: Hashable = "here") -> None:
        super().__init__(2, key)

    async def _connect(self) -> Line:
        self.made.append(Line())
        return self.made[-1]

    def _usable(self, connection: Line) -> bool:
        return not connection.ended

    def _end(self, connection: Line) -> None:
        connection.ended = True

    def _explained(self, error: Exception, *, connected: bool) -> tuple[QueuebellError, bool]:
        return StoreUnavailable(str(error)), False

    async def call(self) -> Any:
        """Use a connection for one turn of the loop."""

        async def slow(connection: Line) -> Line:
            await asyncio.sleep(0)
            return connection

        return await self.use(60.0, slow)


@pytest.fixture(autouse=True)
def nothing_made() -> Iterator[None]:
    Lines.made.clear()
    yield
    assert not connections._pools, "nothing is left of what was shared"


async def test_all_stores_of_an_address_share_one_bound() -> None:
    """However many they are and however many calls they make; another address has connections of its own."""
    stores, other = [Lines() for _ in range(50)], Lines("there")
    await asyncio.gather(*(store.call() for store in stores * 3))
    assert len(Lines.made) == 2
    assert await other.call() not in Lines.made[:2]
    for store in (*stores, other):
        await store.close()
    assert all(line.ended for line in Lines.made)


async def test_one_that_closes_leaves_the_others_theirs() -> None:
    """Its calls under way fail as closed, and end their connection; idle ones stay until the last store closes."""
    one, two = Lines(), Lines()
    line = await one.call()
    assert await two.call() is line
    await one.close()
    assert await two.call() is line
    with pytest.raises(Closed):
        await one.call()
    three, held = Lines(), asyncio.Event()

    async def stuck(connection: Line) -> None:
        held.set()
        while not connection.ended:
            await asyncio.sleep(0)
        raise OSError("gone")

    task = asyncio.create_task(three.use(60.0, stuck), name="stuck")
    await held.wait()
    await three.close()
    with pytest.raises(Closed):
        await task
    other = await two.call()
    assert not other.ended
    await two.close()
    await two.close()
    assert all(line.ended for line in Lines.made)


async def test_one_that_parts_shares_with_nobody() -> None:
    """Also where it had connections in common before; of what others use it says nothing."""
    one, two = Lines(), Lines()
    shared = await one.call()
    assert await two.call() is shared
    one.part()
    assert await one.call() is not shared
    assert await two.call() is shared
    assert shared not in list(one._open())
    await one.close()
    await two.close()


@pytest.mark.system
async def test_a_hundred_listeners_share_the_pool_of_their_process() -> None:
    """They hold no more connections than `pool_size`, and the last one to end leaves none."""
    with running() as server:
        await init(server.url())
        handled: set[int] = set()

        async def connected() -> int:
            return len(await execute(server.url(), OURS))

        async with Bridge() as bridge, open_store(server.url() + "?pool_size=8") as store:
            for number in range(100):
                await store.put(f"a/q{number}", ["x"])
            listeners = [
                Listener(server.url(), f"a/q{number}", lambda _, number=number: handled.add(number), bridge=bridge)
                for number in range(100)
            ]
            tasks = [asyncio.create_task(each.run(), name="listener") for each in listeners]
            await until(lambda: all(each.state().mode == "push" for each in listeners), "all listen")
            await until(lambda: len(handled) == 100, "what was there is handled")
            assert 1 <= await connected() <= POOL + 1, "theirs, and that of the store with another address"
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

        async def none() -> bool:
            return await connected() == 0

        await until(none, "no connection is left")


OURS = "SELECT FROM pg_stat_activity WHERE application_name = 'queuebell' AND pid <> pg_backend_pid()"
