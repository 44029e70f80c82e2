"""A listener as the simulation plays it: real `Controller`s, and a shell in the manner of `listeners.work.dequeue`."""

from __future__ import annotations

import msgspec

from queuebell.bridge.contract.wire import (
    BridgeHeartbeat,
    Bye,
    DownFrame,
    Hello,
    ListenerHeartbeat,
    QueueBeat,
    UpFrame,
    Wake,
    Welcome,
)
from queuebell.listeners.session.session import DEAD_AFTER_BEATS, Liveness
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.frames import beat_of, frame_of, last_empty_receives, subscription_of
from queuebell.listeners.wake.receive_scaling import DepthScaling
from queuebell.listeners.wake.table import Command, Mode, StartReceive, State
from queuebell.listeners.work.lease import lease_report
from tests.exploration.plan import ACCEPT_S, BEAT_S, BEGINNING_S, QUEUES, Plan, Violation
from tests.exploration.store import Request

# Private: `_alive_at`: heartbeats are timed here, not by a connection.

D_S = DEAD_AFTER_BEATS * BEAT_S


def half() -> float:
    return 0.5


class Pause:
    """A back-off that never grows, so that states repeat."""

    __slots__ = ("seconds",)

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def miss(self, draw: object) -> float:
        return self.seconds

    def hit(self) -> None:
        """Change nothing."""


class Share:
    """Chance that is different for each listener, and always the same."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __call__(self) -> float:
        return self.number * 0.37 % 1.0


class Link(msgspec.Struct, eq=False):
    """One session's connection: frames on their way both ways, in order."""

    number: int
    node: int
    life: int
    boot: str
    up: list[UpFrame] = []
    down: list[DownFrame] = []
    cut: bool = False
    deaf: bool = False
    node_open: bool = True
    bridge_open: bool = True
    flush: bool = False


class Held(msgspec.Struct, eq=False):
    token: int
    message: int
    receipt: int
    queue: str
    running: bool
    accept_at: float | None = None
    """Carried and not extended yet: its lease is one of A only."""
    lease_ends: float = 0.0
    lost: bool = False


