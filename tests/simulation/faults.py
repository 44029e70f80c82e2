"""What can go wrong in a run, when, to whom and for how long; `Faults` does it, and takes it back.

The fault "an exception at any call to something else": what a process calls raises, now and then, whatever it is.

A store, a channel, a line to other bridges, an actuator, an observer, a hook. Some calls fail before they did anything,
some after it; of those that are awaited some end with a cancellation that nobody asked for.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import msgspec

from tests.simulation.process import Lost

if TYPE_CHECKING:
    from queuebell.bridge.contract.wire import DownFrame
    from queuebell.bridge.service.bridge import Bridge
    from queuebell.bridge.service.channels.base import Outlet
    from tests.simulation.fleet import Fleet
    from tests.simulation.plan import Plan
    from tests.simulation.process import Process
    from tests.simulation.world import World

CANCELLED: Final = 0.2
"""Share of the failures of awaited calls that are cancellations."""
AFTER: Final = 0.5
"""Share of the failures of awaited calls that come after the call was carried out."""


def knob(host: str) -> str:
    return f"exceptions of {host}"


class Exceptions:
    """Raises in what one process calls, as the faults that last say."""

    def __init__(self, world: World, process: Process) -> None:
        self._world = world
        self._knob = knob(process.host.name)
        self._draw = process.kernel.chance(f"{process.name}/exceptions").random

    def may_raise(self, what: str) -> None:
        share = self._world.trouble[self._knob]
        if share and self._draw() < share:
            self._world.reached(f"exception in {what}")
            raise RuntimeError(f"{what} is broken")

    def hear(self, what: str) -> Callable[..., None]:
        return lambda *_: self.may_raise(what)

    def spoil(self, thing: Any, *names: str, before: bool = False) -> Any:
        """Have these calls of a thing raise, with ``before`` only before they do anything; return it."""
        what = type(thing).__name__
        for name in names:
            call = getattr(thing, name)
            awaited = self._awaited if inspect.iscoroutinefunction(call) else self._called
            setattr(thing, name, awaited(f"{what}.{name}", call, before))
        return thing

    def _called(self, what: str, call: Callable[..., Any], before: bool) -> Callable[..., Any]:
        @functools.wraps(call)
        def spoiled(*given: Any, **named: Any) -> Any:
            self.may_raise(what)
            return call(*given, **named)

        return spoiled

    def _awaited(self, what: str, call: Callable[..., Any], before: bool) -> Callable[..., Any]:
        @functools.wraps(call)
        async def spoiled(*given: Any, **named: Any) -> Any:
            try:
                self.may_raise(what)
            except RuntimeError:
                if not before and self._draw() < AFTER:
                    await call(*given, **named)
                if self._draw() < CANCELLED:
                    raise asyncio.CancelledError(what) from None
                raise
            return await call(*given, **named)

        return spoiled

    def spoil_channel(self, channel: Any) -> Any:
        """Have connections of a worker or a scaler to its bridge raise, and the links they open."""
        if hasattr(channel, "local_channel"):
            local = channel.local_channel
            channel.local_channel = lambda: self.spoil_channel(local())
            return channel
        connect = channel.connect

        async def spoiled() -> Any:
            self.may_raise("connect")
            return self.spoil(await connect(), "send", "receive", "close")

        channel.connect = spoiled
        return channel

    def spoil_bridge(self, bridge: Bridge) -> None:
        """Have what a bridge calls raise: the channels of its sessions, observers, subscribers, and its own store."""
        connect = bridge.connect
        bridge.connect = lambda outlet: connect(_Outlet(self, outlet))  # type: ignore[method-assign]
        bridge.observe(self.hear("an observer"))
        bridge.forward(self.hear("a forward"))
        bridge.callbacks.session_watchers.append(self.hear("a watcher of sessions"))
        if bridge.own is not None:
            self.spoil(bridge.own, "refresh", "reclaim")


class _Outlet:
    """The bridge's end of a session, which raises."""

    def __init__(self, exceptions: Exceptions, outlet: Outlet) -> None:
        self._exceptions = exceptions
        self._outlet = outlet
        self.kind = outlet.kind

    def writable(self) -> bool:
        self._exceptions.may_raise("Outlet.writable")
        return self._outlet.writable()

    def send(self, frame: DownFrame) -> None:
        self._exceptions.may_raise("Outlet.send")
        self._outlet.send(frame)

    def close(self, code: int, reason: str) -> None:
        self._exceptions.may_raise("Outlet.close")
        self._outlet.close(code, reason)


