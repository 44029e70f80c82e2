"""A small world around one real wake machine, small enough to walk through every order of events.

One queue, a store that answers at a moment of its own between a receive's beginning and its end, a bridge that only
marks, wakes, and hears covers, `more` and `room` (no sweep, no timers of its own), and handlers that end some time.
There is no dead-man: whatever is lost stays lost.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from queuebell.bridge.contract.backoff import Draw
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.receive_scaling import DepthScaling
from queuebell.listeners.wake.table import Mode, SendEmptyReceive, SendMore, SendRoom, SendStarted, StartReceive, State

# Private: `_evidence`, `_more_stands`, `_out`, `_returns`, `_started_pending`, `_reported_empty`: two states are equal
# only if all fields of the rules are.

BOOT = "b" * 32
LEASE_S = 30.0


class Flat:
    """A back-off that never grows; 0 s gives rounds without any pause."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def miss(self, draw: Draw) -> float:
        return self.seconds

    def hit(self) -> None:
        pass


class Limits(NamedTuple):
    """How big the world is."""

    puts: int = 2
    failures: int = 1
    capacity: int = 2
    batch: int = 2
    pause: float = 0.0
    complete: bool = True
    depth: bool = True
    tasks: int = 2
    outages: int = 0
    leased: int = 0
    """How many messages may be leased at once before the store says that it is blocked; 0 is any number."""


class Ask(NamedTuple):
    """A receive on its way.

    ``known`` is the newest generation heard of when it began, ``answer`` (messages, visible left, blocked) once the
    store has carried it out.
    """

    limit: int
    known: int
    answer: tuple[int, int, bool] | None = None


