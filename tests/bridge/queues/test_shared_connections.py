"""Connections that the stores of one address share in a process: one bound for all, and the last store ends them."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterator
from typing import Any, ClassVar

import pytest

from queuebell.bridge.contract.errors import Closed, QueuebellError, StoreUnavailable
from queuebell.bridge.queues import connections
from queuebell.bridge.queues.connections import Connections

# Private: `_pools`: nothing is left open.


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
