"""The task that measures how late the event loop is, and has the clocks compared (B15)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from bridge.observe.facts import LoopLagged

if TYPE_CHECKING:
    from bridge.service.bridge import Bridge

EVERY_S: Final = 1.0


class LoopWatch:
    """Once a second tells `LoopLagged` and asks the bridge to compare its clocks; an async context manager.

    A loop that lags is counted and nothing else is done: to mark all queues on overload would feed the overload. The
    bridge compares its clocks before every frame anyway; this finds a suspend that nobody follows with a frame.
    """

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> LoopWatch:
        self._task = asyncio.get_running_loop().create_task(self._watch(), name="loop-watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + EVERY_S
            await asyncio.sleep(EVERY_S)
            self._bridge.tell(LoopLagged(max(0.0, loop.time() - due)))
            self._bridge.notice_suspend()
