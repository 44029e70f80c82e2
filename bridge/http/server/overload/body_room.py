"""Room for the large bodies that pass no gate: settlements, triggers, and whatever a stranger sends to any route.

A body that is being read takes what its request announced, before the first byte of it is read. Who finds no room waits
for it in the order of asking, and what it has sent meanwhile stays in the socket.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

ROOM_BYTES: Final = 64 * 1024 * 1024
"""For all connections of a server together; some twenty of the largest bodies there are."""
SMALL_BYTES: Final = 64 * 1024
"""A body up to this never waits for room: an unread one takes as much."""


class BodyRoom:
    """So many bytes, given out in the order in which they were asked for; belongs to one event loop."""

    def __init__(self, size: int = ROOM_BYTES) -> None:
        self.size = size
        self.free = size
        """Bytes that nobody has."""
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        """How many wait for room."""
        return sum(not future.done() for _, future in self._waiting)

    async def take(self, size: int) -> int:
        """Wait for ``size`` bytes, or for all there are where that is less, and return how many to give back.

        Whoever is cancelled while it waits has taken nothing.
        """
        size = min(size, self.size)
        if not self._waiting and size <= self.free:
            self.free -= size
            return size
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((size, future))
        try:
            await future
        except asyncio.CancelledError:
            if not future.cancelled():
                # It was given in the same turn of the loop.
                self.free += size
            self._give_out()
            raise
        return size

    def give_back(self, size: int) -> None:
        """Let others have what was taken."""
        self.free += size
        self._give_out()

    def _give_out(self) -> None:
        waiting = self._waiting
        while waiting:
            size, future = waiting[0]
            if not future.cancelled():
                if size > self.free:
                    return
                self.free -= size
                future.set_result(None)
            waiting.popleft()
