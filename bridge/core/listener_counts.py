"""The newest levels of each instance, by which repeated levels are told from new work; pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from bridge.contract.jobs import CLASSES_MAX, HANDLERS_MAX, NO_JOBS, NOTHING, OUTCOMES, Jobs, Spread, add, minus, plus
from bridge.contract.names import POISON_SUFFIX
from bridge.contract.sources import UNANNOUNCED, WAKE_SOURCES
from bridge.contract.wire import TALLIED, BuriedCount, StoreDepth
from bridge.core.pending_work import Counted, CountedBuried, PendingWork
from bridge.observe.facts import Fact, JobsTold, ReceivesTold, Unannounced, WorkersTallied

PACKED_MAX: Final = 4 * 1024 * 1024
"""Bytes that the packed levels of lost instances take at most."""

K = TypeVar("K")
L = TypeVar("L")


class Levels(Generic[K, L]):
    """Remembers the levels of each instance by key: as they are while it has a session, packed after it was lost.

    An instance that said bye never comes back: it is forgotten at once, and what it did is in the sums. Beyond ``most``
    levels of instances with a session, and beyond 4 MiB of packed ones, the instance that was silent longest is
    forgotten first. ``kind`` is the type of one instance's levels.
    """

    def __init__(self, kind: Any, most: int) -> None:
        self.forgot = False
        """Whether an instance was forgotten that may come back."""
        self._kind = kind
        self._most = most
        self._live: OrderedDict[str, dict[K, L]] = OrderedDict()
        self._packed: OrderedDict[str, bytes] = OrderedDict()
        self._count = 0
        self._bytes = 0

    def get(self, instance: str, key: K) -> L | None:
        """Return the level that is remembered."""
        levels = self._live.get(instance)
        if levels is None and (packed := self._packed.pop(instance, None)) is not None:
            self._bytes -= len(packed)
            levels = self._live[instance] = msgspec.msgpack.decode(packed, type=self._kind)
            self._count += len(levels)
        return None if levels is None else levels.get(key)

    def keep(self, instance: str, key: K, level: L) -> None:
        """Remember a level of an instance that was heard just now, after `get`."""
        levels = self._live.setdefault(instance, {})
        self._count += key not in levels
        levels[key] = level
        self._live.move_to_end(instance)
        while self._count > self._most:
            oldest, others = next(iter(self._live.items()))
            del others[next(iter(others))]
            self._count -= 1
            self.forgot = True
            if not others:
                del self._live[oldest]

    def lost(self, instance: str) -> None:
        """Pack the levels of an instance whose session is gone."""
        levels = self._live.pop(instance, None)
        if levels is not None:
            self._count -= len(levels)
            packed = self._packed[instance] = msgspec.msgpack.encode(levels)
            self._bytes += len(packed)
            while self._bytes > PACKED_MAX:
                self._bytes -= len(self._packed.popitem(last=False)[1])
                self.forgot = True

    def ended(self, instance: str) -> None:
        """Forget an instance that never comes back."""
        self._count -= len(self._live.pop(instance, ()))
        self._bytes -= len(self._packed.pop(instance, b""))


TELLERS_MAX: Final = 100_000
WHOLE_S: Final = 60.0
"""For so long a bare number does not take the place of a count that told more."""
STEP_MAX: Final = 1_000_000
"""The most that one heartbeat adds to a count; a listener that claims more is broken, and must not spoil the sums."""


class ReceiveCounts:
    """Counts receives into debts, and remembers the levels of each instance and queue that ever told of any.

    Beyond 100,000 such pairs, and beyond 4 MiB of lost instances, the one that was silent longest is forgotten. From
    then on the first levels of a pair that is not known only say where its counts begin: too little is counted rather
    than the same again and again.
    """

    def __init__(self) -> None:
        self.levels: Levels[str, dict[str, tuple[int, int]]] = Levels(
            dict[str, dict[str, tuple[int, int]]], TELLERS_MAX
        )

    def told(
        self, instance: str, work: PendingWork, levels: Mapping[str, tuple[int, int]], *, announced: bool = False
    ) -> list[Fact]:
        """Take the levels of one heartbeat, count what is new in them, and return it as facts.

        Where work was ``announced`` meanwhile, a look that nobody asked for may have come before the trigger of what it
        found: then `UNANNOUNCED` is not counted.
        """
        found_known = self.levels.get(instance, work.queue)
        base = self.levels.forgot and found_known is None
        known = {} if found_known is None else found_known
        self.levels.keep(instance, work.queue, known)
        news: list[Fact] = []
        for source in (*WAKE_SOURCES, UNANNOUNCED):
            level = levels.get(source)
            if level is None:
                continue
            was = known.get(source, (0, 0))
            found, empty = max(0, level[0] - was[0]), max(0, level[1] - was[1])
            if found or empty:
                known[source] = (was[0] + found, was[1] + empty)
                if base:
                    continue
                found, empty = min(found, STEP_MAX), min(empty, STEP_MAX)
                if source == UNANNOUNCED:
                    if not announced:
                        work.unannounced += found
                        news.append(Unannounced(work.queue, found))
                    continue
                count_found(work, source, found)
                work.receives += found + empty
                work.empty += empty
                news.append(ReceivesTold(work.queue, source, found, empty))
        return news


def count_depth(work: PendingWork, depth: StoreDepth, now: float) -> None:
    """Keep the newest count of a queue elsewhere; heartbeats of several listeners come in any order.

    A bare number, as a scaler counts it, does not hide for a while what was told beside another.
    """
    at, before = now - depth.age_ms / 1000, work.counted
    bare = depth.leased is None and depth.delayed is None and depth.oldest_ms is None and depth.visible > 0
    if before is not None and bare and before.whole and at < before.at + WHOLE_S:
        return
    if before is None or at >= before.at:
        oldest_at = None if depth.oldest_ms is None or not depth.visible else at - depth.oldest_ms / 1000
        work.counted = Counted(
            depth.visible, depth.invisible, at, depth.at_least, depth.leased, depth.delayed, oldest_at
        )


def count_buried(work: PendingWork, buried: BuriedCount, now: float) -> None:
    """Keep the newest count of a queue's poison queue, likewise."""
    at = now - buried.age_ms / 1000
    if work.buried is None or at >= work.buried.at:
        work.buried = CountedBuried(buried.queue or work.queue + POISON_SUFFIX, buried.messages, at)


