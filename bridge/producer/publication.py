"""What a producer still owes its bridge: rules P3 to P5 as a pure machine.

The shell (`bridge.producer.publisher`) says what happened and when; this says what to send now and when to come back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from bridge.contract.backoff import Draw, FullJitter
from bridge.contract.event import (
    EVENTS_MAX,
    NOT_BEFORE_MS_MAX,
    PAYLOAD_SIZE_MAX,
    REQUEST_BYTES_MAX,
    CloudQueueWorkDetected,
    encode_event,
)
from bridge.contract.names import split_reference
from bridge.contract.trace_context import Traced, joined, merged, several

BACKOFF_FIRST_S = 0.1
BACKOFF_CAP_S = 30.0
DUE_TIMES_MAX = 1000
"""Due times kept to the millisecond for one queue; those beyond it are rounded up to whole seconds."""


class Sending(msgspec.Struct, frozen=True):
    """One event on its way; ``due_ms`` is when its work becomes visible on the producer's clock, None for at once."""

    event: CloudQueueWorkDetected
    due_ms: int | None


class _Pending:
    """Publishes merged into one: how many messages, the words of the newest of them, and the traces of all."""

    __slots__ = ("id", "size", "traceparent", "traces")

    def __init__(self, size: int, id_: str | None, trace: Traced) -> None:
        self.size = size
        self.id = id_
        self.traceparent = trace.traceparent
        self.traces = merged(None, trace)

    def add(self, size: int, id_: str | None, trace: Traced) -> None:
        """Merge a newer publish. The older id goes: it named an event without these messages (P5)."""
        self.size = min(PAYLOAD_SIZE_MAX, self.size + size)
        self.id = id_
        self.traces = merged(self.traces, trace)
        self.traceparent = trace.traceparent or self.traceparent


class _Queue:
    """What one queue is owed, by due time (None: at once), and whether a publish of it is in flight."""

    __slots__ = ("flying", "owed")

    def __init__(self) -> None:
        self.owed: dict[int | None, _Pending] = {}
        self.flying = False

    def owe(self, due: int | None, size: int, id_: str | None, trace: Traced) -> None:
        """Owe a publish that is newer than what is owed for this time."""
        held = self.owed.get(due)
        if held is None:
            self.owed[due] = _Pending(size, id_, trace)
        else:
            held.add(size, id_, trace)

    def pending(self) -> list[tuple[int | None, _Pending]]:
        """List what is owed: at once first, and then the due times, nearest first."""
        return sorted(self.owed.items(), key=lambda item: -math.inf if item[0] is None else item[0])


