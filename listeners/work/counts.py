"""What a worker counts and reports in heartbeats: its receives, the outcomes of its messages, and the store's backlog.

`ReceiveCounts` counts receives by wake source, `JobCounts` the outcomes of messages. `StoreCounts` counts messages in
the store when `CountSchedule` says that it is worth it. All are levels, so that a lost heartbeat heals. A level is
repeated only until the bridge has echoed a heartbeat that carried it, so an idle session pays nothing.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, Generic, TypeVar

import msgspec

from queuebell.bridge.contract.errors import QueuebellError, QueueNotFound
from queuebell.bridge.contract.jobs import (
    BOUNDS_S,
    CLASS_CHARS_MAX,
    CLASSES_MAX,
    HANDLER_CHARS_MAX,
    NO_JOBS,
    NOTHING,
    OTHER,
    Jobs,
    Spread,
    label,
    minus,
)
from queuebell.bridge.contract.names import POISON_SUFFIX
from queuebell.bridge.contract.sources import UNANNOUNCED, UNASKED
from queuebell.bridge.contract.wire import BuriedCount, Counts, StoreDepth
from queuebell.bridge.queues.base import QueueStore, Received

log = logging.getLogger("queuebell.listener")


class StoreCounts:
    """Counts one queue and its poison queue when `CountSchedule` says so; a count that fails is not repeated for it."""

    def __init__(self, queue: str, store: QueueStore, rules: CountSchedule) -> None:
        self.rules = rules
        self._queue = queue
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def on_received(self, answer: Received, source: str, *, own: bool, sessions: int, call_s: float) -> None:
        """Record what a receive reported, and count if it is worth it; the bridge counts its ``own`` queues itself."""
        now = self._loop.time()
        if not own:
            counts, depth, whole = answer.counts, answer.depth, answer.counts is not None
            if answer.messages and not whole:
                self.rules.took()
            if counts is None and depth is not None:
                none = 0 if self._store.capabilities.exact_depth and not depth.invisible else None
                counts = Counts(depth.visible, depth.invisible, answer.depth_is_least, leased=none, delayed=none)
            if counts is not None:
                self.rules.answered(counts, now, whole=whole)
            if answer.messages and not whole and self.rules.worth(now, sessions):
                self._spawn(partial(self._count, call_s), "count")
        self._count_poison_if(self.rules.poison_to_count(source, now, own=own), call_s)

    def poison_changed(self, *, own: bool, call_s: float) -> None:
        """Record that a message was dead-lettered or replayed."""
        self.rules.poison_changed()
        self._count_poison_if(self.rules.poison_to_count("", self._loop.time(), own=own), call_s)

    async def close(self) -> None:
        """End the counts under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _count_poison_if(self, poison: str | None, call_s: float) -> None:
        if poison is not None:
            self._spawn(partial(self._count_poison, poison, call_s), "count-buried")

    def _spawn(self, work: Callable[[], Awaitable[None]], name: str) -> None:
        task = self._loop.create_task(self._quietly(work), name=f"{name}[{self._queue}]")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _quietly(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (QueuebellError, TimeoutError) as error:
            log.debug("%s: a count failed, and is not repeated: %s", self._queue, error)
        except Exception:
            log.exception("%s: unexpected error while counting", self._queue)

    async def _count(self, call_s: float) -> None:
        began = self._loop.time()
        try:
            async with asyncio.timeout(call_s):
                counts = await self._store.counts(self._queue)
        except QueueNotFound:
            counts = None
        self.rules.counted(counts, began)

    async def _count_poison(self, poison: str, call_s: float) -> None:
        try:
            async with asyncio.timeout(call_s):
                counts = await self._store.counts(poison)
        except QueueNotFound:
            counts = None
        self.rules.poison_counted(0 if counts is None else counts.visible + counts.invisible, self._loop.time())


COUNT_S: Final = 30.0
"""The least seconds between counts of a queue by all sessions of a bridge together, while work is found."""


class CountSchedule:
    """When to count one queue and its ``poison`` queue (None: it has none), and what is known of both."""

    def __init__(self, queue: str, poison: str | None) -> None:
        self._poison = poison
        self._name = "" if poison is None or poison == queue + POISON_SUFFIX else poison
        """The poison queue's name, where it is not the usual one."""
        self._counts: tuple[Counts, float] | None = None
        self._buried: tuple[int, float] | None = None
        self._count_from = float("-inf")
        self._bury_from = float("-inf")
        self._owed = poison is not None
        """Whether the poison queue is to be counted, whatever is known of it."""
        self._all_counted = False
        """Whether whatever was received here was received before the newest count."""
        self._news = 0
        self._reported = 0
        self._stamp: tuple[int, int] | None = None

    def answered(self, counts: Counts, now: float, *, whole: bool) -> None:
        """Record what a receive reported; ``whole`` where the store can report no more.

        A partial count does not replace a newer full one: the bounded count beside each batch would hide a better one.
        """
        if whole or not counts.visible or self._counts is None or now >= self._counts[1] + COUNT_S:
            self.counted(counts, now)

    def counted(self, counts: Counts | None, at: float) -> None:
        """Record a count of that moment; None for a queue that does not exist. An older one is of no use."""
        if self._counts is None or at >= self._counts[1]:
            self._counts, self._news = (counts or Counts(0, 0), at), self._news + 1
            self._all_counted = True

    def took(self) -> None:
        """Record that messages were received without a count."""
        self._all_counted = False

    def deleted(self) -> None:
        """Record that a message received here is gone: it was leased when the store was last counted.

        The last receive of a burst often comes while its last deletes are under way, and no other follows.
        """
        if self._counts is None or not self._all_counted or not self._counts[0].invisible:
            return
        counts, at = self._counts
        invisible = counts.invisible - 1
        leased = None if counts.leased is None else max(0, counts.leased - 1)
        left = msgspec.structs.replace(counts, invisible=invisible, leased=leased if invisible else 0)
        self._counts, self._news = (left, at), self._news + 1

    def worth(self, now: float, sessions: int) -> bool:
        """Return whether to count beside a receive that found work and did not report all; the caller then counts."""
        if now < self._count_from:
            return False
        self._count_from = now + COUNT_S * max(1, sessions)
        return True

    def poison_changed(self) -> None:
        """Record that a message was dead-lettered or replayed."""
        self._owed = self._poison is not None

    def poison_to_count(self, source: str, now: float, *, own: bool) -> str | None:
        """Return the poison queue if it is to be counted beside a receive of this source; the caller then counts.

        Of an ``own`` queue the bridge knows that, if it knows the poison queue's name.
        """
        lies = self._buried is not None and self._buried[0] > 0
        wanted = (self._owed or (lies and source in UNASKED)) and not (own and not self._name)
        if now < self._bury_from or not wanted:
            return None
        if self._buried is not None:  # dead letters soon after the start are counted immediately
            self._bury_from = now + COUNT_S
        self._owed = False
        return self._poison

    def poison_counted(self, messages: int, now: float) -> None:
        """Record a count of the poison queue."""
        self._buried, self._news = (messages, now), self._news + 1

    # Reports ------------------------------------------------------------------------------------------------------

    def greeted(self) -> None:
        """Record a new session: its bridge may know nothing."""
        self._reported, self._stamp = 0, None

    @property
    def changed(self) -> bool:
        """Whether an echoed heartbeat has not reported everything."""
        return self._news != self._reported

    def report(self, stamp: int, now: float) -> tuple[StoreDepth | None, BuriedCount | None]:
        """Return what is known, for the heartbeat of this stamp, which must then be sent."""
        self._stamp = stamp, self._news
        depth = buried = None
        if self._counts is not None:
            counts, at = self._counts
            age_ms = round((now - at) * 1000)
            depth = StoreDepth(
                counts.visible,
                counts.invisible,
                age_ms,
                counts.at_least,
                counts.leased,
                counts.delayed,
                counts.oldest_ms,
            )
        if self._buried is not None:
            buried = BuriedCount(self._buried[0], round((now - self._buried[1]) * 1000), self._name)
        return depth, buried

    def echoed(self, stamp: int) -> None:
        """Record that the bridge has the heartbeat of this stamp."""
        if self._stamp is not None and self._stamp[0] == stamp:
            self._reported, self._stamp = self._stamp[1], None


BOOTS_MAX: Final = 16
"""Boots whose acknowledged levels are kept: bridges of a cluster, and those before their restarts."""
Level = TypeVar("Level")


class Acknowledged(Generic[Level]):
    """The newest levels that the bridge acknowledged; ``minus`` subtracts levels, and ``level`` starts as zero.

    Each boot of the bridge receives what no other boot has acknowledged, and a boot that returns goes on from what it
    has: summed over all boots nothing is missing and nothing counts twice.
    """

    __slots__ = ("_base", "_boot", "_minus", "_of_boots", "_sent", "_stamp", "_zero", "level")

    def __init__(self, zero: Level, minus: Callable[[Level, Level], Level]) -> None:
        self.level = self._sent = self._base = self._zero = zero
        self._minus = minus
        self._of_boots: dict[str, Level] = {}
        self._boot: str | None = None
        self._stamp: int | None = None

    @property
    def of_boot(self) -> Level:
        """What this boot has acknowledged."""
        return self._minus(self.level, self._base)

    def greeted(self, boot: str) -> None:
        """Record the boot of the bridge; a new one counts from zero."""
        if boot == self._boot:
            return
        if self._boot is not None:
            self._of_boots[self._boot] = self.of_boot
            if len(self._of_boots) > BOOTS_MAX:
                del self._of_boots[next(iter(self._of_boots))]
        self._boot, self._stamp = boot, None
        self._base = self._minus(self.level, self._of_boots.pop(boot, self._zero))

    def report(self, stamp: int, level: Level) -> Level:
        """Return what to report of ``level`` in the heartbeat of this stamp."""
        self._stamp, self._sent = stamp, level
        return self._minus(level, self._base)

    def echoed(self, stamp: int) -> bool:
        """Record that the bridge has the heartbeat of this stamp; return whether it was the newest report."""
        if stamp != self._stamp:
            return False
        self.level, self._stamp = self._sent, None
        return True


WARN_EVERY_S: Final = 600.0
REPORT_BYTES: Final = 1024
"""The most bytes of a report: eight sources, two numbers each, the store's, and those of the poison queue."""


class ReceiveCounts:
    """Counts of one queue: found and empty by source.

    ``found`` counts the receives that brought work, and the wakes that carried some, by their source.
    """

    __slots__ = ("_acknowledged", "_levels", "_warned_at", "found", "unasked")

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self.unasked = 0
        """Receives that no wake asked for and that found work all the same."""
        self._levels: dict[str, tuple[int, int]] = {}
        self._acknowledged: Acknowledged[dict[str, tuple[int, int]]] = Acknowledged({}, _minus)
        self._warned_at: float | None = None

    def carried(self, source: str) -> None:
        """Count a wake that brought messages along; the bridge that sent it has counted it."""
        self.found[source] += 1

    def received(self, source: str, work: bool, *, known: bool, fresh: bool = False) -> None:
        """Count the answer to a receive; ``known`` where the store is the bridge's own and has counted it itself.

        ``fresh`` where it brought a message for the first time: one that comes again was announced once, and its
        lease ended.
        """
        if work:
            self.found[source] += 1
            self.unasked += source in UNASKED
        if known:
            return
        found, empty = self._levels.get(source, (0, 0))
        self._levels[source] = (found + work, empty + (not work))
        if fresh and source in UNASKED:
            self._levels[UNANNOUNCED] = (self._levels.get(UNANNOUNCED, (0, 0))[0] + 1, 0)

    def suspicious(self, source: str, now: float) -> bool:
        """Return whether to warn of work that a receive of this source found: at most once in ten minutes."""
        if source not in UNASKED or (self._warned_at is not None and now < self._warned_at + WARN_EVERY_S):
            return False
        self._warned_at = now
        return True

    def greeted(self, boot: str) -> None:
        """Record the boot of the bridge."""
        self._acknowledged.greeted(boot)

    @property
    def changed(self) -> bool:
        """Whether an echoed heartbeat has not reported everything."""
        return self._levels != self._acknowledged.level

    def report(self, stamp: int) -> dict[str, tuple[int, int]]:
        """Return (found, empty) by source, `UNANNOUNCED` too, for the heartbeat of this stamp; it must be sent."""
        return self._acknowledged.report(stamp, dict(self._levels))

    def echoed(self, stamp: int) -> None:
        """Record that the bridge has the heartbeat of this stamp."""
        self._acknowledged.echoed(stamp)


def _minus(levels: dict[str, tuple[int, int]], base: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return by how much each source's levels are above the others', without those that are not."""
    return {
        source: (found - less[0], empty - less[1])
        for source, (found, empty) in levels.items()
        if (less := base.get(source, (0, 0))) != (found, empty)
    }


EXTRA_BYTES: Final = 32
"""What a heartbeat holds next to the counts: the name of the field, and ``resumed``."""


class JobCounts:
    """Counts of one queue and one handler; times are seconds."""

    __slots__ = (
        "_acknowledged", "_failures", "_handling", "_outcomes", "_running_reported", "_running_sent",
        "_version", "_version_reported", "_version_sent", "_waiting", "handler", "in_flight", "leases_lost",
    )  # fmt: skip

    def __init__(self, handler: str) -> None:
        self.handler = label(handler, HANDLER_CHARS_MAX)
        self.in_flight = 0
        self.leases_lost = 0
        self._outcomes: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._handling = Durations()
        self._waiting = Durations()
        self._version = self._version_reported = self._version_sent = 0
        self._running_reported = self._running_sent = 0
        self._acknowledged = Acknowledged(NO_JOBS, minus)

    # What happens ---------------------------------------------------------------------------------------------------

    def began(self, count: int, waits: Iterable[float]) -> None:
        """Record that a call of the handler begins with ``count`` messages; ``waits`` are seconds since their puts."""
        self.in_flight += count
        for seconds in waits:
            self._waiting.add(max(0.0, seconds))
        self._version += 1

    def ended(self, count: int, seconds: float) -> None:
        """Record that a call with so many messages has ended, however it did."""
        self.in_flight -= count
        self._handling.add(seconds, count)
        self._version += 1

    def failed(self, name: str) -> None:
        """Count an attempt that failed, by class."""
        name = label(name, CLASS_CHARS_MAX)
        if name not in self._failures and len(self._failures) >= CLASSES_MAX:
            name = OTHER
        self._failures[name] += 1
        self._version += 1

    def concluded(self, outcome: str) -> None:
        """Count an attempt that has ended, as one of `OUTCOMES`."""
        self._outcomes[outcome] += 1
        self._version += 1

    def lost(self) -> None:
        """Count an attempt whose lease was lost."""
        self.leases_lost += 1
        self.concluded("lost")

    def level(self) -> Jobs:
        """Return all that happened since the start, and what runs now."""
        return Jobs(
            dict(self._outcomes),
            dict(self._failures),
            self.in_flight,
            self.leases_lost,
            self._handling.spread(),
            self._waiting.spread(),
        )

    # Reports --------------------------------------------------------------------------------------------------------

    def greeted(self, boot: str) -> None:
        """Record the boot of the bridge, which does not know yet what runs here."""
        self._running_reported = 0
        self._acknowledged.greeted(boot)

    @property
    def changed(self) -> bool:
        """Whether an echoed heartbeat has not reported everything."""
        return self._version != self._version_reported or self.in_flight != self._running_reported

    def report_bytes(self) -> int:
        """Return how many bytes a report takes at most."""
        return len(msgspec.json.encode({self.handler: self.level()})) + EXTRA_BYTES

    def report(self, stamp: int) -> dict[str, Jobs]:
        """Return the report by handler for the heartbeat of this stamp, which must then be sent."""
        self._version_sent, self._running_sent = self._version, self.in_flight
        resumed = self._acknowledged.of_boot != NO_JOBS
        report = self._acknowledged.report(stamp, self.level())
        return {self.handler: msgspec.structs.replace(report, in_flight=self.in_flight, resumed=resumed)}

    def echoed(self, stamp: int) -> None:
        """Record that the bridge has the heartbeat of this stamp."""
        if self._acknowledged.echoed(stamp):
            self._version_reported, self._running_reported = self._version_sent, self._running_sent


class Durations:
    """Durations by bucket, and their sum."""

    __slots__ = ("_counts", "_total_s")

    def __init__(self) -> None:
        self._counts: list[int] | None = None
        self._total_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a duration so many times, at least once."""
        if self._counts is None:
            self._counts = [0] * (len(BOUNDS_S) + 1)
        self._counts[bisect_left(BOUNDS_S, seconds)] += count
        self._total_s += seconds * count

    def spread(self) -> Spread:
        """Return them as reports hold them."""
        if self._counts is None:
            return NOTHING
        last = max(number for number, count in enumerate(self._counts) if count)
        return Spread(self._counts[: last + 1], round(self._total_s * 1000))
