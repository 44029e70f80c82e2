"""What the bridge says about a queue when asked over HTTP. Asking is no receive and wakes nobody."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import TYPE_CHECKING, Self

import msgspec

from bridge.service.state import QueueState
from queuebell.demo.bill import QueueCounters

if TYPE_CHECKING:
    import aiohttp


def at_rest(state: QueueState) -> bool:
    """Whether there is nothing to do: no message, visible or leased, and no look that is owed."""
    empty = state.depth is None or (state.depth.visible == 0 and state.depth.invisible == 0)
    return empty and not state.dirty


def counters(state: QueueState) -> QueueCounters:
    """Return the counters that make up the bill."""
    return QueueCounters(state.triggers, sum(state.wakes.values()), state.receives.total, state.receives.empty)


class BridgeState:
    """Asks one bridge, with a key where it wants one."""

    def __init__(self, url: str, key: str | None = None) -> None:
        self._url = url
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}
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
        async with self._session.get(f"{self._url}/v1/queues/{queue}", headers=self._headers) as answer:
            if answer.status == 404:
                return QueueState(queue=queue)
            answer.raise_for_status()
            return msgspec.json.decode(await answer.read(), type=QueueState)

    async def refuses_strangers(self, queue: str) -> bool:
        """Say whether who has no key is told nothing."""
        assert self._session is not None
        async with self._session.get(f"{self._url}/v1/queues/{queue}") as answer:
            return answer.status == 401

    async def until_sessions(self, queue: str, count: int) -> None:
        """Wait until ``count`` listeners are subscribed to the queue."""
        while (await self.of(queue)).sessions < count:  # noqa: ASYNC110 - the bridge answers, it does not call
            await asyncio.sleep(0.02)

    async def until_at_rest(self, queues: tuple[str, ...], *, pause_s: float = 0.05) -> dict[str, QueueState]:
        """Wait until all queues are at rest and their counters stand still for ``pause_s``, and return how they are."""
        before: dict[str, QueueState] = {}
        while True:
            now = {queue: await self.of(queue) for queue in queues}
            if now == before and all(map(at_rest, now.values())):
                return now
            before = now
            await asyncio.sleep(pause_s)
