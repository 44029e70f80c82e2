"""Two bridges' real rules with links between them, a listener at each and one store, for an exploration.

Nothing takes time of itself: it passes to the next deadline when nothing else can happen, so that moments repeat. Words
that are only said every second arrive at once. There is no sweep and no dead-man timer: what is lost stays so.
"""

from __future__ import annotations

import itertools
import pickle
from typing import Any, Final

import msgspec

from queuebell.bridge.contract.cluster import ClusterMessage, Covered
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.wire import (
    EmptyReceive,
    Hello,
    More,
    Room,
    Started,
    Subscription,
    UpFrame,
    Wake,
    Welcome,
)
from queuebell.bridge.core.cluster.coordinator import Coordinator
from queuebell.bridge.core.cluster.members import rank
from queuebell.bridge.core.commands import Broadcast, End, Flush, Send
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from tests.exploration.cluster.plan import Plan
from tests.exploration.node import half
from tests.exploration.plan import Step, Violation

QUEUE: Final = "billing/orders"
VISIBILITY_S: Final = 8.0
DELAY_S: Final = 3.0
SILENT = Periods(sweep_s=0, heartbeat_s=1000.0)
"""No heartbeats: what they would heal stays broken."""
BEGINNING_S = 1_000_000.0
REAL, STAGING = "bb", "aa"
ANYWHERE = -1


def engine(queue: str) -> str:
    """Return the fingerprint of the engine behind the bridges' queue API."""
    return "ee"


