"""Derive new work from the running totals that listeners repeat in heartbeats."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec

from queuebell.bridge.contract.jobs import (
    CLASSES_MAX,
    HANDLERS_MAX,
    NO_JOBS,
    NOTHING,
    OUTCOMES,
    Jobs,
    Spread,
    add,
    minus,
    plus,
)
from queuebell.bridge.contract.sources import UNANNOUNCED, WAKE_SOURCES
from queuebell.bridge.contract.wire import TALLIED
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.observe.facts import Fact, JobsTold, ReceivesTold, Unannounced, WorkersTallied

PACKED_MAX: Final = 4 * 1024 * 1024
"""Maximum size of the packed totals of lost instances, in bytes."""

K = TypeVar("K")
L = TypeVar("L")


class Levels(Generic[K, L]):
    """Remember each instance's totals by key: unpacked while it has a session, packed after it was lost.

    An instance that sent a bye never comes back and is forgotten immediately. Beyond ``most`` totals of connected
    instances, and beyond 4 MiB of packed ones, the longest-silent instance is forgotten first. ``kind`` is the type of
    one instance's totals.
    """

    def __init__(self, kind: Any, most: int) -> None:
        self.forgot = False
        """True if an instance that may come back was forgotten."""
        self._kind = kind
        self._most = most
        self._live: OrderedDict[str, dict[K, L]] = OrderedDict()
        self._packed: OrderedDict[str, bytes] = OrderedDict()
        self._count = 0
        self._bytes = 0

    def get(self, instance: str, key: K) -> L | None:
        """Return the remembered total."""
        levels = self._live.get(instance)
        if levels is None and (packed := self._packed.pop(instance, None)) is not None:
            self._bytes -= len(packed)
            levels = self._live[instance] = msgspec.msgpack.decode(packed, type=self._kind)
            self._count += len(levels)
        return None if levels is None else levels.get(key)

    def keep(self, instance: str, key: K, level: L) -> None:
        """Remember a total just received from an instance; call `get` first."""
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
        """Pack the totals of an instance whose session is gone."""
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


REPORTERS_MAX: Final = 100_000
STEP_MAX: Final = 1_000_000
"""Maximum that one heartbeat adds to a count; a listener that reports more is broken and must not spoil the sums."""


class ReceiveCounts:
    """Count receives per queue from each instance's totals.

    Beyond 100,000 pairs of instance and queue, and beyond 4 MiB of lost instances, the longest-silent one is forgotten.
    From then on the first totals of an unknown pair only set where its counts begin: counting too little is better than
    counting twice.
    """

    def __init__(self) -> None:
        self.levels: Levels[str, dict[str, tuple[int, int]]] = Levels(
            dict[str, dict[str, tuple[int, int]]], REPORTERS_MAX
        )

    def record(
        self, instance: str, work: PendingWork, levels: Mapping[str, tuple[int, int]], *, announced: bool = False
    ) -> list[Fact]:
        """Record the totals of one heartbeat; count and return the increase as facts.

        If work was ``announced`` meanwhile, an unrequested check may have preceded the trigger of what it found: then
        `UNANNOUNCED` is not counted.
        """
        stored = self.levels.get(instance, work.queue)
        base = self.levels.forgot and stored is None
        known = {} if stored is None else stored
        self.levels.keep(instance, work.queue, known)
        facts: list[Fact] = []
        for source in (*WAKE_SOURCES, UNANNOUNCED):
            level = levels.get(source)
            if level is None:
                continue
            previous = known.get(source, (0, 0))
            found, empty = max(0, level[0] - previous[0]), max(0, level[1] - previous[1])
            if found or empty:
                known[source] = (previous[0] + found, previous[1] + empty)
                if base:
                    continue
                found, empty = min(found, STEP_MAX), min(empty, STEP_MAX)
                if source == UNANNOUNCED:
                    if not announced:
                        work.unannounced += found
                        facts.append(Unannounced(work.queue, found))
                    continue
                work.count_found(source, found)
                work.receives += found + empty
                work.empty += empty
                facts.append(ReceivesTold(work.queue, source, found, empty))
        return facts


JOB_REPORTERS_MAX: Final = 100_000
JOB_STEP_MAX: Final = 1_000_000_000
"""Maximum that one heartbeat adds to a count: a worker without a bridge for hours has that much to report. One that
reports more is broken and must not spoil the sums. For milliseconds it is 1000 times as much."""


class JobCounts:
    """Count job outcomes from the totals of each instance, queue and handler, and return the increase as facts.

    Late and repeated heartbeats add nothing. Beyond 100,000 such triples, and beyond 4 MiB of lost instances, the
    longest-silent one is forgotten. If it comes back it reports that it resumed, and its first totals only set where
    its counts begin.
    """

    def __init__(self) -> None:
        self.levels: Levels[tuple[str, str], Jobs] = Levels(dict[tuple[str, str], Jobs], JOB_REPORTERS_MAX)

    def record(self, instance: str, work: PendingWork, levels: Mapping[str, Jobs]) -> list[Fact]:
        """Record the totals of one heartbeat by handler; ignore outcomes unknown to this version."""
        facts: list[Fact] = []
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
            facts.append(JobsTold(work.queue, handler, more))
        return facts


def seen(running: dict[str, int] | None, told: Mapping[str, Jobs]) -> dict[str, int]:
    """Return a session's running calls by handler after a heartbeat, for 20 handlers at most."""
    now = {**(running or {}), **{handler: jobs.in_flight for handler, jobs in told.items()}}
    return dict([(handler, count) for handler, count in now.items() if count][-HANDLERS_MAX:])


def _read(level: Jobs, known: Jobs) -> Jobs:
    """Return a total without invalid parts, such as more failure names than a listener may report."""
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


TALLY_REPORTERS_MAX: Final = 10_000
TALLY_STEP_MAX: Final = 1_000_000
"""Maximum that one heartbeat adds to a count: a listener that reports more is broken and must not spoil the sums."""


class WorkerCounts:
    """Count workers from the totals of each instance and queue, and return the increase as facts.

    Beyond 10,000 such pairs the longest-silent one is forgotten, and counted again if it comes back.
    """

    def __init__(self) -> None:
        self.levels: Levels[str, dict[str, int]] = Levels(dict[str, dict[str, int]], TALLY_REPORTERS_MAX)

    def record(self, instance: str, queue: str, levels: Mapping[str, int]) -> list[Fact]:
        """Record the totals of one heartbeat; ignore names unknown to this version."""
        known = self.levels.get(instance, queue) or {}
        self.levels.keep(instance, queue, known)
        facts: list[Fact] = []
        for name in TALLIED:
            more = levels.get(name, 0) - known.get(name, 0)
            if more > 0:
                known[name] = levels[name]
                facts.append(WorkersTallied(queue, name, min(more, TALLY_STEP_MAX)))
        return facts
