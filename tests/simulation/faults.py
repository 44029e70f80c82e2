"""Does what a fault says, and takes it back when its time is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from tests.simulation.events import FaultBegan, FaultEnded, StoreDown, StoreUp
from tests.simulation.exceptions import knob
from tests.simulation.fault import Fault
from tests.simulation.network import Lost

if TYPE_CHECKING:
    from tests.simulation.fleet import Fleet
    from tests.simulation.world import World

Undo = Callable[[], None]
_KNOBS: Final = {
    "word_loss": "word_loss",
    "word_repeat": "word_repeat",
    "word_delay": "word_delay",
    "broker_deaf": "deaf",
    "frame_loss": "frame_loss",
    "frame_repeat": "frame_repeat",
    "frame_reorder": "frame_reorder",
    "frame_delay": "frame_delay",
    "store_slow": "slow",
    "store_errors": "errors",
    "false_empty": "false_empty",
    "receive_unknown": "receive_unknown",
    "put_unknown": "put_unknown",
    "settle_unknown": "settle_unknown",
    "trigger_dropped": "trigger_dropped",
    "start_fails": "start_fails",
    "start_dies": "start_dies",
    "start_hangs": "start_hangs",
    "start_slow": "start_slow",
}
_SILENT: Final = 0.25
"""Share of the kills that take the machine along: nobody tells the peers."""
_TURNS: Final = 4
"""How many more turns a process may have after the moment it is to be killed at: each await is as good as another."""
_PATIENCE_S: Final = 10.0
"""How long a kill waits for its moment."""


class Faults:
    """The faults of one run. `plan` them before time begins; `heal` ends all."""

    def __init__(self, world: World, fleet: Fleet) -> None:
        self._world = world
        self._fleet = fleet
        self._open: dict[int, tuple[Fault, Undo]] = {}
        self._numbers = 0

    def plan(self, faults: Sequence[Fault]) -> None:
        """Have these begin at their times."""
        for fault in faults:
            self._world.kernel.at(fault.at_s, self._begin, fault)

    def heal(self) -> None:
        """End all that last, in the order in which they began."""
        for number in list(self._open):
            self._end(number)

    def _begin(self, fault: Fault) -> None:
        world = self._world
        if world.healed:
            return
        world.emit(FaultBegan(world.kernel.now, fault.kind, fault.target, fault.value))
        undo = self._do(fault)
        if undo is None:
            world.emit(FaultEnded(world.kernel.now, fault.kind, fault.target))
            return
        world.reached(f"fault {fault.kind}")
        self._numbers += 1
        self._open[self._numbers] = (fault, undo)
        self._fleet.witness()
        world.kernel.after(fault.length_s, self._end, self._numbers)

    def _end(self, number: int) -> None:
        fault, undo = self._open.pop(number, (None, None))
        if fault is None or undo is None:
            return
        undo()
        self._world.emit(FaultEnded(self._world.kernel.now, fault.kind, fault.target))
        self._fleet.witness()

    def _do(self, fault: Fault) -> Undo | None:
        """Do it; return what takes it back, or None where there was nothing to do it to."""
        turned = _KNOBS.get(fault.kind)
        if turned is not None:
            return self._turn(turned, fault.value or 1.0)
        return _ACTS[fault.kind](self, fault)

    def _exception(self, fault: Fault) -> Undo:
        return self._turn(knob(fault.target), fault.value or 1.0)

    def _turn(self, name: str, value: float) -> Undo:
        trouble = self._world.trouble
        trouble.begin(name, value)
        return lambda: trouble.end(name, value)

    # -- processes ----------------------------------------------------------------------------------------------------

    def _kill(self, fault: Fault) -> Undo | None:
        world, fleet, name = self._world, self._fleet, fault.target
        process = world.hosts[name].process
        if process is None:
            return None
        draw = world.kernel.chance(f"kill/{process.name}").random
        silent = draw() < _SILENT

        def dies() -> None:
            if world.hosts[name].process is process:
                fleet.kill(name, silent=silent)

        moments = fleet.moments(name)
        if process.paused or not moments:
            dies()
        else:
            moment = moments[int(draw() * len(moments))]
            process.die_at(moment, int(draw() * _TURNS), dies)
            world.kernel.after(_PATIENCE_S, dies)

        def undo() -> None:
            dies()
            fleet.start(name)

        return undo

    def _kill_others(self, fault: Fault) -> Undo:
        """All bridges but one end at once, whatever they are doing."""
        world, fleet = self._world, self._fleet
        others = [name for name in world.bridges if name != fault.target]
        draw = world.kernel.chance(f"kill/{fault.at_s}").random
        for name in others:
            fleet.kill(name, silent=draw() < _SILENT)

        def undo() -> None:
            for name in others:
                fleet.start(name)

        return undo

    def _restart(self, fault: Fault) -> Undo | None:
        world, fleet = self._world, self._fleet
        process = world.hosts[fault.target].process
        if process is None or process.paused:
            return None
        fleet.stop(fault.target)
        # Whoever has not stopped by then stops later, and is started again by the healing at the latest.
        return lambda: fleet.start(fault.target)

    def _freeze(self, fault: Fault) -> Undo | None:
        process = self._fleet.pause(fault.target, suspended=fault.kind == "suspend")
        return None if process is None else lambda: self._fleet.resume(process)

    # -- links --------------------------------------------------------------------------------------------------------

    def _partition(self, fault: Fault) -> Undo:
        near, far = fault.target.split(">")
        network = self._world.network
        network.block(near, far)
        network.block(far, near)

        def undo() -> None:
            network.unblock(near, far)
            network.unblock(far, near)

        return undo

    def _half_open(self, fault: Fault) -> Undo:
        near, far = fault.target.split(">")
        self._world.network.block(near, far)
        return lambda: self._world.network.unblock(near, far)

    def _reset(self, fault: Fault) -> Undo:
        self._world.network.reset(*fault.target.split(">"))
        return lambda: None

    def _slow_link(self, fault: Fault) -> Undo:
        way = self._world.network.way(*fault.target.split(">"))
        way.extra += fault.value

        def undo() -> None:
            way.extra -= fault.value

        return undo

    # -- store and producers ------------------------------------------------------------------------------------------

    def _store_down(self, fault: Fault) -> Undo | None:
        world = self._world
        process = world.hosts["store"].process
        if process is None or not process.ports:
            return None
        ports, process.ports = process.ports, {}
        for end in list(process.connections):
            end.pipe.push(Lost("connection reset"))
        world.trouble.begin("down", 1.0)
        world.emit(StoreDown(world.kernel.now, "it refuses"))

        def undo() -> None:
            process.ports = ports
            world.trouble.end("down", 1.0)
            world.emit(StoreUp(world.kernel.now))

        return undo

    def _killed_before_publish(self, fault: Fault) -> Undo:
        number = int(fault.target.partition("-")[2])
        self._world.workload.doomed[number] = 1

        def undo() -> None:
            self._world.workload.doomed.pop(number, None)
            self._fleet.start(fault.target)

        return undo

    # -- access -------------------------------------------------------------------------------------------------------

    def _key_revoked(self, fault: Fault) -> Undo | None:
        desk = self._world.desk
        return None if desk is None else desk.revoke(fault.target, replaced_first=fault.value > 0)

    def _key_expires(self, fault: Fault) -> Undo | None:
        desk = self._world.desk
        return None if desk is None else desk.expire(fault.target, fault.length_s / 2, token=fault.value > 0)

    def _grants_shrunk(self, fault: Fault) -> Undo | None:
        desk = self._world.desk
        return None if desk is None else desk.shrink(fault.target)

    def _access_broken(self, fault: Fault) -> Undo | None:
        desk = self._world.desk
        return None if desk is None else desk.damage(gone=fault.value > 0)


_ACTS: Final[dict[str, Callable[[Faults, Fault], Undo | None]]] = {
    "exception": Faults._exception,
    "crash": Faults._kill,
    "broker_kill": Faults._kill,
    "restart": Faults._restart,
    "pause": Faults._freeze,
    "suspend": Faults._freeze,
    "stall": Faults._freeze,
    "others_killed": Faults._kill_others,
    "partition": Faults._partition,
    "half_open": Faults._half_open,
    "reset": Faults._reset,
    "slow_link": Faults._slow_link,
    "store_down": Faults._store_down,
    "killed_before_publish": Faults._killed_before_publish,
    "key_revoked": Faults._key_revoked,
    "key_expires": Faults._key_expires,
    "grants_shrunk": Faults._grants_shrunk,
    "access_broken": Faults._access_broken,
}
"""By kind, besides those that turn a knob: what does it."""