T = TypeVar("T")
Undo = Callable[[], None]
Applies = Callable[["Plan"], bool]
Target = Callable[["Plan", random.Random], str]
_SILENT: Final = 0.25
"""Share of the kills that take the machine along: nobody tells the peers."""
_TURNS: Final = 4
"""How many more turns a process may have after the moment it is to be killed at: each await is as good as another."""
_PATIENCE_S: Final = 10.0
STALLS_S: Final = (0.9, 3.4, 10.0)
"""How long a loop stands still: less than a member notices, less than its peers do, and longer."""
RECEIVES: Final = ("store_down", "store_slow", "store_errors", "false_empty", "receive_unknown")
"""What keeps a receive from its answer, or makes the answer wrong; a put or a settlement whose answer is lost does
not."""


class Fault(msgspec.Struct, frozen=True):
    """One thing that goes wrong.

    ``at_s`` is virtual seconds since the run's beginning; ``target`` a process (``worker-1``, ``bridge``), two of them
    (``worker-1>bridge``), ``broker``, ``store``, or a producer; ``length_s`` until it is mended; ``value`` is what the
    kind says (a share or seconds), 0 where it says nothing.
    """

    at_s: float
    kind: str
    target: str
    length_s: float
    value: float = 0.0


class Trouble:
    """Levels by kind of fault, each the highest of those that last; 0 is health."""

    def __init__(self) -> None:
        self.store_works = True
        self._levels: dict[str, list[float]] = {}

    def __getitem__(self, name: str) -> float:
        return max(self._levels.get(name) or (0.0,))

    def begin(self, name: str, value: float) -> None:
        self._levels.setdefault(name, []).append(value)
        self._look()

    def end(self, name: str, value: float) -> None:
        self._levels[name].remove(value)
        self._look()

    def _look(self) -> None:
        self.store_works = not any(self._levels.get(name) for name in RECEIVES)


def _one(names: Sequence[T], chance: random.Random) -> T:
    return names[int(chance.random() * len(names))]


def _workers(plan: Plan) -> list[str]:
    # Of scalers' listeners those that run most of the time.
    return plan.scaler_names * 2 + plan.worker_names[: 2 * plan.scalers] if plan.scalers else plan.worker_names


def _process(plan: Plan, chance: random.Random) -> str:
    # The workers matter most: their crashes reach the most races.
    others = [*plan.bridge_names, *plan.producer_names]
    return _one(_workers(plan) if chance.random() < 0.6 else others, chance)


def _caller(plan: Plan, chance: random.Random) -> str:
    bridges = plan.bridge_names
    return _one([*bridges, *_workers(plan)] if chance.random() < 0.5 else bridges, chance)


def _key_holder(plan: Plan, chance: random.Random) -> str:
    # A producer that puts elsewhere and publishes over a broker shows the bridge no key.
    asked = plan.store == "own" or plan.channel == "wire"
    return _one(_workers(plan) + plan.producer_names if asked else _workers(plan), chance)


def _link(plan: Plan, chance: random.Random) -> str:
    bridges = plan.bridge_names
    servers = [*bridges, "store"] if plan.store == "elsewhere" else bridges
    if plan.bridges > 1 and chance.random() < 0.5:
        # One bridge is cut off from the others alone, or from the store that it serves.
        near, far = _one(bridges, chance), "store" if plan.doors and chance.random() < 0.5 else "broker"
        return f"{near}>{far}" if chance.random() < 0.5 else f"{far}>{near}"
    if plan.channel == "broker":
        servers = [*servers, "broker"]
        if chance.random() < 0.25:
            return f"{bridges[0]}>broker" if chance.random() < 0.5 else f"broker>{bridges[0]}"
    near, far = _one(_workers(plan) + plan.producer_names, chance), _one(servers, chance)
    return f"{near}>{far}" if chance.random() < 0.5 else f"{far}>{near}"


TARGETS: Final[dict[str, Target]] = {
    "process": _process,
    "caller": _caller,
    "key holder": _key_holder,
    "link": _link,
    "bridge": lambda plan, chance: _one(plan.bridge_names, chance),
    "first bridge": lambda plan, chance: plan.bridge_names[0],
    "producer": lambda plan, chance: _one(plan.producer_names, chance),
    "scaler": lambda plan, chance: _one(plan.scaler_names, chance),
    "store": lambda plan, chance: "store",
    "broker": lambda plan, chance: "broker",
}
PLANS: Final[dict[str, Applies]] = {
    "all": lambda plan: True,
    "elsewhere": lambda plan: plan.store == "elsewhere",
    "over a broker": lambda plan: plan.channel == "broker",
    "with a broker": lambda plan: plan.channel == "broker" or plan.bridges > 1,
    "several bridges": lambda plan: plan.bridges > 1,
    "scalers": lambda plan: plan.scalers > 0,
    "keys": lambda plan: plan.auth,
}