class World:
    """One state; `moves` names what can happen next and `after` is the state it leads to."""

    def __init__(self, limits: Limits, make: type[Controller] = Controller) -> None:
        self.limits = limits
        self.now = 0.0
        self.puts = limits.puts
        self.failures = limits.failures
        self.outages = limits.outages
        self.visible = 0
        self.leased: list[float] = []
        self.running = 0
        self.asks: dict[int, Ask] = {}
        self.wakes: list[int] = []
        self.frames: list[tuple[str, int]] = []
        self.gen = 0
        self.dirty = False
        self.barred = False
        self.linked = True
        self.heard = 0
        self.learned = 0
        self.settled = 0
        flat = Flat(limits.pause)
        self.machine = make(
            limits.capacity,
            limits.batch,
            scaling=DepthScaling(limits.batch, 1, limits.tasks),
            polls=flat,
            retries=flat,
            draw=lambda: 0.0,
        )
        self.perform(self.machine.welcomed(self.now, BOOT, 0))

    def copy(self) -> World:
        """Return an independent copy; cheaper by far than a deep one."""
        other = copy.copy(self)
        other.leased, other.asks = list(self.leased), dict(self.asks)
        other.wakes, other.frames = list(self.wakes), list(self.frames)
        machine = other.machine = copy.copy(self.machine)
        machine.receives, machine._out = dict(machine.receives), []
        machine.advertised_room = copy.copy(machine.advertised_room)
        machine._evidence = copy.copy(machine._evidence)
        machine.timers = copy.copy(machine.timers)
        machine.timers._returns = list(machine.timers._returns)
        return other

    def key(self) -> tuple[object, ...]:
        """Return what tells this state from others; counters only by their distance from each other."""
        m = self.machine
        receives = tuple(
            (
                self.asks[rid].answer,
                self.gen - self.asks[rid].known,
                m.epoch - r.epoch,
                m.gen - r.gen,
                r.limit,
                r.confirms,
            )
            for rid, r in sorted(m.receives.items())
        )
        return (
            (self.puts, self.failures, self.outages, self.visible, self.running, self.dirty, self.barred, self.linked),
            (
                self.gen - self.heard,
                self.gen - self.learned,
                self.gen - self.settled,
                *(self.gen - gen for gen in self.wakes),
            ),
            tuple((kind, self.gen - value if kind == "cover" else value) for kind, value in self.frames),
            tuple(sorted(round(at - self.now, 3) for at in self.leased)),
            receives,
            (
                m.state,
                m.mode,
                m.epoch - m.covered,
                self.gen - m.gen,
                m.free,
                m.depth,
                m._started_pending,
                m._reported_empty,
            ),
            (m._evidence.is_half_sure(m.epoch), m.blocked),
            (m.advertised_room.free, m.advertised_room.barred, m.advertised_room._more_stands),
            tuple(None if at is None else round(at - self.now, 3) for at in (m.timers.retry, m.timers.poll)),
            tuple(sorted(round(at - self.now, 3) for at in m.timers.returns())),
        )

    # What can happen ------------------------------------------------------------------------------------------------

    def moves(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        """Yield every next event: its name, and how to bring it about in a copy."""
        if self.puts:
            yield "put", World.put
        yield from self.answers()
        if self.wakes:
            yield "wake heard", World.hear_wake
        if self.frames:
            yield f"frame {self.frames[0][0]} heard", World.hear_frame
        if self.running:
            yield "handler ends", World.handler_ends
        if self.machine.deadline() is not None:
            yield "timer", World.timer
        if self.outages and self.linked:
            yield "bridge lost", World.lose_bridge
        if not self.linked:
            yield "bridge back", World.find_bridge

    def answers(self) -> Iterator[tuple[str, Callable[[World], None]]]:
        """Yield what can happen to the receives in flight."""
        for rid, ask in self.asks.items():
            if ask.answer is None:
                yield f"store answers #{rid}", lambda w, rid=rid: w.answer(rid)
            else:
                yield f"answer #{rid} heard", lambda w, rid=rid: w.hear_answer(rid)
            if self.failures:
                name = f"#{rid} fails" if ask.answer is None else f"answer to #{rid} is lost"
                yield name, lambda w, rid=rid: w.fail(rid)

    def put(self) -> None:
        self.puts -= 1
        self.visible += 1
        self.gen += 1
        self.dirty = True
        self.wake()

    def wake(self) -> None:
        if self.dirty and not self.barred and self.linked and not (self.limits.leased and self.gen in self.wakes):
            self.wakes.append(self.gen)

    def answer(self, rid: int) -> None:
        ask = self.asks[rid]
        n = wanted = min(ask.limit, self.visible)
        if self.limits.leased:
            held = (
                self.running + len(self.leased) + sum(a.answer[0] for a in self.asks.values() if a.answer is not None)
            )
            n = min(wanted, max(0, self.limits.leased - held))
        self.visible -= n
        self.asks[rid] = ask._replace(answer=(n, self.visible, n < wanted))

    def hear_answer(self, rid: int) -> None:
        limit, known, answer = self.asks.pop(rid)
        assert answer is not None
        n, visible, blocked = answer
        if not blocked and (n == 0 or (self.limits.complete and (n < limit or visible == 0))):
            self.settled = max(self.settled, known)
        self.running += n
        assert self.running <= self.limits.capacity, "more messages were taken than there are slots"
        self.perform(
            self.machine.received(
                self.now,
                rid,
                n,
                visible=visible if self.limits.depth else None,
                complete=self.limits.complete,
                free=self.limits.capacity - self.running,
                blocked=blocked,
            )
        )

    def fail(self, rid: int) -> None:
        ask = self.asks.pop(rid)
        self.failures -= 1
        if ask.answer is None:
            self.perform(self.machine.failed(self.now, rid))
            return
        # L6: its outcome is unknown to the listener, and what it took comes back when its lease ends.
        self.leased += [self.now + LEASE_S] * ask.answer[0]
        self.perform(self.machine.failed(self.now, rid, self.now + LEASE_S))

    def hear_wake(self) -> None:
        self.heard = max(self.heard, self.wakes[0])
        self.learned = max(self.learned, self.wakes[0])
        self.perform(self.machine.wake(self.now, BOOT, self.wakes.pop(0), "trigger"))

    def handler_ends(self) -> None:
        self.running -= 1
        self.perform(self.machine.room(self.now, self.limits.capacity - self.running))
        if self.machine.blocked:
            self.perform(self.machine.settled(self.now))

    def timer(self) -> None:
        deadline = self.machine.deadline()
        assert deadline is not None
        self.now = max(self.now, deadline)
        back = [at for at in self.leased if at <= self.now]
        self.leased = [at for at in self.leased if at > self.now]
        self.visible += len(back)
        self.perform(self.machine.tick(self.now))

    def hear_frame(self) -> None:
        kind, value = self.frames.pop(0)
        if kind == "more":
            self.barred = True
        elif kind == "room":
            self.barred = False
            self.wake()
        elif kind == "cover":
            if value >= self.gen:
                self.dirty = False
            else:
                self.wake()

    def lose_bridge(self) -> None:
        self.outages -= 1
        self.linked = False
        self.wakes.clear()
        self.frames.clear()
        self.perform(self.machine.lost(self.now))

    def find_bridge(self) -> None:
        self.linked = True
        self.barred = False
        self.learned = self.gen
        self.perform(self.machine.welcomed(self.now, BOOT, self.gen))
        self.wake()

    def say(self, kind: str, value: int) -> None:
        """Put a frame on its way. A store that stays blocked is asked for ever: there, levels that wait merge."""
        if self.limits.leased and kind != "cover" and self.frames and self.frames[-1][0] != "cover":
            self.frames.pop()
        self.frames.append((kind, value))

    def perform(self, commands: list[object]) -> None:
        """Do as the machine says, and hold it to what it may say."""
        starting = [c.rid for c in commands if isinstance(c, StartReceive)]
        for command in commands:
            if isinstance(command, StartReceive):
                assert command.limit >= 1
                self.asks[command.rid] = Ask(command.limit, self.learned)
            elif isinstance(command, SendStarted):
                begun = [self.machine.receives[rid].gen for rid in starting if rid in self.machine.receives]
                assert command.gen in begun, "L4: `started` is said when a receive begins, never when a wake arrives"
            elif self.linked and isinstance(command, SendEmptyReceive):
                assert command.gen <= self.settled, "L8: a cover of what no receive has settled"
                self.say("cover", command.gen)
            elif self.linked and isinstance(command, SendMore):
                self.say("more", 0)
            elif self.linked and isinstance(command, SendRoom):
                self.say("room", command.free)

    # What must hold -------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Assert what holds after every event, by the facts and not by what the machine makes of them."""
        m = self.machine
        assert set(m.receives) == set(self.asks)
        assert sum(ask.limit for ask in self.asks.values()) + self.running <= self.limits.capacity
        if m.state is State.IDLE:
            assert not self.asks, "L11: idle, and yet a receive is in flight"
            assert m.covered == m.epoch, "idle, and yet a look is owed"
            assert self.settled >= self.heard, "I4: it sleeps past a wake"
            assert m.timers.retry is None and m.timers.poll is None, "idle, and yet a timer stands"
        if m.mode is Mode.DEGRADED and not self.asks and m.covered == m.epoch:
            assert m.timers.poll is not None, "L9: no bridge, nothing owed, and no poll ahead"
        if m.covered < m.epoch:
            fresh = any(r.epoch == m.epoch for r in m.receives.values())
            reserved = sum(r.limit for r in m.receives.values())
            no_slot = m.free - reserved <= 0 and (m.advertised_room.barred or m.mode is not Mode.PUSH)
            assert fresh or no_slot or m.timers.retry is not None, "a look is owed and nothing will bring it about"
        deadline = m.deadline()
        assert deadline is None or deadline <= self.now + LEASE_S + 1e-6, "a timer beyond every bound"
        if self.quiet():
            assert not self.visible and not self.leased, f"{self.visible + len(self.leased)} messages wait for ever"
            assert not self.dirty, "the bridge waits for a cover for ever"
            assert not self.barred, "the bridge waits for room for ever"

    def quiet(self) -> bool:
        """Say whether nothing will ever happen again by itself."""
        waits = self.asks or self.wakes or self.frames or self.running or not self.linked
        return not waits and self.machine.deadline() is None


class Broken(AssertionError):
    """A rule was broken; the shortest story that leads there."""


def explore(limits: Limits, make: type[Controller] = Controller, states_max: int = 400_000) -> int:
    """Walk through every order of events, breadth first; return the number of states.

    Raises `Broken` with the shortest story that breaks a rule.
    """
    start = World(limits, make)
    start.check()
    stories: dict[tuple[object, ...], tuple[tuple[object, ...] | None, str]] = {start.key(): (None, "")}
    todo = deque([start])
    while todo:
        world = todo.popleft()
        before = world.key()
        for name, move in world.moves():
            other = world.copy()
            try:
                move(other)
                other.check()
            except (AssertionError, RuntimeError) as error:
                story = [name]
                at: tuple[object, ...] | None = before
                while at is not None:
                    at, step = stories[at]
                    story.insert(0, step)
                raise Broken(f"{error}; story: {' > '.join(step for step in story if step)}") from error
            key = other.key()
            if key not in stories:
                stories[key] = (before, name)
                todo.append(other)
                assert len(stories) <= states_max, "the world is too big"
    return len(stories)
