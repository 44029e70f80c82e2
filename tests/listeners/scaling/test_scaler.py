"""The scaler as a class, with a bridge of this process and workers that are only counted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from queuebell.bridge import Bridge
from queuebell.bridge.contract.errors import StoreUnavailable
from queuebell.bridge.queues.base import Depth, VisibleQueues
from queuebell.listeners import Scaler
from queuebell.listeners.scaling.actuators.base import ProcessEvents
from tests.listeners.rig import Store
from tests.support.sim_loop import pass_time, simulated

QUEUE = "billing/orders"


class Counted:
    """An actuator that starts nothing."""

    outlives = False
    unseen: str | None = None

    def __init__(self) -> None:
        self.started: list[str] = []
        self.alive: list[str] = []
        self._events: ProcessEvents | None = None

    async def open(self, events: ProcessEvents) -> None:
        """Take who is told."""
        self._events = events

    async def start(self, count: int) -> list[str]:
        """Pretend."""
        ids = [str(len(self.started) + step) for step in range(count)]
        self.started += ids
        self.alive += ids
        return ids

    async def stop(self, ids: Sequence[str]) -> None:
        """End at once."""
        for number in [number for number in ids if number in self.alive]:
            self.alive.remove(number)
            assert self._events is not None
            self._events.ended(number, 0, "exit code 0")

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


class Placed(Store):
    """A store that can be asked about all of its queues at once."""

    kind, scope = "placed", "5c"
    refuses = False

    async def visible_queues(self) -> VisibleQueues:
        return VisibleQueues([], "here and there")

    async def place(self) -> str:
        if self.refuses:
            raise StoreUnavailable("this user may only count")
        return "here and there"


@pytest.mark.parametrize(("refuses", "place"), [(False, "here and there"), (True, None)])
@simulated
async def test_an_empty_count_says_which_tables_it_read(refuses: bool, place: str | None) -> None:
    """So a round of the bridge stands for the counts that follow (B17); a count stands without it."""
    store = Placed()
    store.refuses = refuses
    async with Bridge() as bridge:
        scaler = Scaler(store, QUEUE, Counted(), bridge=bridge)
        running = asyncio.create_task(scaler.run(), name="scaler")
        await pass_time(1)
        work = bridge.scheduler.pending.by_queue[QUEUE]
        assert (work.place, work.dirty) == (place, False)
        await scaler.stop()
        await running


@simulated
async def test_what_a_scaler_finds_it_gives_back_and_has_a_worker_started() -> None:
    """Nobody rang for it, and the count is wrong: it is there at once, uncounted where a store can undo that (Z7)."""
    store = Store()
    store.capabilities = msgspec.structs.replace(store.capabilities, exact_depth=False)
    store.depth = lambda queue: asyncio.sleep(0, Depth(0, 0))  # type: ignore[method-assign,assignment]
    actuator = Counted()
    async with Bridge() as bridge:
        scaler = Scaler(store, QUEUE, actuator, bridge=bridge)
        running = asyncio.create_task(scaler.run(), name="scaler")
        await pass_time(1)
        assert actuator.started == []
        await store.put(QUEUE, ["a"])
        await pass_time(70)
        assert len(actuator.started) == 1
        assert [message.dequeue_count for message in (await store.receive(QUEUE)).messages] == [1]
        await scaler.stop()
        await running
