"""What producers put and when, and what workers make of it: real publishers and listeners, and how they stand."""

from __future__ import annotations

import asyncio
import datetime
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from queuebell.bridge.contract.errors import Closed, StoreError, UnknownOutcome
from queuebell.bridge.contract.wire import Wake
from queuebell.bridge.producer.publisher import Publisher
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import Capabilities, NewMessage, PutReceipt, QueueStore
from queuebell.listeners.handler import Message
from queuebell.listeners.listener import Listener
from queuebell.listeners.pool import Pool
from queuebell.listeners.wake.table import State
from queuebell.listeners.work.dequeue import Dequeue
from queuebell.listeners.work.starter import ScalerLink, WorkerStatus
from tests.simulation.faults import Exceptions
from tests.simulation.plan import LOAD_FROM_S
from tests.simulation.process import Process
from tests.simulation.store_calls import RemoteStore
from tests.simulation.wire import OwnDoor, SimulatedBroker, SimulatedBus, SimulatedChannel, WireDoor
from tests.simulation.world import EPOCH

if TYPE_CHECKING:
    from tests.simulation.world import World

SERVER_TIMEOUT_S = 30.0
_PREFIX = "queuebell"


class HandlerFailed(Exception):
    """What a handler fails with here."""


class Batch(NamedTuple):
    """Messages that one put brings, and when it is due."""

    at: float
    queue: str
    first: int
    size: int
    delay_s: float


class Workload:
    def __init__(self, world: World) -> None:
        self._world = world
        plan = world.plan
        self.batches: list[list[Batch]] = []
        self.next: list[int] = [0] * plan.producers
        self.doomed: dict[int, int] = {}
        """Producers that die before they publish their next put."""
        self.owed: set[int] = set()
        """Messages that were acknowledged and not handled yet, as producer * 2**32 + number."""
        self._handled: set[int] = set()
        for producer in range(plan.producers):
            self.batches.append(self._draw(producer, world.kernel.chance(f"puts/{producer}")))

    def _draw(self, producer: int, chance: random.Random) -> list[Batch]:
        plan, world = self._world.plan, self._world
        if plan.every_s:
            late = plan.every_s * producer / plan.producers
            times = [LOAD_FROM_S + late + plan.every_s * number for number in range(plan.messages)]
            among = world.queues
            return [Batch(at, among[number % len(among)], number, 1, 0.0) for number, at in enumerate(times)]
        sizes: list[int] = []
        while (left := plan.messages - sum(sizes)) > 0:
            sizes.append(min(left, 1 + int(chance.random() * plan.burst)))
        times = sorted(chance.random() * plan.faulty_s for _ in sizes)
        batches, first = [], 0
        for at, size in zip(times, sizes, strict=True):
            delay = round(chance.random() * plan.delay_s, 3) if chance.random() < plan.delayed_share else 0.0
            queue = world.queues[int(chance.random() * len(world.queues))]
            batches.append(Batch(at, queue, first, size, delay))
            first += size
        return batches

    def done(self) -> bool:
        return not self.owed and all(at >= len(batches) for at, batches in zip(self.next, self.batches, strict=True))

    def acknowledged(self, producer: int, first: int, count: int) -> None:
        for number in range(first, first + count):
            name = producer << 32 | number
            if name not in self._handled:
                self.owed.add(name)

    def handled(self, producer: int, number: int) -> None:
        name = producer << 32 | number
        self._handled.add(name)
        self.owed.discard(name)


class PutStore:
    """The store as a producer sees it: each put is told before and after, and may be the producer's last deed."""

    def __init__(self, world: World, producer: Producer, store: RemoteStore) -> None:
        self.capabilities = store.capabilities
        self._world = world
        self._producer = producer
        self._store = store

    async def put(self, queue: str, messages: list[NewMessage]) -> list[PutReceipt]:
        receipts = await self._store.put(queue, messages)
        producer = self._producer
        producer.settled("acknowledged")
        if self._world.workload.doomed.pop(producer.number, None) is not None:
            producer.fall()
            await asyncio.get_running_loop().create_future()
        return receipts


