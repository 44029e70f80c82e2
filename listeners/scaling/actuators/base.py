"""The promise of an actuator, which starts and ends worker processes and decides nothing; `Watch` polls for some."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from queuebell.bridge.contract.errors import QueuebellError
from queuebell.listeners.work.failures import RepeatedFailure


class StartFailed(QueuebellError):
    """A process could not be started; it is tried again after a back-off. ``begun`` run, which were before it."""

    def __init__(self, why: str, begun: Sequence[str] = ()) -> None:
        super().__init__(why)
        self.begun = list(begun)


class NotSeen(QueuebellError):
    """It cannot be seen now which processes run; none is ended for it."""


class ProcessEvents(Protocol):
    """What happens to processes, reported on the event loop that they were started from."""

    def found(self, ids: list[str]) -> None:
        """Report processes that run although no `Actuator.start` returned them."""
        ...

    def ready(self, number: str) -> None:
        """The listener of a process has its session; calling it twice changes nothing."""
        ...

    def busy_changed(self, number: str, *, busy: bool) -> None:
        """A process holds messages, or holds none any more."""
        ...

    def ended(self, number: str, code: int | None, why: str) -> None:
        """A process has ended: its exit code, None if unknown, and the end of its output."""
        ...


class Actuator(Protocol):
    """Starts and ends processes, and knows which run. Its text is what it starts, for the log."""

    outlives: bool
    """What it has started goes on when the scaler ends, and is found by the next one."""

    @property
    def unseen(self) -> str | None:
        """Why the newest `look` failed; None where it did not."""
        ...

    async def open(self, events: ProcessEvents) -> None:
        """Get ready, before any other call; `running` then includes what runs already, if it can be seen.

        Reports nothing. Raises `ConfigurationError` for what can never be started.
        """
        ...

    async def start(self, count: int) -> list[str]:
        """Start ``count`` processes and return their ids, never used twice. Raises `StartFailed` with those begun."""
        ...

    async def stop(self, ids: Sequence[str]) -> None:
        """End these in order; `ProcessEvents.ended` reports each. Unknown ids change nothing."""
        ...

    async def look(self) -> None:
        """Check which run and which are busy, and report changes. Raises `NotSeen`."""
        ...

    def running(self) -> list[str]:
        """Return the ids of all that were started or found, and have not ended."""
        ...

    async def close(self) -> None:
        """Release processes that outlive it; end all others and wait for them. Calling it twice changes nothing."""
        ...


log = logging.getLogger("queuebell.scaler")


class Watch:
    """Calls ``look`` every ``every_s`` seconds while ``wanted`` is True; logs failures once a minute."""

    def __init__(
        self, name: str, look: Callable[[], Awaitable[None]], *, every_s: float, wanted: Callable[[], bool]
    ) -> None:
        self._name = name
        self._look = look
        self._every_s = every_s
        self._wanted = wanted
        self._unseen = RepeatedFailure()
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
                    log.warning("%s: cannot list the running workers: %s; retrying", self._name, unseen)
            except Exception:
                # Nothing else would check again.
                if self._unseen.failed(asyncio.get_running_loop().time()):
                    log.exception("%s: unexpected error while checking which workers run; it is retried", self._name)
            else:
                if self._unseen.works():
                    log.warning("%s: it can be seen again which workers run", self._name)
