"""Distribute wake notifications to plain subscribers, with one slot per subscriber and queue.

Event streams, webhooks, raw subjects and topics use this. An announcement costs a wake request one table lookup,
however many subscribers there are. Announcements of one loop turn merge and are sent at its end. A slow subscriber
keeps one slot per queue, loses nothing and delays no other (I5).
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from queuebell.bridge.contract.sources import merged_size
from queuebell.bridge.contract.trace_context import joined, several
from queuebell.bridge.contract.wire import Wake
from queuebell.bridge.core.commands import Announce, AnnounceInTurn
from queuebell.bridge.observe import tracing
from queuebell.bridge.observe.swallowed import swallow

if TYPE_CHECKING:
    from queuebell.bridge.service.bridge import Bridge

RETRY_S = 0.05
SUBSCRIBER = "a subscriber of wakes"


class Subscriber:
    """A plain subscriber; made by `Announcer.subscribe`."""

    __slots__ = ("_announcer", "held", "queues", "route", "send", "slots", "writable")

    def __init__(
        self,
        announcer: Announcer,
        queues: frozenset[str] | None,
        writable: Callable[[], bool],
        send: Callable[[Wake], None],
        route: str | None,
    ) -> None:
        self._announcer = announcer
        self.queues = queues
        self.writable = writable
        self.send = send
        self.slots = AnnouncementSlots()
        self.route = route
        """Identifies the subscriber to other bridges that reach it too; None if only this bridge does."""
        self.held = AnnouncementSlots()
        """Announcements to send only if no other bridge sends them."""

    def end(self) -> None:
        """End the subscription and drop its slots; may be called twice."""
        self._announcer._end(self)


class Announcer:
    """Passes announcements to subscribers; belongs to the event loop it is used on.

    It subscribes to the bridge only while it has subscribers: without any, a wake request costs nothing here.
    """

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._of_queue: dict[str, dict[Subscriber, None]] = {}
        self._of_all: dict[Subscriber, None] = {}
        self._fresh = AnnouncementSlots()
        self._due: dict[Subscriber, None] = {}
        """Subscribers with wakes to send at the end of this loop turn."""
        self._stalled: dict[Subscriber, None] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def subscribe(
        self,
        queues: Iterable[str] | None,
        *,
        writable: Callable[[], bool],
        send: Callable[[Wake], None],
        route: str | None = None,
    ) -> Subscriber:
        """Pass wakes of these queues (None: all) to ``send``, in ascending generations, while ``writable()``.

        ``queues`` are checked references. With a ``route``, other bridges reach the same subscriber, and they agree on
        the sender (C10). Both callables run on the loop's thread and must not block. ``send`` may end its subscription;
        if it raises, the subscriber loses that one wake.
        """
        subscriber = Subscriber(self, None if queues is None else frozenset(queues), writable, send, route)
        if route is not None:
            only = next(iter(subscriber.queues)) if subscriber.queues is not None else None
            if (coordinator := self._bridge.scheduler.coordinator) is None:
                subscriber.route = None
            else:
                coordinator.subscribers.routes[route] = only
                turn_subscribers = self._bridge.callbacks.turn_subscribers.setdefault(route, [])
                turn_subscribers.append(lambda decision: self._in_turn(subscriber, decision))
        if subscriber.queues is None:
            self._of_all[subscriber] = None
        else:
            for queue in subscriber.queues:
                self._of_queue.setdefault(queue, {})[subscriber] = None
        if self._unsubscribe is None:
            self._unsubscribe = self._bridge.subscribe(self._announced)
        return subscriber

    def catch_up(self, subscriber: Subscriber, gen: int) -> None:
        """Send a subscriber wakes for its queues that have work or are newer than ``gen`` of this boot.

        A subscriber to all queues gets only those that have work.
        """
        now = asyncio.get_running_loop().time()
        every = subscriber.queues is None
        queues: Iterable[str] | None = subscriber.queues
        if queues is None:
            queues = [work.queue for work in self._bridge.scheduler.pending.by_queue.values() if work.waits]
        for queue in queues:
            newest, waits = self._bridge.newest(queue)
            if newest and (waits or (newest > gen and not every)):
                # The time of the original wake request is no longer known.
                self._offer(subscriber, Announce(queue, newest, "resync", 1, now, None, shared=True))
        self._flush(subscriber)

    def close(self) -> None:
        """End all subscriptions; may be called twice."""
        for subscriber in [*self._of_all, *(each for group in self._of_queue.values() for each in group)]:
            self._end(subscriber)

    def _end(self, subscriber: Subscriber) -> None:
        self._of_all.pop(subscriber, None)
        for queue in subscriber.queues or ():
            group = self._of_queue.get(queue)
            if group is not None:
                group.pop(subscriber, None)
                if not group:
                    del self._of_queue[queue]
        subscriber.slots.clear()
        subscriber.held.clear()
        self._due.pop(subscriber, None)
        self._stalled.pop(subscriber, None)
        if not self._of_queue and not self._of_all:
            if self._unsubscribe is not None:
                self._unsubscribe()
                self._unsubscribe = None
            if self._retry is not None:
                self._retry.cancel()
                self._retry = None

    def _announced(self, announced: Announce) -> None:
        if announced.queue not in self._of_queue and not self._of_all:
            return
        if not self._fresh:
            asyncio.get_running_loop().call_soon(self._spread)
        self._fresh.add(announced)

    def _spread(self) -> None:
        fresh, self._fresh = self._fresh, AnnouncementSlots()
        now = asyncio.get_running_loop().time()
        while (announced := fresh.first()) is not None:
            # One object for all writable subscribers, so that they share its encoding.
            wake = self._wake(announced, now)
            for group in (self._of_queue.get(announced.queue, {}), self._of_all):
                for subscriber in list(group):
                    if subscriber not in group:
                        # An earlier subscriber ended it.
                        continue
                    if subscriber.route is None and not subscriber.slots and self._writable(subscriber):
                        self._send(subscriber, wake)
                    else:
                        self._offer(subscriber, announced)

    def _offer(self, subscriber: Subscriber, announced: Announce) -> None:
        """Put the announcement into its slot, or hold it while another bridge is to send it."""
        if subscriber.route is not None and not self._may_send(subscriber.route, announced):
            subscriber.held.add(announced)
            return
        held = subscriber.held.pop(announced.queue)
        if held is not None:
            self._put(subscriber, held)
        self._put(subscriber, announced)

    def _may_send(self, route: str, announced: Announce) -> bool:
        """Return whether to send now, with the queue's held announcement; otherwise hold this one too (C10)."""
        bridge, coordinator = self._bridge, self._bridge.scheduler.coordinator
        if coordinator is None or bridge.stopped:
            return True
        now = bridge.now()
        may_send = coordinator.subscribers.offer(
            now, coordinator.at(now), route, announced.queue, shared=announced.shared
        )
        bridge.arm()
        return may_send

    def _put(self, subscriber: Subscriber, announced: Announce) -> None:
        """Put the announcement into its slot; the slot is sent once, at the end of this loop turn."""
        subscriber.slots.add(announced)
        if not self._due:
            asyncio.get_running_loop().call_soon(self._flush_due)
        self._due[subscriber] = None

    def _in_turn(self, subscriber: Subscriber, decision: AnnounceInTurn) -> None:
        held = subscriber.held.pop(decision.queue)
        if decision.what == "drop":
            return
        if held is not None:
            self._put(subscriber, held)
        elif decision.what == "again" and subscriber in (
            self._of_all if subscriber.queues is None else self._of_queue.get(decision.queue, {})
        ):
            newest, _ = self._bridge.newest(decision.queue)
            now = asyncio.get_running_loop().time()
            self._put(subscriber, Announce(decision.queue, newest, "resync", 1, now, None))

    def _stall(self, subscriber: Subscriber) -> None:
        self._stalled[subscriber] = None
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._retry_stalled)

    def _retry_stalled(self) -> None:
        self._retry = None
        stalled, self._stalled = self._stalled, {}
        for subscriber in stalled:
            self._flush(subscriber)

    def _flush_due(self) -> None:
        due, self._due = self._due, {}
        for subscriber in due:
            self._flush(subscriber)

    def _flush(self, subscriber: Subscriber) -> None:
        now = asyncio.get_running_loop().time()
        # An ended subscription has no slots left.
        while subscriber.slots:
            if not self._writable(subscriber):
                self._stall(subscriber)
                return
            announced = subscriber.slots.first()
            if announced is not None:
                self._send(subscriber, self._wake(announced, now))

    def _writable(self, subscriber: Subscriber) -> bool:
        try:
            return subscriber.writable()
        except Exception as error:  # noqa: BLE001 - retried
            swallow(SUBSCRIBER, error)
            return False

    def _send(self, subscriber: Subscriber, wake: Wake) -> None:
        try:
            subscriber.send(wake)
        except Exception as error:  # noqa: BLE001 - this subscriber loses this wake
            swallow(SUBSCRIBER, error)
        if tracing.on is not None:
            tracing.on.route(wake)

    def _wake(self, announced: Announce, now: float) -> Wake:
        return Wake(
            queue=announced.queue,
            boot=self._bridge.boot,
            gen=announced.gen,
            reason=announced.reason,
            size=announced.size,
            age_ms=max(0, round((now - announced.requested_at) * 1000)),
            traceparent=announced.traceparent,
            traces=several(announced.traces),
        )


