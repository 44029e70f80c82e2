"""A fleet from zero: a real scaler starts the listeners' processes when work comes, and ends those that are idle.

What a process is here: it takes the day's ``start_s`` until its listener says hello, tells its scaler of being ready,
busy and idle as `queuebell.listeners.work.starter` does, and stops as a listener does (L12) when it is asked to.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

import msgspec

from bench.cost.bridged import QUEUE, BridgedFleet, Conversation
from bench.cost.clockwork import CALL_S
from bench.cost.day import Day
from bench.cost.fleet import NEVER, Worker
from bench.cost.outcome import Outcome
from bench.cost.policy import Policy
from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.wire import (
    SCALER,
    BridgeHeartbeat,
    Bye,
    DownFrame,
    Hello,
    ListenerHeartbeat,
    More,
    Processes,
    Wake,
    Welcome,
)
from queuebell.listeners.scaling.processes import Limits
from queuebell.listeners.scaling.scaled_queue import Audit, Count, Finish, Launch, Look, ScaledQueue, Step
from queuebell.listeners.wake.frames import beat_of, frame_of, subscription_of
from queuebell.listeners.wake.table import Command, StartReceive, State

SCALERS: Final = -2
"""The scaler's index among the timers."""
CHECKS_PER_PERIOD: Final = -3
"""From here downwards: a busy process sees whether it still is; process 0 by this, process 1 by the one below."""
LOOK_S: Final = 1.0
"""As `queuebell.listeners.work.starter.LOOK_S`."""


class Running:
    """A process: since when it runs, with how many slots, and what it has told."""

    __slots__ = ("began_at", "busy", "capacity", "leaves")

    def __init__(self, began_at: float, capacity: int) -> None:
        self.began_at = began_at
        self.capacity = capacity
        self.busy = self.leaves = False


