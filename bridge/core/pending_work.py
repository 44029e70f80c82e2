"""Keep each queue's pending work: *dirty at generation g*, and the session that owns it.

One counter yields the generations of a boot, not one per queue: a queue that is deleted and created again must never
match an old empty receive (B1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from queuebell.bridge.contract.jobs import Jobs
from queuebell.bridge.contract.names import POISON_SUFFIX
from queuebell.bridge.contract.sources import WORK
from queuebell.bridge.contract.trace_context import Traced, Traces, merged
from queuebell.bridge.contract.wire import BuriedCount, Reason, StoreDepth
from queuebell.bridge.core.agenda import DueTimes
from queuebell.bridge.core.round import Round
from queuebell.bridge.core.sessions import QueueSessions
from queuebell.bridge.core.settings import Numbers, Tuning

SIZE_MAX = 1_000_000_000
DETAILED_S: Final = 60.0
"""How long a bare number does not replace a more detailed count."""


class Counted(msgspec.Struct, frozen=True):
    """Hold the counts of a queue in an external store at ``at``; ``at_least`` marks them as lower bounds."""

    visible: int
    invisible: int
    at: float
    at_least: bool
    leased: int | None = None
    delayed: int | None = None
    oldest_at: float | None = None
    """Since when the oldest visible message has been visible; None if there is none or it was not reported."""

    @property
    def detailed(self) -> bool:
        """Return whether the store reported more than two numbers."""
        return self.leased is not None or self.oldest_at is not None

    def older(self, gap_s: float) -> Counted:
        """Return a copy that is ``gap_s`` older."""
        oldest_at = None if self.oldest_at is None else self.oldest_at - gap_s
        return msgspec.structs.replace(self, at=self.at - gap_s, oldest_at=oldest_at)


class CountedBuried(msgspec.Struct, frozen=True):
    """Hold the number of messages in the poison ``queue`` at ``at``, as a listener counted them."""

    queue: str
    messages: int
    at: float


CHECK_ONLY: Final = frozenset({"resync", "sweep"})
"""Reasons that request a check but do not report work."""


# Most queues share these empty values, replaced and never changed: with 100,000 names each byte counts.
_NOTHING: Final[Mapping[str, int]] = {}
_NEVER: Final[dict[Reason, DueTimes]] = {}


class PendingWork(msgspec.Struct, eq=False):
    """Hold the bridge's state of one queue: pending work, counts and sessions."""

    queue: str
    sessions: QueueSessions
    numbers: Numbers
    gen: int = 0
    dirty: bool = False
    deferred: bool = False
    """Another bridge checks first; this one checks if that bridge reports nothing (C2)."""
    work_reported: bool = False
    """True if work was reported since the last settle; otherwise a check was requested at most."""
    after_gap: bool = False
    """Pending only because triggers may have been missed while no session was connected (B2)."""
    reason: Reason = "resync"
    size: int = 0
    requested_at: float = 0.0
    traceparent: str | None = None
    traces: Traces | None = None
    """The trace contexts that no wake has carried yet."""

    owner: int | None = None
    unacked: tuple[tuple[int, float], ...] = ()
    """Wakes without a `started` from the owner: (gen, when sent); the oldest and the newest are enough."""
    asked: frozenset[int] = frozenset()
    """Sessions that were woken for this work; retries wake others."""
    rounds: int = 0
    started_at: float | None = None
    """When the owner's newest known receive began (B5)."""

    exists: bool = False
    """The queue exists in the queue service (O0)."""
    paused: bool = False
    """The queue hands out nothing: the store counts all its messages as invisible."""
    visible: int = 0
    invisible: int = 0
    visible_since: float = 0.0
    leased: int = 0
    delayed: int = 0
    oldest_at: float | None = None
    """Since when the oldest visible message has been visible; None if there is none."""
    foreign: bool = False
    """The work does not come from the store's own state, which therefore cannot settle it."""
    work_reported_at: float = float("-inf")
    """When a trigger, or the end of a delay or lease, last reported work."""
    found_empty_at: float | None = None
    """When the newest receive began that found the queue empty."""
    last_empty_external: bool = False
    """The newest empty receive came from a listener of an external store."""
    born_at: float = 0.0
    """When the queue became known."""
    due: dict[Reason, DueTimes] = msgspec.field(default_factory=lambda: _NEVER)
    due_to_all: dict[Reason, DueTimes] = msgspec.field(default_factory=lambda: _NEVER)
    """Due times that the other cluster members keep too: they check in turn (C2)."""

    notified: int = 0
    """The newest generation that subscribers were sent."""
    notified_at: float = float("-inf")
    """When that was sent."""
    carried_announced: int = 0
    """Messages of the current commit that subscribers already know of from the wake that carries them (O7)."""

    triggers: int = 0
    receives: int = 0
    empty: int = 0
    unannounced: int = 0
    """Receives that found work whose publish was lost (B9)."""
    unannounced_at: float | None = None
    """When the newest of them was reported."""
    buses: Mapping[str, int] = msgspec.field(default_factory=lambda: _NOTHING)
    """Triggers by bus."""
    triggered_at: float | None = None
    counted: Counted | None = None
    buried: CountedBuried | None = None
    round: Round | None = None
    """The round that asks the store of its listeners about this queue (B17)."""
    place: str | None = None
    """Which tables its newest empty receive read, as far as is known."""
    store: str = ""
    """The kind of external store that its listeners use, as last reported."""
    wakes: Mapping[str, int] = msgspec.field(default_factory=lambda: _NOTHING)
    wake_sources: Mapping[str, int] = msgspec.field(default_factory=lambda: _NOTHING)
    """Receives that found work, and wakes whose messages were accepted, by the listener's reason to check."""
    jobs: dict[str, Jobs] | None = None
    """Outcomes of its messages by handler; None before the first report."""

    @property
    def own(self) -> bool:
        """Return whether the queue service holds this queue, or a session reports so (O0)."""
        return self.exists or self.sessions.any_own

    @property
    def external(self) -> bool:
        """Return whether some listener receives from an external store.

        Only empty receives can settle such work, whatever the queue service knows of a queue of the same name.
        """
        return (not self.exists and not self.sessions.any_own) or self.sessions.any_foreign

    @property
    def waits(self) -> bool:
        """Return whether work is waiting, as far as is known.

        The queue service knows what is visible; in an external store, work waits until an empty receive settles it.
        """
        return self.visible > 0 or (self.dirty and self.external)

    @property
    def needed(self) -> bool:
        """Return whether the queue must be kept when room is short: it exists in the queue service or has a session."""
        return self.exists or len(self.sessions) > 0

    @property
    def any_due(self) -> bool:
        """Return whether the queue has due times."""
        return bool(self.due or self.due_to_all)

    @property
    def lane(self) -> int:
        """Return the order of eviction: first queues without pending work, last those with due times."""
        return 2 if self.any_due else 1 if self.dirty else 0

    @property
    def forgettable(self) -> bool:
        """Return whether forgetting this queue loses nothing."""
        return not (self.dirty or self.exists or self.any_due or len(self.sessions))

    def count_depth(self, depth: StoreDepth, now: float) -> None:
        """Keep the newest count of a queue in an external store; heartbeats arrive in any order.

        For a while, a bare number, as a scaler counts it, does not replace a more detailed count.
        """
        at, previous = now - depth.age_ms / 1000, self.counted
        bare = depth.leased is None and depth.delayed is None and depth.oldest_ms is None and depth.visible > 0
        if previous is not None and bare and previous.detailed and at < previous.at + DETAILED_S:
            return
        if previous is None or at >= previous.at:
            oldest_at = None if depth.oldest_ms is None or not depth.visible else at - depth.oldest_ms / 1000
            self.counted = Counted(
                depth.visible, depth.invisible, at, depth.at_least, depth.leased, depth.delayed, oldest_at
            )

    def count_buried(self, buried: BuriedCount, now: float) -> None:
        """Keep the newest count of a queue's poison queue."""
        at = now - buried.age_ms / 1000
        if self.buried is None or at >= self.buried.at:
            self.buried = CountedBuried(buried.queue or self.queue + POISON_SUFFIX, buried.messages, at)

    def count_triggers(self, now: float, bus: str, count: int) -> None:
        """Count triggers by bus."""
        self.triggers += count
        self.buses = {**self.buses, bus: self.buses.get(bus, 0) + count}
        self.triggered_at = now

    def count_found(self, source: str, found: int) -> None:
        """Count receives that found work, by the listener's reason to check."""
        if found:
            self.wake_sources = {**self.wake_sources, source: self.wake_sources.get(source, 0) + found}

    def was_announced(self, now: float, within_s: float) -> bool:
        """Return whether work that a listener just reported may have been announced.

        True if a trigger, delay or lease requested a wake that is not settled yet, or did so within ``within_s``: a
        check may find a put before its trigger arrives, and its heartbeat comes some seconds later.
        """
        return now - self.work_reported_at <= within_s or (self.dirty and self.work_reported_at >= self.requested_at)


