"""Wakes for plain subscribers: from one stream of announcements to one slot per subscriber and queue.

Event streams, webhooks, raw subjects and topics all hang here. Announcing costs a mark one look into a table, however
many subscribers there are; what was announced within one turn of the loop is merged and leaves at its end. A subscriber
that cannot take more keeps one slot per queue, loses nothing and delays nobody (I5).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from bridge.contract.sources import merged_size
from bridge.contract.wire import Wake
from bridge.core.commands import Announce

if TYPE_CHECKING:
    from bridge.service.bridge import Bridge

RETRY_S = 0.05


class Subscriber:
    """One plain subscriber; made by `Announcer.subscribe`."""

    __slots__ = ("_announcer", "queues", "send", "slots", "writable")

    def __init__(
        self,
        announcer: Announcer,
        queues: frozenset[str] | None,
        writable: Callable[[], bool],
        send: Callable[[Wake], None],
    ) -> None:
        self._announcer = announcer
        self.queues = queues
        self.writable = writable
        self.send = send
        self.slots: dict[str, Announce] = {}

    def end(self) -> None:
        """Hear no more; what is in the slots is gone. May be called twice."""
        self._announcer._end(self)


class Announcer:
    """Brings announcements to subscribers; belongs to the event loop it is used on.

    The bridge is subscribed to only while there are subscribers, so that without any a mark costs nothing.
    """

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._of_queue: dict[str, dict[Subscriber, None]] = {}
        self._of_all: dict[Subscriber, None] = {}
        # Announced in this turn of the loop, and merged.
        self._fresh: dict[str, Announce] = {}
        self._stalled: dict[Subscriber, None] = {}
        self._retry: asyncio.TimerHandle | None = None
        self._unsubscribe: Callable[[], None] | None = None

    def subscribe(
        self, queues: Iterable[str] | None, *, writable: Callable[[], bool], send: Callable[[Wake], None]
    ) -> Subscriber:
        """Tell wakes of these queues (None: of all) to ``send``, in ascending generations, while ``writable()``.

        The queues are references that were checked. Both callables are called on the loop's thread, must not block
        and must not raise; ``send`` may end its subscription.
        """
        subscriber = Subscriber(self, None if queues is None else frozenset(queues), writable, send)
        if subscriber.queues is None:
            self._of_all[subscriber] = None
        else:
            for queue in subscriber.queues:
                self._of_queue.setdefault(queue, {})[subscriber] = None
        if self._unsubscribe is None:
            self._unsubscribe = self._bridge.subscribe(self._hear)
        return subscriber

    def catch_up(self, subscriber: Subscriber, gen: int) -> None:
        """Tell a subscriber of its queues where work waits, or that are newer than ``gen``, of this boot.

        One that hears of all queues is told of those where work waits.
        """
        now = asyncio.get_running_loop().time()
        every = subscriber.queues is None
        for queue in self._bridge.waiting() if subscriber.queues is None else subscriber.queues:
            newest, waits = self._bridge.newest(queue)
            if newest and (waits or (newest > gen and not every)):
                # What was marked before this subscriber came; when exactly nobody can say any more.
                _merge(subscriber.slots, Announce(queue, newest, "resync", 1, now, None))
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
        self._stalled.pop(subscriber, None)
        if not self._of_queue and not self._of_all:
            if self._unsubscribe is not None:
                self._unsubscribe()
                self._unsubscribe = None
            if self._retry is not None:
                self._retry.cancel()
                self._retry = None

    def _hear(self, announced: Announce) -> None:
        if announced.queue not in self._of_queue and not self._of_all:
            return
        if not self._fresh:
            asyncio.get_running_loop().call_soon(self._spread)
        _merge(self._fresh, announced)

    def _spread(self) -> None:
        fresh, self._fresh = self._fresh, {}
        now = asyncio.get_running_loop().time()
        for announced in sorted(fresh.values(), key=_by_gen):
            # One object for all who can take it at once, so that they may share its encoding.
            wake = self._wake(announced, now)
            for group in (self._of_queue.get(announced.queue, {}), self._of_all):
                for subscriber in list(group):
                    if subscriber not in group:
                        # Ended by one before it.
                        continue
                    if subscriber.slots or not subscriber.writable():
                        _merge(subscriber.slots, announced)
                        self._stall(subscriber)
                    else:
                        subscriber.send(wake)

    def _stall(self, subscriber: Subscriber) -> None:
        self._stalled[subscriber] = None
        if self._retry is None:
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self._retry_stalled)

    def _retry_stalled(self) -> None:
        self._retry = None
        stalled, self._stalled = self._stalled, {}
        for subscriber in stalled:
            self._flush(subscriber)

    def _flush(self, subscriber: Subscriber) -> None:
        now = asyncio.get_running_loop().time()
        for announced in sorted(subscriber.slots.values(), key=_by_gen):
            if not subscriber.writable():
                self._stall(subscriber)
                return
            # An ended subscription has no slots left.
            if subscriber.slots.pop(announced.queue, None) is not None:
                subscriber.send(self._wake(announced, now))

    def _wake(self, announced: Announce, now: float) -> Wake:
        return Wake(
            queue=announced.queue,
            boot=self._bridge.boot,
            gen=announced.gen,
            reason=announced.reason,
            size=announced.size,
            age_ms=max(0, round((now - announced.marked_at) * 1000)),
            traceparent=announced.traceparent,
        )


def _merge(slots: dict[str, Announce], announced: Announce) -> None:
    """Keep one slot per queue: the newest generation, the oldest mark, all the work that was hinted at."""
    before = slots.get(announced.queue)
    if before is None:
        slots[announced.queue] = announced
        return
    newer = announced if announced.gen >= before.gen else before
    slots[announced.queue] = Announce(
        queue=announced.queue,
        gen=newer.gen,
        reason=newer.reason,
        size=merged_size(before.size, announced.size, announced.reason),
        marked_at=min(before.marked_at, announced.marked_at),
        traceparent=newer.traceparent or before.traceparent,
    )


def _by_gen(announced: Announce) -> int:
    return announced.gen