class ScaledFleet(BridgedFleet):
    """Listeners that a scaler starts and ends."""

    def __init__(self, policy: Policy, day: Day, threads: int, draw: Draw) -> None:
        super().__init__(policy, day, threads, draw)
        assert policy.proof is not None
        self._vacant = policy.capacities(threads)
        """Slots of the processes that could be started, the largest first."""
        limits = Limits(maximum=len(self._vacant), per_process=policy.slots)
        self.rules = ScaledQueue(0.0, limits, draw, proof=policy.proof, own=self.own)
        self._talk: Conversation | None = None
        self._armed = 0.0
        heapq.heappush(self._timers, (0.0, SCALERS))
        self._counts: deque[tuple[float, int | None, bool]] = deque()
        """When a count of the queue is answered, which receive of the rules it is, None for an `Audit`, and whether it
        is a receive (`Look`)."""
        self._running: dict[int, Running] = {}
        self._most = self._starts = self._counted = self._looked = 0
        self._process_s = 0.0

    def outcome(self) -> Outcome:
        """Sum up."""
        alive_s = sum(self.day.length_s - each.began_at for each in self._running.values())
        return msgspec.structs.replace(
            super().outcome(),
            listeners=self._most,
            process_s=round(self._process_s + alive_s, 3),
            starts=self._starts,
            counts=self._counted,
            misses=self.store.misses + self._looked,
        )

    def next_at(self) -> float:
        """Return when something happens next."""
        return min(super().next_at(), self._counts[0][0] if self._counts else NEVER)

    def step(self, at: float) -> None:
        """Bring about what happens at ``at``, one thing of it."""
        if not self._counts or self._counts[0][0] > at:
            super().step(at)
            return
        _, rid, looks = self._counts.popleft()
        self.store.advance(at)
        if looks and rid is not None:
            # What it finds it gives back at once, so the store's figures stay as they are.
            self._looked += 1
            found = self.store.visible > 0
            self._do(at, self.rules.looked(at, rid, found=found, complete=True, blocked=False))
            return
        self._counted += 1
        count = Count(self.store.visible, self.store.leased)
        self._do(at, self.rules.audited(at, count) if rid is None else self.rules.counted(at, rid, count))

    def ring(self, at: float, index: int) -> None:
        """Let a timer come: the scaler's, a process's look at itself, or that of a listener."""
        if index == SCALERS:
            if at == self._armed:
                self._armed = NEVER
                self._scale(at)
        elif index <= CHECKS_PER_PERIOD:
            self._look(at, self.workers[CHECKS_PER_PERIOD - index])
        elif index in self._running:
            super().ring(at, index)

    # The scaler -----------------------------------------------------------------------------------------------------

    def _scale(self, at: float) -> None:
        rules, talk = self.rules, self._talk
        if talk is None:
            talk = self._talk = Conversation(self.scheduler.open(at, "simulated"), at)
            maximum = rules.limits.maximum
            queue = subscription_of(rules.controller, QUEUE, maximum, self.store.visibility_s, busy=True)
            self.say(at, talk, Hello("f" * 32, "scaler", [queue], kind=SCALER))
            self._do(at, rules.start(at))
            return
        if talk.liveness.dead(at):
            raise AssertionError("the bridge was taken for dead although nothing fails here")
        stamp = talk.liveness.beat(at)
        if stamp is not None:
            processes = rules.processes
            told = Processes(wanted=rules.wanted, ready=processes.ready, starting=processes.coming)
            beat = msgspec.structs.replace(beat_of(rules.controller, at), processes=told)
            self.say(at, talk, ListenerHeartbeat(stamp, {QUEUE: beat}, {}))
        due = rules.deadline(at)
        self._do(at, rules.tick(at) if due is not None and due <= at else [])

    def deliver(self, at: float, session: int, frame: DownFrame) -> None:
        """Have a frame arrive; those to a process that has ended do not."""
        talk, rules = self._talk, self.rules
        if talk is None or session != talk.number:
            if session in self._by_session:
                super().deliver(at, session, frame)
            return
        steps: list[Step] = []
        if isinstance(frame, BridgeHeartbeat):
            covered = self.beaten(at, talk, rules.controller, frame)
            told = frame.queues[QUEUE]
            steps = rules.on_heartbeat(at, told.workers, None if told.due_ms is None else told.due_ms / 1000)
        elif isinstance(frame, Welcome):
            talk.welcome(at, frame)
            (state,) = frame.queues
            covered = self.covered(at, talk, rules.controller, frame, talk.asked_at)
            steps = rules.welcomed(at, frame.boot, state.gen)
        else:
            assert isinstance(frame, Wake), f"the bridge said {type(frame).__name__} although nothing fails here"
            covered = []
            steps = rules.wake(at, frame.boot, frame.gen, frame.reason, frame.size, frame.workers)
        for covered_at in covered:
            steps += rules.on_empty_receive(at, covered_at)
        self._do(at, steps)

    def _do(self, at: float, steps: list[Step]) -> None:
        talk, rules = self._talk, self.rules
        assert talk is not None
        for step in steps:
            match step:
                case StartReceive(rid):
                    self._counts.append((at + CALL_S, rid, False))
                case Audit():
                    self._counts.append((at + CALL_S, None, False))
                case Look(rid):
                    self._counts.append((at + CALL_S, rid, True))
                case Launch(count):
                    self._do(at, rules.began(at, [self._launch(at) for _ in range(count)]))
                case Finish(ids):
                    for number in ids:
                        self._ask_to_stop(at, self.workers[int(number)])
                case _:
                    frame = frame_of(step, QUEUE, own=self.own)
                    if isinstance(frame, More):
                        frame = msgspec.structs.replace(frame, starting=rules.processes.coming)
                    if frame is not None:
                        self.say(at, talk, frame)
        due = min((each for each in (talk.liveness.deadline(), rules.deadline(at)) if each is not None), default=NEVER)
        if due < self._armed:
            self._armed = max(at, due)
            heapq.heappush(self._timers, (self._armed, SCALERS))

    # Processes ------------------------------------------------------------------------------------------------------

    def _launch(self, at: float) -> str:
        worker = self.hire(at, self._vacant.pop(0))
        self._running[worker.index] = Running(at, worker.free)
        self._starts += 1
        self._most = max(self._most, len(self._running))
        self.arm(worker, at + self.day.start_s)
        return str(worker.index)

    def _hear(self, at: float, worker: Worker, frame: DownFrame) -> None:
        if isinstance(frame, Bye):
            self._end(at, worker)
            return
        super()._hear(at, worker, frame)
        if isinstance(frame, Welcome):
            self._do(at, self.rules.ready(at, str(worker.index)))
            self._do(at, self.rules.busy_changed(at, str(worker.index), busy=self._running[worker.index].busy))

    def _answer(self, at: float, worker: Worker, rid: int, limit: int) -> None:
        super()._answer(at, worker, rid, limit)
        process = self._running[worker.index]
        if worker.held and not process.busy:
            process.busy = True
            self._do(at, self.rules.busy_changed(at, str(worker.index), busy=True))
            heapq.heappush(self._timers, (at + LOOK_S, CHECKS_PER_PERIOD - worker.index))

    def _look(self, at: float, worker: Worker) -> None:
        process = self._running.get(worker.index)
        if process is None:
            return
        if worker.held:
            heapq.heappush(self._timers, (at + LOOK_S, CHECKS_PER_PERIOD - worker.index))
        else:
            process.busy = False
            self._do(at, self.rules.busy_changed(at, str(worker.index), busy=False))

    def _ask_to_stop(self, at: float, worker: Worker) -> None:
        process, talk = self._running[worker.index], self._conversations.get(worker.index)
        assert talk is not None, "a process that has no session is not idle, and nothing is late here"
        process.leaves = True
        commands = worker.machine.stop(at)
        queue = subscription_of(worker.machine, QUEUE, 0, self.store.visibility_s)
        talk.asked_at = at
        self.say(at, talk, Hello(f"{worker.index:032x}", f"listener {worker.index}", [queue]))
        self.perform(at, worker, commands)

    def perform(self, at: float, worker: Worker, commands: list[Command]) -> None:
        """Do what a machine says; one that was asked to stop says `bye` once it has nothing more in hand."""
        super().perform(at, worker, commands)
        process = self._running[worker.index]
        if process.leaves and not worker.held and worker.machine.state is State.STOPPED:
            process.leaves = False
            self.say(at, self._conversations[worker.index], Bye())

    def _end(self, at: float, worker: Worker) -> None:
        process = self._running.pop(worker.index)
        self._process_s += at - process.began_at
        self._vacant = sorted([*self._vacant, process.capacity], reverse=True)
        del self._by_session[self._conversations.pop(worker.index).number]
        self._do(at, self.rules.ended(at, str(worker.index), 0, "exit code 0"))
