"""Where the next receive of a PostgreSQL queue begins to look: past the entries of what is gone."""

from __future__ import annotations

import datetime
from typing import Final, NamedTuple

MARK_S: Final = 1.0
"""How long a look from the very beginning counts: a message that shows up before the mark waits no longer than this
while batches are full, and not at all when one is short."""
WALKED_S: Final = 1e-5
"""As long counts a look for each entry that it walked over, which is ten times what one takes: where nothing is ever
vacuumed, one part in ten of the time is spent on looks from the beginning."""
LOOK_S: Final = 60.0
"""The longest that one counts: no message waits for more than what a lost trigger costs."""
AGAIN_S: Final = 5.0
"""As far ahead a look from a mark on sees what becomes visible; a look follows, until one is from the beginning."""
FEW: Final = 10_000
"""A look from the beginning that walks over fewer entries is made whenever a batch is short."""
COUNTED: Final = 100
"""Beside them are those of so many batches, which may be of messages that are there and were counted."""
QUEUES_MAX: Final = 10_000


class _Mark(NamedTuple):
    since: datetime.datetime
    until: float
    every_s: float
    far: bool


class PostgresMarks:
    """One mark a queue: the time of visibility of the earliest message in the newest full batch.

    An index keeps the entries of deleted and leased messages until the next vacuum, all of them before those that wait.
    A mark is only where to look first. What may still show up before it is what a transaction committed late, or what
    another receive had locked and let go again, and no count behind the mark sees it. So a full batch there reports one
    visible message at least, and takes the mark away where it counted none.

    A vacuum is held up by any transaction that stays open, and the way from the beginning grows. Once that is far, a
    short batch leaves a mark as well: a second before its look, for what was being committed. Times of calls are
    seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self._marks: dict[str, _Mark] = {}

    def mark(self, queue: str, now: float) -> datetime.datetime | None:
        """Return from when on to look first; None is from the beginning."""
        kept = self._marks.get(queue)
        if kept is None:
            return None
        if now < kept.until:
            return kept.since
        # Once for all receives in flight: the one that was told looks from the beginning for the others too.
        self._marks[queue] = kept._replace(until=now + kept.every_s)
        return None

    def far(self, queue: str, now: float) -> float | None:
        """Return in how many seconds to look again, where the beginning is too far away for a short batch."""
        kept = self._marks.get(queue)
        return min(AGAIN_S, max(0.0, kept.until - now)) if kept is not None and kept.far else None

    def took(
        self, queue: str, begun: float, since: datetime.datetime | None, *, walked: int | None = None, limit: int = 0
    ) -> None:
        """Note a batch that was asked for at ``begun``: where to look next, or None for the beginning.

        A look from the beginning says how many entries of the index it ``walked`` over for how large a batch.
        """
        if since is None:
            self._marks.pop(queue, None)
            return
        kept = self._marks.get(queue)
        if kept is None and len(self._marks) >= QUEUES_MAX:
            self._marks.clear()
        if kept is not None and walked is None:
            # Only a look from the beginning starts the time anew.
            self._marks[queue] = kept._replace(since=since)
        else:
            walked = walked or 0
            every_s = min(LOOK_S, max(MARK_S, walked * WALKED_S))
            self._marks[queue] = _Mark(since, begun + every_s, every_s, is_far(walked, limit))


def is_far(walked: int, limit: int) -> bool:
    """Say whether so many entries are more than a look for so large a batch walks over where vacuums are made."""
    return walked > FEW + COUNTED * limit
