"""What a worker counts and reports in heartbeats: its receives, what became of its messages, and the store's backlog.

`ReceiveCounts` counts receives by wake source, `JobCounts` the outcomes of messages. `StoreCounts` counts messages in
the store when `CountSchedule` says that it is worth it. All are levels, so that a lost heartbeat heals. A level is
repeated only until the bridge has echoed a heartbeat that carried it, so an idle session pays nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from bridge.contract.errors import QueuebellError, QueueNotFound
from bridge.contract.jobs import (
    BOUNDS_S,
    CLASS_CHARS_MAX,
    CLASSES_MAX,
    HANDLER_CHARS_MAX,
    NO_JOBS,
    NOTHING,
    OTHER,
    Jobs,
    Spread,
    bucket,
    label,
    minus,
)
from bridge.contract.names import POISON_SUFFIX
from bridge.contract.sources import UNANNOUNCED, UNASKED
from bridge.contract.wire import BuriedCount, Counts, StoreDepth
from bridge.queues.base import QueueStore, Received

log = logging.getLogger("queuebell.listener")


class StoreCounts:
    """Counts one queue and its poison queue when `CountSchedule` says so; a count that fails is not repeated for it."""

    def __init__(self, queue: str, store: QueueStore, rules: CountSchedule) -> None:
        self.rules = rules
        self._queue = queue
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()

    def beside(self, answer: Received, source: str, *, own: bool, sessions: int, call_s: float) -> None:
        """Take what a receive told, and begin the counts that are worth it; ``own`` queues the bridge counts itself."""
        now = self._loop.time()
        if not own:
            told, depth, whole = answer.counts, answer.depth, answer.counts is not None
            if answer.messages and not whole:
                self.rules.took()
            if told is None and depth is not None:
                none = 0 if self._store.capabilities.exact_depth and not depth.invisible else None
                told = Counts(depth.visible, depth.invisible, answer.depth_is_least, leased=none, delayed=none)
            if told is not None:
                self.rules.answered(told, now, whole=whole)
            if answer.messages and not whole and self.rules.worth(now, sessions):
                self._spawn(partial(self._count, call_s), "count")
        self._perhaps_buried(self.rules.worth_burying(source, now, own=own), call_s)

    def buried(self, *, own: bool, call_s: float) -> None:
        """Hear that a message was buried, or replayed."""
        self.rules.buries()
        self._perhaps_buried(self.rules.worth_burying("", self._loop.time(), own=own), call_s)

    async def close(self) -> None:
        """End the counts under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _perhaps_buried(self, graves: str | None, call_s: float) -> None:
        if graves is not None:
            self._spawn(partial(self._count_buried, graves, call_s), "count-buried")

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
            log.exception("%s: a count broke", self._queue)

    async def _count(self, call_s: float) -> None:
        began = self._loop.time()
        try:
            async with asyncio.timeout(call_s):
                counts = await self._store.counts(self._queue)
        except QueueNotFound:
            counts = None
        self.rules.counted(counts, began)

    async def _count_buried(self, graves: str, call_s: float) -> None:
        try:
            async with asyncio.timeout(call_s):
                counts = await self._store.counts(graves)
        except QueueNotFound:
            counts = None
        self.rules.buried(0 if counts is None else counts.visible + counts.invisible, self._loop.time())


COUNT_S: Final = 30.0
"""So often at most the sessions of a bridge count a queue, all together, while work is found."""


