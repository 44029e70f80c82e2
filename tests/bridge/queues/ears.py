"""A bridge's ear that remembers what it heard, and lets a test wait for it."""

from __future__ import annotations

import asyncio

from queuebell.bridge.queues.base import StoredMessage
from queuebell.bridge.queues.embedded.state import Backlog, Grant, GrantResult


class Ear:
    """Observes a store."""

    def __init__(self, grant: Grant | None = None) -> None:
        self.backlogs: list[Backlog] = []
        self.handed: list[GrantResult] = []
        self.commits = 0
        self.asked: list[tuple[str, int]] = []
        self.next_grant = grant
        self._heard = asyncio.Event()

    def grant(self, queue: str, count: int) -> Grant | None:
        """Give the grant prepared, once."""
        self.asked.append((queue, count))
        grant, self.next_grant = self.next_grant, None
        return grant

    def committed(self, backlogs: list[Backlog], handed: list[GrantResult]) -> None:
        """Remember."""
        self.commits += 1
        self.backlogs += backlogs
        self.handed += handed
        self._heard.set()

    async def next_backlog(self) -> Backlog:
        """Wait for the next commit and return the last backlog heard."""
        self._heard.clear()
        async with asyncio.timeout(100):
            await self._heard.wait()
        return self.backlogs[-1]

    def carried(self) -> list[StoredMessage]:
        """Return the messages of the newest grant."""
        return self.handed[-1].messages
