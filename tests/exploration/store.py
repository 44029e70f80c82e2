"""A tiny store with a few messages, either elsewhere or the bridge's own with its one writer."""

from __future__ import annotations

import math
from typing import Any

import msgspec

UNPUT, DELAYED, VISIBLE, LEASED, GONE = "unput", "delayed", "visible", "leased", "gone"
TICK_S = 1e-6
"""Finer than any clock here: sums of floats do not meet exactly."""


class Message(msgspec.Struct, eq=False):
    """One message: ``until`` is when a delay or a lease ends, ``receipt`` the newest lease."""

    id: int
    queue: str
    delay_s: float
    state: str = UNPUT
    until: float = 0.0
    receipt: int = 0
    count: int = 0
    seen: int = 0
    """How often a listener's process got hold of it."""


class Request(msgspec.Struct, eq=False):
    """One store call on its way: sent, queued (own: handed to the writer), written, answered."""

    id: int
    node: int
    life: int
    kind: str
    queue: str
    rid: int = 0
    limit: int = 0
    token: int = 0
    message: int = -1
    receipt: int = 0
    seconds: float = 0.0
    began_at: float = 0.0
    status: str = "sent"
    abandoned: bool = False
    """The caller is gone or has given up."""
    taken: list[tuple[int, int]] = []
    ok: bool = True
    visible: int | None = None
    next_visible_s: float | None = None
    missed: bool = False
    """It will find nothing, whatever there is."""
    blocked: bool = False
    """It would have taken more, but so many are leased."""


class Call(msgspec.Struct, eq=False):
    kind: str
    queue: str
    request: Request | None = None
    messages: list[int] = []
    session: int | None = None
    granted: int = 0
    lease_s: float = 0.0
    claims: list[tuple[int, int]] = []
    uncount: bool = True


class Outcome(msgspec.Struct, eq=False):
    """One commit that the bridge has not heard of yet."""

    backlogs: list[dict[str, Any]]
    """How queues stand after it, as `EmbeddedQueues.on_commit` takes it."""
    hands: list[tuple[str, int, int, list[tuple[int, int, int]], int]]
    """Of each grant: queue, session, granted, message with receipt and count, visible."""
    requests: list[Request]


