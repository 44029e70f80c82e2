"""Where the next receive of a PostgreSQL queue begins to look: past the entries of what is gone."""

from __future__ import annotations

import datetime
from typing import Final

MARK_S: Final = 1.0
"""How long a look from the very beginning counts: a message that shows up before the mark waits no longer than this
while batches are full, and not at all when one is short."""
QUEUES_MAX: Final = 10_000


class PostgresMarks:
    """One mark a queue: the time of visibility of the earliest message in the newest full batch.

    An index keeps the entries of deleted and leased messages until the next vacuum, all of them before those that wait.
    A mark is only where to look first. What may still show up before it is what a transaction committed late, or what
    another receive had locked and let go again, and no count behind the mark sees it. So a full batch there reports one
    visible message at least, and takes the mark away where it counted none. Times of calls are seconds of one monotonic
    clock.
    """

    def __init__(self) -> None:
        self._marks: dict[str, tuple[datetime.datetime, float]] = {}

    def mark(self, queue: str, now: float) -> datetime.datetime | None:
        """Return from when on to look first; None is from the beginning."""
        kept = self._marks.get(queue)
        if kept is None:
            return None
        if now < kept[1]:
            return kept[0]
        # Once for all receives in flight: the one that was told looks from the beginning for the others too.
        self._marks[queue] = (kept[0], now + MARK_S)
        return None

    def took(self, queue: str, begun: float, since: datetime.datetime | None) -> None:
        """Note a batch that was asked for at ``begun``: when its earliest was visible, or None where it was short."""
        if since is None:
            self._marks.pop(queue, None)
            return
        kept = self._marks.get(queue)
        # Only a look from the beginning starts the time anew, in `mark`.
        if kept is None and len(self._marks) >= QUEUES_MAX:
            self._marks.clear()
        self._marks[queue] = (since, begun + MARK_S if kept is None else kept[1])
