"""The triggers that a publisher has yet to send: rules P3 to P5. Pure; the shell is `bridge.producer.publisher`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from queuebell.bridge.contract.backoff import Draw, FullJitter
from queuebell.bridge.contract.event import (
    EVENTS_MAX,
    NOT_BEFORE_MS_MAX,
    PAYLOAD_SIZE_MAX,
    REQUEST_BYTES_MAX,
    CloudQueueWorkDetected,
    encode_event,
)
from queuebell.bridge.contract.names import split_reference
from queuebell.bridge.contract.trace_context import Traced, joined, merged, several

BACKOFF_FIRST_S = 0.1
BACKOFF_CAP_S = 30.0
DUE_TIMES_MAX = 1000
"""Due times kept to the millisecond for one queue; more are rounded up to whole seconds."""


class Sending(msgspec.Struct, frozen=True):
    """One trigger in flight; ``due_ms`` is when its work becomes visible on the producer's clock, None for now."""

    event: CloudQueueWorkDetected
    due_ms: int | None


class Publication:
    """The pending triggers of one publisher, by queue and due time.

    ``source`` goes into every event, and ``new_id`` names each publish without an id. Times are seconds of one
    monotonic clock. At most one event per queue and due time is in flight; it is removed from what is pending before it
    is sent (P3), so that a put in the meantime adds another one.
    """

    def __init__(self, source: str, new_id: Callable[[], str]) -> None:
        self._source = source
        self._new_id = new_id
        self._queues: dict[str, _Queue] = {}
        self._backoff = FullJitter(BACKOFF_FIRST_S, BACKOFF_CAP_S)
        self._not_before = -math.inf
        self._limit = EVENTS_MAX

    def add(self, now: float, event: CloudQueueWorkDetected) -> None:
        """Add a valid publish to what is pending."""
        queue = self._queues.setdefault(event.queue, _Queue())
        due: int | None = None
        if event.not_before_ms:
            # Rounded up, because one tick early is a loss (B2).
            due = math.ceil(now * 1000) + event.not_before_ms
            if due not in queue.pending and len(queue.pending) - (None in queue.pending) >= DUE_TIMES_MAX:
                due = math.ceil(due / 1000) * 1000
        queue.add(due, event.payload_size, event.id, event)

    def take(self, now: float) -> list[Sending]:
        """Return what to send now, up to 1000 events and 1 MiB, and count it as in flight.

        Empty during a back-off. Pass each batch to `sent`, `failed` or `refused` afterwards.
        """
        if now < self._not_before:
            return []
        batch: list[Sending] = []
        room = REQUEST_BYTES_MAX - 2
        now_ms = math.floor(now * 1000)
        for name, queue in list(self._queues.items()):
            if queue.in_flight:
                continue
            self._merge_due(queue, now_ms)
            for due, work in queue.in_order():
                work.id = work.id or self._new_id()
                event = self._event(name, work, due, now_ms)
                room -= len(encode_event(event)) + 1
                if len(batch) == self._limit or (room < 0 and batch):
                    return batch
                del queue.pending[due]
                queue.in_flight = True
                batch.append(Sending(event, due))
        return batch

    def sent(self, batch: Sequence[Sending]) -> None:
        """Record that a batch was acknowledged."""
        self.reset_backoff()
        self._limit = min(EVENTS_MAX, self._limit * 2)
        self._landed(batch)

    def failed(self, batch: Sequence[Sending], now: float, draw: Draw) -> float:
        """Make a batch pending again and return the back-off in seconds, 30 at most.

        An event keeps its id unless a newer publish of its queue was merged into it (P5).
        """
        wait = self._backoff.miss(draw)
        self._not_before = now + wait
        self._restore(batch)
        return wait

    def refused(self, batch: Sequence[Sending]) -> CloudQueueWorkDetected | None:
        """Make a rejected batch pending again, to be sent in halves, so that one bad event stops no other.

        Returns the event once it was rejected alone, and drops it.
        """
        if len(batch) == 1:
            self._limit = EVENTS_MAX
            self._landed(batch)
            return batch[0].event
        self._limit = len(batch) // 2
        self._restore(batch)
        return None

    def reset_backoff(self) -> None:
        """Let the next batch be sent immediately."""
        self._backoff.hit()
        self._not_before = -math.inf

    def deadline(self) -> float | None:
        """Return when `take` has something (minus infinity: now); None if nothing is pending, or all is in flight."""
        if any(queue.pending and not queue.in_flight for queue in self._queues.values()):
            return self._not_before
        return None

    def pending(self, now: float) -> list[CloudQueueWorkDetected]:
        """Return what is pending and not in flight, as it would be sent now."""
        now_ms = math.floor(now * 1000)
        return [
            self._event(name, work, due, now_ms)
            for name, queue in self._queues.items()
            for due, work in queue.in_order()
        ]

    def _event(self, name: str, work: _Merged, due: int | None, now_ms: int) -> CloudQueueWorkDetected:
        account, queue_name = split_reference(name)
        return CloudQueueWorkDetected(
            storage_account=account,
            queue_name=queue_name,
            payload_size=work.size,
            id=work.id,
            source=self._source,
            # The rest of the delay, which counts from receipt.
            not_before_ms=0 if due is None else min(max(0, due - now_ms), NOT_BEFORE_MS_MAX),
            traceparent=work.traceparent,
            traces=several(work.traces),
        )

    def _merge_due(self, queue: _Queue, now_ms: int) -> None:
        """Merge what became due during an outage into what is for now."""
        for due in sorted(due for due in queue.pending if due is not None and due <= now_ms):
            work = queue.pending.pop(due)
            if None in queue.pending:
                # A fresh id: the older ones may have reached the bridge, for fewer messages (P5).
                work.id = None
            queue.add(None, work.size, work.id, work)

    def _restore(self, batch: Sequence[Sending]) -> None:
        for sending in batch:
            event = sending.event
            queue = self._queues[event.queue]
            newer = queue.pending.get(sending.due_ms)
            if newer is None:
                queue.add(sending.due_ms, event.payload_size, event.id, event)
            else:
                # The newer one's id and trace hold; the size and the traces are added.
                traceparent, traces = newer.traceparent or event.traceparent, joined(event, newer)
                newer.add(event.payload_size, newer.id, event)
                newer.traceparent, newer.traces = traceparent, traces
        self._landed(batch)

    def _landed(self, batch: Sequence[Sending]) -> None:
        for sending in batch:
            name = sending.event.queue
            queue = self._queues.get(name)
            if queue is None:
                continue
            queue.in_flight = False
            if not queue.pending:
                del self._queues[name]
            else:
                # To the back, so that a thousand busy queues do not starve the next one.
                self._queues[name] = self._queues.pop(name)


