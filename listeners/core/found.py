"""What this listener's receives came to, by wake source, and what of it the bridge must still be told.

The counts are levels, so that a lost heartbeat heals; they are repeated only until one that carried them was echoed, so
that an idle session pays nothing. They begin anew with each boot of the bridge, which begins its own counters anew.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from bridge.contract.sources import UNANNOUNCED, UNASKED

BOOTS_MAX: Final = 16
"""Boots of which is known what they were told: bridges of a cluster, and those before their restarts."""
WARN_EVERY_S: Final = 600.0
REPORT_BYTES: Final = 1024
"""What a report takes at most: eight sources, two numbers each, the store's, and those of the poison queue."""


class Found:
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