class CountSchedule:
    """The counts of one queue, and of its ``poison`` queue, None for one that never buries."""

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
        self._told = 0
        self._stamp: tuple[int, int] | None = None

    def answered(self, told: Counts, now: float, *, whole: bool) -> None:
        """Take note of what a receive told; ``whole`` where that was all that the store can tell.

        What is less waits until what was told before is old: the backlog that a bounded count beside each batch shows
        would hide a better one.
        """
        if whole or not told.visible or self._counts is None or now >= self._counts[1] + COUNT_S:
            self.counted(told, now)

    def counted(self, counts: Counts | None, at: float) -> None:
        """Take note of a count of that moment; None for a queue that does not exist. An older one is of no use."""
        if self._counts is None or at >= self._counts[1]:
            self._counts, self._news = (counts or Counts(0, 0), at), self._news + 1
            self._all_counted = True

    def took(self) -> None:
        """Take note that messages were received without a count."""
        self._all_counted = False

    def deleted(self) -> None:
        """Take note that a message received here is gone: it was leased when the store was last counted.

        The look that ends a quiet time's work often comes while its last deletes are under way, and no other follows.
        """
        if self._counts is None or not self._all_counted or not self._counts[0].invisible:
            return
        counts, at = self._counts
        invisible = counts.invisible - 1
        leased = None if counts.leased is None else max(0, counts.leased - 1)
        left = msgspec.structs.replace(counts, invisible=invisible, leased=leased if invisible else 0)
        self._counts, self._news = (left, at), self._news + 1

    def worth(self, now: float, sessions: int) -> bool:
        """Say whether to count beside a receive that found work and did not tell all; whoever asks does so then."""
        if now < self._count_from:
            return False
        self._count_from = now + COUNT_S * max(1, sessions)
        return True

    def buries(self) -> None:
        """Take note that a message was buried, or replayed."""
        self._owed = self._poison is not None

    def worth_burying(self, source: str, now: float, *, own: bool) -> str | None:
        """Return the poison queue if it is to be counted beside a receive of this source; whoever asks does so then.

        Of an ``own`` queue the bridge knows that, if it knows the poison queue's name.
        """
        lies = self._buried is not None and self._buried[0] > 0
        wanted = (self._owed or (lies and source in UNASKED)) and not (own and not self._name)
        if now < self._bury_from or not wanted:
            return None
        if self._buried is not None:  # what is buried soon after the start is counted at once
            self._bury_from = now + COUNT_S
        self._owed = False
        return self._poison

    def buried(self, messages: int, now: float) -> None:
        """Take note of a count of the poison queue."""
        self._buried, self._news = (messages, now), self._news + 1

    # What the bridge is told -----------------------------------------------------------------------------------------

    def greeted(self) -> None:
        """Hear that a bridge is there that may know nothing."""
        self._told, self._stamp = 0, None

    @property
    def changed(self) -> bool:
        """Whether there is something that no echoed heartbeat has told."""
        return self._news != self._told

    def report(self, stamp: int, now: float) -> tuple[StoreDepth | None, BuriedCount | None]:
        """Return what is known, for the heartbeat of this stamp, which must then be sent."""
        self._stamp = stamp, self._news
        depth = graves = None
        if self._counts is not None:
            told, at = self._counts
            age_ms = round((now - at) * 1000)
            depth = StoreDepth(
                told.visible, told.invisible, age_ms, told.at_least, told.leased, told.delayed, told.oldest_ms
            )
        if self._buried is not None:
            graves = BuriedCount(self._buried[0], round((now - self._buried[1]) * 1000), self._name)
        return depth, graves

    def echoed(self, stamp: int) -> None:
        """Hear that the bridge has the heartbeat of this stamp."""
        if self._stamp is not None and self._stamp[0] == stamp:
            self._told, self._stamp = self._stamp[1], None


BOOTS_MAX: Final = 16
"""Boots of which is known what they were told: bridges of a cluster, and those before their restarts."""
WARN_EVERY_S: Final = 600.0
REPORT_BYTES: Final = 1024
"""What a report takes at most: eight sources, two numbers each, the store's, and those of the poison queue."""


class ReceiveCounts:
    """Counts of one queue: found and empty by source.

    ``found`` counts the receives that brought work, and the wakes that carried some, by their source.
    """

    __slots__ = ("_base", "_boot", "_levels", "_sent", "_stamp", "_told", "_told_to", "_warned_at", "found", "unasked")

    def __init__(self) -> None:
        self.found: Counter[str] = Counter()
        self.unasked = 0
        """Receives that nobody had asked for and that found work all the same."""
        self._levels: dict[str, tuple[int, int]] = {}
        self._sent: dict[str, tuple[int, int]] = {}
        self._told: dict[str, tuple[int, int]] = {}
        """The levels of the newest heartbeat that was echoed."""
        self._base: dict[str, tuple[int, int]] = {}
        """What this boot is not told, for others were."""
        self._told_to: dict[str, dict[str, tuple[int, int]]] = {}
        """By boot, the levels that each one but this has acknowledged."""
        self._boot: str | None = None
        self._stamp: int | None = None
        self._warned_at: float | None = None

    def carried(self, source: str) -> None:
        """Count a wake that brought messages along; the bridge that sent it has counted it."""
        self.found[source] += 1

    def received(self, source: str, work: bool, *, known: bool, fresh: bool = False) -> None:
        """Count the answer to a receive; ``known`` where the store is the bridge's own and has counted it itself.

        ``fresh`` where it brought a message that nobody had had before: one that had was announced once, and comes
        again because its lease ended.
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
        """Say whether to warn of work that a receive of this source found: at most once in ten minutes."""
        if source not in UNASKED or (self._warned_at is not None and now < self._warned_at + WARN_EVERY_S):
            return False
        self._warned_at = now
        return True

    def greeted(self, boot: str) -> None:
        """Hear which boot the bridge has; a new one counts from zero, and only what no other was told."""
        if boot == self._boot:
            return
        if self._boot is not None:
            self._told_to[self._boot] = _minus(self._told, self._base)
            if len(self._told_to) > BOOTS_MAX:
                del self._told_to[next(iter(self._told_to))]
        self._boot, self._stamp = boot, None
        self._base = _minus(self._told, self._told_to.pop(boot, {}))

    @property
    def changed(self) -> bool:
        """Whether there is something that no echoed heartbeat has told."""
        return self._levels != self._told

    def report(self, stamp: int) -> dict[str, tuple[int, int]]:
        """Return (found, empty) by source for the heartbeat of this stamp, which must then be sent.

        `UNANNOUNCED` stands among them.
        """
        self._stamp, self._sent = stamp, dict(self._levels)
        return _minus(self._levels, self._base)

    def echoed(self, stamp: int) -> None:
        """Hear that the bridge has the heartbeat of this stamp."""
        if stamp == self._stamp:
            self._told, self._stamp = self._sent, None


def _minus(levels: dict[str, tuple[int, int]], base: dict[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Return by how much each source's levels are above the others', without those that are not."""
    return {
        source: (found - less[0], empty - less[1])
        for source, (found, empty) in levels.items()
        if (less := base.get(source, (0, 0))) != (found, empty)
    }