class _Queue:
    """The pending work of one queue by due time (None: now), and whether a publish of it is in flight."""

    __slots__ = ("in_flight", "pending")

    def __init__(self) -> None:
        self.pending: dict[int | None, _Merged] = {}
        self.in_flight = False

    def add(self, due: int | None, size: int, id_: str | None, trace: Traced) -> None:
        """Add a publish that is newer than all that is pending for this time."""
        held = self.pending.get(due)
        if held is None:
            self.pending[due] = _Merged(size, id_, trace)
        else:
            held.add(size, id_, trace)

    def in_order(self) -> list[tuple[int | None, _Merged]]:
        """Return what is pending: for now first, then the nearest due times."""
        return sorted(self.pending.items(), key=lambda item: -math.inf if item[0] is None else item[0])


class _Merged:
    """Publishes merged into one: the number of messages, the id and trace of the newest, and the traces of all."""

    __slots__ = ("id", "size", "traceparent", "traces")

    def __init__(self, size: int, id_: str | None, trace: Traced) -> None:
        self.size = size
        self.id = id_
        self.traceparent = trace.traceparent
        self.traces = merged(None, trace)

    def add(self, size: int, id_: str | None, trace: Traced) -> None:
        """Merge a newer publish. The older id is dropped: it named an event without these messages (P5)."""
        self.size = min(PAYLOAD_SIZE_MAX, self.size + size)
        self.id = id_
        self.traces = merged(self.traces, trace)
        self.traceparent = trace.traceparent or self.traceparent
