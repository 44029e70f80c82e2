"""The scaler as a class, with a bridge of this process and workers that are only counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from queuebell.bridge import Bridge
from queuebell.listeners import Scaler
from queuebell.listeners.scaling.actuators.base import ProcessEvents, StartFailed
from tests.support.processes import PATIENCE_S
from tests.support.sim_loop import pass_time, simulated

QUEUE = "billing/orders"


class Counted:
    """An actuator that starts nothing; ``fails`` says how many starts do first, ``able`` how many it starts at once."""

    outlives = False
    unseen: str | None = None

    def __init__(self, fails: int = 0, able: int | None = None) -> None:
        self.fails = fails
        self.able = able
        self.starts: list[float] = []
        self.started: list[str] = []
        self.alive: list[str] = []
        self._events: ProcessEvents | None = None
        self._news = asyncio.Event()

    async def open(self, events: ProcessEvents) -> None:
        """Take who is told."""
        self._events = events

    async def start(self, count: int) -> list[str]:
        """Pretend, unless it is to fail."""
        self._news.set()
        self.starts.append(asyncio.get_running_loop().time())
        able = count if self.able is None else min(count, self.able)
        ids = [] if self.fails else [str(len(self.started) + step) for step in range(able)]
        self.started += ids
        self.alive += ids
        if self.fails:
            self.fails -= 1
            raise StartFailed("no quota")
        if able < count:
            raise StartFailed("out of memory", ids)
        return ids

    async def stop(self, ids: Sequence[str]) -> None:
        """End at once."""
        for number in [number for number in ids if number in self.alive]:
            self.alive.remove(number)
            assert self._events is not None
            self._events.ended(number, 0, "exit code 0")
        self._news.set()

    async def look(self) -> None:
        """See nothing new."""

    def running(self) -> list[str]:
        """Return those that live."""
        return list(self.alive)

    async def close(self) -> None:
        """End all."""
        await self.stop(list(self.alive))

    def ready(self) -> None:
        """Have all that live be ready and idle."""
        assert self._events is not None
        for number in self.alive:
            self._events.ready(number)
            self._events.busy_changed(number, busy=False)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds of it."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._news.clear()
                await self._news.wait()


class Uneasy(Counted):
    """An actuator that raises what it should not, once a call, and a cancellation that nobody asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, list[BaseException]] = {
            "start": [RuntimeError("a driver"), asyncio.CancelledError()],
            "stop": [asyncio.CancelledError(), RuntimeError("a driver")],
        }

    async def start(self, count: int) -> list[str]:
        if self.errors["start"]:
            raise self.errors["start"].pop()
        return await super().start(count)

    async def stop(self, ids: Sequence[str]) -> None:
        if self.errors["stop"]:
            raise self.errors["stop"].pop()
        await super().stop(ids)


@simulated
async def test_an_actuator_that_raises_or_is_cancelled_from_within_is_asked_again() -> None:
    """To start, and to end: no worker is counted for ever that never began, and none that should have ended."""
    actuator = Uneasy()
    async with Bridge() as bridge:
        scaler = Scaler(bridge, QUEUE, actuator, bridge=bridge, idle=0.0)
        running = asyncio.create_task(scaler.run(), name="scaler")
        await bridge.store.put(QUEUE, ["a"])
        await pass_time(30)
        assert len(actuator.alive) == 1
        await bridge.store.clear(QUEUE)
        actuator.ready()
        await pass_time(120)
        assert (actuator.alive, actuator.errors) == ([], {"start": [], "stop": []})
        await scaler.stop()
        await running
