"""Listeners of one queue on a virtual clock: real wake machines, and a shell that only carries to and fro.

Calls and frames take constant times, so what they lead to comes in the order in which it began, and a plain queue does
what a heap would do; only handlers and the machines' own timers need one. This fleet has no bridge (pull-only mode).
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import Final

from bench.cost.clockwork import CALL_S, STAGGER_S
from bench.cost.day import Day
from bench.cost.outcome import Outcome
from bench.cost.policy import Policy
from bench.cost.spread import Spread
from bench.cost.store import Store
from queuebell.bridge.contract.backoff import Draw, RandomExponential
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.receive_scaling import DepthScaling
from queuebell.listeners.wake.table import Command, StartReceive
from queuebell.listeners.wake.timers import DeadMan

VISIBILITY_MIN_S: Final = 30.0
HANDLER_SPREAD: Final = 0.5
"""Handlers take from half their mean time to one and a half times."""
NEVER: Final = math.inf


def _tell_nobody(share: float) -> None:
    pass


class Worker:
    """One listener: its wake machine, its slots, and the moment its timer is armed for."""

    __slots__ = ("armed", "free", "held", "index", "machine")

    def __init__(self, index: int, capacity: int, machine: Controller) -> None:
        self.index = index
        self.machine = machine
        self.free = capacity
        self.held: dict[int, float] = {}
        """Messages in handlers, and when their leases end."""
        self.armed = NEVER


class Fleet:
    """One policy's listeners through one day; `run` once."""

    def __init__(self, policy: Policy, day: Day, threads: int, draw: Draw) -> None:
        self.policy = policy
        self.day = day
        self.draw = draw
        # So long that no lease has to be renewed: a renewal would be a transaction for every policy alike.
        self.store = Store(max(VISIBILITY_MIN_S, 3 * day.handler_s))
        self.workers: list[Worker] = []
        for capacity in () if policy.from_zero else policy.capacities(threads):
            self.hire(0.0, capacity)
        self._told: Callable[[float], None] = _tell_nobody
        self._puts = deque([*day.puts(), (NEVER, 0)])
        self._answers: deque[tuple[float, Worker, int, int]] = deque()
        self._ends: list[tuple[float, int, Worker]] = []
        self._timers: list[tuple[float, int]] = []
        self._latency = Spread()
        self._first = Spread()
        self._firsts: set[int] = set()
        self._rest_began: float | None = 0.0
        self._at_rest_s = 0.0

    def hire(self, now: float, capacity: int) -> Worker:
        """Add a listener with so many slots."""
        worker = Worker(len(self.workers), capacity, self._machine(now, capacity))
        self.workers.append(worker)
        return worker

    def run(self, told: Callable[[float], None] | None = None) -> Outcome:
        """Play the day; ``told`` hears now and then which share of it is over."""
        for worker in self.workers:
            # On a grid that adds up without rounding, like the calls.
            self.arm(worker, int(STAGGER_S * self.draw() * 1024) / 1024)
        self._told = told or _tell_nobody
        tell_at = 0.0
        while (at := self.next_at()) < self.day.length_s:
            if at >= tell_at:
                self._told(at / self.day.length_s)
                tell_at = at + self.day.length_s / 200
            self.step(at)
        if self._rest_began is not None:
            self._at_rest_s += self.day.length_s - self._rest_began
        return self.outcome()

    def outcome(self) -> Outcome:
        """Sum up."""
        store = self.store
        return Outcome(
            policy=self.policy.name,
            title=self.policy.title,
            listeners=len(self.workers),
            puts=store.puts,
            hits=store.hits,
            misses=store.misses,
            misses_at_rest=store.misses_at_rest,
            deletes=store.deletes,
            at_rest_s=round(self._at_rest_s, 3),
            latency=self._latency.percentiles(),
            first=self._first.percentiles(),
            slots=self.policy.slots,
            from_zero=self.policy.from_zero,
            process_s=len(self.workers) * self.day.length_s,
        )

    # What happens, in the order of time -----------------------------------------------------------------------------

    def next_at(self) -> float:
        """Return when something happens next."""
        at = self._puts[0][0]
        if self._answers and self._answers[0][0] < at:
            at = self._answers[0][0]
        if self._ends and self._ends[0][0] < at:
            at = self._ends[0][0]
        if self._timers and self._timers[0][0] < at:
            at = self._timers[0][0]
        return at

    def step(self, at: float) -> None:
        """Bring about what happens at ``at``, one thing of it."""
        if self._puts[0][0] <= at:
            self.put(at, self._puts.popleft()[1])
        elif self._ends and self._ends[0][0] <= at:
            _, message, worker = heapq.heappop(self._ends)
            self._handled(at, worker, message)
        elif self._answers and self._answers[0][0] <= at:
            _, worker, rid, limit = self._answers.popleft()
            self._answer(at, worker, rid, limit)
        elif self.store.at_rest:
            self._rest(at, self._puts[0][0])
        else:
            self._timer(at)

    def put(self, at: float, count: int) -> None:
        """Put messages."""
        rested = self.store.at_rest
        first = self.store.put(at, count)
        if rested and self._rest_began is not None:
            self._firsts.add(first)
            self._at_rest_s += at - self._rest_began
            self._rest_began = None

    def _answer(self, at: float, worker: Worker, rid: int, limit: int) -> None:
        found = self.store.receive(at, limit)
        for message in found:
            waited = at - self.store.visible_at[message]
            self._latency.add(waited)
            if message in self._firsts:
                self._first.add(waited)
            worker.held[message] = at + self.store.visibility_s
            # Handlers of equal length would go on in step, and free their slots by the batch.
            taken_s = self.day.handler_s * (1 + HANDLER_SPREAD * (2 * self.draw() - 1))
            heapq.heappush(self._ends, (at + taken_s, message, worker))
        worker.free -= len(found)
        self.committed(at, receives=1, empty=0 if found else 1)
        machine = worker.machine
        # Only the store of an own queue says how many messages it has left.
        visible = self.store.visible if machine.own else None
        self.perform(at, worker, machine.received(at, rid, len(found), visible=visible, free=worker.free))

    def _handled(self, at: float, worker: Worker, message: int) -> None:
        self.store.delete(at, message)
        if self.store.at_rest:
            self._rest_began = at
        self.committed(at)
        del worker.held[message]
        worker.free += 1
        self.perform(at, worker, worker.machine.room(at, worker.free))

    def committed(self, at: float, *, put: int = 0, receives: int = 0, empty: int = 0) -> None:
        """Hear that the store has changed; there is nobody to tell."""

    # Timers ---------------------------------------------------------------------------------------------------------

    def arm(self, worker: Worker, at: float | None) -> None:
        """Make sure that a listener's timer comes by ``at``; it may come too early, never too late."""
        if at is not None and at < worker.armed:
            worker.armed = at
            heapq.heappush(self._timers, (at, worker.index))

    def _timer(self, at: float) -> None:
        _, index = heapq.heappop(self._timers)
        self.ring(at, index)

    def ring(self, at: float, index: int) -> None:
        """Let the timer of a listener come."""
        worker = self.workers[index]
        if at == worker.armed:
            worker.armed = NEVER
            self.perform(at, worker, self._tick(at, worker))

    def _tick(self, at: float, worker: Worker) -> list[Command]:
        machine = worker.machine
        return machine.tick(at) if machine.epoch else machine.pull_only(at)

    def perform(self, at: float, worker: Worker, commands: list[Command]) -> None:
        """Do what a machine says, as far as there is somebody to hear of it."""
        for command in commands:
            if isinstance(command, StartReceive):
                self._answers.append((at + CALL_S, worker, command.rid, command.limit))
        self.arm(worker, worker.machine.deadline())

    # Rest -----------------------------------------------------------------------------------------------------------

    def _rest(self, now: float, until: float) -> None:
        """Play on to the next put, one listener after the other: at rest, none does what concerns another.

        Each receive is made and answered as ever; only the order among listeners is spared, which nobody could tell.
        """
        until = min(until, self.day.length_s)
        asked: dict[int, list[tuple[float, int, int]]] = {}
        for at, worker, rid, limit in self._answers:
            asked.setdefault(worker.index, []).append((at, rid, limit))
        left: list[tuple[float, Worker, int, int]] = []
        self._timers.clear()
        for worker in self.workers:
            self._told((now + (until - now) * worker.index / len(self.workers)) / self.day.length_s)
            left += self._alone(worker, asked.get(worker.index, []), until)
        self._answers = deque(sorted(left, key=lambda answer: answer[0]))

    def _alone(
        self, worker: Worker, asked: list[tuple[float, int, int]], until: float
    ) -> list[tuple[float, Worker, int, int]]:
        machine, receive = worker.machine, self.store.receive
        timer, worker.armed = worker.armed, NEVER
        while True:
            if asked and asked[0][0] <= timer:
                at, rid, limit = asked[0]
                if at >= until:
                    break
                del asked[0]
                commands = machine.received(at, rid, len(receive(at, limit)))
            elif timer < until:
                at = timer
                commands = self._tick(at, worker)
            else:
                break
            asked.extend((at + CALL_S, c.rid, c.limit) for c in commands if isinstance(c, StartReceive))
            # No call fails here, so no timer stands beside a receive in flight.
            deadline = None if asked else machine.deadline()
            timer = NEVER if deadline is None else deadline
        self.arm(worker, timer)
        return [(at, worker, rid, limit) for at, rid, limit in asked]

    def _machine(self, now: float, capacity: int) -> Controller:
        scheduler = self.policy.scheduler
        return Controller(
            capacity,
            min(self.policy.slots, 32),
            scaling=DepthScaling(self.policy.slots),
            polls=self.policy.polls(),
            retries=RandomExponential(),
            draw=self.draw,
            deadman=None if scheduler == "none" else DeadMan(now, self.draw),
            own=scheduler == "own",
        )