def count_triggers(work: PendingWork, now: float, bus: str, count: int) -> None:
    """Count triggers, by the bus that they came by."""
    work.triggers += count
    work.buses = {**work.buses, bus: work.buses.get(bus, 0) + count}
    work.triggered_at = now


def count_found(work: PendingWork, source: str, found: int) -> None:
    """Count receives that found work, by what made their listener look."""
    if found:
        work.wake_sources = {**work.wake_sources, source: work.wake_sources.get(source, 0) + found}


def was_announced(work: PendingWork, now: float, within_s: float) -> bool:
    """Say whether what a listener told of just now may be work that was announced.

    It was where a trigger, a delay or a lease marked the queue and is not settled yet, or did so within ``within_s``: a
    put that a look meets before its trigger came, and a heartbeat that tells of it some seconds later.
    """
    return now - work.announced_at <= within_s or (work.dirty and work.announced_at >= work.marked_at)


JOB_TELLERS_MAX: Final = 100_000
JOB_STEP_MAX: Final = 1_000_000_000
"""The most that one heartbeat adds to a count: a worker that was without a bridge for hours has that much to tell, and
whoever claims more is broken, and must not spoil the sums. Of milliseconds it is a thousand times as much."""


class JobCounts:
    """Counts into debts what is new in the levels of each instance, queue and handler, and returns it as facts.

    Late and repeated heartbeats add nothing. Beyond 100,000 such triples, and beyond 4 MiB of lost instances, the one
    that was silent longest is forgotten. Should it come back it says that it was heard before, and then its first
    levels only say where its counts begin.
    """

    def __init__(self) -> None:
        self.levels: Levels[tuple[str, str], Jobs] = Levels(dict[tuple[str, str], Jobs], JOB_TELLERS_MAX)

    def told(self, instance: str, work: PendingWork, levels: Mapping[str, Jobs]) -> list[Fact]:
        """Take the levels of one heartbeat, by handler; outcomes that this version does not know are ignored."""
        news: list[Fact] = []
        for handler, level in levels.items():
            key = (work.queue, handler)
            known = self.levels.get(instance, key)
            more = minus(_read(level, known or NO_JOBS), known or NO_JOBS)
            if more == NO_JOBS:
                continue
            self.levels.keep(instance, key, plus(known or NO_JOBS, more))
            if known is None and level.resumed:
                continue
            more = _believed(more)
            work.jobs = {} if work.jobs is None else work.jobs
            add(work.jobs, handler, more)
            news.append(JobsTold(work.queue, handler, more))
        return news


def seen(running: dict[str, int] | None, told: Mapping[str, Jobs]) -> dict[str, int]:
    """Return by handler how many calls of a session run, after a heartbeat that told of some: 20 handlers at most."""
    now = {**(running or {}), **{handler: jobs.in_flight for handler, jobs in told.items()}}
    return dict([(handler, count) for handler, count in now.items() if count][-HANDLERS_MAX:])


def _read(level: Jobs, known: Jobs) -> Jobs:
    """Return a level without what no listener tells: a name too many, for one, of those that it has told before."""
    failures = {
        name: count
        for name, count in level.failures.items()
        if name in known.failures or len(known.failures) <= CLASSES_MAX
    }
    outcomes = {name: level.outcomes[name] for name in OUTCOMES if name in level.outcomes}
    return msgspec.structs.replace(level, outcomes=outcomes, failures=failures)


def _believed(more: Jobs) -> Jobs:
    return Jobs(
        {name: min(count, JOB_STEP_MAX) for name, count in more.outcomes.items()},
        {name: min(count, JOB_STEP_MAX) for name, count in more.failures.items()},
        0,
        min(more.leases_lost, JOB_STEP_MAX),
        _believable(more.handling),
        _believable(more.waiting),
    )


def _believable(spread: Spread) -> Spread:
    if spread is NOTHING:
        return spread
    return Spread([min(count, JOB_STEP_MAX) for count in spread.counts], min(spread.total_ms, 1000 * JOB_STEP_MAX))


TALLY_TELLERS_MAX: Final = 10_000
TALLY_STEP_MAX: Final = 1_000_000
"""The most that one heartbeat adds to a count: whoever claims more is broken, and must not spoil the sums."""


class WorkerCounts:
    """Remembers the levels of each instance and queue, and returns as facts what is new in them.

    Beyond 10,000 such pairs the one that was silent longest is forgotten, and counted anew should it come back.
    """

    def __init__(self) -> None:
        self.levels: Levels[str, dict[str, int]] = Levels(dict[str, dict[str, int]], TALLY_TELLERS_MAX)

    def told(self, instance: str, queue: str, levels: Mapping[str, int]) -> list[Fact]:
        """Take the levels of one heartbeat; words that this version does not know are ignored."""
        known = self.levels.get(instance, queue) or {}
        self.levels.keep(instance, queue, known)
        news: list[Fact] = []
        for what in TALLIED:
            more = levels.get(what, 0) - known.get(what, 0)
            if more > 0:
                known[what] = levels[what]
                news.append(WorkersTallied(queue, what, min(more, TALLY_STEP_MAX)))
        return news
