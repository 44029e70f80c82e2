"""The sessions of one listener: one for all its queues, and several where one session's frames cannot name them all.

A hello and a heartbeat name every queue of a session in one frame. Each session stands, breaks and is refused by
itself, as those of several listeners.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable
from typing import Final

from bridge.contract.wire import FRAME_BYTES_MAX, Report
from listeners.session.session import Session

SUBSCRIPTION_BYTES: Final = 260
"""What one queue takes of a hello at most, besides its name; and of a heartbeat, which names it twice."""


def shares(queues: Iterable[str]) -> list[list[str]]:
    """Part queues, in their order, so that all of a share fit one frame."""
    parted: list[list[str]] = []
    room = 0
    for queue in queues:
        needed = 2 * len(queue) + SUBSCRIPTION_BYTES
        if not parted or needed > room:
            parted.append([])
            room = FRAME_BYTES_MAX
        parted[-1].append(queue)
        room -= needed
    return parted


class Sessions:
    """Holds a session for each share of the queues: `run` until cancelled, `end` to take leave.

    ``open_session`` is given an instance and a share. The first session has the instance given here.
    """

    def __init__(self, queues: Iterable[str], instance: str, open_session: Callable[[str, list[str]], Session]) -> None:
        self._of: dict[str, tuple[Session, list[str]]] = {}
        self._all: list[Session] = []
        for share in shares(queues):
            session = open_session(secrets.token_hex(16) if self._all else instance, share)
            self._all.append(session)
            self._of.update(dict.fromkeys(share, (session, share)))

    def of(self, queue: str) -> tuple[Session, list[str]]:
        """Return the session of a queue, and all queues that it serves."""
        return self._of[queue]

    @property
    def first(self) -> Session:
        """The one that people are told of."""
        return self._all[0]

    @property
    def standing(self) -> bool:
        """Whether every session stands."""
        return all(session.standing for session in self._all)

    def send(self, frame: Report) -> None:
        """Put a frame on its way by its queue's session, or drop it while that one does not stand."""
        self._of[frame.queue][0].send(frame)

    def hello(self) -> None:
        """Say what this listener listens to, again."""
        for session in self._all:
            session.hello()

    async def run(self) -> None:
        """Hold all for ever; what breaks one ends all."""
        if len(self._all) == 1:
            await self.first.run()
            return
        running = [asyncio.create_task(session.run(), name="session") for session in self._all]
        try:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def end(self) -> None:
        """Say `bye` in each, and wait a second at most for the bridge to confirm it (L12)."""
        await asyncio.gather(*(session.end() for session in self._all))

    async def close(self) -> None:
        """Let go of links and channels."""
        await asyncio.gather(*(session.close() for session in self._all))
