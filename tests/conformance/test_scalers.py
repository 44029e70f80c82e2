"""Every actuator beside what can happen to a scaler, in the worlds of `tests.support.actuators`.

|                              | process            | command            | systemd                   |
|------------------------------|--------------------|--------------------|---------------------------|
| from none to some, and back  | yes                | yes                | yes                       |
| more run than the maximum    | cannot be          | nobody can know    | end when idle             |
| nothing can be started       | said, with a pause | said, with a pause | said, with a pause        |
| the scaler ends              | end                | is told 0          | go on                     |
| the next one begins          | begins at none     | begins at none     | goes on with them         |
| the store cannot be counted  | none ends          | none ends          | none ends                 |
| others end what runs         | starts anew        | nobody can know    | starts anew, with a pause |

What is killed with -9 is shown by whole processes, in tests/services/test_scaler.py.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from queuebell.bridge import Bridge, StoreUnavailable
from queuebell.listeners import Scaler
from queuebell.listeners.scaling.actuators.base import Actuator
from tests.conformance.test_actuators import units, world
from tests.support.actuators import OfProcesses, OfUnits, World
from tests.support.processes import PATIENCE_S

__all__ = ["units", "world"]

QUEUE = "billing/orders"


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def scaling(bridge: Bridge, actuator: Actuator, **given: Any) -> AsyncIterator[Scaler]:
    """Run a scaler, and stop it at the end."""
    scaler = Scaler(bridge, QUEUE, actuator, bridge=bridge, **{"per_process": 1, **given})
    running = asyncio.create_task(scaler.run(), name="scaler")
    try:
        await until(lambda: scaler.state() is not None)
        yield scaler
    finally:
        await scaler.stop()
        await running


def states(scaler: Scaler) -> Callable[[], tuple[int, int]]:
    """Return what tells how many run, and how many are ready."""

    def tell() -> tuple[int, int]:
        state = scaler.state()
        assert state is not None
        return state.running, state.ready

    return tell


async def test_from_none_to_some_and_back(world: World) -> None:
    async with Bridge() as bridge:
        actuator = world.make()
        async with scaling(bridge, actuator, max=3, idle=0.0) as scaler:
            how = states(scaler)
            await bridge.store.put(QUEUE, ["a", "b"])
            await until(lambda: how() == (2, 2))
            if not isinstance(world, OfProcesses):
                assert world.outside() == 2
            await bridge.store.clear(QUEUE)
            await until(lambda: how() == (0, 0))
            await until(lambda: isinstance(world, OfProcesses) or world.outside() == 0)


async def test_more_than_the_maximum_end_when_they_are_idle(units: OfUnits) -> None:
    """What an earlier scaler left is taken over, nothing is started beside it, and the surplus ends."""
    before = units.make()
    async with Bridge() as bridge:
        async with scaling(bridge, before, min=3) as scaler:
            await until(lambda: states(scaler)() == (3, 3))
        assert units.outside() == 3
        async with scaling(bridge, units.make(), min=1, max=1, idle=0.0) as scaler:
            await until(lambda: states(scaler)() == (1, 1) and units.outside() == 1)
        assert units.outside() == 1


async def test_what_cannot_be_started_is_said_with_a_pause(world: World) -> None:
    async with Bridge() as bridge:
        async with scaling(bridge, world.hopeless(), max=3) as scaler:
            await bridge.store.put(QUEUE, ["a"])

            def failed() -> bool:
                state = scaler.state()
                scaled = scaler.queue_scaler
                said = state is not None and "no-such" in (state.failure or "")
                return said and scaled is not None and scaled.rules.processes.retry_at is not None

            await until(failed)
            assert states(scaler)() == (0, 0)
        assert (await bridge.store.depth(QUEUE)).visible == 1


async def test_the_next_scaler_goes_on_with_what_outlived_the_last(world: World) -> None:
    """Others end with theirs, and the next one begins at none; the work is done by as many as before."""
    async with Bridge() as bridge:
        await bridge.store.put(QUEUE, ["a", "b"])
        first = world.make()
        async with scaling(bridge, first, max=2) as scaler:
            await until(lambda: states(scaler)() == (2, 2))
        outlived = 2 if first.outlives else 0
        assert len(first.running()) == outlived
        assert isinstance(world, OfProcesses) or world.outside() == outlived
        async with scaling(bridge, world.make(), max=2, idle=0.0) as scaler:
            await until(lambda: states(scaler)() == (2, 2))
            assert isinstance(world, OfProcesses) or world.outside() == 2
            await bridge.store.clear(QUEUE)
            await until(lambda: states(scaler)() == (0, 0))


async def test_a_store_that_cannot_be_counted_ends_nobody(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """S49: One is started while there may be work, and those that are idle stay."""
    async with Bridge() as bridge:
        asked = asyncio.Event()

        async def away(queue: str) -> None:
            asked.set()
            raise StoreUnavailable("no answer from the store")

        await bridge.store.put(QUEUE, ["a"])
        depth = bridge.store.depth
        monkeypatch.setattr(bridge.store, "depth", away)
        async with scaling(bridge, world.make(), max=3, idle=0.0) as scaler:
            await until(lambda: states(scaler)() == (1, 1))
            asked.clear()
            async with asyncio.timeout(PATIENCE_S):
                await asked.wait()
            assert states(scaler)() == (1, 1)
            monkeypatch.setattr(bridge.store, "depth", depth)


async def test_what_others_end_is_started_anew_after_a_pause(units: OfUnits) -> None:
    """Not at once: they had a reason, and may do so again."""
    async with Bridge() as bridge:
        async with scaling(bridge, units.make(), min=1) as scaler:
            await until(lambda: states(scaler)() == (1, 1))
            units.systemctl.put(1, "failed", code=9)
            await until(lambda: states(scaler)() == (0, 0))
            scaled = scaler.queue_scaler
            assert scaled is not None and scaled.rules.processes.retry_at is not None
            await until(lambda: states(scaler)() == (1, 1))
