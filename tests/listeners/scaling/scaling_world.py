"""A small world of scalers, their processes, one queue and its bridge, whose every interleaving can be tried.

The scalers are the real rules. Bridge and workers are as simple as the protocol allows: what is said is heard at once,
and nothing is repeated, so that a debt that is kept or forgotten is never healed by a sweep, a second wake or a
heartbeat.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from queuebell.listeners.scaling.processes import Limits
from queuebell.listeners.scaling.scaled_queue import Audit, Count, Finish, Launch, ScaledQueue, Step
from queuebell.listeners.wake.table import SendEmptyReceive, SendMore, SendRoom, SendStarted, StartReceive

BOOT = "b" * 32
LIMITS = Limits(maximum=3, per_process=1, idle_s=8.0, start_timeout_s=20.0, start_s=5.0)
DUE_S = 12.0
STEPS_MAX = 400


class Violation(AssertionError):
    """A rule was broken."""


class Worker(msgspec.Struct):
    """A process, and the listener within."""

    scaler: int
    stage: str = "starts"
    """``starts``, ``greeted`` (its hello has reached the bridge), ``ready`` (and it has told its scaler so)."""
    held: int = 0
    barred: bool = False


class Budget(msgspec.Struct):
    """What may still happen besides what must."""

    puts: int = 1
    delayed: int = 0
    refusals: int = 0
    deaths: int = 0
    failed_counts: int = 0


class World:
    """Everything at one moment. ``broken`` scalers can start nothing, ever."""

    def __init__(self, scalers: int, budget: Budget, *, broken: int = 0, make: type[ScaledQueue] = ScaledQueue) -> None:
        self.now = 0.0
        self.budget = budget
        self.broken = broken
        self.visible = self.done = self.put_in_all = self.started_in_all = self.faults = 0
        self.due: float | None = None
        self.gen = 0
        self.dirty = False
        self.owner: str | None = None
        self.barred = [False] * scalers
        self.coming = [0] * scalers
        """How many each scaler said that it starts."""
        self.wakes: dict[int, int] = {}
        self.orders: list[tuple[int, Any]] = []
        """What a scaler asked its shell for and has no answer to."""
        self.failed_at: dict[int, float] = {}
        self.workers: dict[str, Worker] = {}
        self.names = 0
        self.rules = [make(0.0, LIMITS, _middle) for _ in range(scalers)]
        for index, rule in enumerate(self.rules):
            self.perform(index, rule.start(0.0))
            self.perform(index, rule.welcomed(0.0, BOOT, 0))

    # What scalers do ------------------------------------------------------------------------------------------------

    def perform(self, index: int, steps: list[Step]) -> None:
        """Do what a scaler's rules returned."""
        rule = self.rules[index]
        for step in steps:
            match step:
                case StartReceive() | Audit():
                    self.orders.append((index, step))
                case Launch(count):
                    failed = self.failed_at.get(index)
                    if failed is not None and self.now < failed + 1.0:
                        raise Violation("a start that failed was repeated at once")
                    self.orders.append((index, step))
                    if len(rule.processes) + rule.processes.launching > LIMITS.maximum:
                        raise Violation("more processes than the maximum")
                    self.started_in_all += count
                    if not self.faults and self.started_in_all > self.put_in_all:
                        raise Violation("two processes were started for one message")
                case Finish(ids, reason):
                    for name in ids:
                        self._finish(index, name, reason)
                    self.faults += reason.startswith("not ready")
                case SendStarted():
                    if self.dirty and self.owner is None:
                        self.owner = f"scaler {index}"
                case SendMore():
                    self.barred[index] = True
                    self.coming[index] = rule.processes.coming
                    if self.owner == f"scaler {index}":
                        self.owner = None
                    self.wake_sessions()
                case SendRoom():
                    starting = [w for w in self.workers.values() if w.scaler == index and w.stage == "starts"]
                    if starting and index not in self.failed_at:
                        raise Violation("room was said before the hello of what starts has reached the bridge")
                    self.barred[index], self.coming[index] = False, 0
                    self.wake_sessions()
                case SendEmptyReceive(_, gen):
                    if self.dirty and gen >= self.gen:
                        self.dirty, self.owner = False, None
                case _:
                    pass
        self.coming[index] = min(self.coming[index], rule.processes.coming)

    def _finish(self, index: int, name: str, reason: str) -> None:
        worker = self.workers.get(name)
        if worker is None:
            return
        if worker.held:
            raise Violation("a process was ended while it held a lease")
        left = sum(each.scaler == index for each in self.workers.values())
        soon = self.due is not None and self.due - self.now <= LIMITS.start_s
        if reason.startswith("idle") and soon and left == 1:
            raise Violation("the last process ended shortly before something was due")
        self._gone(name)
        self.orders.append((index, ("ended", name, 0)))

    def _gone(self, name: str) -> None:
        worker = self.workers.pop(name)
        self.visible += worker.held
        if self.owner == name:
            self.owner = None
        if worker.held:
            self.mark()
        else:
            self.wake_sessions()

    # The bridge -----------------------------------------------------------------------------------------------------

    def mark(self) -> None:
        """Owe a look."""
        self.gen += 1
        self.dirty = True
        if self.owner is not None and self.owner.startswith("scaler"):
            self.wakes[int(self.owner.split()[1])] = self.gen
        for index in self.events():
            self.wakes[index] = self.gen
        self.wake_sessions()

    def events(self) -> list[int]:
        """Name who events of work without being asked for it: one that starts workers, where none has room (Z5)."""
        return [index for index, coming in enumerate(self.coming) if all(self.barred) and coming][:1]

    def beat(self) -> None:
        """Answer heartbeats: how many workers there are, and what is due (Z2)."""
        due = None if self.due is None else self.due - self.now
        for index, rule in enumerate(self.rules):
            self.perform(index, rule.on_heartbeat(self.now, self.known(index), due))

    def wake_sessions(self) -> None:
        """Give a debt that nobody owns to a worker with room, to a scaler only where none has any (Z5)."""
        if not self.dirty or self.owner is not None:
            return
        for name, worker in self.workers.items():
            if worker.stage != "starts" and not worker.barred:
                self.owner = name
                return
        for index, barred in enumerate(self.barred):
            if not barred:
                self.owner = f"scaler {index}"
                self.wakes[index] = self.gen
                return

    def known(self, index: int) -> int:
        """Return how many workers the bridge counts for a scaler: sessions, and what other scalers start."""
        sessions = sum(each.stage != "starts" for each in self.workers.values())
        return sessions + sum(count for other, count in enumerate(self.coming) if other != index)

    # What may happen ------------------------------------------------------------------------------------------------

    def choices(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        """Return all that may happen now, time apart."""
        budget = self.budget
        if budget.puts:
            yield "put", World.put
        if budget.delayed and self.due is None:
            yield "put for later", World.put_later
        for index in self.wakes:
            yield f"scaler {index} events its wake", lambda world, index=index: world.hear(index)  # type: ignore[misc]
        for number, (index, order) in enumerate(self.orders):
            yield f"scaler {index}: {order}", lambda world, number=number: world.answer(number)  # type: ignore[misc]
            counts = isinstance(order, StartReceive | Audit)
            if (counts and budget.failed_counts) or (isinstance(order, Launch) and budget.refusals):
                yield f"scaler {index}: {order} fails", lambda world, number=number: world.fail(number)  # type: ignore[misc]
        for name, worker in self.workers.items():
            if worker.stage == "starts":
                yield f"{name} says hello", lambda world, name=name: world.greet(name)  # type: ignore[misc]
            elif worker.stage == "greeted":
                yield f"{name} is ready", lambda world, name=name: world.ready(name)  # type: ignore[misc]
            elif worker.held:
                yield f"{name} has handled", lambda world, name=name: world.handle(name)  # type: ignore[misc]
            if worker.stage != "starts" and self.owner == name and not worker.held:
                yield f"{name} receives", lambda world, name=name: world.receive(name)  # type: ignore[misc]
            if budget.deaths:
                yield f"{name} dies", lambda world, name=name: world.die(name)  # type: ignore[misc]

    def put(self) -> None:
        """Put a message."""
        self.budget.puts -= 1
        self.visible += 1
        self.put_in_all += 1
        self.mark()

    def put_later(self) -> None:
        """Put a message that becomes visible after a while."""
        self.budget.delayed -= 1
        self.put_in_all += 1
        self.due = self.now + DUE_S
        self.beat()

    def hear(self, index: int) -> None:
        """Have a scaler hear its wake."""
        gen = self.wakes.pop(index)
        self.perform(index, self.rules[index].wake(self.now, BOOT, gen, "trigger", 1, self.known(index)))

    def answer(self, number: int) -> None:
        """Have what a scaler asked for go well."""
        index, order = self.orders.pop(number)
        rule = self.rules[index]
        match order:
            case StartReceive(rid):
                self.perform(index, rule.counted(self.now, rid, self._count()))
            case Audit():
                self.perform(index, rule.audited(self.now, self._count()))
            case Launch(count):
                if index < self.broken:
                    self._refuse(index, count)
                    return
                names = [f"worker {self.names + each}" for each in range(count)]
                self.names += count
                self.workers.update({name: Worker(index) for name in names})
                self.perform(index, rule.began(self.now, names))
            case ("ended", name, code):
                self.perform(index, rule.ended(self.now, name, code, f"exit code {code}"))

    def fail(self, number: int) -> None:
        """Have what a scaler asked for fail."""
        index, order = self.orders.pop(number)
        self.faults += 1
        rule = self.rules[index]
        match order:
            case StartReceive(rid):
                self.budget.failed_counts -= 1
                self.perform(index, rule.count_failed(self.now, rid, "no answer"))
            case Audit():
                self.budget.failed_counts -= 1
                self.perform(index, rule.audited(self.now, None))
            case Launch(count):
                self.budget.refusals -= 1
                self._refuse(index, count)

    def _refuse(self, index: int, count: int) -> None:
        self.faults += 1
        self.failed_at[index] = self.now
        self.perform(index, self.rules[index].refused(self.now, count, "no such command"))

    def _count(self) -> Count:
        held = sum(worker.held for worker in self.workers.values())
        return Count(self.visible, held + (self.due is not None))

    def greet(self, name: str) -> None:
        """Have a worker's hello reach the bridge."""
        self.workers[name].stage = "greeted"
        self.wake_sessions()

    def ready(self, name: str) -> None:
        """Have a worker tell its scaler that it is ready."""
        worker = self.workers[name]
        worker.stage = "ready"
        self.perform(worker.scaler, self.rules[worker.scaler].ready(self.now, name))
        self.perform(worker.scaler, self.rules[worker.scaler].busy_changed(self.now, name, busy=False))

    def receive(self, name: str) -> None:
        """Have a worker look: it takes a message and says `more`, or covers."""
        worker = self.workers[name]
        self.owner = None
        if not self.visible:
            self.dirty = False
            return
        self.visible -= 1
        worker.held, worker.barred, worker.stage = 1, True, "ready"
        self.perform(worker.scaler, self.rules[worker.scaler].busy_changed(self.now, name, busy=True))
        self.wake_sessions()

    def handle(self, name: str) -> None:
        """Have a worker finish its message and say `room`."""
        worker = self.workers[name]
        worker.held, worker.barred = 0, False
        self.done += 1
        self.perform(worker.scaler, self.rules[worker.scaler].busy_changed(self.now, name, busy=False))
        self.wake_sessions()

    def die(self, name: str) -> None:
        """Have a process end by itself."""
        self.budget.deaths -= 1
        self.faults += 1
        index = self.workers[name].scaler
        if self.workers[name].stage == "starts":
            self.failed_at[index] = self.now
        self._gone(name)
        self.perform(index, self.rules[index].ended(self.now, name, 1, "exit code 1"))

    def pass_time(self) -> bool:
        """Let time pass until a scaler or a message is due; False where nothing is.

        Heartbeats tell that an own queue is covered while nothing is visible in it (O5).
        """
        if not self.dirty:
            for index, rule in enumerate(self.rules):
                self.perform(index, rule.on_empty_receive(self.now, self.now))
        deadlines = [rule.deadline(self.now) for rule in self.rules]
        times = [at for at in deadlines if at is not None]
        if self.due is not None:
            times.append(self.due)
        if not times:
            return False
        self.now = max(self.now, min(times))
        if self.due is not None and self.now >= self.due:
            self.due = None
            self.visible += 1
            self.mark()
        self.beat()
        for index, (rule, at) in enumerate(zip(self.rules, deadlines, strict=True)):
            if at is not None and at <= self.now:
                self.perform(index, rule.tick(self.now))
        return True

    def wait(self) -> None:
        """Let time pass, if anything is due."""
        self.pass_time()

    # What must come of it -------------------------------------------------------------------------------------------

    def settles(self) -> None:
        """Let everything go well from here on: all is handled in a minute, and nobody is left once all are idle."""
        world = copy.deepcopy(self)
        world.budget = Budget(puts=0)
        handled_by = None
        for _ in range(STEPS_MAX):
            if handled_by is None and world.done == world.put_in_all:
                handled_by = world.now
            choices = list(world.choices())
            if choices:
                choices[0][1](world)
            elif (world.done == world.put_in_all and not world.workers) or not world.pass_time():
                break
        if handled_by is None:
            raise Violation("a message is never handled")
        if handled_by > self.now + 60.0:
            raise Violation("a message waits for more than a minute")
        if world.workers:
            raise Violation("a process never ends, although nothing is left to do")


def _middle() -> float:
    return 0.5


def key(thing: Any) -> Any:
    """Return what two worlds have alike that go on alike."""
    if isinstance(thing, list | tuple) or type(thing).__name__ == "deque":
        return tuple(map(key, thing))
    if isinstance(thing, dict):
        return tuple((key(name), key(value)) for name, value in thing.items())
    if isinstance(thing, msgspec.Struct):
        return (type(thing).__name__, *(key(getattr(thing, name)) for name in thing.__struct_fields__))
    if hasattr(thing, "__dict__"):
        # What was tallied decides nothing.
        told = ((name, value) for name, value in vars(thing).items() if name != "tally" and not callable(value))
        return tuple((name, key(value)) for name, value in told)
    if hasattr(type(thing), "__slots__"):
        slots = [name for cls in type(thing).__mro__ for name in getattr(cls, "__slots__", ())]
        return tuple((name, key(getattr(thing, name))) for name in slots if not callable(getattr(thing, name)))
    return thing


def explore(start: World, *, ticks: int, settle: bool = True, states_max: int = 200_000) -> int:
    """Try every order of what may happen, with time passing ``ticks`` times; return how many states there were.

    Raises `Violation` with the way to it.
    """
    seen: set[int] = set()
    stack: list[tuple[World, int, tuple[str, ...]]] = [(start, ticks, ())]
    while stack:
        world, left, way = stack.pop()
        mark = hash((key(world), left))
        if mark in seen:
            continue
        seen.add(mark)
        if len(seen) > states_max:
            raise RuntimeError(f"more than {states_max} states")
        try:
            if settle:
                world.settles()
            choices = list(world.choices())
            counting = any(isinstance(order, StartReceive | Audit) for _, order in world.orders)
            if left and world.put_in_all and not counting and not world.wakes:
                # Wakes and counts take no time here: one that hangs was lost, or has failed.
                choices.append(("time passes", World.wait))
            for name, happen in choices:
                after = copy.deepcopy(world)
                here = (*way, name)
                try:
                    happen(after)
                except Violation as broken:
                    raise Violation(f"{broken}: {'; '.join(here)}") from None
                stack.append((after, left - (name == "time passes"), here))
        except Violation as broken:
            raise Violation(str(broken) if ":" in str(broken) else f"{broken}: {'; '.join(way)}") from None
    return len(seen)
