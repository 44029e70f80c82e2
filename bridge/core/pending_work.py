"""What the bridge owes: per queue one debt, *dirty at generation g*, and who took it on.

There is one counter of generations per boot, not one per queue: a queue that is deleted and made again must never meet
an old cover (B1).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from bridge.contract.jobs import Jobs
from bridge.contract.sources import WORK
from bridge.contract.trace_context import Traced, Traces, merged
from bridge.contract.wire import Reason
from bridge.core.agenda import DueTimes
from bridge.core.session_queue import QueueSessions
from bridge.core.settings import Numbers, Tuning

SIZE_MAX = 1_000_000_000


class Counted(msgspec.Struct, frozen=True):
    """What a queue elsewhere held at ``at``, as its store told a listener; maybe more where said."""

    visible: int
    invisible: int
    at: float
    at_least: bool
    leased: int | None = None
    delayed: int | None = None
    oldest_at: float | None = None
    """Since when the message that was visible longest was so; None where none was, or it was not told."""

    @property
    def whole(self) -> bool:
        """Whether the store told more than two numbers."""
        return self.leased is not None or self.oldest_at is not None

    def older(self, gap_s: float) -> Counted:
        """Return the same, so much longer ago."""
        oldest_at = None if self.oldest_at is None else self.oldest_at - gap_s
        return msgspec.structs.replace(self, at=self.at - gap_s, oldest_at=oldest_at)


class CountedBuried(msgspec.Struct, frozen=True):
    """How many messages lay in the poison ``queue`` at ``at``, as a listener counted them."""

    queue: str
    messages: int
    at: float


DOUBTS: Final = frozenset({"resync", "sweep"})
"""Reasons that do not say that work is there, only that somebody should make sure."""


# What most queues have none of is shared, and replaced instead of changed: of 100,000 names each byte counts.
_NOTHING: Final[Mapping[str, int]] = {}
_NEVER: Final[dict[Reason, DueTimes]] = {}


class PendingWork(msgspec.Struct, eq=False):
    """One queue as the bridge knows it."""

    queue: str
    sessions: QueueSessions
    numbers: Numbers
    gen: int = 0
    dirty: bool = False
    deferred: bool = False
    """Waits for its turn: another bridge looks first, and this one if nothing is heard of that (C2)."""
    announced: bool = False
    """Since it was last settled somebody said that work is there; else somebody should only make sure."""
    after_gap: bool = False
    """Marked while nobody was there, by nothing but a gap in which triggers may have been missed (B2)."""
    reason: Reason = "resync"
    size: int = 0
    marked_at: float = 0.0
    traceparent: str | None = None
    traces: Traces | None = None
    """The trace contexts that no wake has taken along yet."""

    owner: int | None = None
    unacked: tuple[tuple[int, float], ...] = ()
    """Wakes the owner has not answered with `started`: (gen, when sent); the oldest and the newest are enough."""
    asked: frozenset[int] = frozenset()
    rounds: int = 0
    started_at: float | None = None
    """When the owner's newest known receive began (B5)."""

    exists: bool = False
    """Stands in the queue service (O0)."""
    paused: bool = False
    """Gives nothing out: the store counts all its messages as invisible."""
    visible: int = 0
    invisible: int = 0
    visible_since: float = 0.0
    leased: int = 0
    delayed: int = 0
    oldest_at: float | None = None
    """Since when the message that has been visible longest is so; None where none is."""
    foreign: bool = False
    """Marked by something else than the store's own level, which therefore cannot settle it."""
    announced_at: float = float("-inf")
    """When it was last marked for work that was announced: by a trigger, or the end of a delay or lease."""
    found_empty_at: float | None = None
    read_elsewhere: bool = False
    """The newest cover came from a listener of another store than the queue service."""
    born_at: float = 0.0
    due: dict[Reason, DueTimes] = msgspec.field(default_factory=lambda: _NEVER)
    due_to_all: dict[Reason, DueTimes] = msgspec.field(default_factory=lambda: _NEVER)
    """Due times that the other bridges of a cluster have as well: they look in turn (C2)."""

    rung: int = 0
    """The newest generation that plain subscribers were told."""
    rung_at: float = float("-inf")
    """When they were told it."""
    carried_told: int = 0
    """Messages of the commit under way that they heard of already, with the wake that carries them (O7)."""

    triggers: int = 0
    receives: int = 0
    empty: int = 0
    unannounced: int = 0
    """Receives that found work whose publish was lost (B9)."""
    unannounced_at: float | None = None
    """When the newest of them was told of."""
    buses: Mapping[str, int] = msgspec.field(default_factory=lambda: _NOTHING)
    """Triggers by the bus that they came by."""
    triggered_at: float | None = None
    counted: Counted | None = None
    buried: CountedBuried | None = None
    store: str = ""
    """What kind of store its listeners elsewhere take from, as the newest of them said."""
    wakes: Mapping[str, int] = msgspec.field(default_factory=lambda: _NOTHING)
    wake_sources: Mapping[str, int] = msgspec.field(default_factory=lambda: _NOTHING)
    """Receives that found work, and wakes whose messages were taken up, by what made their listener look."""
    jobs: dict[str, Jobs] | None = None
    """What became of its messages, by handler; None before anybody told."""

    @property
    def own(self) -> bool:
        """Whether the queue service holds this queue, or a session says so (O0)."""
        return self.exists or self.sessions.any_own

    @property
    def elsewhere(self) -> bool:
        """Whether some listener takes its messages from another store than the queue service.

        Its debts can only be settled by covers, whatever the queue service knows of a queue of the same name.
        """
        return (not self.exists and not self.sessions.any_own) or self.sessions.any_foreign

    @property
    def waits(self) -> bool:
        """Whether work waits here, as far as anybody can say.

        The queue service knows what is visible in it. Elsewhere it is what was marked and not covered yet.
        """
        return self.visible > 0 or (self.dirty and self.elsewhere)

    @property
    def needed(self) -> bool:
        """Whether it is never forgotten for want of room: it stands in the queue service, or somebody listens."""
        return self.exists or len(self.sessions) > 0

    @property
    def any_due(self) -> bool:
        """Whether something becomes due here."""
        return bool(self.due or self.due_to_all)

    @property
    def lane(self) -> int:
        """How late it goes where names are too many: first what nothing is known of, last what is due at a time."""
        return 2 if self.any_due else 1 if self.dirty else 0

    @property
    def forgettable(self) -> bool:
        """Whether nothing would be lost by forgetting this queue."""
        return not (self.dirty or self.exists or self.any_due or len(self.sessions))