class Kind(NamedTuple):
    """A kind of fault: whom it befalls, the values it is drawn from, where it can be, and what of `Faults` does it."""

    target: str
    values: tuple[float, ...] = ()
    where: str = "all"
    act: str = "_turn"

    def applies(self, plan: Plan) -> bool:
        return PLANS[self.where](plan)


SECONDS, SHARES, SMALL_SHARES, EITHER = (0.05, 0.5, 3.0), (0.2, 0.5, 1.0), (0.1, 0.5, 1.0), (0.0, 1.0)
KINDS: Final[dict[str, Kind]] = {
    # Killed and started again after the length; stopped for a while; with its machine, so that its clock stands still;
    # stopped gracefully and started again after the length.
    "crash": Kind("process", act="_kill"),
    "pause": Kind("process", act="_freeze"),
    "suspend": Kind("process", act="_freeze"),
    "restart": Kind("process", act="_restart"),
    # ``a>b``: nothing passes either way, or from a to b; connections break; messages take so many seconds more.
    "partition": Kind("link", act="_partition"),
    "half_open": Kind("link", act="_half_open"),
    "reset": Kind("link", act="_reset"),
    "slow_link": Kind("link", SECONDS, act="_slow_link"),
    # The broker is gone; takes everything and delivers nothing; a share of its messages is lost, repeated, overtaken;
    # each takes up to so many seconds more.
    "broker_kill": Kind("broker", where="with a broker", act="_kill"),
    "broker_deaf": Kind("broker", where="with a broker"),
    "frame_loss": Kind("broker", SMALL_SHARES, "over a broker"),
    "frame_repeat": Kind("broker", SMALL_SHARES, "over a broker"),
    "frame_reorder": Kind("broker", SMALL_SHARES, "over a broker"),
    "frame_delay": Kind("broker", SECONDS, "over a broker"),
    # The store refuses; takes seconds for each call; a share of its calls fails; of its receives find nothing though
    # there is something; of its receives, puts and settlements are carried out and the answer is lost. The own store is
    # down with its bridge, and never wrong about what it holds.
    "store_down": Kind("store", where="elsewhere", act="_store_down"),
    "store_slow": Kind("store", (0.5, 3.0, 9.0, 15.0)),
    "store_errors": Kind("store", SHARES),
    "false_empty": Kind("store", SHARES, "elsewhere"),
    "receive_unknown": Kind("store", SHARES),
    "put_unknown": Kind("store", SHARES),
    "settle_unknown": Kind("store", SHARES),
    # A share of the triggers vanish though they were acknowledged; the producer dies after its next put, before it
    # publishes.
    "trigger_dropped": Kind("first bridge", SMALL_SHARES, "elsewhere"),
    "killed_before_publish": Kind("producer", where="elsewhere", act="_killed_before_publish"),
    # A key is revoked, and replaced after the length (1: replaced first, and revoked then); the next one, or with 1 a
    # token, ends by itself half-way to it; what a process may is taken from it; the bridge's access file is damaged
    # (1: gone), while what it said last holds.
    "key_revoked": Kind("key holder", EITHER, "keys", "_key_revoked"),
    "key_expires": Kind("key holder", EITHER, "keys", "_key_expires"),
    "grants_shrunk": Kind("key holder", where="keys", act="_grants_shrunk"),
    "access_broken": Kind("first bridge", EITHER, "keys", "_access_broken"),
    # The loop of a bridge stands still; all but one are killed, and started again after the length; a share of the
    # words between them is lost, said twice; each comes up to so many seconds late.
    "stall": Kind("bridge", where="several bridges", act="_freeze"),
    "others_killed": Kind("bridge", where="several bridges", act="_kill_others"),
    "word_loss": Kind("broker", SMALL_SHARES, "several bridges"),
    "word_repeat": Kind("broker", SMALL_SHARES, "several bridges"),
    "word_delay": Kind("broker", (0.5, 3.0, 10.0), "several bridges"),
    # A share of the starts fail at once; of those started end, or hang, before their listener has a session; each takes
    # seconds more.
    "start_fails": Kind("scaler", SHARES, "scalers"),
    "start_dies": Kind("scaler", SHARES, "scalers"),
    "start_hangs": Kind("scaler", SHARES, "scalers"),
    "start_slow": Kind("scaler", (1.0, 5.0, 15.0), "scalers"),
    # A share of a process's calls to something else raises: stores, channels, observers, hooks, actuators.
    "exception": Kind("caller", (0.02, 0.2, 1.0), act="_exception"),
}


