"""A fleet with a bridge: the real rules of both sides, with sessions, heartbeats, sweeps and dead-man timers."""

from __future__ import annotations

import heapq
from collections import deque
from typing import Final

import msgspec

from bench.cost.clockwork import PATH_S
from bench.cost.day import Day
from bench.cost.fleet import NEVER, Fleet, Worker
from bench.cost.outcome import Outcome
from bench.cost.policy import Policy
from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.wire import (
    BridgeHeartbeat,
    DownFrame,
    Hello,
    ListenerHeartbeat,
    UpFrame,
    Wake,
    Welcome,
)
from queuebell.bridge.core.commands import End, Flush, Refresh, Send
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.listeners.session.session import Liveness
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.frames import beat_of, frame_of, last_empty_receives, subscription_of
from queuebell.listeners.wake.table import Command
from queuebell.listeners.work.lease import lease_report

QUEUE: Final = "billing/orders"
BOOT: Final = f"{1:032x}"
BRIDGE: Final = -1
"""The bridge's index among the timers."""


class Conversation:
    """A listener's side of its session."""

    __slots__ = ("asked_at", "liveness", "number", "sweep_s")

    def __init__(self, number: int, now: float) -> None:
        self.number = number
        self.asked_at = now
        self.liveness = Liveness(now)
        self.sweep_s = 0.0

    def welcome(self, at: float, frame: Welcome) -> None:
        """Take a welcome."""
        self.liveness.welcome(at, frame.heartbeat_ms / 1000)
        self.sweep_s = frame.sweep_ms / 1000