class PendingQueues:
    """All debts of one boot.

    At its limit it forgets names that nobody listens to: those that nothing is known of first, then those with a debt,
    last those with due times; of each kind the one heard of longest ago. Nobody who listens loses a wake by it: a queue
    that is not known is dirty at its first hello (B10), and what was due there the sweep finds. ``forgotten`` hears of
    each name that goes, however it goes.
    """

    def __init__(self, limit: int, tuning: Tuning, forgotten: Callable[[str], None] = lambda queue: None) -> None:
        self.by_queue: dict[str, PendingWork] = {}
        self.limit = limit
        self.unknown = 0
        """How many names with something owed were forgotten, or not even noted, for want of room."""
        self.unknown_gen = 0
        """The newest generation given to any of those; 0 before the first."""
        self.stirred: set[str] | None = None
        """Queues whose sessions, or their room, changed; only kept among several bridges (C3)."""
        self._tuning = tuning
        self._forgotten = forgotten
        self._gen = 0
        # Every name that may be forgotten is in one of these, perhaps with some that may not. They are sorted out when
        # their turn comes, which costs each change of a queue one step at most.
        self._lanes: tuple[OrderedDict[str, None], ...] = (OrderedDict(), OrderedDict(), OrderedDict())

    @property
    def newest_gen(self) -> int:
        """The newest generation given in this boot; whoever claims a newer one is wrong."""
        return self._gen

    def next_gen(self) -> int:
        """Return the next generation."""
        self._gen += 1
        return self._gen

    def find(self, queue: str) -> PendingWork | None:
        """Return the debt of a queue that was heard of."""
        return self.by_queue.get(queue)

    def newest(self, queue: str) -> tuple[int, bool]:
        """Return a queue's newest generation, 0 if it was never heard of, and whether work waits there.

        A name that is not known may be one that was forgotten for want of room: then it counts as the newest of those.
        """
        work = self.find(queue)
        return (self.unknown_gen, self.unknown > 0) if work is None else (max(work.gen, work.rung), work.waits)

    def open(self, queue: str, now: float) -> PendingWork:
        """Return the debt of ``queue``, which may be new; for listeners and the queue service, whom no limit refuses.

        The caller sees to it that it is `needed` before another is opened.
        """
        work = self.by_queue.get(queue)
        if work is None:
            self._make_room()
            work = self._add(queue, now)
        return work

    def get_or_add(self, queue: str, now: float) -> PendingWork:
        """Return the debt of a queue that somebody rang for.

        Where every known name is needed it is not kept: mark it all the same, for plain subscribers, and keep no time
        for it.
        """
        work = self.by_queue.get(queue)
        if work is None:
            if self._make_room():
                return self._add(queue, now)
            work = self._new(queue, now)
            self.unknown += 1
            self.unknown_gen = self.next_gen()
        return work

    def release(self, work: PendingWork) -> None:
        """Note that nobody needs a queue any more: it may be forgotten when there is no room."""
        if not work.needed and work.queue in self.by_queue:
            self._lanes[work.lane][work.queue] = None

    def forget(self, queue: str) -> None:
        """Forget a queue that is gone, if nothing is owed."""
        work = self.by_queue.get(queue)
        if work is not None and work.forgettable:
            self.drop(queue)

    def drop(self, queue: str) -> None:
        """Forget a queue with all that is owed there; whoever comes to it later is asked to look (B10)."""
        if self.by_queue.pop(queue, None) is not None:
            self._forgotten(queue)
        for lane in self._lanes:
            lane.pop(queue, None)

    def _new(self, queue: str, now: float) -> PendingWork:
        return PendingWork(
            queue=queue, sessions=QueueSessions(queue, self.stirred), numbers=self._tuning.of(queue), born_at=now
        )

    def _add(self, queue: str, now: float) -> PendingWork:
        work = self.by_queue[queue] = self._new(queue, now)
        self._lanes[0][queue] = None
        return work

    def _make_room(self) -> bool:
        """Forget what need not be known, and say whether there is room for one more."""
        # Two for one: listeners are let in beyond the limit, and what they leave behind goes bit by bit.
        for _ in range(2):
            if len(self.by_queue) < self.limit:
                break
            work = self._least_needed()
            if work is None:
                break
            if work.lane:
                self.unknown += 1
                self.unknown_gen = max(self.unknown_gen, work.gen, work.rung)
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
        """Raise the debt of a queue to a new generation (B1); never dropped, only merged (I8)."""
        work.gen = self.next_gen()
        doubtful = reason in DOUBTS
        work.announced = work.announced or not doubtful
        if reason in WORK:
            work.announced_at = now
        work.after_gap = doubtful and not work.sessions and (work.after_gap or not work.dirty)
        if not work.dirty:
            work.dirty = True
            work.marked_at = now
            work.size = 0
        work.reason = reason
        work.size = min(SIZE_MAX, work.size + size)
        if trace is not None:
            work.traceparent = trace.traceparent or work.traceparent
            work.traces = merged(work.traces, trace)
        work.foreign = work.foreign or foreign

    def settle(self, work: PendingWork) -> None:
        """Nothing is owed any more."""
        work.dirty = work.announced = work.after_gap = False
        work.foreign = False
        work.size = 0
        work.traceparent = work.traces = None
        self.clear_owner(work)

    def clear_owner(self, work: PendingWork) -> None:
        """Nobody has taken the debt on."""
        work.owner = None
        work.unacked = ()
        work.asked = frozenset()
        work.rounds = 0
        work.started_at = None
