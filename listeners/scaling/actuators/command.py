"""Workers that another system runs: a command is called with the number of workers, and provides them.

``docker service scale``, a cloud's own command, a script. It is called with the number in place of ``{}``, and in
``QUEUEBELL_WANTED``; exit code 0 confirms it. It is unknown which of those workers are busy, so they end only
while the queue is quiet, and the command chooses which one ends.

Nor can it be asked how many there are. So a new scaler soon calls it with a number, even 0, because an earlier one that
was killed may have left some. After a failure it is called again, because it may have done a part.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Sequence
from typing import Final

from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.listeners.scaling.actuators.base import ProcessEvents, StartFailed
from queuebell.listeners.scaling.actuators.program import call
from queuebell.listeners.work.failures import RepeatedFailure

log = logging.getLogger("queuebell.scaler")

PLACE: Final = "{}"
AGAIN_FIRST_S: Final = 5.0
AGAIN_CAP_S: Final = 60.0


class CommandActuator:
    """Calls ``command``, which has ``{}`` in it, whenever the number changes; ``within_s`` is how long it may take.

    `close` calls it with 0, so that no worker is left. ``again_s`` is the pause before the first call, if none is
    needed sooner, and before a failed call is repeated. Each further one is twice as long, a minute at most.
    """

    outlives = False
    unseen = None

    def __init__(self, command: Sequence[str], *, within_s: float = 30.0, again_s: float = AGAIN_FIRST_S) -> None:
        if not command or not command[0]:
            raise ConfigurationError("command: nothing was given to call with the number of workers")
        if not any(PLACE in word for word in command):
            raise ConfigurationError(
                "command: has no {}, where the number of workers goes, as in docker service scale orders={}"
            )
        self._command = list(command)
        self._within_s = within_s
        self._again_s = again_s
        self._ids: list[str] = []
        self._count = 0
        self._confirmed: int | None = None
        """The number that the command confirmed last, None if unknown."""
        self._turn = asyncio.Lock()
        self._events: ProcessEvents | None = None
        self._closed = False
        self.repeating: asyncio.Task[None] | None = None
        """Repeats a failed call."""

    def __str__(self) -> str:
        return shlex.join(self._command)

    async def open(self, events: ProcessEvents) -> None:
        """Keep ``events``; the first call follows soon, whether or not anything is started."""
        self._events = events
        self._repeat()

    async def start(self, count: int) -> list[str]:
        """Run ``count`` more; they count as ready once the command confirms them."""
        async with self._turn:
            try:
                await self._call(len(self._ids) + count)
            except StartFailed:
                self._repeat()
                raise
            begun = [str(self._count + step) for step in range(1, count + 1)]
            self._count += count
            self._ids += begun
        if self._events is not None:
            for number in begun:
                self._events.ready(number)
        return begun

    async def stop(self, ids: Sequence[str]) -> None:
        """Run fewer by these; repeated until the command confirms it."""
        async with self._turn:
            ending = [number for number in self._ids if number in set(ids)]
            if not ending or self._closed:
                return  # `close` calls it with 0 for all
            self._ended(ending)
            try:
                await self._call(len(self._ids))
            except StartFailed as failed:
                log.error("workers could not be stopped: %s; retrying in %g s", failed, self._again_s)
                self._repeat()

    async def look(self) -> None:
        """No-op: the command cannot be asked."""

    def running(self) -> list[str]:
        """Return the ids of all that the command was asked to run."""
        return list(self._ids)

    async def close(self) -> None:
        """Call the command with 0, once; a failure then is final."""
        if self._closed:
            return
        self._closed = True
        repeating, self.repeating = self.repeating, None
        if repeating is not None:
            repeating.cancel()
            await asyncio.wait([repeating])
        async with self._turn:
            ids = list(self._ids)
            if self._confirmed == 0:
                return
            try:
                await self._call(0)
            except StartFailed as failed:
                log.error("could not confirm that %d workers stopped, check them by hand: %s", len(ids), failed)
            self._ended(ids)

    def _repeat(self) -> None:
        """Call the command soon with the wanted number: how many run is unknown."""
        if self.repeating is None and not self._closed:
            self.repeating = asyncio.create_task(self._until_confirmed(), name=f"mend[{self._command[0]}]")

    async def _until_confirmed(self) -> None:
        pause, failures = self._again_s, RepeatedFailure()
        while self._confirmed != len(self._ids):
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_CAP_S)
            async with self._turn:
                if self._confirmed == len(self._ids):
                    break
                try:
                    await self._call(len(self._ids))
                except StartFailed as failed:
                    if failures.failed(asyncio.get_running_loop().time()):
                        log.error("it is unknown how many workers run: %s; the command is called again", failed)
        self.repeating = None

    def _ended(self, ids: list[str]) -> None:
        self._ids = [number for number in self._ids if number not in ids]
        if self._events is not None:
            for number in ids:
                self._events.ended(number, None, "told to end")

    async def _call(self, wanted: int) -> None:
        self._confirmed = None
        words = [word.replace(PLACE, str(wanted)) for word in self._command]
        about = f"for {wanted} workers"
        await call(words, about, within_s=self._within_s, environment={"QUEUEBELL_WANTED": str(wanted)})
        self._confirmed = wanted