class Message(msgspec.Struct):
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
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.down: set[int] = set()
        self.leaving: set[int] = set()
        self.deaf: set[tuple[int, int]] = set()
        self.slept = [0.0, 0.0]
        self.dropped: list[tuple[object, int]] = []
        self.late_words: list[tuple[int, int, ClusterMessage]] = []
        self.begun = False
        """Whether this is the story, and not what comes before it."""
        self.began = -1.0
        """When the newest receive began that came back empty."""
        self.now = BEGINNING_S
        self.left: dict[str, int] = {}
        self.boots = 0
        self.receives = 0
        self.bells = []
        self.links = {}
        self.messages = [Message(number, DELAY_S if number in plan.delayed else 0.0) for number in range(plan.messages)]
        for entry in range(2):
            self.bells.append(self._boot(entry))
        for entry in range(2):
            self.turns(entry).begin(self.clock(entry))
            self.drive(entry)
        self.workers = [Worker(number, home) for number, home in enumerate(plan.workers)]
        for worker in self.workers:
            self._hello(worker)
        self.settle(30.0)
        self.receives = 0
        self.left = dict(plan.faults)
        self.begun = True

    def fork(self) -> bytes:
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    def clock(self, entry: int) -> float:
        """Return the time by a bridge's clock, which stands still while its machine sleeps."""
        return self.now - self.slept[entry]

    def real(self, entry: int, at: float) -> float:
        return at + self.slept[entry]

    def _boot(self, entry: int) -> WakeScheduler:
        before = self.bells[0].boot if self.bells else None
        for number in itertools.count(self.boots + 1):
            boot = f"{number:032x}"
            if before is None or entry < len(self.bells) or rank(QUEUE, boot) < rank(QUEUE, before):
                break
        self.boots = number
        periods = msgspec.structs.replace(SILENT, sweep_s=self.plan.sweep_s)
        scheduler = self.plan.scheduler(boot, periods, half, engine if self.plan.engine else None)
        scheduler.coordinator = scheduler.dispatch.coordinator = self.plan.turns(scheduler.dispatch, scheduler.timers)
        for other in range(2):
            self.links[entry, other] = []
            self.links[other, entry] = []
        self.links.setdefault((ANYWHERE, entry), [])
        return scheduler

    def drive(self, entry: int) -> None:
        if entry in self.down:
            return
        self._perform(entry)
        while (at := self.bells[entry].deadline()) is not None and at <= self.clock(entry):
            self.bells[entry].tick(self.clock(entry))
            self._perform(entry)

    def _perform(self, entry: int) -> None:
        scheduler = self.bells[entry]
        while commands := scheduler.commands():
            for command in commands:
                if isinstance(command, Broadcast):
                    for other in range(len(self.bells)):
                        if (entry, other) in self.links:
                            self.links[entry, other].append(command.message)
                elif isinstance(command, Flush):
                    worker = self._of(entry, command.session)
                    wakes = scheduler.take(self.clock(entry), command.session)
                    if worker is not None:
                        worker.inbox.extend(wakes)
                elif isinstance(command, Send):
                    worker = self._of(entry, command.session)
                    if worker is not None and isinstance(command.frame, Welcome):
                        worker.inbox.append(command.frame)
                elif isinstance(command, End):
                    worker = self._of(entry, command.session)
                    if worker is not None:
                        self._hello(worker)
        scheduler.facts()

    def _of(self, entry: int, session: int) -> Worker | None:
        found = (each for each in self.workers if each.home == entry and each.session == session and each.alive)
        return next(found, None)

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

    def deliver(self, entry: int, what: ClusterMessage | CloudQueueWorkDetected) -> None:
        scheduler, now = self.bells[entry], self.clock(entry)
        work = scheduler.pending.find(QUEUE)
        before = None if work is None else work.found_empty_at
        if isinstance(what, CloudQueueWorkDetected):
            scheduler.trigger(now, what, "nats", shared=True)
        else:
            self.turns(entry).on_message(now, what)
        self.drive(entry)
        work = scheduler.pending.find(QUEUE)
        found = None if work is None else work.found_empty_at
        if not self.begun or not self.plan.coverage or not isinstance(what, Covered) or found in (None, before):
            return
        # C5: the sweep counts from there.
        if self.real(entry, found) > self.began + 1e-6:
            raise Violation("C5", "a cover of a peer is taken for younger than the receive")

    def turns(self, entry: int) -> Coordinator:
        turns = self.bells[entry].dispatch.coordinator
        assert isinstance(turns, Coordinator)
        return turns

    def _arrive(self) -> None:
        moved = True
        while moved:
            moved = False
            for (source, target), link in self.links.items():
                while link and (source == target or target in self.down or isinstance(link[0], self.plan.prompt)):
                    what = link.pop(0)
                    if target not in self.down and (source, target) not in self.deaf:
                        self.deliver(target, what)
                    moved = True
            for worker in self.workers:
                while worker.alive and worker.inbox and not self.plan.slow_wakes:
                    self._hear(worker, worker.inbox.pop(0))
                    moved = True

    def _hello(self, worker: Worker) -> None:
        scheduler, now = self.bells[worker.home], self.clock(worker.home)
        worker.inbox, worker.outbox = [], []
        worker.session = scheduler.open(now, "test")
        store = None if not self.plan.staging else STAGING if worker.home in self.plan.staging else REAL
        subscription = Subscription(
            QUEUE, 1, round(VISIBILITY_S * 1000), free=0 if worker.holds is not None else 1, store=store,
            own=self.plan.engine,
        )  # fmt: skip
        name = f"{1000 + worker.number:032x}"
        scheduler.frame(
            now, worker.session, Hello(instance=name, listener=f"worker {worker.number}", queues=[subscription])
        )
        worker.room = worker.holds is None
        self.drive(worker.home)

    def _put(self, message: Message) -> None:
        message.state = "delayed" if message.delay_s else "visible"
        if message.number in self.plan.taken:
            message.state = "gone"
        message.visible_at = self.now + message.delay_s
        number = message.number - (message.delay_s > 0 and not self.plan.own_ids)
        named = self.plan.named
        event = CloudQueueWorkDetected(
            "billing", "orders", id=f"{number}" if named else None, source="producer" if named else None,
            not_before_ms=round(message.delay_s * 1000),
        )  # fmt: skip
        heard = [entry for entry in self.plan.heard_by if entry not in self.down]
        if len(self.plan.heard_by) == 2 or not heard:
            for entry in range(2):
                self.links[ANYWHERE, entry].append(event)
            return
        # C6: marked by the one that heard it, and told to all.
        event = msgspec.structs.replace(event, id=event.id or f"{message.number}", source=event.source or "bridge")
        for entry in heard:
            self.bells[entry].trigger(self.clock(entry), event, "http", shared=self.plan.told)
            self.drive(entry)
        if self.plan.told:
            for entry in range(2):
                if entry not in heard:
                    self.links[ANYWHERE, entry].append(event)

    def _look(self, worker: Worker) -> None:
        # Decision 0032: what a listener without a bridge takes, and dies with, nobody knows of.
        if not worker.session or not worker.owed or worker.receive is not None:
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
        found = next((message for message in self.messages if message.state == "visible"), None)
        if found is not None and worker.home not in self.plan.staging:
            found.state, found.visible_at = "leased", self.now + VISIBILITY_S
            worker.receive.found = found.number

    def _do_answer(self, number: int) -> None:
        worker = self.workers[number]
        receive = worker.receive
        worker.receive = None
        if receive.found is not None:
            worker.holds = receive.found
            worker.owed = True
            worker.room = False
            worker.outbox.append(More(QUEUE))
            return
        if worker.owed:
            self._look(worker)
        elif receive.boot == worker.boot:
            age_ms, after_ms = round((self.now - receive.began) * 1000), int(receive.after_s * 1000)
            own = self.plan.engine
            worker.outbox.append(EmptyReceive(QUEUE, receive.boot, receive.gen, age_ms, after_ms=after_ms, own=own))
        self.began = max(self.began, receive.began)

    def _do_handle(self, number: int) -> None:
        worker = self.workers[number]
        message = self.messages[worker.holds]
        if message.state == "leased":
            message.state = "gone"
        worker.holds = None
        worker.room = True
        worker.outbox.append(Room(QUEUE, 1, worker.gen))
        self._look(worker)

    def steps(self) -> list[Step]:
        """Return all that may happen next, without what only time brings. What befalls one is ten times its number."""
        steps: list[Step] = []
        left, places = self.left, [entry for entry in self.plan.at if entry not in self.down]
        for message in self.messages:
            if message.state == "unborn":
                steps.append(("put later" if self.plan.spaced else "put", message.number))
                break
        for (source, target), link in self.links.items():
            if link and target not in self.down:
                at = source * 10 + target
                steps.append(("hear", at))
                if source == ANYWHERE:
                    # One of them has to hear it.
                    other = 1 - target
                    heard = other not in self.down and (link[0], other) not in self.dropped
                    if left.get("drop") and target in places and heard:
                        steps.append(("drop", at))
                else:
                    if left.get("lose"):
                        steps.append(("lose", at))
                    if isinstance(link[0], Covered):
                        steps += [(kind, at) for kind in ("late", "repeat") if left.get(kind)]
        steps += [("come late", number) for number in range(len(self.late_words))]
        for worker in self.workers:
            self._worker_steps(worker, steps)
        for entry in self.leaving:
            steps.append(("part", entry))
        for kind in ("crash bridge", "end bridge", "leave", "suspend", "gap"):
            if left.get(kind):
                both = kind not in ("end bridge", "leave") or not (self.down or self.leaving)
                steps += [(kind, entry) for entry in places if both]
        if left.get("deafen"):
            steps += [("deafen", entry * 10 + 1 - entry) for entry in places if (entry, 1 - entry) not in self.deaf]
        if left.get("tick") and any(step[0] not in UNFAIR and step[0] not in FAULTS for step in steps):
            steps.append(("tick", 0))
        return steps

    def _worker_steps(self, worker: Worker, steps: list[Step]) -> None:
        number = worker.number
        if not worker.alive:
            return
        if not worker.session:
            steps.append(("greet", number))
        else:
            if worker.outbox:
                steps.append(("up", number))
            if worker.inbox:
                steps.append(("wake", number))
        if worker.receive is not None:
            steps.append(("answer", number))
        elif worker.holds is not None:
            steps.append(("handle", number))
        if worker.receive is not None or worker.holds is not None:
            steps += [(kind, number) for kind in ("crash worker", "end worker") if self.left.get(kind)]

    def do(self, step: Step) -> None:
        kind, what = step
        if kind in self.left:
            self.left[kind] -= 1
        getattr(self, "_do_" + kind.replace(" ", "_"))(what)
        self._arrive()

    def _do_put(self, number: int) -> None:
        self._put(self.messages[number])

    _do_put_later = _do_put

    def _pop(self, at: int) -> tuple[int, int, Any]:
        source, target = (at + 10) // 10 - 1, at % 10
        return source, target, self.links[source, target].pop(0)

    def _do_hear(self, at: int) -> None:
        source, target, what = self._pop(at)
        if (source, target) not in self.deaf:
            self.deliver(target, what)

    def _do_lose(self, at: int) -> None:
        self._pop(at)

    def _do_drop(self, at: int) -> None:
        _, target, what = self._pop(at)
        self.dropped.append((what, target))

    def _do_late(self, at: int) -> None:
        self.late_words.append(self._pop(at))

    def _do_repeat(self, at: int) -> None:
        source, target, word = self._pop(at)
        self.late_words.append((source, target, word))
        self.deliver(target, word)

    def _do_come_late(self, number: int) -> None:
        source, target, word = self.late_words.pop(number)
        if target not in self.down and (source, target) not in self.deaf:
            self.deliver(target, word)

    def _do_up(self, number: int) -> None:
        worker = self.workers[number]
        self.bells[worker.home].frame(self.clock(worker.home), worker.session, worker.outbox.pop(0))
        self.drive(worker.home)

    def _do_wake(self, number: int) -> None:
        worker = self.workers[number]
        self._hear(worker, worker.inbox.pop(0))

    def _do_greet(self, number: int) -> None:
        self._hello(self.workers[number])

    def _do_crash_worker(self, number: int) -> None:
        worker = self.workers[number]
        self._do_end_worker(number)
        worker.alive, worker.boot, worker.gen = True, "", 0

    def _do_end_worker(self, number: int) -> None:
        worker = self.workers[number]
        for message in self.messages:
            if message.state == "leased" and self.held(message):
                message.visible_at = self.now + VISIBILITY_S  # it was renewed just now
        worker.alive = False
        if worker.session:
            self.bells[worker.home].lost(self.clock(worker.home), worker.session, "gone")
            self.drive(worker.home)
        worker.session = 0
        worker.holds, worker.receive, worker.owed, worker.inbox, worker.outbox = None, None, False, [], []

    def _do_crash_bridge(self, entry: int) -> None:
        self.bells[entry] = self._boot(entry)
        self.turns(entry).begin(self.clock(entry))
        self.drive(entry)
        self.bells[entry].gap(self.clock(entry))
        self.drive(entry)
        self._unseat(entry, entry)

    def _do_end_bridge(self, entry: int) -> None:
        self.down.add(entry)
        self._unseat(entry, 1 - entry)

    def _unseat(self, entry: int, home: int) -> None:
        for worker in self.workers:
            if worker.home == entry:
                worker.home, worker.session, worker.inbox, worker.outbox = home, 0, [], []

    def _do_leave(self, entry: int) -> None:
        self.leaving.add(entry)
        self.turns(entry).leave(self.clock(entry))
        if self.plan.timers_first:
            self._bequeath(entry)
        self.drive(entry)

    def _do_part(self, entry: int) -> None:
        """Its sessions end, it tells what it leaves behind, and is gone when that is on its way (C7)."""
        now = self.clock(entry)
        for worker in self.workers:
            if worker.home == entry and worker.session:
                self.bells[entry].lost(now, worker.session, "drained")
        self.drive(entry)
        if not self.plan.timers_first:
            self._bequeath(entry)
        self.leaving.discard(entry)
        self.down.add(entry)
        self._unseat(entry, 1 - entry)

    def _bequeath(self, entry: int) -> None:
        for number, event in enumerate(self.turns(entry).handover(self.clock(entry))):
            named = msgspec.structs.replace(event, id=f"{number}", source=self.bells[entry].boot)
            self.links[ANYWHERE, 1 - entry].append(named)
        self.turns(entry).handed_over(self.clock(entry))
        self.drive(entry)

    def _do_deafen(self, at: int) -> None:
        self.deaf.add((at // 10, at % 10))

    def _do_gap(self, entry: int) -> None:
        self.bells[entry].gap(self.clock(entry))
        self.drive(entry)

    def _do_suspend(self, entry: int) -> None:
        self.now += 1.0
        self.slept[entry] += 1.0
        self.turns(entry).watch((0.0, self.slept[entry]), there=True)
        self.pass_time(self.now)

    def _do_tick(self, _: int) -> None:
        self.pass_time()

    def deadline(self) -> float | None:
        times = [
            self.real(entry, at)
            for entry, scheduler in enumerate(self.bells)
            if entry not in self.down and (at := scheduler.deadline()) is not None
        ]
        times += [each.visible_at for each in self.messages if each.state == "delayed"]
        times += [each.visible_at for each in self.messages if each.state == "leased" and not self.held(each)]
        return min(times, default=None)

    def held(self, message: Message) -> bool:
        return any(
            worker.holds == message.number or (worker.receive is not None and worker.receive.found == message.number)
            for worker in self.workers
            if worker.alive
        )

    def pass_time(self, until: float | None = None) -> None:
        """Let time pass to the next deadline, or until then, and let everybody do what is due."""
        at = self.deadline() if until is None else until
        if at is None:
            return
        self.now = max(self.now, at)
        for message in self.messages:
            if message.visible_at > self.now or (message.state == "leased" and self.held(message)):
                continue
            if message.state in ("delayed", "leased"):
                message.state = "visible"
        for entry, scheduler in enumerate(self.bells):
            at = scheduler.deadline()
            if entry not in self.down and at is not None and at <= self.clock(entry):
                scheduler.tick(self.clock(entry))
                self.drive(entry)
        self._arrive()

    def settle(self, seconds: float = 5.0) -> None:
        self._arrive()
        until = self.now + seconds
        while True:
            steps = [step for step in self.steps() if step[0] in FAIR]
            if steps:
                self.do(steps[0])
                continue
            at = self.deadline()
            if at is None or at > until:
                return
            self.pass_time()

    def bad(self) -> bool:
        """Whether a message waits, or somebody should look, although a listener could take it."""
        free = [worker for worker in self.workers if worker.alive and worker.holds is None]
        visible = any(message.state == "visible" for message in self.messages)
        if visible and any(worker.home not in self.plan.staging for worker in free):
            return True
        if not free or self.plan.patience_s is not None or not self.plan.by_queue:
            return False
        return any(work.dirty for entry in {0, 1} - self.down for work in self.bells[entry].pending.by_queue.values())

    def tell(self, step: Step) -> str:
        kind, what = step
        about: object = ""
        if kind in ("hear", "lose", "drop", "late", "repeat"):
            about = self.links[(what + 10) // 10 - 1, what % 10][0]
        elif kind == "up":
            about = self.workers[what].outbox[0]
        elif kind == "come late":
            about = self.late_words[what][2]
        return f"{self.now - BEGINNING_S:8.3f} {kind} {what} {about} {[message.state for message in self.messages]}"


UNFAIR = frozenset({"handle", "put later", "come late", "part"})
"""What may never happen, as far as the property goes."""
FAIR = ("hear", "wake", "up", "answer", "handle", "greet", "part")
FAULTS = frozenset(
    {
        "drop", "lose", "late", "repeat", "crash worker", "end worker", "crash bridge", "end bridge", "leave", "deafen",
        "suspend", "gap", "tick",
    }
)  # fmt: skip
