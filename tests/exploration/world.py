"""The real rules of bridge and listeners, with links, a store, producers and faults between them, step by step."""

from __future__ import annotations

import pickle
from typing import cast

from queuebell.bridge.contract.wire import (
    BridgeHeartbeat,
    CarriedMessage,
    EmptyReceive,
    ErrorFrame,
    ListenerHeartbeat,
    Wake,
)
from queuebell.bridge.core.commands import End, Flush, Reclaim, Refresh
from queuebell.bridge.observe.facts import AuditFound
from tests.exploration.faults import Faults
from tests.exploration.node import Held, Link, Node, half
from tests.exploration.options import Options, Step
from tests.exploration.plan import BEGINNING_S, QUEUES, Plan, Violation
from tests.exploration.producer import Producer
from tests.exploration.store import GONE, LEASED, VISIBLE, Call, Message, Outcome, Request, Store


class World(Options, Faults, Producer):
    """Everything there is, at one moment."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now = BEGINNING_S
        self.boots = 1
        self.messages = [
            Message(i, QUEUES[i % plan.queues], plan.delay_s if i >= plan.messages - plan.delayed else 0.0)
            for i in range(plan.messages)
        ]
        self.store = Store(plan.own, plan.hints, self.messages)
        self.scheduler = self._new_bell()
        self.links: list[Link] = []
        self.nodes = [Node(i, plan, alive=i < plan.listeners - plan.late_joiners) for i in range(plan.listeners)]
        self.begin_producer(plan)
        self.requests: list[Request] = []
        self.serial = 0
        self.left = {
            "crash": plan.crashes, "revive": plan.revivals, "cut": plan.cuts, "restart": plan.restarts,
            "lose": plan.lost_wakes, "lose_up": plan.lost_frames, "error": plan.errors, "unknown": plan.unknowns,
            "hang": plan.hangs, "retry": plan.retries, "later": plan.later, "lapse": plan.lapses,
            "stop": plan.stops, "forget": plan.forgets,
            "deafen": plan.deaf, "publish_fails": plan.publish_failures,
        }  # fmt: skip
        self.calm = False
        """Heartbeats arrive at once: nothing is on its way that they could cross."""
        self.receives = 0
        self.wakes = 0
        if plan.own:
            self._hear_backlogs(self.store.backlogs(self.now, all_queues=True))
        if plan.settled:
            while steps := [step for step in self.steps(faults=False) if step[0] not in ("put", "join")]:
                self.do(steps[0])

    def _new_bell(self):  # type: ignore[no-untyped-def]
        return self.plan.scheduler(f"{self.boots:032x}", self.plan.periods, half)

    def fork(self) -> bytes:
        """Return this moment as bytes."""
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    def deadline(self) -> float | None:
        """Return when something happens by itself next."""
        times = [self.scheduler.deadline(), self.store.next_due(self.now)]
        times += [node.deadline() for node in self.nodes if node.alive]
        times.append(self.publishes_at())
        times += [
            request.began_at + self.plan.gives_up_after_s
            for request in self.requests
            if request.kind == "receive" and not request.abandoned
        ]
        return min((at for at in times if at is not None), default=None)

    # -- steps -------------------------------------------------------------------------------------------------------

    def do(self, step: Step) -> None:
        """Take one step, and check what must hold in every state."""
        kind, what = step
        if kind in self.left and kind != "lose_down":
            self.left[kind] -= 1
        getattr(self, f"_{kind}")(what)
        self._collect()
        self._drive()
        if self.store.own and not self.plan.split_hear:
            while self.store.outcomes:
                self._hear(0)
                self._drive()
        self._check()

    def pass_time(self, most: float | None = None) -> None:
        """Let time pass to the next deadline, or by ``most`` seconds, and let everybody do what is due."""
        at = self.deadline()
        if most is not None:
            at = self.now + most if at is None else min(at, self.now + most)
        if at is None:
            return
        self.now = max(self.now, at)
        now, plan = self.now, self.plan
        for node in self.nodes:
            for held in node.held:
                # The handler's lease is renewed in time; what is carried has its own, short one (O7).
                message = self.messages[held.message]
                kept = held.running and held.accept_at is None and message.state == LEASED and held.lease_ends <= now
                if kept and message.receipt == held.receipt and not self._extending(held, node):
                    message.until = held.lease_ends = now + plan.visibility_s
        if not plan.own:
            self.store.advance(now)
        for node in self.nodes:
            if node.alive:
                node.tick(now, plan)
                link = node.link
                alone = self.calm and link is not None and link.bridge_open and len(link.up) == 1
                if alone and link is not None and isinstance(link.up[0], ListenerHeartbeat):
                    self._up(self.links.index(link))
        for request in list(self.requests):
            ends = request.began_at + plan.gives_up_after_s
            if request.kind == "receive" and not request.abandoned and ends <= now:
                self._give_up(request)
        self._collect()
        bell_at = self.scheduler.deadline()
        if bell_at is not None and bell_at <= now:
            self.scheduler.tick(now)
        self._drive()
        if self.store.own and not plan.split_hear:
            while self.store.outcomes:
                self._hear(0)
                self._drive()
        self._check()

    def _extending(self, held: Held, node: Node) -> bool:
        return any(
            r.kind == "extend" and r.token == held.token and r.node == node.number and r.life == node.life
            for r in self.requests
        )

    def _up(self, i: int) -> None:
        link = self.links[i]
        frame = link.up.pop(0)
        queue = getattr(frame, "queue", None)
        before = {name: work.gen for name, work in self.scheduler.pending.by_queue.items() if work.dirty}
        self.scheduler.frame(self.now, link.number, frame)
        for name, gen in before.items():
            work = self.scheduler.pending.by_queue[name]
            if work.dirty:
                continue
            # I3: cleared only by a cover of this boot that knew of the newest generation.
            if (
                isinstance(frame, EmptyReceive)
                and queue == name
                and frame.boot == self.scheduler.boot
                and frame.gen >= gen
            ):
                continue
            beat = frame.queues.get(name) if isinstance(frame, ListenerHeartbeat) else None
            if beat is not None and beat.covered is not None and beat.covered >= gen:
                continue
            raise Violation("I3", f"{frame} cleared {name} at generation {gen}")

    def _down(self, i: int) -> None:
        link = self.links[i]
        frame = link.down.pop(0)
        node = self.nodes[link.node]
        if isinstance(frame, Wake):
            for carried in frame.messages or ():
                self.messages[int(carried.id)].seen += 1
        node.hear(frame, self.now, self.plan)

    def _store(self, number: int) -> None:
        request = self._request(number)
        node = self.nodes[request.node]
        if request.kind != "receive":
            held = next((held for held in node.held if held.token == request.token), None)
            if held is None:
                self.requests.remove(request)
                return
            request.receipt = held.receipt
            if request.kind == "extend" and not held.running:
                self.requests.remove(request)
                return
        if self.plan.own:
            request.status = "queued"
            self.store.calls.append(Call(request.kind, request.queue, request))
            return
        self.store.execute(request, self.now)
        request.status = "answered"

    def _answer(self, number: int) -> None:
        request = self._request(number)
        self.requests.remove(request)
        node = self.nodes[request.node]
        if request.abandoned or not node.alive or node.life != request.life:
            return
        for message in node.answered(request, self.now, self.plan):
            self.messages[message].seen += 1

    def _write(self, count: int) -> None:
        self.store.write(count, self.now, early_level=self.plan.early_level)

    def _hear(self, _: int) -> None:
        outcome: Outcome = self.store.outcomes.pop(0)
        for hand in outcome.hands:
            carried = [
                CarriedMessage(
                    str(m), str(receipt), count, "2026-01-01T00:00:00Z",
                    visible_in_ms=round(self.plan.periods.start_ack_s * 1000),
                )
                for m, receipt, count in hand.messages
            ]  # fmt: skip
            self.scheduler.embedded.handed(self.now, hand.queue, hand.session, hand.granted, carried, hand.visible)
        self._hear_backlogs(outcome.backlogs)
        for request in outcome.requests:
            request.status = "answered"

    def _hear_backlogs(self, backlogs: list) -> None:  # type: ignore[type-arg]
        for backlog in backlogs:
            self.scheduler.embedded.on_commit(
                self.now, backlog.queue, exists=True, visible=backlog.visible, invisible=backlog.invisible,
                rose=backlog.rose, put=backlog.put, receives=backlog.receives, empty=backlog.empty,
                next_visible_s=backlog.next_visible_s,
            )  # fmt: skip
            work = self.scheduler.pending.find(backlog.queue)
            if work is not None and work.dirty and not work.foreign and not backlog.visible and work.sessions.any_own:
                raise Violation("O1", "dirty although nothing is visible")

    def _flush(self, i: int) -> None:
        link = self.links[i]
        link.flush = False
        for wake in self.scheduler.take(self.now, link.number):
            self.wakes += 1
            if not link.cut and not link.deaf:
                link.down.append(wake)

    def _lost(self, i: int) -> None:
        link = self.links[i]
        link.bridge_open = False
        link.flush = False
        link.up = []
        self.scheduler.lost(self.now, link.number, "lost")

    def _notice(self, i: int) -> None:
        link = self.links[i]
        link.node_open = False
        link.down = []
        node = self.nodes[link.node]
        if node.link is link:
            node.unlinked(self.now)

    def _connect(self, number: int) -> None:
        node = self.nodes[number]
        session = self.scheduler.open(self.now, "test")
        link = Link(session, number, node.life, self.scheduler.boot)
        self.links.append(link)
        node.link = link
        node.hello(self.plan, self.now)

    def _join(self, number: int) -> None:
        self.nodes[number].begin(self.plan, self.now)
        self._connect(number)

    def _bye(self, number: int) -> None:
        node = self.nodes[number]
        node.bye(self.now)
        node.alive = False

    def _finish(self, what: int, outcome: str = "done") -> None:
        node = self.nodes[what // 1000]
        held = next(held for held in node.held if held.token == what % 1000)
        node.finish(held, outcome, self.now, self.plan)

    # -- plumbing ----------------------------------------------------------------------------------------------------

    def _request(self, number: int) -> Request:
        return next(request for request in self.requests if request.id == number)

    def _collect(self) -> None:
        """Put what listeners ask of the store on its way; drop what nobody waits for any more."""
        for node in self.nodes:
            for request in node.requests:
                self.serial += 1
                request.id = self.serial
                self.requests.append(request)
                self.receives += request.kind == "receive"
            node.requests = []
        # A call of a process that is gone, or that gave up, reaches the store before that or never.
        self.requests = [r for r in self.requests if not r.abandoned or r.status in ("queued", "written")]
        self.links = [link for link in self.links if link.node_open or link.bridge_open]

    def _drive(self) -> None:
        by_number = {link.number: i for i, link in enumerate(self.links) if link.bridge_open}
        while commands := self.scheduler.commands():
            for command in commands:
                if isinstance(command, Refresh):
                    self.store.calls.append(Call("refresh", command.queue))
                elif isinstance(command, Reclaim):
                    claims = [(int(m), int(receipt)) for m, receipt in command.claims]
                    self.store.calls.append(Call("reclaim", command.queue, claims=claims, uncount=command.uncount))
                elif (i := by_number.get(command.session)) is None:
                    continue
                elif isinstance(command, Flush):
                    if self.plan.flush_steps:
                        self.links[i].flush = True
                    else:
                        self._flush(i)
                elif isinstance(command, End):
                    self.links[i].bridge_open = False
                elif isinstance(command.frame, ErrorFrame):
                    raise Violation("session", f"refused: {command.frame.code}: {command.frame.message}")
                elif isinstance(command.frame, BridgeHeartbeat) and self.plan.liveness is None:
                    continue
                elif not self.links[i].cut and not self.links[i].deaf:
                    self.links[i].down.append(command.frame)
        for fact in self.scheduler.facts():
            if isinstance(fact, AuditFound):
                raise Violation("O4", "the audit found visible work that nobody was on")
        self.links = [link for link in self.links if link.node_open or link.bridge_open]

    # -- properties --------------------------------------------------------------------------------------------------

    def able(self, queue: str) -> bool:
        """Whether a living listener could take a message of this queue now."""
        return any(
            node.alive and not node.hung and not node.stopping and node.controllers[queue].available > 0
            for node in self.nodes
        )

    def bad(self) -> bool:
        """Whether a message waits although somebody could take it, be it in a moment."""
        queues = QUEUES[: self.plan.queues]
        return any(self.store.waiting(queue, self.now) and self.able(queue) for queue in queues)

    def _check(self) -> None:
        for session in self.scheduler.sessions.named():
            if not set(session.unsent) <= set(session.queues):
                raise Violation("B3", "a wake is due to a queue that the session does not listen to")
        for message in self.messages:
            if message.count < 0:
                raise Violation("O7", "a dequeue count below zero")
            if message.state in (VISIBLE, GONE) and message.count > message.seen and not self._lost_answers:
                raise Violation("O7", f"message {message.id} counts {message.count} attempts of {message.seen}")

    @property
    def _lost_answers(self) -> bool:
        """Whether somebody may have taken messages without ever hearing of it."""
        return bool(self.plan.crashes or self.plan.unknowns or self.plan.restarts or self.plan.hangs or self.plan.stops)

    @property
    def drained(self) -> bool:
        """Whether every message was handled."""
        return all(message.state == GONE for message in self.messages)


def load(state: bytes) -> World:
    """Return the moment that `World.fork` kept."""
    return cast(World, pickle.loads(state))