def draw_faults(plan: Plan, chance: random.Random) -> list[Fault]:
    """Draw the faults of one run, in the order of their beginnings; all begin in the phase with faults.

    Exceptions are drawn after all others, which are what they would be without.
    """
    kinds = [kind for kind in plan.faults if KINDS[kind].applies(plan)]
    others = [kind for kind in kinds if kind != "exception"]
    calls = [kind for kind in kinds if kind == "exception"]
    drawn = [*_drawn(others, plan.fault_gap_s, plan, chance), *_drawn(calls, 2 * plan.fault_gap_s, plan, chance)]
    return sorted(drawn, key=lambda fault: fault.at_s)


def _drawn(kinds: list[str], gap_s: float, plan: Plan, chance: random.Random) -> list[Fault]:
    drawn: list[Fault] = []
    at = 0.0
    while kinds:
        at += chance.expovariate(1.0 / gap_s)
        if at >= plan.faulty_s:
            break
        name = _one(kinds, chance)
        kind = KINDS[name]
        length = min(chance.expovariate(1.0 / plan.fault_length_s), plan.fault_length_s * 5)
        if name == "stall":
            length = _one(STALLS_S, chance)
        target = TARGETS[kind.target](plan, chance)
        value = chance.choice(kind.values) if kind.values else 0.0
        drawn.append(Fault(round(at, 3), name, target, round(length, 3), value))
    return drawn


class Faults:
    """The faults of one run. `plan` them before time begins; `heal` ends all."""

    def __init__(self, world: World, fleet: Fleet) -> None:
        self._world = world
        self._fleet = fleet
        self._open: dict[int, tuple[Fault, Undo]] = {}
        self._numbers = 0

    def plan(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            self._world.kernel.at(fault.at_s, self._begin, fault)

    def heal(self) -> None:
        for number in list(self._open):
            self._end(number)

    def _begin(self, fault: Fault) -> None:
        world = self._world
        if world.healed:
            return
        world.emit("fault", fault.kind, fault.target, True)
        undo: Undo | None = getattr(self, KINDS[fault.kind].act)(fault)
        if undo is None:
            world.emit("fault", fault.kind, fault.target, False)
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
        self._world.emit("fault", fault.kind, fault.target, False)
        self._fleet.witness()

    def _turn(self, fault: Fault) -> Undo:
        return self._turned(fault.kind, fault.value)

    def _exception(self, fault: Fault) -> Undo:
        return self._turned(knob(fault.target), fault.value)

    def _turned(self, name: str, value: float) -> Undo:
        trouble, level = self._world.trouble, value or 1.0
        trouble.begin(name, level)
        return lambda: trouble.end(name, level)

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

        moments = [lambda: True, *fleet.moments(name).values()]
        if process.paused:
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

    def _store_down(self, fault: Fault) -> Undo | None:
        world = self._world
        process = world.hosts["store"].process
        if process is None or not process.ports:
            return None
        ports, process.ports = process.ports, {}
        for end in list(process.connections):
            end.pipe.push(Lost("connection reset"))
        mend = self._turn(fault)
        world.emit("store", False)

        def undo() -> None:
            process.ports = ports
            mend()
            world.emit("store", True)

        return undo

    def _killed_before_publish(self, fault: Fault) -> Undo:
        number = int(fault.target.partition("-")[2])
        self._world.workload.doomed[number] = 1

        def undo() -> None:
            self._world.workload.doomed.pop(number, None)
            self._fleet.start(fault.target)

        return undo

    def _key_revoked(self, fault: Fault) -> Undo | None:
        return self._world.desk.revoke(fault.target, replaced_first=fault.value > 0)

    def _key_expires(self, fault: Fault) -> Undo | None:
        return self._world.desk.expire(fault.target, fault.length_s / 2, token=fault.value > 0)

    def _grants_shrunk(self, fault: Fault) -> Undo | None:
        return self._world.desk.shrink(fault.target)

    def _access_broken(self, fault: Fault) -> Undo | None:
        return self._world.desk.damage(gone=fault.value > 0)