EXTRA_BYTES: Final = 32
"""What a heartbeat says beside the counts: the name of the field, and that they were heard before."""


class JobCounts:
    """Counts of one queue and one handler; times are seconds."""

    __slots__ = (
        "_base", "_boot", "_failures", "_handling", "_outcomes", "_running_sent", "_running_told", "_sent", "_stamp",
        "_told", "_told_to", "_told_version", "_version", "_version_sent", "_waiting", "handler", "in_flight",
        "leases_lost",
    )  # fmt: skip

    def __init__(self, handler: str) -> None:
        self.handler = label(handler, HANDLER_CHARS_MAX)
        self.in_flight = 0
        self.leases_lost = 0
        self._outcomes: Counter[str] = Counter()
        self._failures: Counter[str] = Counter()
        self._handling = Durations()
        self._waiting = Durations()
        self._version = self._told_version = self._version_sent = 0
        self._running_told = self._running_sent = 0
        self._sent = self._told = NO_JOBS
        """The counts of the newest heartbeat that told any, and of the newest that was echoed."""
        self._base = NO_JOBS
        """What this boot is not told, for others were."""
        self._told_to: dict[str, Jobs] = {}
        """By boot, the levels that each one but this has acknowledged."""
        self._boot: str | None = None
        self._stamp: int | None = None

    # What happens ---------------------------------------------------------------------------------------------------

    def began(self, count: int, waits: Iterable[float]) -> None:
        """Hear that a call of the handler begins with so many messages, of which these waited so long."""
        self.in_flight += count
        for seconds in waits:
            self._waiting.add(max(0.0, seconds))
        self._version += 1

    def ended(self, count: int, seconds: float) -> None:
        """Hear that a call with so many messages has ended, however it did."""
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

    # What the bridge is told ----------------------------------------------------------------------------------------

    def greeted(self, boot: str) -> None:
        """Hear which boot the bridge has; whoever greets knows nothing of what runs here."""
        self._running_told = 0
        if boot == self._boot:
            return
        if self._boot is not None:
            self._told_to[self._boot] = minus(self._told, self._base)
            if len(self._told_to) > BOOTS_MAX:
                del self._told_to[next(iter(self._told_to))]
        self._boot, self._stamp = boot, None
        self._base = minus(self._told, self._told_to.pop(boot, NO_JOBS))

    @property
    def changed(self) -> bool:
        """Whether there is something that no echoed heartbeat has told."""
        return self._version != self._told_version or self.in_flight != self._running_told

    def report_bytes(self) -> int:
        """Return how many bytes a report takes at most."""
        return len(msgspec.json.encode({self.handler: self.level()})) + EXTRA_BYTES

    def report(self, stamp: int) -> dict[str, Jobs]:
        """Return what to tell by handler in the heartbeat of this stamp, which must then be sent."""
        level = self.level()
        self._stamp, self._sent, self._version_sent, self._running_sent = stamp, level, self._version, self.in_flight
        heard = minus(self._told, self._base) != NO_JOBS
        told = msgspec.structs.replace(minus(level, self._base), in_flight=self.in_flight, resumed=heard)
        return {self.handler: told}

    def echoed(self, stamp: int) -> None:
        """Hear that the bridge has the heartbeat of this stamp."""
        if stamp == self._stamp:
            self._told, self._told_version, self._running_told = self._sent, self._version_sent, self._running_sent
            self._stamp = None


class Durations:
    """Durations by bucket, and their sum."""

    __slots__ = ("_counts", "_total_s")

    def __init__(self) -> None:
        self._counts: list[int] | None = None
        self._total_s = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Count a duration so many times."""
        if self._counts is None:
            self._counts = [0] * (len(BOUNDS_S) + 1)
        self._counts[bucket(seconds)] += count
        self._total_s += seconds * count

    def spread(self) -> Spread:
        """Return them as they are told."""
        if self._counts is None:
            return NOTHING
        last = max(number for number, count in enumerate(self._counts) if count)
        return Spread(self._counts[: last + 1], round(self._total_s * 1000))
