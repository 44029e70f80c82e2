"""Turns at the connections of a store, without any store."""

from __future__ import annotations

import asyncio

import pytest

from queuebell.bridge.contract.errors import Closed, Overloaded, QueuebellError, StoreUnavailable
from queuebell.bridge.queues.connections import IDLE_S, Connections
from tests.support.sim_loop import pass_time, simulated


class Plain(Connections):
    """Connections that are numbers, each made after ``connect_s``."""

    def __init__(self, size: int, connect_s: float = 0.0, fails: Exception | None = None) -> None:
        super().__init__(size)
        self.connect_s, self.fails = connect_s, fails
        self.made = 0
        self.ended: list[int] = []
        self.unusable: set[int] = set()
        self.sound = False
        self.explained: list[bool] = []

    def _explained(self, error: Exception, *, connected: bool) -> tuple[QueuebellError, bool]:
        self.explained.append(connected)
        return StoreUnavailable("it cannot be reached"), self.sound

    async def _connect(self) -> int:
        await pass_time(self.connect_s)
        if self.fails:
            raise self.fails
        self.made += 1
        return self.made

    def _usable(self, connection: int) -> bool:
        return connection not in self.unusable

    def _end(self, connection: int) -> None:
        self.ended.append(connection)

    async def used(self, seconds: float = 0.0, error: Exception | None = None) -> int:
        """Use a connection for so long, and say which it was."""

        async def call(connection: int) -> int:
            await pass_time(seconds)
            if error:
                raise error
            return connection

        return int(await self.use(1000, call))


@simulated
async def test_waiting_for_a_connection_past_the_time_is_no_store_that_cannot_be_reached() -> None:
    """The pool has too much to do, and says so; the store was not asked."""
    pool = Plain(1)

    async def busy(_: object) -> None:
        await pass_time(100)

    holding = asyncio.create_task(pool.use(1000, busy), name="holding")
    await pass_time(0.1)
    with pytest.raises(Overloaded, match="all 1 connections to the store were in use for 5 s"):
        await pool.use(5, busy)
    await holding
    with pytest.raises(StoreUnavailable, match="cannot be reached"):
        await pool.use(5, busy)
    await pool.close()


@simulated
async def test_what_nobody_used_for_a_minute_ends() -> None:
    """The newest is used first, so that the others grow old; one that is in use does not."""
    pool = Plain(3)
    assert await asyncio.gather(*(pool.used(seconds) for seconds in (1, 2, 3))) == [1, 2, 3]
    await pass_time(57.5)
    assert await pool.used() == 3 and pool.ended == []
    await pass_time(1)
    assert pool.ended == [1]
    await pass_time(1)
    assert pool.ended == [1, 2]
    assert await pool.used(100) == 3
    await pass_time(IDLE_S - 0.1)
    assert pool.ended == [1, 2]
    await pass_time(0.2)
    assert pool.ended == [1, 2, 3]
    assert await pool.used() == 4
    await pool.close()
    assert pool.ended == [1, 2, 3, 4]


@simulated
async def test_a_store_closed_while_it_connects_leaves_nothing_open() -> None:
    """The call hears that, and the connection that came too late ends."""
    pool = Plain(1, connect_s=5)
    asked = asyncio.create_task(pool.used(), name="asked")
    await pass_time(1)
    await pool.close()
    with pytest.raises(Closed):
        await asked
    assert (pool.made, pool.ended) == (1, [1])