class Producer:
    """One producer's process: it puts its batches when they are due, and publishes where the store does not ring."""

    def __init__(self, world: World, process: Process, number: int) -> None:
        self.number = number
        self.batch: Batch | None = None
        """What is being put, until its outcome is known."""
        self._world = world
        self._process = process
        self._ringer: SimulatedBroker | None = None

    async def run(self) -> None:
        world, process, plan = self._world, self._process, self._world.plan
        where = world.bridges if plan.doors else world.store_host
        store = RemoteStore(world, process, where, capabilities_of(world))
        publisher: Publisher | None = None
        queue: PublishingQueue | None = None
        if not plan.named:
            self._ringer = SimulatedBroker(world, process)
            await self._ringer.connect()
        if plan.store == "elsewhere" and not plan.doors and plan.named:
            # Of several bridges one alone hears what comes by HTTP, and every second producer knows no other way.
            wire = plan.channel == "wire" if plan.bridges == 1 else self.number % 2 == 1
            bus = WireDoor(world, process) if wire else SimulatedBus(world, process)
            publisher = Publisher(bus, instance=f"{process.chance.getrandbits(64):016x}", draw=process.chance.random)
            putting: QueueStore = PutStore(world, self, store)  # type: ignore[assignment]
            queue = PublishingQueue(putting, publisher, server_timeout=SERVER_TIMEOUT_S)
        batches = world.workload.batches[self.number]
        while world.workload.next[self.number] < len(batches):
            batch = batches[world.workload.next[self.number]]
            await asyncio.sleep(max(0.0, batch.at - world.kernel.now))
            if not await self._put(batch, store, queue):
                await asyncio.sleep(0.5 + process.chance.random())
        if (publisher is not None and queue is not None) or self._ringer is not None:
            await asyncio.get_running_loop().create_future()

    async def _put(self, batch: Batch, store: RemoteStore, queue: PublishingQueue | None) -> bool:
        """Put one batch; False where it was not carried out and is to be tried again."""
        world, number = self._world, self.number
        named = (number, batch.queue, batch.first, batch.size)
        bodies = [
            NewMessage(b"%d/%d" % (number, batch.first + each), round(batch.delay_s * 1000))
            for each in range(batch.size)
        ]
        world.emit("put", *named, "attempted")
        self.batch = batch
        try:
            if queue is None:
                await store.put(batch.queue, bodies)
                self.settled("acknowledged")
                if self._ringer is not None and not world.plan.named:
                    self._rings(self._ringer, batch.queue, b"")
            else:
                await queue.put(batch.queue, bodies)
                world.emit("published", number, batch.queue, batch.size)
        except (UnknownOutcome, Closed):
            self.settled("unknown")
        except StoreError:
            self.batch = None
            world.emit("put", *named, "failed")
            return False
        return True

    def _rings(self, broker: SimulatedBroker, queue: str, body: bytes) -> None:
        broker.publish((_PREFIX, "trigger", *queue.split("/")), body)
        self._world.emit("published", self.number, queue, 1)

    def settled(self, outcome: str) -> None:
        batch, world = self.batch, self._world
        if batch is None:
            return
        self.batch = None
        world.workload.next[self.number] += 1
        world.emit("put", self.number, batch.queue, batch.first, batch.size, outcome)
        if outcome == "acknowledged":
            world.workload.acknowledged(self.number, batch.first, batch.size)

    def fall(self) -> None:
        world = self._world
        world.reached("producer killed before publishing")
        world.kernel.at(world.kernel.now, world.ended, self._process, "killed")


class Handling:
    def __init__(self, world: World, process: Process) -> None:
        self.running = 0
        self._world = world
        self._process = process
        self._since: dict[int, float] = {}

    def oldest(self) -> float | None:
        """Return since when a handler has been running, the longest; None where none is."""
        return min(self._since.values(), default=None)

    async def handle(self, message: Message) -> None:
        world, plan, chance = self._world, self._world.plan, self._process.chance
        producer, number = (int(part) for part in message.body.split(b"/"))
        worker, queue = self._process.host.name, message.queue
        world.emit("handler_began", worker, queue, producer, number, message.attempt)
        outcome = "cancelled"
        self.running += 1
        name = producer << 32 | number
        self._since[name] = world.kernel.now
        try:
            low, high = plan.handler_s
            await asyncio.sleep(low + (high - low) * chance.random() ** 3)
            if not world.healed and chance.random() < plan.handler_failure_share:
                outcome = "failed"
                raise HandlerFailed
            outcome = "done"
            world.workload.handled(producer, number)
        finally:
            self.running -= 1
            self._since.pop(name, None)
            if self._process.up:
                world.emit("handler_ended", worker, queue, producer, number, outcome)


def capabilities_of(world: World) -> Capabilities:
    plan = world.plan
    if plan.store == "own":
        return Capabilities(uncounted_release=True)
    return Capabilities(
        complete_receive=plan.complete_receive,
        exact_depth=plan.exact_depth,
        next_visible=plan.next_visible,
        metadata=False,
        pause=False,
    )


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
