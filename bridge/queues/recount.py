"""When an empty receive is followed by a count, for stores where a count is a request of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from queuebell.bridge.contract.errors import StoreUnavailable
from queuebell.bridge.queues.base import Counts, Depth, Received

REMEMBERED_MAX = 100_000


class Recount:
    """Remembers queues counted as empty and unused since; an empty receive of these needs no count.

    A count shows whether leased or delayed messages will become visible, so it is made after messages passed here and
    while the last count found some. A queue that stays empty is counted once (I2).
    """

    __slots__ = ("_quiet",)

    def __init__(self) -> None:
        self._quiet: set[str] = set()

    def needed(self, queue: str) -> bool:
        """Return whether an empty receive of ``queue`` should be followed by a count."""
        return queue not in self._quiet

    async def after_empty(self, queue: str, count: Callable[[str], Awaitable[Counts | None]]) -> Received:
        """Return the empty answer, with a count if needed; a failed count is left out."""
        counts = None
        if self.needed(queue):
            with contextlib.suppress(StoreUnavailable):
                counts = await count(queue)
        if counts is None:
            return Received([])
        self.counted(queue, counts.visible + counts.invisible)
        return Received([], Depth(counts.visible, counts.invisible), counts=counts)

    def used(self, queue: str) -> None:
        """Record that messages of ``queue`` were put, received or released."""
        self._quiet.discard(queue)

    def counted(self, queue: str, messages: int) -> None:
        """Record a count."""
        if messages:
            self._quiet.discard(queue)
            return
        if len(self._quiet) >= REMEMBERED_MAX:
            self._quiet.clear()
        self._quiet.add(queue)
