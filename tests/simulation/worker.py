"""A worker's process: the real listener, with its handlers, and a witness of how it stands."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from queuebell.bridge.contract.wire import Wake
from queuebell.bridge.queues.base import QueueStore
from queuebell.listeners.listener import Listener
from queuebell.listeners.pool import Pool
from queuebell.listeners.wake.table import State
from queuebell.listeners.work.dequeue import Dequeue
from queuebell.listeners.work.starter import ScalerLink, WorkerStatus
from tests.simulation.broker import SimulatedChannel
from tests.simulation.exceptions import Exceptions
from tests.simulation.process import Process
from tests.simulation.store_calls import RemoteStore
from tests.simulation.wire import OwnDoor, WireDoor
from tests.simulation.workload import Handling, capabilities_of
from tests.simulation.world import EPOCH

if TYPE_CHECKING:
    from tests.simulation.world import World


class WitnessedListener(Listener):
    """A listener whose wakes are noted, and whose dead-man timer the plan may switch off."""

    deadman = True
    clock: Callable[[], float]
    link: ScalerLink | None = None
    """To the scaler that started it, if one did."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.dequeues: dict[str, Dequeue] = {}
        self.woken: dict[str, float] = {}
        """By queue: when the newest wake came that brought no messages."""

    def _starts(self) -> WorkerStatus:
        if self.link is None:
            return super()._starts()
        return WorkerStatus(lambda: sum(dequeue.held for dequeue in self.dequeues.values()), self.link)

    def _dequeue(self, ref: str, store: QueueStore) -> Dequeue:
        dequeue = self.dequeues[ref] = super()._dequeue(ref, store)
        if not self.deadman:
            dequeue.controller.deadman = None
        wake = dequeue.wake

        def noted(frame: Wake) -> None:
            if not frame.messages:
                self.woken[ref] = self.clock()
            wake(frame)

        dequeue.wake = noted  # type: ignore[method-assign]
        return dequeue


def way_to_bridge(world: World, process: Process, store: RemoteStore, instance: str) -> object:
    if world.plan.channel == "broker":
        return SimulatedChannel(world, process, instance)
    if world.plan.store == "own":
        return OwnDoor(world, process, store)
    return WireDoor(world, process)


class Worker:
    def __init__(self, world: World, process: Process, queues: Sequence[str], link: ScalerLink | None = None) -> None:
        plan = world.plan
        self._world = world
        self._process = process
        self._stopping = False
        self._rooms: dict[str, tuple[bool, bool, int, bool]] = {}
        self._idle: dict[str, bool] = {}
        self.handling = Handling(world, process)
        where = world.bridges if plan.doors else world.store_host
        exceptions = Exceptions(world, process)
        self.store = exceptions.spoil(
            RemoteStore(world, process, where, capabilities_of(world)), "receive", "settle", "depth"
        )
        instance = f"{process.chance.getrandbits(128):032x}"

        class Chanced(WitnessedListener):
            _draw = staticmethod(process.chance.random)
            _new_instance = staticmethod(lambda: instance)
            _now = staticmethod(lambda: datetime.datetime.fromtimestamp(EPOCH + world.kernel.now, datetime.UTC))

        self.listener = Chanced(
            self.store,
            list(queues),
            self.handling.handle,
            bridge=exceptions.spoil_channel(way_to_bridge(world, process, self.store, instance)),
            on_queue_empty=exceptions.hear("a hook"),
            on_work_detected=exceptions.hear("a hook"),
            name=process.name,
            batch=plan.batch,
            concurrency=None if plan.pool else plan.concurrency,
            pool=Pool(plan.pool, dict(zip(world.queues, plan.shares, strict=False))) if plan.pool else None,
            visibility_timeout=plan.visibility_s,
            max_attempts=0,
            grace=plan.grace_s,
            handle_signals=False,
        )
        self.listener.deadman = plan.deadman
        self.listener.link = link
        self.listener.clock = lambda: world.kernel.now

    async def run(self) -> None:
        await self.listener.run()

    async def stop(self) -> None:
        self._stopping = True
        self.witness()
        await self.listener.stop()

    def settling(self) -> bool:
        return any(dequeue.settling for dequeue in self.listener.dequeues.values())

    def receiving(self) -> bool:
        return any(dequeue.controller.receives for dequeue in self.listener.dequeues.values())

    def witness(self) -> None:
        world, process = self._world, self._process
        if not process.up:
            return
        worker = process.host.name
        reaches = world.reaches_store(worker)
        if world.plan.pool:
            pool = self.listener.state().pool
            assert pool is not None
            world.holds("slots in use", pool.running + pool.receiving, pool.size)
            world.holds("handlers at once", self.handling.running, pool.size)
        for queue, dequeue in self.listener.dequeues.items():
            stands = (
                not self._stopping,
                not dequeue.stopping,
                dequeue.free(),
                reaches and world.lets_take(worker, queue),
            )
            if self._rooms.get(queue) != stands:
                self._rooms[queue] = stands
                world.emit("room", worker, queue, *stands)
            idle = dequeue.controller.state is State.IDLE
            if idle != self._idle.get(queue, False):
                self._idle[queue] = idle
                if idle:
                    woken, empty = self.listener.woken.get(queue), self.store.emptied.get(queue)
                    world.emit("idle", worker, queue, woken, empty)
