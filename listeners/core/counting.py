"""What a listener knows of how many messages its store holds, and when it is worth asking for; pure.

An idle queue is asked nothing. A listener counts beside a receive that found work, where that told less than the store
can, and the poison queue at the start, after burials, and beside looks that nobody asked for while something is there.
What is known is a level: it is told again until a heartbeat that carried it was echoed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from bridge.contract.names import POISON_SUFFIX
from bridge.contract.sources import UNASKED
from bridge.contract.wire import BuriedCount, Counts, StoreDepth

COUNT_S: Final = 30.0
"""So often at most the sessions of a bridge count a queue, all together, while work is found."""


class Counting:
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
