"""The two ends of every measured hop: one stamps and puts, the other sees the stamp when its handler starts.

Stamps are CLOCK_MONOTONIC, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

WITHIN_S = 20.0


class Stamps:
    """The handler's end: how long each message took from just before its put."""

    def __init__(self) -> None:
        self._taken: list[float] = []
        self._more = asyncio.Event()

    def seen(self, stamp: str | bytes) -> None:
        """Note a message whose handler starts now."""
        self._taken.append((time.monotonic_ns() - int(stamp)) / 1e6)
        self._more.set()

    async def take(self, count: int) -> list[float]:
        """Wait for ``count`` messages, and return and forget their milliseconds in order of arrival."""
        async with asyncio.timeout(WITHIN_S):
            while len(self._taken) < count:
                self._more.clear()
                await self._more.wait()
        taken, self._taken = self._taken, []
        return taken


def put_in_turn(one: Callable[[str], Awaitable[object]]) -> Callable[[int, float], Awaitable[int]]:
    """Return a deed that puts ``count`` messages, and after each leaves ``pace_ms`` of quiet."""

    async def put(count: int, pace_ms: float) -> int:
        for _ in range(count):
            await one(str(time.monotonic_ns()))
            await asyncio.sleep(pace_ms / 1000)
        return count

    return put