class Store:
    """The messages and who holds them. Own: calls go to a writer, commits to the bridge, answers after it."""

    def __init__(self, own: bool, hints: bool, messages: list[Message], leased: int = 0) -> None:
        self.own = own
        self.hints = hints
        self.messages = messages
        self.leased = leased
        self.receipts = 0
        self.calls: list[Call] = []
        self.outcomes: list[Outcome] = []
        self._rose: dict[str, bool] = {}
        self._touched: dict[str, list[int]] = {}

    def visible(self, queue: str) -> list[Message]:
        return [message for message in self.messages if message.queue == queue and message.state == VISIBLE]

    def waiting(self, queue: str, now: float) -> bool:
        """Whether something is there to be taken, even if the writer has not let time pass yet."""
        return self._room(queue) > 0 and any(
            m.queue == queue and (m.state == VISIBLE or (m.state in (LEASED, DELAYED) and m.until <= now + TICK_S))
            for m in self.messages
        )

    def _room(self, queue: str) -> int:
        """Return how many messages of a queue may be leased besides those that are."""
        held = sum(m.queue == queue and m.state == LEASED for m in self.messages) if self.leased else 0
        return max(0, (self.leased or len(self.messages)) - held)

    def next_due(self, now: float) -> float | None:
        """Return when a delay or a lease ends next; an own store is told by the bridge when to look (O3)."""
        return min(
            (m.until for m in self.messages if m.state in (LEASED, DELAYED) and m.until > now + TICK_S), default=None
        )

    def advance(self, now: float) -> None:
        for message in self.messages:
            if message.state in (LEASED, DELAYED) and message.until <= now + TICK_S:
                self._appear(message)
                self._touched.setdefault(message.queue, [0, 0, 0])

    def _appear(self, message: Message) -> None:
        if not self.visible(message.queue):
            self._rose[message.queue] = True
        message.state = VISIBLE

    def _lease(self, message: Message, until: float, receipt: int) -> None:
        message.state, message.until, message.receipt = LEASED, until, receipt
        message.count += 1

    def held(self, message: int, receipt: int) -> Message | None:
        """Return a message if it is still under this receipt, leased or lapsed."""
        found = self.messages[message]
        return found if found.receipt == receipt and found.state in (LEASED, VISIBLE, DELAYED) else None

    def put(self, ids: list[int], now: float) -> None:
        for number in ids:
            message = self.messages[number]
            if message.delay_s:
                message.state, message.until = DELAYED, now + message.delay_s
            else:
                self._appear(message)

    def execute(self, request: Request, now: float) -> None:
        if not self.own:
            self.advance(now)
        if request.kind == "receive":
            found = [] if request.missed else self.visible(request.queue)[: request.limit]
            room = self._room(request.queue)
            request.blocked = len(found) > room
            found = found[:room]
            self.receipts += 1
            for message in found:
                self._lease(message, now + request.seconds, self.receipts)
            request.taken = [(message.id, message.receipt) for message in found]
            touched = self._touched.setdefault(request.queue, [0, 0, 0])
            touched[1] += 1
            touched[2] += not found
            if self.own or self.hints:
                request.visible = len(self.visible(request.queue))
                request.next_visible_s = self._next_visible_s(request.queue, now)
            return
        held = self.held(request.message, request.receipt)
        request.ok = held is not None
        self._touched.setdefault(request.queue, [0, 0, 0])
        if held is None:
            return
        if request.kind == "delete":
            held.state = GONE
        elif request.kind == "release":
            self.receipts += 1
            held.receipt = self.receipts
            if request.seconds:
                held.state, held.until = DELAYED, now + request.seconds
            elif held.state != VISIBLE:
                self._appear(held)
        else:
            self.receipts += 1
            held.state, held.until, held.receipt = LEASED, now + request.seconds, self.receipts
            request.taken = [(held.id, held.receipt)]

    def _next_visible_s(self, queue: str, now: float) -> float | None:
        ends = [m.until for m in self.messages if m.queue == queue and m.state in (LEASED, DELAYED)]
        return math.ceil(max(0.0, min(ends) - now) * 1000 - 1e-4) / 1000 if ends else None

    def write(self, count: int, now: float, *, early_level: bool = False) -> None:
        """Commit the first ``count`` calls as one; the bridge and the callers have not heard of it yet."""
        calls, self.calls = self.calls[:count], self.calls[count:]
        backlogs: list[dict[str, Any]] = []
        if early_level:
            for call in calls:
                self._touched.setdefault(call.queue, [0, 0, 0])[0] += len(call.messages) if call.kind == "put" else 0
            backlogs = self.backlogs(now)
        hands: list[tuple[str, int, int, list[tuple[int, int, int]], int]] = []
        requests: list[Request] = []
        self.advance(now)
        for call in calls:
            if call.request is not None:
                self.execute(call.request, now)
                requests.append(call.request)
                continue
            touched = self._touched.setdefault(call.queue, [0, 0, 0])
            if call.kind == "put":
                touched[0] += len(call.messages)
                self.put(call.messages, now)
                if call.session is not None:
                    hands.append(self._hand(call, now))
            elif call.kind == "reclaim":
                self._reclaim(call)
        if not early_level:
            backlogs = self.backlogs(now)
        else:
            self._touched, self._rose = {}, {}
        for request in requests:
            request.status = "written"
        self.outcomes.append(Outcome(backlogs, hands, requests))

    def _hand(self, call: Call, now: float) -> tuple[str, int, int, list[tuple[int, int, int]], int]:
        found = self.visible(call.queue)
        self.receipts += 1
        taken = found[: call.granted]
        for message in taken:
            self._lease(message, now + call.lease_s, self.receipts)
        assert call.session is not None
        return call.queue, call.session, call.granted, [(m.id, m.receipt, m.count) for m in taken], len(found)

    def _reclaim(self, call: Call) -> None:
        for number, receipt in call.claims:
            held = self.held(number, receipt)
            if held is None:
                continue
            self.receipts += 1
            held.receipt = self.receipts
            if call.uncount:
                held.count -= 1
            if held.state != VISIBLE:
                self._appear(held)

    def backlogs(self, now: float, *, all_queues: bool = False) -> list[dict[str, Any]]:
        if all_queues:
            for message in self.messages:
                if message.state != UNPUT:
                    self._touched.setdefault(message.queue, [0, 0, 0])
        touched, self._touched = self._touched, {}
        rose, self._rose = self._rose, {}
        out: list[dict[str, Any]] = []
        for queue, (put, receives, empty) in touched.items():
            visible = len(self.visible(queue))
            held = sum(1 for m in self.messages if m.queue == queue and m.state in (LEASED, DELAYED))
            if not put and not any(m.queue == queue and m.state != UNPUT for m in self.messages):
                # The queue does not exist yet: a receive of it is answered "no such queue".
                continue
            out.append(
                {
                    "queue": queue, "exists": True, "visible": visible, "invisible": held, "put": put,
                    "rose": rose.get(queue, False) or (all_queues and visible > 0), "receives": receives,
                    "empty": empty, "next_visible_s": self._next_visible_s(queue, now),
                }
            )  # fmt: skip
        return out

    def restart(self) -> None:
        self.calls, self.outcomes = [], []
        self._touched, self._rose = {}, {}