class PendingQueues:
    """Hold the pending work of all queues in one boot.

    At the limit, queues that are not `needed` are evicted: first those without pending work, then those with some, last
    those with due times; in each group the longest unused first. No session loses a wake: an unknown queue is dirty at
    its first hello (B10), and the sweep finds due messages. ``forgotten`` is called with each dropped name.
    """

    def __init__(self, limit: int, tuning: Tuning, forgotten: Callable[[str], None] = lambda queue: None) -> None:
        self.by_queue: dict[str, PendingWork] = {}
        self.limit = limit
        self.evicted_with_work = 0
        """How many names with pending work were evicted, or never kept, for lack of room."""
        self.evicted_gen = 0
        """The newest generation of any of those; 0 before the first."""
        self.changed: set[str] | None = None
        """Queues whose sessions or room changed; only kept in a cluster (C3)."""
        self._tuning = tuning
        self._forgotten = forgotten
        self._gen = 0
        # Each name that may be evicted is in one of these lanes. They may also hold names that must stay; those are
        # removed when they reach the front, which costs at most one step per change of a queue.
        self._lanes: tuple[OrderedDict[str, None], ...] = (OrderedDict(), OrderedDict(), OrderedDict())

    @property
    def newest_gen(self) -> int:
        """Return the newest generation of this boot; a report of a newer one is wrong."""
        return self._gen

    def next_gen(self) -> int:
        """Return the next generation."""
        self._gen += 1
        return self._gen

    def find(self, queue: str) -> PendingWork | None:
        """Return the pending work of a known queue."""
        return self.by_queue.get(queue)

    def newest(self, queue: str) -> tuple[int, bool]:
        """Return a queue's newest generation (0 if it is unknown) and whether work is waiting there.

        An unknown name may be one that was evicted: then it counts as the newest of those.
        """
        work = self.find(queue)
        return (
            (self.evicted_gen, self.evicted_with_work > 0)
            if work is None
            else (max(work.gen, work.notified), work.waits)
        )

    def open(self, queue: str, now: float) -> PendingWork:
        """Return or create the pending work of ``queue``, for listeners and the queue service; no limit applies.

        The caller ensures that it is `needed` before another is opened.
        """
        work = self.by_queue.get(queue)
        if work is None:
            self._make_room()
            work = self._add(queue, now)
        return work

    def get_or_add(self, queue: str, now: float) -> PendingWork:
        """Return or create the pending work of a queue that was triggered.

        If every known name is needed, the result is not kept: request a wake for subscribers, but arm no timer.
        """
        work = self.by_queue.get(queue)
        if work is None:
            if self._make_room():
                return self._add(queue, now)
            work = self._new(queue, now)
            self.evicted_with_work += 1
            self.evicted_gen = self.next_gen()
        return work

    def release(self, work: PendingWork) -> None:
        """Allow the eviction of a queue that is no longer needed."""
        if not work.needed and work.queue in self.by_queue:
            self._lanes[work.lane][work.queue] = None

    def forget(self, queue: str) -> None:
        """Forget a deleted queue that has no pending work."""
        work = self.by_queue.get(queue)
        if work is not None and work.forgettable:
            self.drop(queue)

    def drop(self, queue: str) -> None:
        """Forget a queue with its pending work and due times; the next session to subscribe is woken to check (B10)."""
        if self.by_queue.pop(queue, None) is not None:
            self._forgotten(queue)
        for lane in self._lanes:
            lane.pop(queue, None)

    def _new(self, queue: str, now: float) -> PendingWork:
        return PendingWork(
            queue=queue, sessions=QueueSessions(queue, self.changed), numbers=self._tuning.of(queue), born_at=now
        )

    def _add(self, queue: str, now: float) -> PendingWork:
        work = self.by_queue[queue] = self._new(queue, now)
        self._lanes[0][queue] = None
        return work

    def _make_room(self) -> bool:
        """Evict names, and return whether there is room for one more."""
        # Two per new name: listeners are accepted beyond the limit, and the surplus shrinks step by step.
        for _ in range(2):
            if len(self.by_queue) < self.limit:
                break
            work = self._least_needed()
            if work is None:
                break
            if work.lane:
                self.evicted_with_work += 1
                self.evicted_gen = max(self.evicted_gen, work.gen, work.notified)
            self.drop(work.queue)
        return len(self.by_queue) < self.limit

    def _least_needed(self) -> PendingWork | None:
        for number, lane in enumerate(self._lanes):
            while lane:
                queue, _ = lane.popitem(last=False)
                work = self.by_queue.get(queue)
                if work is None or work.needed:
                    continue
                if work.lane > number:
                    self._lanes[work.lane][queue] = None
                    continue
                return work
        return None

    def request_wake(
        self, work: PendingWork, now: float, reason: Reason, size: int, trace: Traced | None = None, *, foreign: bool
    ) -> None:
        """Raise a queue's pending work to a new generation (B1); requests are merged and never dropped (I8)."""
        work.gen = self.next_gen()
        doubtful = reason in CHECK_ONLY
        work.work_reported = work.work_reported or not doubtful
        if reason in WORK:
            work.work_reported_at = now
        work.after_gap = doubtful and not work.sessions and (work.after_gap or not work.dirty)
        if not work.dirty:
            work.dirty = True
            work.requested_at = now
            work.size = 0
        work.reason = reason
        work.size = min(SIZE_MAX, work.size + size)
        if trace is not None:
            work.traceparent = trace.traceparent or work.traceparent
            work.traces = merged(work.traces, trace)
        work.foreign = work.foreign or foreign

    def settle(self, work: PendingWork) -> None:
        """Clear the pending work."""
        work.dirty = work.work_reported = work.after_gap = False
        work.foreign = False
        work.size = 0
        work.traceparent = work.traces = None
        self.clear_owner(work)

    def clear_owner(self, work: PendingWork) -> None:
        """Clear the owner."""
        work.owner = None
        work.unacked = ()
        work.asked = frozenset()
        work.rounds = 0
        work.started_at = None
