"""When an empty receive is worth a count of what is leased or delayed: a rule for stores whose count is a request."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from bridge.contract.errors import StoreUnavailable
from bridge.queues.base import Counts, Depth, Received

REMEMBERED_MAX = 100_000


class Recount:
    """Remembers the queues that were counted empty and quiet since; an empty receive of these needs no count.

    A count tells when to look again although nothing was found, so it is worth its request after messages went by here
    and for as long as the last count found some. A queue that is and stays empty is counted once (I2).
    """

    __slots__ = ("_quiet",)

    def __init__(self) -> None:
        self._quiet: set[str] = set()

    def worth(self, queue: str) -> bool:
        """Say whether an empty receive of ``queue`` is to be followed by a count."""
        return queue not in self._quiet

    async def after_empty(self, queue: str, count: Callable[[str], Awaitable[Counts | None]]) -> Received:
        """Return the empty answer, with a count where it is worth one.

        A count that fails is none, for the receive itself was answered.
        """
        counts = None
        if self.worth(queue):
            with contextlib.suppress(StoreUnavailable):
                counts = await count(queue)
        if counts is None:
            return Received([])
        self.counted(queue, counts.visible + counts.invisible)
        return Received([], Depth(counts.visible, counts.invisible), counts=counts)

    def stirred(self, queue: str) -> None:
        """Take note that messages of ``queue`` went by: put, received, or given back."""
        self._quiet.discard(queue)

    def counted(self, queue: str, messages: int) -> None:
        """Take note of a count."""
        if messages:
            self._quiet.discard(queue)
            return
        if len(self._quiet) >= REMEMBERED_MAX:
            self._quiet.clear()
        self._quiet.add(queue)
