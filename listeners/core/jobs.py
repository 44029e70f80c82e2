"""What became of one queue's messages, and what of it the bridge must still be told.

Counts are levels, so that a lost heartbeat heals; they are repeated only until one that carried them was echoed, so
that an idle session pays nothing. A boot of the bridge is told what no other boot has acknowledged, and one that is met
again hears on from what it knows: added up, no attempt is missing and none is told twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

import msgspec

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

BOOTS_MAX: Final = 16
"""Boots of which is known what they were told: bridges of a cluster, and those before their restarts."""
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