class BridgedFleet(Fleet):
    """Listeners that a bridge wakes; nothing is lost on the way."""

    def __init__(self, policy: Policy, day: Day, threads: int, draw: Draw, periods: Periods | None = None) -> None:
        super().__init__(policy, day, threads, draw)
        self.own = policy.scheduler == "own"
        self.scheduler = WakeScheduler(BOOT, periods or Periods(), draw)
        self._conversations: dict[int, Conversation] = {}
        self._by_session: dict[int, Worker] = {}
        self._bell_armed = NEVER
        self._up: deque[tuple[float, int, UpFrame | CloudQueueWorkDetected]] = deque()
        self._down: deque[tuple[float, int, DownFrame]] = deque()

    def outcome(self) -> Outcome:
        """Sum up."""
        work = self.scheduler.pending.find(QUEUE)
        wakes: dict[str, int] = {} if work is None else {str(reason): n for reason, n in sorted(work.wakes.items())}
        return msgspec.structs.replace(super().outcome(), wakes=wakes)

    def next_at(self) -> float:
        """Return when something happens next."""
        at = super().next_at()
        if self._up and self._up[0][0] < at:
            at = self._up[0][0]
        if self._down and self._down[0][0] < at:
            at = self._down[0][0]
        return at

    def step(self, at: float) -> None:
        """Bring about what happens at ``at``, one thing of it."""
        if self._up and self._up[0][0] <= at:
            _, session, said = self._up.popleft()
            if isinstance(said, CloudQueueWorkDetected):
                self.scheduler.trigger(at, said, "http")
            else:
                self.scheduler.frame(at, session, said)
            self._drive(at)
        elif self._down and self._down[0][0] <= at:
            _, session, told = self._down.popleft()
            self.deliver(at, session, told)
        else:
            super().step(at)

    def put(self, at: float, count: int) -> None:
        """Put messages, and publish; an own queue's put is its own trigger."""
        super().put(at, count)
        if self.own:
            self.committed(at, put=count)
        else:
            account, _, queue = QUEUE.partition("/")
            self._up.append((at + PATH_S, 0, CloudQueueWorkDetected(account, queue, count)))

    def committed(self, at: float, *, put: int = 0, receives: int = 0, empty: int = 0) -> None:
        """Tell the bridge how its own queue stands (O1)."""
        if not self.own:
            return
        store = self.store
        end = store.next_visible()
        self.scheduler.embedded.on_commit(
            at,
            QUEUE,
            exists=True,
            visible=store.visible,
            invisible=store.leased,
            rose=store.rose,
            put=put,
            receives=receives,
            empty=empty,
            next_visible_s=None if end is None else end - at,
        )
        store.rose = False
        self._drive(at)

    # The bridge -----------------------------------------------------------------------------------------------------

    def _drive(self, at: float) -> None:
        scheduler, down = self.scheduler, self._down
        for command in scheduler.commands():
            if isinstance(command, Send):
                down.append((at + PATH_S, command.session, command.frame))
            elif isinstance(command, Flush):
                down.extend((at + PATH_S, command.session, wake) for wake in scheduler.take(at, command.session))
            elif isinstance(command, Refresh):
                self.store.advance(at)
                self.committed(at)
            elif isinstance(command, End) and command.reason != "bye":
                raise AssertionError(f"a session ended although nothing fails here: {command.reason}")
        scheduler.facts()
        due = scheduler.deadline()
        if due is not None and due < self._bell_armed:
            self._bell_armed = due
            heapq.heappush(self._timers, (due, BRIDGE))

    def _timer(self, at: float) -> None:
        _, index = heapq.heappop(self._timers)
        if index != BRIDGE:
            self.ring(at, index)
        elif at == self._bell_armed:
            self._bell_armed = NEVER
            self.scheduler.tick(at)
            self._drive(at)

    # The listeners --------------------------------------------------------------------------------------------------

    def _rest(self, now: float, until: float) -> None:
        # Who waits for a bridge does concern others: heartbeats and last_empty_receives go around.
        self._timer(now)

    def _tick(self, at: float, worker: Worker) -> list[Command]:
        talk = self._conversations.get(worker.index)
        if talk is None:
            self._connect(at, worker)
            return []
        liveness, machine = talk.liveness, worker.machine
        if liveness.dead(at):
            raise AssertionError("the bridge was taken for dead although nothing fails here")
        stamp = liveness.beat(at)
        if stamp is not None:
            ends = [*worker.held.values(), *machine.timers.returns()]
            leases = {QUEUE: lease_report(ends, at)} if ends else {}
            self.say(at, talk, ListenerHeartbeat(stamp, {QUEUE: beat_of(machine, at)}, leases))
        due = machine.deadline()
        return machine.tick(at) if due is not None and due <= at else []

    def _connect(self, at: float, worker: Worker) -> None:
        talk = self._conversations[worker.index] = Conversation(self.scheduler.open(at, "simulated"), at)
        self._by_session[talk.number] = worker
        queue = subscription_of(worker.machine, QUEUE, worker.free, self.store.visibility_s)
        self.say(at, talk, Hello(f"{worker.index:032x}", f"listener {worker.index}", [queue]))

    def perform(self, at: float, worker: Worker, commands: list[Command]) -> None:
        """Do what a machine says."""
        talk = self._conversations[worker.index]
        for command in commands:
            frame = frame_of(command, QUEUE, own=self.own)
            if frame is not None:
                self.say(at, talk, frame)
        super().perform(at, worker, commands)
        self.arm(worker, talk.liveness.deadline())

    def say(self, at: float, talk: Conversation, frame: UpFrame) -> None:
        """Put a frame on its way to the bridge."""
        self._up.append((at + PATH_S, talk.number, frame))

    def deliver(self, at: float, session: int, frame: DownFrame) -> None:
        """Have a session's frame arrive."""
        self._hear(at, self._by_session[session], frame)

    def _hear(self, at: float, worker: Worker, frame: DownFrame) -> None:
        talk, machine = self._conversations[worker.index], worker.machine
        if isinstance(frame, BridgeHeartbeat):
            for covered_at in self.beaten(at, talk, machine, frame):
                machine.on_empty_receive(covered_at)
            # The machine's own deadline can only have moved away.
            self.arm(worker, talk.liveness.deadline())
            return
        if isinstance(frame, Wake):
            commands = machine.wake(at, frame.boot, frame.gen, frame.reason, frame.size)
        elif isinstance(frame, Welcome):
            talk.welcome(at, frame)
            (state,) = frame.queues
            for covered_at in self.covered(at, talk, machine, frame, talk.asked_at):
                machine.on_empty_receive(covered_at)
            commands = machine.welcomed(at, frame.boot, state.gen)
        else:
            raise AssertionError(f"the bridge said {type(frame).__name__} although nothing fails here")
        self.perform(at, worker, commands)

    def beaten(self, at: float, talk: Conversation, machine: Controller, frame: BridgeHeartbeat) -> list[float]:
        """Take the bridge's heartbeat; return what `covered` does."""
        talk.liveness.set_session_count(at, frame.sessions)
        sent = None if frame.echo is None else talk.liveness.echoed(at, frame.echo, frame.since_ms)
        return [] if sent is None else self.covered(at, talk, machine, frame, sent)

    def covered(
        self, at: float, talk: Conversation, machine: Controller, frame: Welcome | BridgeHeartbeat, sent: float
    ) -> list[float]:
        """Set a machine's dead-man timer by what the bridge tells of others; return since when the queue is covered."""
        assert machine.deadman is not None
        machine.deadman.tune(at, talk.sweep_s, frame.sessions, talk.liveness.latency_s)
        return list(last_empty_receives(frame, sent).values())