SPARE = 16
"""Stale entries always tolerated, in addition to one for each queue; beyond that they are removed."""


class AnnouncementSlots:
    """Holds merged announcements by queue; adding and taking one costs O(log n)."""

    __slots__ = ("_by_queue", "_order")

    def __init__(self) -> None:
        self._by_queue: dict[str, Announce] = {}
        self._order: list[tuple[int, str]] = []
        """A heap by generation. An entry is stale if its queue has another generation now."""

    def __len__(self) -> int:
        return len(self._by_queue)

    def add(self, announced: Announce) -> None:
        """Add an announcement; merging keeps the newest generation, the oldest wake request and the total size."""
        before = self._by_queue.get(announced.queue)
        if before is not None:
            newer = announced if announced.gen >= before.gen else before
            announced = Announce(
                queue=announced.queue,
                gen=newer.gen,
                reason=newer.reason,
                size=merged_size(before.size, announced.size, announced.reason),
                requested_at=min(before.requested_at, announced.requested_at),
                traceparent=newer.traceparent or before.traceparent,
                shared=before.shared and announced.shared,
                traces=joined(before, announced),
            )
        self._by_queue[announced.queue] = announced
        if before is None or announced.gen != before.gen:
            if len(self._order) > 2 * len(self._by_queue) + SPARE:
                self._order = sorted((each.gen, each.queue) for each in self._by_queue.values())
            else:
                heapq.heappush(self._order, (announced.gen, announced.queue))

    def pop(self, queue: str) -> Announce | None:
        """Remove and return a queue's announcement."""
        taken = self._by_queue.pop(queue, None)
        if not self._by_queue:
            self._order.clear()
        return taken

    def first(self) -> Announce | None:
        """Remove and return the announcement of the oldest generation."""
        while self._order:
            gen, queue = heapq.heappop(self._order)
            pending = self._by_queue.get(queue)
            if pending is not None and pending.gen == gen:
                return self.pop(queue)
        return None

    def clear(self) -> None:
        """Drop all announcements."""
        self._by_queue.clear()
        self._order.clear()