class Node:
    """One listener process after another under the same number."""

    def __init__(self, number: int, plan: Plan, *, alive: bool) -> None:
        self.number = number
        self.plan = plan
        self.life = 0
        self.alive = alive
        self.link: Link | None = None
        self.controllers: dict[str, Controller] = {}
        self.held: list[Held] = []
        self.tokens = 0
        self.hung = False
        self.stopping = False
        self.said_bye = False
        self.welcomed = False
        self.beat_at: float | None = None
        self.liveness: Liveness | None = None
        self.hello_at = 0.0
        self.requests: list[Request] = []
        """Those that it asks for, until the world takes them."""
        if alive:
            self.begin(BEGINNING_S)

    def begin(self, now: float) -> None:
        self.alive, self.hung, self.stopping, self.said_bye, self.welcomed = True, False, False, False, False
        self.life += 1
        self.link, self.held, self.requests, self.beat_at = None, [], [], None
        plan = self.plan
        self.liveness = None if plan.liveness is None else plan.liveness(now)
        draw = half if plan.deadman is None else Share(self.number)
        self.controllers = {
            queue: plan.controller(
                plan.capacity, plan.batch, scaling=DepthScaling(batch=plan.batch, maximum=4), polls=Pause(1.0),
                retries=Pause(plan.backoff_s), draw=draw, own=plan.own,
                deadman=None if plan.deadman is None else plan.deadman(now, draw),
            )
            for queue in QUEUES[: plan.queues]
        }  # fmt: skip

    def crash(self) -> None:
        self.alive = False
        self.held, self.requests, self.controllers, self.beat_at = [], [], {}, None
        if self.link is not None:
            self.link.node_open = False
        self.link = None

    def say(self, frame: UpFrame) -> None:
        """Put a frame on its way, or drop it while there is no session (nothing is buffered)."""
        link = self.link
        if link is not None and link.node_open and not link.cut and (self.welcomed or isinstance(frame, Hello)):
            link.up.append(frame)

    def hello(self, now: float) -> None:
        self.welcomed = False
        self.hello_at = now
        room = 0 if self.stopping else self.plan.capacity
        queues = [
            subscription_of(controller, queue, room, self.plan.visibility_s, busy=self.plan.carry)
            for queue, controller in self.controllers.items()
        ]
        instance, accept = f"{self.number:016x}{self.life:016x}", ["messages"] if self.plan.carry else []
        self.say(Hello(instance=instance, listener=f"listener {self.number}", queues=queues, accept=accept))

    def hear(self, frame: DownFrame, now: float) -> None:
        if isinstance(frame, Welcome):
            self.welcomed = True
            self.beat_at = now if self.plan.beats else None
            if self.liveness is not None:
                self.liveness.welcome(now, frame.heartbeat_ms / 1000)
            for queue, at in last_empty_receives(frame, self.hello_at).items():
                self.controllers[queue].on_empty_receive(at)
            for state in frame.queues:
                self.perform(self.controllers[state.queue].welcomed(now, frame.boot, state.gen), state.queue, now)
        elif isinstance(frame, Wake):
            self._wake(frame, now)
        elif isinstance(frame, BridgeHeartbeat) and self.liveness is not None and frame.echo is not None:
            sent = self.liveness.echoed(now, frame.echo, frame.since_ms)
            for queue, at in last_empty_receives(frame, sent).items() if sent is not None else ():
                self.controllers[queue].on_empty_receive(at)

    def unlinked(self, now: float) -> None:
        self.link, self.welcomed = None, False
        if self.liveness is not None:
            self.liveness.lost(now)

    def _judge_bridge(self, now: float) -> None:
        """Give up a bridge that shows no sign of life: close, and poll (L9)."""
        if self.liveness is None or not self.liveness.dead(now):
            return
        if self.link is not None:
            self.link.node_open = False
            self.link.down = []
            self.link, self.welcomed = None, False
        for queue, controller in self.controllers.items():
            self.perform(controller.lost(now), queue, now)

    def _wake(self, frame: Wake, now: float) -> None:
        controller = self.controllers[frame.queue]
        if not frame.messages:
            self.perform(controller.wake(now, frame.boot, frame.gen, frame.reason, frame.size), frame.queue, now)
            return
        held = []
        for carried in frame.messages:
            ends = now + carried.visible_in_ms / 1000
            held.append(self._hold(int(carried.id), int(carried.pop_receipt), frame.queue, ends))
            held[-1].accept_at = now + ACCEPT_S
        room = 0 if self.stopping else max(0, controller.available)
        for one in held[:room]:
            one.running = True
        if held[room:]:
            # O7: only what crosses a stop comes where there is no room.
            assert self.stopping, f"carried {len(held)} messages, {room} slots free"
        self.give_back(held[room:])
        free = self.free(frame.queue)
        commands = controller.wake(now, frame.boot, frame.gen, frame.reason, frame.size, carried=len(held), free=free)
        self.perform(commands, frame.queue, now)

    def beat(self, now: float) -> None:
        """Say the levels again (S2)."""
        queues: dict[str, QueueBeat] = {}
        leases: dict[str, list[int]] = {}
        for queue, controller in self.controllers.items():
            queues[queue] = beat_of(controller, now)
            ends = [held.lease_ends for held in self.held if held.queue == queue] + controller.timers.returns()
            if ends:
                leases[queue] = lease_report(ends, now)
        stamp = int(now * 1000) if self.liveness is None else self.liveness.beat(now)
        if stamp is not None:
            self.say(ListenerHeartbeat(stamp, queues, leases))
        self.beat_at = now + BEAT_S

    def perform(self, commands: list[Command], queue: str, now: float) -> None:
        controller = self.controllers[queue]
        for command in commands:
            if isinstance(command, StartReceive):
                self.ask("receive", queue, now, rid=command.rid, limit=command.limit)
            elif (frame := frame_of(command, queue, own=controller.own)) is not None:
                self.say(frame)
        check(controller)

    def free(self, queue: str) -> int:
        return self.plan.capacity - sum(1 for held in self.held if held.queue == queue and held.running)

    def _hold(self, message: int, receipt: int, queue: str, lease_ends: float) -> Held:
        self.tokens += 1
        held = Held(self.tokens, message, receipt, queue, running=False, lease_ends=lease_ends)
        self.held.append(held)
        return held

    def ask(self, kind: str, queue: str, now: float, **fields: int | float) -> None:
        fields.setdefault("seconds", self.plan.visibility_s)
        self.requests.append(
            Request(id=0, node=self.number, life=self.life, kind=kind, queue=queue, began_at=now, **fields)  # type: ignore[arg-type]
        )

    def give_back(self, helds: list[Held], seconds: float = 0.0) -> None:
        for held in helds:
            held.running = False
            held.accept_at = None
            self.requests.append(
                Request(
                    id=0, node=self.number, life=self.life, kind="release", queue=held.queue, token=held.token,
                    message=held.message, receipt=held.receipt, seconds=seconds,
                )
            )  # fmt: skip

    def answered(self, request: Request, now: float) -> list[int]:
        """Hear the answer to a store call; return the messages it brought."""
        queue, controller = request.queue, self.controllers[request.queue]
        if request.kind == "receive":
            taken = [
                self._hold(message, receipt, queue, request.began_at + request.seconds)
                for message, receipt in request.taken
            ]
            if self.stopping:
                self.give_back(taken)
            else:
                for held in taken:
                    held.running = True
            commands = controller.received(
                now, request.rid, len(taken), visible=request.visible, next_visible=request.next_visible_s,
                complete=self.plan.complete, free=self.free(queue), blocked=request.blocked,
            )  # fmt: skip
            self.perform(commands, queue, now)
            return [message for message, _ in request.taken]
        held_now = next((held for held in self.held if held.token == request.token), None)
        if request.kind == "extend":
            if held_now is None:
                return []
            if request.ok:
                held_now.receipt = request.taken[0][1]
                held_now.lease_ends = now + request.seconds
                # A deletion that left with the receipt of before is refused, and asked for again with the new one.
            else:
                self._lose(held_now, now)
            return []
        if held_now is not None:
            self.held.remove(held_now)
        if controller.blocked:
            self.perform(controller.settled(now), queue, now)
        if not request.ok:
            if held_now is not None and not held_now.lost:
                self.came_back(queue, 0.0, now)
        elif request.kind == "release":
            self.came_back(queue, request.seconds, now)
        return []

    def _lose(self, held: Held, now: float) -> None:
        self.held.remove(held)
        held.lost = True
        queue = held.queue
        self.perform(self.controllers[queue].room(now, self.free(queue)), queue, now)
        self.came_back(queue, 0.0, now)

    def came_back(self, queue: str, after: float, now: float) -> None:
        """Announce what was released (L7)."""
        self.perform(self.controllers[queue].came_back(now, now + after if after > 0 else None), queue, now)

    def failed(self, request: Request, now: float, *, unknown: bool) -> None:
        controller = self.controllers[request.queue]
        back_at = now + self.plan.visibility_s if unknown else None
        self.perform(controller.failed(now, request.rid, back_at), request.queue, now)

    def finish(self, held: Held, outcome: str, now: float) -> None:
        held.running = False
        if outcome == "done":
            held.accept_at = None
            self.ask("delete", held.queue, now, token=held.token, message=held.message, receipt=held.receipt)
        else:
            self.give_back([held], self.plan.delay_s if outcome == "later" else 0.0)
        controller = self.controllers[held.queue]
        self.perform(controller.room(now, self.free(held.queue)), held.queue, now)

    def deadline(self) -> float | None:
        times = [at for controller in self.controllers.values() if (at := controller.deadline()) is not None]
        times += [held.accept_at for held in self.held if held.accept_at is not None]
        if self.hung:
            times += [held.lease_ends for held in self.held if not held.running]
        if self.beat_at is not None and self.link is not None and self.welcomed:
            times.append(self.beat_at)
        if self.liveness is not None and (gone := self._gives_up_at()) is not None:
            times.append(gone)
        return min(times, default=None)

    def _gives_up_at(self) -> float | None:
        """Return when the bridge counts as gone; the heartbeats are timed here."""
        at = self.liveness.deadline()
        return at if at is None or not self.liveness.welcomed else max(at, self.liveness._alive_at + D_S)

    def tick(self, now: float) -> None:
        self._judge_bridge(now)
        for held in list(self.held):
            if self.hung and not held.running and held.lease_ends <= now:
                # Nobody will ever answer its settlement: a living holder announces a lease that has lapsed (L7).
                self._lose(held, now)
                continue
            if held.accept_at is not None and held.accept_at <= now:
                held.accept_at = None
                self.ask("extend", held.queue, now, token=held.token, message=held.message, receipt=held.receipt)
        for queue, controller in self.controllers.items():
            at = controller.deadline()
            if at is not None and at <= now:
                self.perform(controller.tick(now), queue, now)
        if self.beat_at is not None and self.beat_at <= now and self.link is not None and self.welcomed:
            self.beat(now)

    def stop(self, now: float) -> None:
        """Begin no more receives, hand the debt back, release what runs (L12)."""
        self.stopping = True
        for queue, controller in self.controllers.items():
            self.perform(controller.stop(now), queue, now)

    @property
    def may_bye(self) -> bool:
        """Whether nothing is left to do before the end of a stopping listener."""
        return self.stopping and not self.held and not any(c.receives for c in self.controllers.values())

    def bye(self, now: float) -> None:
        leases = {
            queue: lease_report(c.timers.returns(), now) for queue, c in self.controllers.items() if c.timers.returns()
        }
        self.say(Bye(leases))
        self.said_bye = True
        self.beat_at = None


def check(controller: Controller) -> None:
    """Hold a machine to its one sentence: owed => looked at, or full and said so, or a timer (L1, L2, L5, L11)."""
    if controller.state is State.IDLE and controller.receives:
        raise Violation("L11", "idle with a receive in flight")
    if controller.pending and controller.state not in (State.STOPPING, State.STOPPED):
        timer = controller.deadline() is not None
        full = controller.available <= 0 and (controller.mode is not Mode.PUSH or controller.advertised_room.free == 0)
        if not (controller.checking or full or timer):
            raise Violation("L1", f"a look is owed and nothing stands for it ({controller.state.value})")
