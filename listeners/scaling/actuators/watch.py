"""Looking again and again at workers that something else runs, and that tell nobody by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from listeners.core.trouble import Repeated
from listeners.scaling.actuators.base import NotSeen

log = logging.getLogger("queuebell.scaler")


class Watch:
    """Calls ``look`` every ``every_s`` seconds while ``wanted`` says so; what cannot be seen is said once a minute."""

    def __init__(
        self, name: str, look: Callable[[], Awaitable[None]], *, every_s: float, wanted: Callable[[], bool]
    ) -> None:
        self._name = name
        self._look = look
        self._every_s = every_s
        self._wanted = wanted
        self._unseen = Repeated()
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin, the first time after a pause."""
        self._task = asyncio.create_task(self._run(), name=f"watch[{self._name}]")

    async def close(self) -> None:
        """End; may be called twice, and before `begin`."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            if not self._wanted():
                continue
            try:
                await self._look()
            except NotSeen as unseen:
                if self._unseen.failed(asyncio.get_running_loop().time()):
                    log.warning("%s: it cannot be seen which workers run: %s; it is repeated", self._name, unseen)
            except Exception:
                # Nobody else would look again.
                if self._unseen.failed(asyncio.get_running_loop().time()):
                    log.exception("%s: looking which workers run broke; it is repeated", self._name)
            else:
                if self._unseen.works():
                    log.warning("%s: it can be seen again which workers run", self._name)