class Publication:
    """The debts of one publisher, queue by queue.

    ``source`` goes into every event, ``new_id`` names each publish that was given no id. Times are seconds of one
    monotonic clock. Never more than one event per queue and due time is in flight, and what is in flight is no longer
    owed: the bit is cleared before sending (P3), so that a put meanwhile sets it again.
    """

    def __init__(self, source: str, new_id: Callable[[], str]) -> None:
        self._source = source
        self._new_id = new_id
        self._queues: dict[str, _Queue] = {}
        self._backoff = FullJitter(BACKOFF_FIRST_S, BACKOFF_CAP_S)
        self._not_before = -math.inf
        self._limit = EVENTS_MAX

    def owe(self, now: float, event: CloudQueueWorkDetected) -> None:
        """Take note of a publish that was checked before."""
        queue = self._queues.setdefault(event.queue, _Queue())
        due: int | None = None
        if event.not_before_ms:
            # Rounded up, for one tick early is a loss (B2).
            due = math.ceil(now * 1000) + event.not_before_ms
            if due not in queue.owed and len(queue.owed) - (None in queue.owed) >= DUE_TIMES_MAX:
                due = math.ceil(due / 1000) * 1000
        queue.owe(due, event.payload_size, event.id, event)

    def take(self, now: float) -> list[Sending]:
        """Return what is to be sent now, 1000 events and 1 MiB at most, and count it as in flight.

        Empty while backing off, or when there is nothing to send. Each batch must come back through `sent`, `failed`
        or `refused`.
        """
        if now < self._not_before:
            return []
        batch: list[Sending] = []
        room = REQUEST_BYTES_MAX - 2
        now_ms = math.floor(now * 1000)
        for name, queue in list(self._queues.items()):
            if queue.flying:
                continue
            self._fold(queue, now_ms)
            for due, work in queue.pending():
                work.id = work.id or self._new_id()
                event = self._event(name, work, due, now_ms)
                room -= len(encode_event(event)) + 1
                if len(batch) == self._limit or (room < 0 and batch):
                    return batch
                del queue.owed[due]
                queue.flying = True
                batch.append(Sending(event, due))
        return batch

    def sent(self, batch: Sequence[Sending]) -> None:
        """Count a batch as marked by the bridge."""
        self._backoff.hit()
        self._not_before = -math.inf
        self._limit = min(EVENTS_MAX, self._limit * 2)
        self._land(batch)

    def failed(self, batch: Sequence[Sending], now: float, draw: Draw) -> float:
        """Owe a batch again and return the seconds of the back-off, 30 at most.

        An event keeps its id unless a newer publish of its queue was merged into it (P5).
        """
        wait = self._backoff.miss(draw)
        self._not_before = now + wait
        self._give_back(batch)
        return wait

    def refused(self, batch: Sequence[Sending]) -> CloudQueueWorkDetected | None:
        """Owe a batch again in halves, so that one event that the bridge will never take stops no other.

        Returns that event once it was refused alone; it is then no longer owed.
        """
        if len(batch) == 1:
            self._limit = EVENTS_MAX
            self._land(batch)
            return batch[0].event
        self._limit = len(batch) // 2
        self._give_back(batch)
        return None

    def hurry(self) -> None:
        """Forget the back-off: what is owed may be sent at once."""
        self._backoff.hit()
        self._not_before = -math.inf

    def deadline(self) -> float | None:
        """Say when `take` has something to give (minus infinity: now); None while nothing is owed or all is flying."""
        if any(queue.owed and not queue.flying for queue in self._queues.values()):
            return self._not_before
        return None

    def owed(self, now: float) -> list[CloudQueueWorkDetected]:
        """Return what is owed and not in flight, as it would be sent now; changes nothing."""
        now_ms = math.floor(now * 1000)
        return [
            self._event(name, work, due, now_ms)
            for name, queue in self._queues.items()
            for due, work in queue.pending()
        ]

    def _event(self, name: str, work: _Pending, due: int | None, now_ms: int) -> CloudQueueWorkDetected:
        account, queue_name = split_reference(name)
        return CloudQueueWorkDetected(
            storage_account=account,
            queue_name=queue_name,
            payload_size=work.size,
            id=work.id,
            source=self._source,
            # What is left of the delay now, for it counts from receipt.
            not_before_ms=0 if due is None else min(max(0, due - now_ms), NOT_BEFORE_MS_MAX),
            traceparent=work.traceparent,
            traces=several(work.traces),
        )

    def _fold(self, queue: _Queue, now_ms: int) -> None:
        """Owe at once what has become due meanwhile, after an outage."""
        for due in sorted(due for due in queue.owed if due is not None and due <= now_ms):
            work = queue.owed.pop(due)
            if None in queue.owed:
                # A fresh id: the older ones may have reached the bridge, and named less than this (P5).
                work.id = None
            queue.owe(None, work.size, work.id, work)

    def _give_back(self, batch: Sequence[Sending]) -> None:
        for sending in batch:
            event = sending.event
            queue = self._queues[event.queue]
            newer = queue.owed.get(sending.due_ms)
            if newer is None:
                queue.owe(sending.due_ms, event.payload_size, event.id, event)
            else:
                # The newer one's words hold, and only the size and the traces are added.
                traceparent, traces = newer.traceparent or event.traceparent, joined(event, newer)
                newer.add(event.payload_size, newer.id, event)
                newer.traceparent, newer.traces = traceparent, traces
        self._land(batch)

    def _land(self, batch: Sequence[Sending]) -> None:
        for sending in batch:
            name = sending.event.queue
            queue = self._queues.get(name)
            if queue is None:
                continue
            queue.flying = False
            if not queue.owed:
                del self._queues[name]
            else:
                # To the back, so that a thousand busy queues do not starve the next one.
                self._queues[name] = self._queues.pop(name)
