"""All processes of a run: started, stopped, killed and started again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from tests.simulation.process import Process
from tests.simulation.scaler import ScalerHost, Started, VirtualActuator
from tests.simulation.servers import BridgeServer, Disk, StoreHost, serve_broker, serve_store
from tests.simulation.worker import Producer, Worker

if TYPE_CHECKING:
    from tests.simulation.world import World

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
                producer.unknown()
