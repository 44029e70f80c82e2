"""What the bridge says about a queue when asked over HTTP. Asking is no receive and wakes nobody."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from bridge.queue import Depth
from listeners.demo.bill import QueueCounters

if TYPE_CHECKING:
    import aiohttp


class Receives(msgspec.Struct, frozen=True):
    """Receives answered since the bridge started."""

    total: int
    empty: int


class QueueState(msgspec.Struct, frozen=True):
    """One queue as the bridge describes it."""

    exists: bool
    depth: Depth | None
    dirty: bool
    sessions: int
    wakes: dict[str, int]
    receives: Receives
    triggers: int

    @property
    def at_rest(self) -> bool:
        """Whether there is nothing to do: no message, visible or leased, and no look that is owed."""
        empty = self.depth is None or (self.depth.visible == 0 and self.depth.invisible == 0)
        return empty and not self.dirty

    @property
    def counters(self) -> QueueCounters:
        """The counters that make up the bill."""
        return QueueCounters(self.triggers, sum(self.wakes.values()), self.receives.total, self.receives.empty)


UNKNOWN = QueueState(False, None, False, 0, {}, Receives(0, 0), 0)


class BridgeState:
    """Asks one bridge."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        import aiohttp

        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=10))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._session is not None
        await self._session.close()

    async def of(self, queue: str) -> QueueState:
        """Describe a queue; one that the bridge has never heard of is empty and has no counters.

        Raises `aiohttp.ClientError` or `TimeoutError` when the bridge does not answer.
        """
        assert self._session is not None
        async with self._session.get(f"{self._url}/v1/queues/{queue}") as answer:
            if answer.status == 404:
                return UNKNOWN
            answer.raise_for_status()
            return msgspec.json.decode(await answer.read(), type=QueueState)

    async def until_sessions(self, queue: str, count: int) -> None:
        """Wait until ``count`` listeners are subscribed to the queue."""
        while (await self.of(queue)).sessions < count:  # noqa: ASYNC110 - the bridge answers, it does not call
            await asyncio.sleep(0.02)

    async def until_at_rest(self, queues: tuple[str, ...], *, pause_s: float = 0.05) -> dict[str, QueueState]:
        """Wait until all queues are at rest and their counters stand still for ``pause_s``, and return how they are."""
        before: dict[str, QueueState] = {}
        while True:
            now = {queue: await self.of(queue) for queue in queues}
            if now == before and all(state.at_rest for state in now.values()):
                return now
            before = now
            await asyncio.sleep(pause_s)
