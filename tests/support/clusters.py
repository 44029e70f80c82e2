"""Several bridges' rules with links between them, a listener at each, one store and one queue: step by step.

Time goes on by a step with everything that happens, and by leaps to the next deadline. Each bridge has a clock of its
own, hours apart from the others and not quite as fast. There is no sweep and no dead-man timer: what is lost stays so.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import msgspec

from bridge.contract.cluster import Covered, Word
from bridge.contract.event import CloudQueueWorkDetected
from bridge.contract.wire import (
    Cover,
    Hello,
    ListenerHeartbeat,
    More,
    QueueBeat,
    Room,
    Started,
    Subscription,
    UpFrame,
    Wake,
    Welcome,
)
from bridge.core.bell import Bell
from bridge.core.cluster.turns import Turns
from bridge.core.commands import End, Flush, Say, Send
from bridge.core.settings import Periods
from bridge.observe.facts import ActedLate, Fact, Forgiven

QUEUE: Final = "billing/orders"
STEP_S: Final = 0.004
VISIBILITY_S: Final = 8.0
DELAY_S: Final = 3.0

Step = tuple[str | int, ...]

WEIGHTS: Final = {"put": 0.1, "drop": 3.0, "repeat": 0.5, "lose": 0.5, "suspend": 0.1, "crash bridge": 0.1}
"""How likely a walk takes a step, where others count 1: what matters happens between a look and its end."""


class Message(msgspec.Struct):
    """One message of the store."""

    number: int
    delay_s: float = 0.0
    state: str = "unborn"
    """unborn, delayed, visible, leased, gone"""
    visible_at: float = 0.0


class Receive(msgspec.Struct):
    """A receive in flight: when it began, and what the store answered, once it did."""

    boot: str
    gen: int
    began: float
    after_s: float
    read: bool = False
    found: int | None = None


class Worker(msgspec.Struct):
    """A listener of one slot: honest, and no more than the protocol asks for."""

    number: int
    home: int
    alive: bool = True
    session: int = 0
    boot: str = ""
    gen: int = 0
    learned: float = 0.0
    owed: bool = False
    receive: Receive | None = None
    holds: int | None = None
    inbox: list[object] = []
    outbox: list[UpFrame] = []
    room: bool = True


class World:
    """All there is of a cluster, at one moment. ``turns`` makes the turns under test."""

    def __init__(
        self,
        bridges: int = 2,
        workers: tuple[int, ...] = (0, 1),
        messages: int = 1,
        *,
        delayed: tuple[int, ...] = (),
        named: bool = True,
        heard_by: tuple[int, ...] | None = None,
        faults: dict[str, int] | None = None,
        turns: Callable[..., Turns] = Turns,
        clocks: tuple[tuple[float, float], ...] = ((0.0, 1.0), (7200.0, 1.0005), (-3600.0, 0.9995)),
    ) -> None:
        self.now = 1_000_000.0
        self.turns = turns
        self.clocks = clocks
        self.named = named
        self.heard_by = tuple(range(bridges)) if heard_by is None else heard_by
        self.left = dict(faults or {})
        self.boots = 0
        self.bells: list[Bell] = []
        self.links: dict[tuple[int, int], list[Word | CloudQueueWorkDetected]] = {}
        self.messages = [Message(number, DELAY_S if number in delayed else 0.0) for number in range(messages)]
        self.facts: list[Fact] = []
        self.receives = 0
        self.words = 0
        for place in range(bridges):
            self.bells.append(self._boot(place))
        for place in range(bridges):
            self._turns(place).begin(self.clock(place))
            self.drive(place)
        self.workers = [Worker(number, home) for number, home in enumerate(workers)]
        for worker in self.workers:
            self._hello(worker)
        self.settle()
        self.receives = self.words = 0
        self.facts.clear()

    # -- clocks and bridges ------------------------------------------------------------------------------------------

    def clock(self, place: int) -> float:
        """Return the time by a bridge's own clock."""
        offset, speed = self.clocks[place % len(self.clocks)]
        return offset + 10_000_000.0 + (self.now - 1_000_000.0) * speed

    def _real(self, place: int, at: float) -> float:
        offset, speed = self.clocks[place % len(self.clocks)]
        return (at - offset - 10_000_000.0) / speed + 1_000_000.0

    def _boot(self, place: int) -> Bell:
        self.boots += 1
        bell = Bell(f"{self.boots:032x}", Periods(sweep_s=0.0), lambda: 0.5)
        bell.dispatch.turns = bell.turns = self.turns(bell.dispatch, bell.timers)
        for other in range(len(self.bells) + 1):
            self.links[place, other] = []
            self.links[other, place] = []
        return bell

    def _turns(self, place: int) -> Turns:
        turns = self.bells[place].dispatch.turns
        assert isinstance(turns, Turns)
        return turns

    def drive(self, place: int) -> None:
        """Do what a bridge's rules say."""
        bell = self.bells[place]
        while commands := bell.commands():
            for command in commands:
                if isinstance(command, Say):
                    for other in range(len(self.bells)):
                        if (place, other) in self.links:
                            self.links[place, other].append(command.word)
                            self.words += isinstance(command.word, Covered)
                elif isinstance(command, Flush):
                    worker = self._of(place, command.session)
                    wakes = bell.take(self.clock(place), command.session)
                    if worker is not None:
                        worker.inbox.extend(wakes)
                elif isinstance(command, Send):
                    worker = self._of(place, command.session)
                    if worker is not None and isinstance(command.frame, Welcome):
                        worker.inbox.append(command.frame)
                elif isinstance(command, End):
                    worker = self._of(place, command.session)
                    if worker is not None:
                        self._hello(worker)
        self.facts.extend(bell.facts())

    def _of(self, place: int, session: int) -> Worker | None:
        found = (each for each in self.workers if each.home == place and each.session == session and each.alive)
        return next(found, None)

    # -- workers -----------------------------------------------------------------------------------------------------

    def _hello(self, worker: Worker) -> None:
        bell, now = self.bells[worker.home], self.clock(worker.home)
        worker.inbox, worker.outbox = [], []
        worker.session = bell.open(now, "test")
        subscription = Subscription(QUEUE, 1, round(VISIBILITY_S * 1000), free=0 if worker.holds is not None else 1)
        name = f"{1000 + worker.number:032x}"
        bell.frame(now, worker.session, Hello(instance=name, listener=f"worker {worker.number}", queues=[subscription]))
        worker.room = worker.holds is None
        self.drive(worker.home)

    def _hear(self, worker: Worker, frame: object) -> None:
        if isinstance(frame, Welcome):
            boot, gen = frame.boot, frame.queues[0].gen
        else:
            assert isinstance(frame, Wake)
            boot, gen = frame.boot, frame.gen
            worker.owed = True
        if boot != worker.boot:
            worker.boot, worker.gen, worker.learned = boot, gen, self.now
        elif gen > worker.gen:
            worker.gen, worker.learned = gen, self.now
        self._look(worker)

    def _look(self, worker: Worker) -> None:
        if not worker.owed or worker.receive is not None:
            return
        if worker.holds is not None:
            if worker.room:
                worker.room = False
                worker.outbox.append(More(QUEUE))
            return
        worker.owed = False
        worker.receive = Receive(worker.boot, worker.gen, self.now, self.now - worker.learned)
        worker.outbox.append(Started(QUEUE, worker.boot, worker.gen))
        self.receives += 1

    def _read(self, receive: Receive) -> None:
        receive.read = True
        for message in self.messages:
            if message.state == "visible":
                message.state, message.visible_at = "leased", self.now + VISIBILITY_S
                receive.found = message.number
                return

    def _answered(self, worker: Worker) -> None:
        receive = worker.receive
        assert receive is not None
        worker.receive = None
        if receive.found is not None:
            worker.holds = receive.found
            worker.owed = True
            worker.room = False
            worker.outbox.append(More(QUEUE))
        elif worker.owed:
            self._look(worker)
        elif receive.boot == worker.boot:
            age_ms = round((self.now - receive.began) * 1000)
            cover = Cover(QUEUE, receive.boot, receive.gen, age_ms, after_ms=int(receive.after_s * 1000))
            worker.outbox.append(cover)

    def _handled(self, worker: Worker) -> None:
        assert worker.holds is not None
        message = self.messages[worker.holds]
        if message.state == "leased":
            message.state = "gone"
        worker.holds = None
        worker.room = True
        worker.outbox.append(Room(QUEUE, 1, worker.gen))
        self._look(worker)

    # -- steps -------------------------------------------------------------------------------------------------------

    def steps(self) -> list[Step]:
        """Return all that may happen next, without what only time brings."""
        steps: list[Step] = []
        for message in self.messages:
            if message.state == "unborn":
                steps.append(("put", message.number))
                break
        for (source, target), link in self.links.items():
            if link:
                steps.append(("hear", source, target))
                if source < 0 < target and self.left.get("drop"):
                    # The first bridge hears every trigger: with the others deaf to one, what it forgives is forgiven.
                    steps.append(("drop", source, target))
                if self._faulty(source, target, link[0]):
                    if self.left.get("lose"):
                        steps.append(("lose", source, target))
                    if self.left.get("repeat"):
                        steps.append(("repeat", source, target))
        for worker in self.workers:
            if not worker.alive:
                continue
            if worker.inbox:
                steps.append(("wake", worker.number))
            if worker.outbox:
                steps.append(("up", worker.number))
            if worker.receive is not None:
                steps.append(("answer", worker.number) if worker.receive.read else ("read", worker.number))
            elif worker.holds is not None:
                steps.append(("handle", worker.number))
                if self.left.get("crash worker"):
                    steps.append(("crash worker", worker.number))
                if self.left.get("end worker"):
                    steps.append(("end worker", worker.number))
        if self.left.get("crash bridge"):
            steps += [("crash bridge", place) for place in range(len(self.bells))]
        if self.left.get("suspend"):
            steps += [("suspend", place) for place in range(len(self.bells))]
        return steps

    @staticmethod
    def _faulty(source: int, target: int, what: object) -> bool:
        return source != target and isinstance(what, Covered)

    def do(self, step: Step) -> None:
        """Do one of the steps, a moment later."""
        self.now += STEP_S
        kind, *args = step
        where = [int(arg) for arg in args]
        if kind in ("lose", "drop", "repeat", "crash worker", "end worker", "crash bridge", "suspend"):
            self.left[str(kind)] -= 1
        if kind == "put":
            self._put(self.messages[where[0]])
        elif kind in ("hear", "lose", "drop", "repeat"):
            source, target = where
            what = self.links[source, target].pop(0)
            if kind == "repeat":
                self.links[source, target].append(what)
            if kind not in ("lose", "drop"):
                self._deliver(target, what)
        elif kind == "wake":
            worker = self.workers[where[0]]
            self._hear(worker, worker.inbox.pop(0))
        elif kind == "up":
            worker = self.workers[where[0]]
            self.bells[worker.home].frame(self.clock(worker.home), worker.session, worker.outbox.pop(0))
            self.drive(worker.home)
        elif kind == "read":
            receive = self.workers[where[0]].receive
            assert receive is not None
            self._read(receive)
        elif kind == "answer":
            self._answered(self.workers[where[0]])
        elif kind == "handle":
            self._handled(self.workers[where[0]])
        elif kind == "crash worker":
            self._crash_worker(self.workers[where[0]])
        elif kind == "end worker":
            self._end_worker(self.workers[where[0]])
        elif kind == "crash bridge":
            self._crash_bridge(where[0])
        elif kind == "suspend":
            self._suspend(where[0])

    def _put(self, message: Message) -> None:
        message.state = "delayed" if message.delay_s else "visible"
        message.visible_at = self.now + message.delay_s
        # Two that are put together are published together: at once, and for later, under one id.
        name = f"{message.number - (message.delay_s > 0)}" if self.named else None
        source = "producer" if self.named else None
        later_ms = round(message.delay_s * 1000)
        event = CloudQueueWorkDetected("billing", "orders", id=name, source=source, not_before_ms=later_ms)
        if len(self.heard_by) == len(self.bells):
            for place in range(len(self.bells)):
                self.links.setdefault((-1, place), []).append(event)
        else:
            # C6: marked by the one that heard it, and told to all.
            named = msgspec.structs.replace(event, id=name or f"{message.number}", source=source or "bridge")
            for place in self.heard_by:
                self.bells[place].trigger(self.clock(place), named, "http", shared=True)
                self.drive(place)
            for place in range(len(self.bells)):
                if place not in self.heard_by:
                    self.links.setdefault((-1, place), []).append(named)

    def _deliver(self, place: int, what: Word | CloudQueueWorkDetected) -> None:
        bell, now = self.bells[place], self.clock(place)
        if isinstance(what, CloudQueueWorkDetected):
            bell.trigger(now, what, "nats", shared=True)
        else:
            self._turns(place).hear(now, what)
        self.drive(place)

    def _crash_worker(self, worker: Worker) -> None:
        """It is gone with what it holds, and its connection breaks; another is started in its place."""
        self._end_worker(worker)
        worker.alive, worker.boot, worker.gen = True, "", 0
        self._hello(worker)

    def _end_worker(self, worker: Worker) -> None:
        """It is gone with what it holds, and nobody comes in its place."""
        worker.alive = False
        self.bells[worker.home].lost(self.clock(worker.home), worker.session, "gone")
        self.drive(worker.home)
        worker.holds, worker.receive, worker.owed = None, None, False

    def _crash_bridge(self, place: int) -> None:
        """It starts again at once; who was with it comes back, and holds what it held."""
        self.bells[place] = self._boot(place)
        self._turns(place).begin(self.clock(place))
        self.drive(place)
        self.bells[place].gap(self.clock(place))
        self.drive(place)
        for worker in self.workers:
            if worker.home == place:
                self._hello(worker)

    def _suspend(self, place: int) -> None:
        """A bridge's machine sleeps for a second: its clock stands still, everybody else goes on."""
        offset, speed = self.clocks[place]
        self.now += 1.0
        clocks = list(self.clocks)
        clocks[place] = (offset - speed, speed)
        self.clocks = tuple(clocks)
        # Too short to be a gap (B15): only the clock that goes on shows it.
        behind = self._turns(place).slept_s
        assert behind is not None
        self._turns(place).watch((0.0, behind + 1.0), there=True)

    # -- time --------------------------------------------------------------------------------------------------------

    def deadline(self) -> float | None:
        """Return when something happens by itself next."""
        times: list[float] = []
        for place, bell in enumerate(self.bells):
            at = bell.deadline()
            if at is not None:
                times.append(self.now if at == 0.0 else max(self.now, self._real(place, at)))
        times += [each.visible_at for each in self.messages if each.state in ("leased", "delayed")]
        return min(times, default=None)

    def leap(self, until: float) -> None:
        """Let time pass, and do what is due."""
        self.now = max(self.now, until) + 1e-6
        for message in self.messages:
            if message.state == "delayed" and message.visible_at <= self.now:
                message.state = "visible"
            elif message.state == "leased" and message.visible_at <= self.now:
                if any(worker.holds == message.number for worker in self.workers):
                    message.visible_at = self.now + VISIBILITY_S  # renewed
                else:
                    message.state = "visible"
        for place, bell in enumerate(self.bells):
            at = bell.deadline()
            if at is not None and (at == 0.0 or at <= self.clock(place)):
                bell.tick(self.clock(place))
                self.drive(place)
        self._beat()

    def _beat(self) -> None:
        """Whoever is idle or busy says so from time to time, or B8's sessions would be silent and gone."""
        for worker in self.workers:
            if worker.alive and not worker.outbox and not worker.inbox:
                leases = {QUEUE: [round(VISIBILITY_S * 1000)]} if worker.holds is not None else {}
                free = 0 if worker.holds is not None or worker.receive is not None else 1
                beat = QueueBeat(gen=worker.gen, free=free)
                heartbeat = ListenerHeartbeat(1, {QUEUE: beat}, leases)
                self.bells[worker.home].frame(self.clock(worker.home), worker.session, heartbeat)
                self.drive(worker.home)

    def settle(self, seconds: float = 30.0) -> None:
        """Let all that is under way arrive, in order, and time pass, until nothing happens for a while."""
        until = self.now + seconds
        while True:
            steps = [step for step in self.steps() if step[0] in ("hear", "wake", "up", "read", "answer", "handle")]
            if steps:
                self.do(steps[0])
                continue
            at = self.deadline()
            if at is None or at > until:
                return
            self.leap(at)

    def lost(self) -> list[int]:
        """Return the messages that nobody handled; to be asked of a settled world."""
        return [message.number for message in self.messages if message.state not in ("gone", "unborn")]

    def forgiven(self) -> int:
        """Return how many debts were forgiven on a peer's word."""
        return sum(isinstance(fact, Forgiven) for fact in self.facts)

    def late(self) -> int:
        """Return how many debts waited in vain for their turn."""
        return sum(isinstance(fact, ActedLate) for fact in self.facts)


def walk(make: Callable[[], World], seed: int, steps: int = 60) -> World:
    """Make a world, take steps by chance, let it settle, and return it."""
    chance = random.Random(seed)
    world = make()
    for _ in range(steps):
        choices = world.steps()
        at = world.deadline()
        if not choices or (at is not None and chance.random() < 0.15):
            if at is None:
                break
            world.leap(at)
        else:
            world.do(chance.choices(choices, [WEIGHTS.get(str(step[0]), 1.0) for step in choices])[0])
    while any(message.state == "unborn" for message in world.messages):
        world.do(("put", next(m.number for m in world.messages if m.state == "unborn")))
    world.settle()
    return world


def story(world: World) -> list[object]:
    """Return what a failing test prints."""
    return [(m.number, m.state) for m in world.messages] + [
        (bell.boot[-2:], bell.ledger.debts.get(QUEUE)) for bell in world.bells
    ]
