"""All processes of a run: started, stopped, killed and started again, some of them by scalers.

Only the starting is simulated. A start takes its time, and may fail, end or hang before the worker's listener has a
session, as the faults say. What a worker says to its scaler is said by the real code, over a link that is ordered and
quick, and whose end it events of when that scaler is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from queuebell.listeners.scaling.actuators.base import NotSeen, ProcessEvents, StartFailed, Watch
from queuebell.listeners.scaling.queue_scaler import QueueScaler
from queuebell.listeners.scaling.scaler import Scaler
from queuebell.listeners.work.starter import BUSY, READY, ScalerLink, WorkerStatus
from tests.simulation.faults import Exceptions
from tests.simulation.process import Process
from tests.simulation.servers import BridgeServer, Disk, StoreHost, serve_broker, serve_store
from tests.simulation.store_calls import AskedStore, RemoteStore
from tests.simulation.worker import Producer, Worker, capabilities_of, way_to_bridge

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

CHECK_EVERY_S: Final = 1.0
MEMBER_EVERY_S: Final = 0.0005
"""What a word takes from a worker to its scaler, and the end of either to the other."""
KILLED: Final = -9


class SimulatedLink(ScalerLink):
    def __init__(self, say: Callable[[bytes], None]) -> None:
        super().__init__()
        self._say_on = say

    def join(self, member: WorkerStatus) -> bool:
        self._members.append(member)
        return True

    def send(self, word: bytes) -> None:
        self._say_on(word)


class Started:
    """One worker that a scaler started: its process, and what of it the scaler events."""

    def __init__(self, world: World, actuator: VirtualActuator, number: str, process: Process) -> None:
        self.number = number
        self.process = process
        self.worker: Worker | None = None
        """Once its listener runs; before that a signal ends it at once."""
        self.told_to_end = False
        self.said: list[bytes] = []
        self.code: int | None = None
        self._world = world
        self._actuator = actuator

    async def main(self, queue: str) -> None:
        world, plan, draw = self._world, self._world.plan, self.process.chance.random
        low, high = plan.start_s
        await asyncio.sleep(low + (high - low) * draw() ** 3 + world.trouble["start_slow"])
        if draw() < world.trouble["start_dies"]:
            world.reached("worker died at its start")
            return
        if draw() < world.trouble["start_hangs"]:
            world.reached("worker hung at its start")
            await asyncio.get_running_loop().create_future()
        worker = Worker(world, self.process, [queue], SimulatedLink(self._say))
        self._actuator.runs(self.process.host.name, worker)
        self.process.after_turn = worker.witness
        self.worker = worker
        await worker.run()

    def terminate(self) -> None:
        if not self.process.up or self.told_to_end:
            return
        self.told_to_end = True
        if self.worker is not None:
            self.process.spawn(self.worker.stop(), "stop")
        else:
            self._actuator.fleet.kill(self.process.host.name)

    def _say(self, word: bytes) -> None:
        self.said.append(word)
        self._world.kernel.after(MEMBER_EVERY_S, self._actuator.hear, self.number, word)


class VirtualActuator:
    """Starts a scaler's workers on hosts of their own (`queuebell.listeners.scaling.actuators.base.Actuator`).

    It outlives its scaler's process no more than that process does: the next one has another.
    """

    outlives = False
    unseen = None

    def __init__(self, world: World, fleet: Fleet, process: Process, hosts: Sequence[str], queue: str) -> None:
        self.fleet = fleet
        self._world = world
        self._process = process
        self._hosts = hosts
        self._queue = queue
        self._draw = world.kernel.chance(f"{process.name}/actuator").random
        self._events: ProcessEvents
        self._running: dict[str, Started] = {}
        self._count = 0
        self._ended = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def __str__(self) -> str:
        return "a simulated worker"

    async def open(self, events: ProcessEvents) -> None:
        self._events = events

    async def start(self, count: int) -> list[str]:
        """Start so many, each on a host that is free; all or none."""
        world = self._world
        await asyncio.sleep(0.001 + 0.02 * self._draw())
        if self._draw() < world.trouble["start_fails"]:
            world.reached("start failed")
            raise StartFailed("there is no such program")
        free = [name for name in self._hosts if world.hosts[name].process is None]
        if len(free) < count:
            raise StartFailed("this machine has no room for another process")
        begun = [self._begin(name) for name in free[:count]]
        return [each.number for each in begun]

    def _begin(self, name: str) -> Started:
        self._count += 1
        number = f"{self._process.name}/{self._count}"

        def main(process: Process) -> Coroutine[object, object, None]:
            self._running[number] = Started(self._world, self, number, process)
            return self._running[number].main(self._queue)

        self.fleet.launch(name, main, self)
        return self._running[number]

    async def stop(self, ids: Sequence[str]) -> None:
        for number in ids:
            started = self._running.get(number)
            if started is not None and not started.told_to_end:
                self._note_end(started)
                started.terminate()
                task = asyncio.get_running_loop().create_task(self._kill_later(number), name=f"end {number}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def _note_end(self, started: Started) -> None:
        world, worker = self._world, started.worker
        since = None if worker is None else worker.handling.oldest()
        world.emit("end_asked", self._process.host.name, started.process.host.name, self._stopping(), since)

    def _stopping(self) -> bool:
        scaler = self.fleet.scalers.get(self._process.host.name)
        return scaler is None or scaler.stopping

    async def _kill_later(self, number: str) -> None:
        await asyncio.sleep(self._world.plan.grace_s + 5.0)
        started = self._running.get(number)
        if started is not None:
            self._world.reached("worker killed after its grace")
            self.fleet.kill(started.process.host.name)

    async def look(self) -> None:
        """Do nothing: workers tell by themselves."""

    def running(self) -> list[str]:
        return list(self._running)

    async def close(self) -> None:
        await VirtualActuator.stop(self, self.running())  # of its own, so that no exception of the faults comes here
        while self._running:
            self._ended.clear()
            await self._ended.wait()

    def runs(self, host: str, worker: Worker) -> None:
        self.fleet.workers[host] = worker

    def hear(self, number: str, word: bytes) -> None:
        if self._process.up:
            self._process.post(self._heard, number, word)

    def _heard(self, number: str, word: bytes) -> None:
        if number not in self._running:
            return
        if word == READY:
            self._events.ready(number)
        else:
            self._events.busy_changed(number, busy=word == BUSY)

    def gone(self, process: Process, why: str) -> None:
        for number, started in self._running.items():
            if started.process is process:
                # One that ends by itself before its listener ran has failed.
                code = KILLED if why == "killed" else int(started.worker is None)
                self._world.kernel.after(MEMBER_EVERY_S, self._tell_end, number, code)

    def _tell_end(self, number: str, code: int) -> None:
        if self._process.up:
            self._process.post(self._took_end, number, code)

    def _took_end(self, number: str, code: int) -> None:
        self._running.pop(number, None)
        self._ended.set()
        self._events.ended(number, code, f"exit code {code}")

    def orphan(self, *, silent: bool) -> None:
        """End what runs, for the scaler is gone: each events the end of its link, or dies with the machine."""
        for started in self._running.values():
            if silent:
                self.fleet.kill(started.process.host.name, silent=True)
            else:
                self._world.kernel.after(MEMBER_EVERY_S, started.terminate)


class EnduringActuator(VirtualActuator):
    """The same of workers that another supervisor keeps: they outlive their scaler, and tell that supervisor alone.

    ``units`` are those of one machine, whichever of its scalers started them. They are looked at every `CHECK_EVERY_S`.
    """

    outlives = True

    def __init__(self, *given: Any, units: dict[str, Started]) -> None:
        super().__init__(*given)
        self._running = units
        self._told: dict[str, int] = {}
        """How many words of each were passed on."""
        self._watch = Watch("units", self.look, every_s=CHECK_EVERY_S, wanted=lambda: bool(self._running))

    async def open(self, events: ProcessEvents) -> None:
        await super().open(events)
        self._watch.begin()

    async def look(self) -> None:
        await asyncio.sleep(0.001 + 0.02 * self._draw())
        if self._draw() < self._world.trouble["start_fails"]:
            self._world.reached("workers not seen")
            raise NotSeen("the supervisor does not answer")
        for number, started in list(self._running.items()):
            # Of what was said meanwhile only how it stands now is seen.
            told, self._told[number] = self._told.get(number, 0), len(started.said)
            if READY in started.said[told:]:
                self._events.ready(number)
            if started.said[told:] and started.said[-1] != READY:
                self._events.busy_changed(number, busy=started.said[-1] == BUSY)
            if started.code is not None:
                del self._running[number]
                self._events.ended(number, started.code, f"exit code {started.code}")

    async def close(self) -> None:
        await self._watch.close()

    def hear(self, number: str, word: bytes) -> None:
        """Do nothing: it is seen."""

    def gone(self, process: Process, why: str) -> None:
        for started in self._running.values():
            if started.process is process:
                started.code = KILLED if why == "killed" else int(started.worker is None)

    def orphan(self, *, silent: bool) -> None:
        """Let them be."""


class ScalerHost:
    def __init__(self, world: World, fleet: Fleet, process: Process) -> None:
        plan = world.plan
        self._world = world
        self._process = process
        self.stopping = False
        self._stands: tuple[object, ...] = ()
        name = process.host.name
        self.queue = world.scales(name)
        given = (world, fleet, process, world.scaled[name], self.queue)
        self.actuator = (
            EnduringActuator(*given, units=fleet.units.setdefault(name, {}))
            if plan.outlive
            else VirtualActuator(*given)
        )
        where = world.bridges if plan.doors else world.store_host
        exceptions = Exceptions(world, process)
        kind = AskedStore if plan.rounds and not plan.doors else RemoteStore
        store = exceptions.spoil(kind(world, process, where, capabilities_of(world)), "depth")
        # A start that was carried out and failed would leave workers that nobody knows.
        exceptions.spoil(self.actuator, "start", before=True)
        exceptions.spoil(self.actuator, "stop", "look")
        instance = f"{process.chance.getrandbits(128):032x}"

        class Chanced(Scaler):
            _draw = staticmethod(process.chance.random)
            _new_instance = staticmethod(lambda: instance)

        self.scaler = Chanced(
            store,
            self.queue,
            self.actuator,
            bridge=exceptions.spoil_channel(way_to_bridge(world, process, store, instance)),
            name=process.name,
            min=0,
            max=plan.workers,
            idle=plan.idle_s,
            per_process=plan.concurrency,
            start_rate=plan.start_rate,
            start_timeout=plan.start_timeout_s,
            grace=plan.grace_s,
            handle_signals=False,
        )

    async def run(self) -> None:
        await self.scaler.run()

    async def stop(self) -> None:
        self.stopping = True
        self.witness()
        await self.scaler.stop()

    @property
    def scaled(self) -> QueueScaler | None:
        return self.scaler.queue_scaler

    def counting(self) -> bool:
        return self.scaled is not None and bool(self.scaled.rules.controller.receives)

    def starting(self) -> bool:
        return self.scaled is not None and self.scaled.rules.processes.coming > 0

    def ending(self) -> bool:
        processes = None if self.scaled is None else self.scaled.rules.processes
        return processes is not None and any(processes.ends(number) for number in processes.ids)

    def witness(self) -> None:
        world, process, scaled = self._world, self._process, self.scaled
        if not process.up or scaled is None:
            return
        name, processes = process.host.name, scaled.rules.processes
        reaches = world.reaches_store(name) and world.lets_take(name, self.queue)
        stands = (not self.stopping, processes.free(process.loop.time()), processes.coming, reaches)
        if stands != self._stands:
            self._stands = stands
            world.emit("scaler_room", name, self.queue, *stands)


Main = Callable[[Process], Coroutine[Any, Any, None]]


class Fleet:
    def __init__(self, world: World) -> None:
        self._world = world
        self._disks = {name: Disk() for name in world.bridges}
        self._store = StoreHost(world) if world.plan.store == "elsewhere" else None
        self.workers: dict[str, Worker] = {}
        self.producers: dict[str, Producer] = {}
        self.bridges: dict[str, BridgeServer] = {}
        self.scalers: dict[str, ScalerHost] = {}
        self.units: dict[str, dict[str, Started]] = {}
        """By scaler's host: its workers that outlive it."""
        self._started_by: dict[str, VirtualActuator] = {}
        """By host of a worker that a scaler started."""

    def start(self, name: str) -> None:
        """Start a host's process, unless one runs there, or only a scaler starts any."""
        if self._world.hosts[name].process is None and name not in self._world.of_scalers:
            self._begin(name, self._main)

    def launch(self, name: str, main: Main, starter: VirtualActuator) -> None:
        self._started_by[name] = starter
        self._begin(name, main)

    def _begin(self, name: str, main: Main) -> None:
        world = self._world
        process = Process(world.kernel, world.hosts[name])
        world.began(process)
        process.begin(main(process), lambda error: self._ended(process, error))

    def _main(self, process: Process) -> Coroutine[Any, Any, None]:
        world, name = self._world, process.host.name
        match process.host.role:
            case "worker":
                worker = self.workers[name] = Worker(world, process, world.queues)
                process.after_turn = worker.witness
                return worker.run()
            case "scaler":
                scaler = self.scalers[name] = ScalerHost(world, self, process)
                process.after_turn = scaler.witness
                return scaler.run()
            case "producer":
                producer = self.producers[name] = Producer(world, process, int(name.partition("-")[2]))
                return producer.run()
            case "bridge":
                bridge = self.bridges[name] = BridgeServer(world, process, self._disks[name])
                return bridge.run()
            case "store":
                assert self._store is not None
                return serve_store(world, process, self._store)
            case _:
                return serve_broker(world, process)

    def start_all(self) -> None:
        for name in self._world.hosts:
            self.start(name)

    def close(self) -> None:
        for disk in self._disks.values():
            disk.close()
        if self._store is not None:
            self._store.close()

    def kill(self, name: str, *, silent: bool = False) -> None:
        process = self._world.hosts[name].process
        if process is not None:
            for situation, reached in self.moments(name).items():
                if reached():
                    self._world.reached(situation)
            self._gone(process, "killed", silent=silent)

    def moments(self, name: str) -> dict[str, Callable[[], bool]]:
        """Return the moments at which a kill of a host's process hurts most, by what a kill then is called."""
        worker, producer, scaler = self.workers.get(name), self.producers.get(name), self.scalers.get(name)
        if worker is not None:
            return {
                "killed in a receive": worker.receiving,
                "killed in a handler": lambda: worker.handling.running > 0,
                "killed in a settlement": worker.settling,
            }
        if producer is not None:
            return {"killed in a put": lambda: producer.batch is not None}
        if name in self.bridges:
            return {"bridge killed while it owed a look": self.bridges[name].owes}
        if scaler is not None:
            return {
                "scaler killed in a count": scaler.counting,
                "scaler killed in a start": scaler.starting,
                "scaler killed while a worker ended": scaler.ending,
            }
        return {}

    def stop(self, name: str) -> None:
        process = self._world.hosts[name].process
        if process is None:
            return
        stops = self.workers.get(name) or self.scalers.get(name)
        if stops is not None:
            process.spawn(stops.stop(), "stop")
        elif name in self.bridges:
            process.post(self.bridges[name].stop)
        else:
            self.kill(name)

    def pause(self, name: str, *, suspended: bool) -> Process | None:
        """Have a host's process stand still; return it, or None where there is none or it does so already."""
        process = self._world.hosts[name].process
        if process is None or process.paused:
            return None
        process.pause(suspended=suspended)
        self._world.emit("stands", name, True, suspended)
        if name == self._world.store_host:
            self._world.emit("store", False)
        return process

    def resume(self, process: Process) -> None:
        if not process.up or not process.paused:
            return
        name = process.host.name
        process.resume()
        self._world.emit("stands", name, False, False)
        if name == self._world.store_host:
            self._world.emit("store", True)

    def witness(self) -> None:
        for worker in self.workers.values():
            worker.witness()
        for scaler in self.scalers.values():
            scaler.witness()

    def _ended(self, process: Process, error: Exception | None) -> None:
        if error is not None and not self._world.kernel.over:
            self._world.failures.append(f"defect: {process.name} ended with {type(error).__name__}: {error}")
        self._world.kernel.at(self._world.kernel.now, self._gone, process, "stopped" if error is None else "failed")

    def _gone(self, process: Process, why: str, *, silent: bool = False) -> None:
        if not process.up:
            return
        role = process.host.role
        self._world.ended(process, why, silent=silent)
        if process.host.name in self.bridges:
            self.bridges.pop(process.host.name).gone()
        elif role == "worker":
            self.workers.pop(process.host.name, None)
            starter = self._started_by.pop(process.host.name, None)
            if starter is not None:
                starter.gone(process, why)
        elif role == "scaler":
            self.scalers.pop(process.host.name).actuator.orphan(silent=silent)
        elif role == "producer":
            producer = self.producers.pop(process.host.name, None)
            if producer is not None:
                producer.settled("unknown")
