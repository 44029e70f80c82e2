"""The real rules of bridge and listeners, with links, a store, producers and faults between them, step by step."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from typing import cast

import msgspec

from queuebell.bridge.contract.event import CloudQueueWorkDetected
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
from queuebell.bridge.producer.publication import Publication, Sending
from tests.exploration.node import Held, Link, Node, half
from tests.exploration.plan import BEGINNING_S, KINDS, QUEUES, Plan, Step, Violation
from tests.exploration.store import GONE, LEASED, UNPUT, VISIBLE, Call, Message, Outcome, Request, Store

UNFAIR = frozenset({"finish"})
"""What may never happen, as far as the property goes."""
FAULTS = frozenset({*KINDS, "lose_down"})


class Ids:
    def __init__(self) -> None:
        self._given = 0

    def __call__(self) -> str:
        self._given += 1
        return f"id-{self._given - 1}"


class Publish(msgspec.Struct, eq=False):
    """A request on its way to the bridge, or its acknowledgement on its way back."""

    batch: list[Sending]
    marked: bool = False


class World:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.now = BEGINNING_S
        self.boots = 1
        self.messages = [
            Message(i, QUEUES[i % plan.queues], plan.delay_s if i >= plan.messages - plan.delayed else 0.0)
            for i in range(plan.messages)
        ]
        self.store = Store(plan.own, plan.hints, self.messages, plan.leased)
        self.scheduler = self._new_bell()
        self.links: list[Link] = []
        self.nodes = [Node(i, plan, alive=i < plan.listeners - plan.late_joiners) for i in range(plan.listeners)]
        self.begin_producer(plan)
        self.requests: list[Request] = []
        self.serial = 0
        self.left = Counter(plan.faults)
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
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    def deadline(self) -> float | None:
        times = [self.scheduler.deadline(), self.store.next_due(self.now)]
        times += [node.deadline() for node in self.nodes if node.alive]
        times.append(self.publishes_at())
        times += [
            request.began_at + self.plan.gives_up_after_s
            for request in self.requests
            if request.kind == "receive" and not request.abandoned
        ]
        return min((at for at in times if at is not None), default=None)

    def do(self, step: Step) -> None:
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
                node.tick(now)
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
        node.hear(frame, self.now)

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

    def _miss(self, number: int) -> None:
        self._request(number).missed = True
        self._store(number)

    def _answer(self, number: int) -> None:
        request = self._request(number)
        self.requests.remove(request)
        node = self.nodes[request.node]
        if request.abandoned or not node.alive or node.life != request.life:
            return
        for message in node.answered(request, self.now):
            self.messages[message].seen += 1

    def _write(self, count: int) -> None:
        self.store.write(count, self.now, early_level=self.plan.early_level)

    def _hear(self, _: int) -> None:
        outcome: Outcome = self.store.outcomes.pop(0)
        for queue, session, granted, messages, visible in outcome.hands:
            carried = [
                CarriedMessage(
                    str(m), str(receipt), count, "2026-01-01T00:00:00Z",
                    visible_in_ms=round(self.plan.periods.start_ack_s * 1000),
                )
                for m, receipt, count in messages
            ]  # fmt: skip
            self.scheduler.embedded.handed(self.now, queue, session, granted, carried, visible)
        self._hear_backlogs(outcome.backlogs)
        for request in outcome.requests:
            request.status = "answered"

    def _hear_backlogs(self, backlogs: list) -> None:  # type: ignore[type-arg]
        for backlog in backlogs:
            self.scheduler.embedded.on_commit(self.now, **backlog)
            work = self.scheduler.pending.find(backlog["queue"])
            if (
                work is not None
                and work.dirty
                and not work.foreign
                and not backlog["visible"]
                and work.sessions.any_own
            ):
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
        node.hello(self.now)

    def _join(self, number: int) -> None:
        self.nodes[number].begin(self.now)
        self._connect(number)

    def _bye(self, number: int) -> None:
        node = self.nodes[number]
        node.bye(self.now)
        node.alive = False

    def _finish(self, what: int, outcome: str = "done") -> None:
        node = self.nodes[what // 1000]
        held = next(held for held in node.held if held.token == what % 1000)
        node.finish(held, outcome, self.now)

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

    def begin_producer(self, plan: Plan) -> None:
        self.triggers: list[tuple[str, float]] = []
        self.early: list[int] = []
        """Puts that were published and are not visible yet: a mutant's."""
        self.publication: Publication | None = None if plan.publication is None else plan.publication("shop", Ids())
        self.publishes: list[Publish] = []

    def publishes_at(self) -> float | None:
        at = None if self.publication is None else self.publication.deadline()
        return at if at is not None and at > self.now else None

    def _producer_steps(self) -> Iterator[Step]:
        for number in self.early:
            yield "appear", number
        at = None if self.publication is None else self.publication.deadline()
        if at is not None and at <= self.now:
            yield "publish", 0
        for i, publish in enumerate(self.publishes):
            yield "acknowledge" if publish.marked else "arrive", i
            yield "publish_fails", i

    def _put(self, number: int) -> None:
        message = self.messages[number]
        if self.plan.own:
            call = Call("put", message.queue, messages=[number])
            granted = None if message.delay_s else self.scheduler.embedded.grant(self.now, message.queue, 1)
            if granted is not None:
                call.session, call.granted, call.lease_s = granted
            self.store.calls.append(call)
            return
        if self.plan.publish_first:
            self.early.append(number)
        else:
            self.store.put([number], self.now)
        if self.publication is None:
            self.triggers.append((message.queue, message.delay_s))
            return
        self.publication.add(self.now, self._event(message.queue, message.delay_s))

    def _appear(self, number: int) -> None:
        self.early.remove(number)
        self.store.put([number], self.now)

    def _publish(self, _: int) -> None:
        assert self.publication is not None
        if batch := self.publication.take(self.now):
            self.publishes.append(Publish(batch))

    def _arrive(self, i: int) -> None:
        publish = self.publishes[i]
        publish.marked = True
        for sending in publish.batch:
            self._mark(sending.event)

    def _acknowledge(self, i: int) -> None:
        self.publication.sent(self.publishes.pop(i).batch)

    def _publish_fails(self, i: int) -> None:
        assert self.publication is not None
        publish = self.publishes.pop(i)
        self.publication.failed(publish.batch, self.now, lambda: 0.5)

    def _trigger(self, _: int) -> None:
        queue, delay_s = self.triggers.pop(0)
        self._mark(self._event(queue, delay_s))

    def _event(self, queue: str, delay_s: float) -> CloudQueueWorkDetected:
        account, name = queue.split("/")
        id_ = self.plan.business_id
        return CloudQueueWorkDetected(
            account, name, payload_size=1, not_before_ms=round(delay_s * 1000), id=id_, source=id_ and "shop"
        )

    def _mark(self, event: CloudQueueWorkDetected) -> None:
        self.scheduler.trigger(self.now, event, "test")

    def _putting(self, message: int) -> bool:
        puts = (call.messages for call in self.store.calls if call.kind == "put")
        return message in self.early or any(message in messages for messages in puts)

    def _crash(self, number: int) -> None:
        node = self.nodes[number]
        for request in list(self.requests):
            if request.node == number and request.life == node.life:
                request.abandoned = True
        node.crash()

    def _revive(self, number: int) -> None:
        node = self.nodes[number]
        node.begin(self.now)
        self._connect(number)

    def _cut(self, i: int) -> None:
        link = self.links[i]
        link.cut = True
        link.up, link.down = [], []

    def _deafen(self, i: int) -> None:
        self.links[i].deaf = True
        self.links[i].down = []

    def _restart(self, _: int) -> None:
        self.boots += 1
        for link in self.links:
            link.bridge_open = link.flush = False
            link.up = []
            link.cut = True
        if self.plan.own:
            self.store.restart()
            for request in list(self.requests):
                if request.abandoned:
                    self.requests.remove(request)
                else:
                    self._break_off(request)
        self.scheduler = self._new_bell()
        if self.plan.own:
            self.store.advance(self.now)
            self._hear_backlogs(self.store.backlogs(self.now, all_queues=True))
            self._drive()

    def _break_off(self, request: Request) -> None:
        """The connection to the store breaks: a receive's outcome is unknown, a settlement is tried again."""
        node = self.nodes[request.node]
        if request.kind == "receive":
            self.requests.remove(request)
            node.failed(request, self.now, unknown=True)
        else:
            request.status = "sent"

    def _forget(self, _: int) -> None:
        for work in list(self.scheduler.pending.by_queue.values()):
            self.scheduler.pending.forget(work.queue)

    def _lose(self, i: int) -> None:
        self.links[i].down.pop(0)

    def _lose_up(self, i: int) -> None:
        self.links[i].up.pop(0)

    def _lose_down(self, i: int) -> None:
        self.left["lose_up"] -= 1
        self.links[i].down.pop(0)

    def _error(self, number: int) -> None:
        request = self._request(number)
        self.requests.remove(request)
        self.nodes[request.node].failed(request, self.now, unknown=False)

    def _unknown(self, number: int) -> None:
        request = self._request(number)
        self._give_up(request)

    def _give_up(self, request: Request) -> None:
        """A listener ends a call by itself: whether the store carried it out it never learns (L3, L6)."""
        request.abandoned = True
        for message, _ in request.taken:
            self.messages[message].seen += 1
        self.nodes[request.node].failed(request, self.now, unknown=True)

    def _hang(self, number: int) -> None:
        self.nodes[number].hung = True

    def _retry(self, what: int) -> None:
        self._finish(what, "retry")

    def _later(self, what: int) -> None:
        self._finish(what, "later")

    def _lapse(self, what: int) -> None:
        node = self.nodes[what // 1000]
        held = next(held for held in node.held if held.token == what % 1000)
        message = self.messages[held.message]
        if message.receipt != held.receipt or message.state != LEASED:
            return
        message.until = self.now
        if self.plan.own:
            self.store.calls.append(Call("refresh", held.queue))
        else:
            self.store.advance(self.now)
        # The renewal that comes too late is refused; that is how the holder learns.
        node.ask("extend", held.queue, self.now, token=held.token, message=held.message, receipt=held.receipt)

    def _stop(self, number: int) -> None:
        node = self.nodes[number]
        node.stop(self.now)
        node.give_back([held for held in node.held if held.running])

    def steps(self, *, faults: bool = True) -> list[Step]:
        """Return everything that can happen now, but for time that passes."""
        left = self.left if faults else Counter[str]()
        return [
            step
            for step in self._possible()
            if step[0] not in FAULTS or left["lose_up" if step[0] == "lose_down" else step[0]]
        ]

    def _possible(self) -> Iterator[Step]:
        message = next((m for m in self.messages if m.state == UNPUT and not self._putting(m.id)), None)
        if message is not None:
            yield "put", message.id
        if self.triggers:
            yield "trigger", 0
        yield from self._producer_steps()
        for i, link in enumerate(self.links):
            yield from self._link_steps(i, link)
        settling: set[tuple[int, int, str]] = set()
        for request in self.requests:
            receives, key = request.kind == "receive", (request.node, request.life, request.queue)
            if request.status == "sent" and not request.abandoned:
                # One settlement at a time, with the receipt that is newest when it leaves.
                if not receives and key in settling:
                    continue
                if not self.nodes[request.node].hung:
                    yield "store", request.id
                    if receives:
                        yield "error", request.id
                        yield "miss", request.id
            elif request.status == "answered":
                yield "answer", request.id
            if receives and not request.abandoned:
                yield "unknown", request.id
            elif not request.abandoned:
                settling.add(key)
        if self.store.calls:
            yield "write", 1
            if len(self.store.calls) > 1:
                yield "write", len(self.store.calls)
        if self.store.outcomes:
            yield "hear", 0
        for node in self.nodes:
            yield from self._node_steps(node)
        yield "restart", 0
        if self.left["forget"] and any(work.forgettable for work in self.scheduler.pending.by_queue.values()):
            yield "forget", 0

    def _link_steps(self, i: int, link: Link) -> Iterator[Step]:
        if link.bridge_open:
            if link.up:
                yield "up", i
                yield "lose_up", i
            if link.flush:
                yield "flush", i
            if link.cut or not link.node_open:
                yield "lost", i
        if link.node_open:
            if link.down:
                yield "down", i
                if isinstance(link.down[0], Wake):
                    yield "lose", i
                yield "lose_down", i
            if link.cut or (not link.bridge_open and not link.down):
                yield "notice", i
        if link.node_open and link.bridge_open and not link.deaf:
            yield "deafen", i
        if link.node_open and link.bridge_open and not link.cut:
            yield "cut", i

    def _node_steps(self, node: Node) -> Iterator[Step]:
        number = node.number
        if not node.alive:
            if node.life == 0:
                yield "join", number
            elif not node.said_bye:
                yield "revive", number
            return
        if node.link is None and not node.said_bye:
            yield "connect", number
        if node.may_bye and not node.said_bye:
            yield "bye", number
        for held in node.held:
            if held.running:
                for kind in ("finish", "retry", "later", "lapse"):
                    yield kind, number * 1000 + held.token
        if not node.said_bye:
            for kind in ("crash", "hang", "stop"):
                yield kind, number

    def tell(self, step: Step) -> str:
        kind, what = step
        about: object = ""
        if kind in ("up", "lose_up"):
            about = self.links[what].up[0]
        elif kind in ("down", "lose_down", "lose"):
            about = self.links[what].down[0]
        elif kind in ("store", "answer", "unknown", "error", "miss"):
            about = self._request(what)
        elif kind == "hear":
            about = self.store.outcomes[0].backlogs
        return f"{self.now - BEGINNING_S:8.3f} {kind} {what} {about}"

    def able(self, queue: str) -> bool:
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
        return bool(self.plan.faults.keys() & {"crash", "unknown", "restart", "hang", "stop"})

    @property
    def drained(self) -> bool:
        return all(message.state == GONE for message in self.messages)


def load(state: bytes) -> World:
    return cast(World, pickle.loads(state))
