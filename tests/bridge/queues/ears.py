"""A bridge's ear that remembers what it heard, and lets a test wait for it."""

from __future__ import annotations

import asyncio

from bridge.queues.base import StoredMessage
from bridge.queues.embedded.state import Grant, Handed, Level


class Ear:
    """Observes a store."""

    def __init__(self, grant: Grant | None = None) -> None:
        self.levels: list[Level] = []
        self.handed: list[Handed] = []
        self.commits = 0
        self.asked: list[tuple[str, int]] = []
        self.next_grant = grant
        self._heard = asyncio.Event()

    def grant(self, queue: str, count: int) -> Grant | None:
        """Give the grant prepared, once."""
        self.asked.append((queue, count))
        grant, self.next_grant = self.next_grant, None
        return grant

    def committed(self, levels: list[Level], handed: list[Handed]) -> None:
        """Remember."""
        self.commits += 1
        self.levels += levels
        self.handed += handed
        self._heard.set()

    async def next_level(self) -> Level:
        """Wait for the next commit and return the last level heard."""
        self._heard.clear()
        async with asyncio.timeout(100):
            await self._heard.wait()
        return self.levels[-1]

    def carried(self) -> list[StoredMessage]:
        """Return the messages of the newest grant."""
        return self.handed[-1].messages
