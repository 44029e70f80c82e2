"""Workers that something else runs: a command is told how many there should be, and sees to it.

``docker service scale``, a cloud's own command, a script. It is called with the number in place of ``{}``, and in
``QUEUEBELL_WANTED``; exit code 0 says that it is so. Nobody knows which of those workers is busy, so that they end only
while the queue is quiet, and which of them ends is the command's choice.

Nobody can ask it how many there are either. So a scaler that begins tells it a number soon, be it 0, for an earlier one
that was killed may have left some; and whenever it failed it is told again what is meant, for it may have done a part.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Sequence
from typing import Final

from bridge.contract.errors import ConfigurationError
from listeners.scaling.actuators.base import ProcessEvents, StartFailed
from listeners.scaling.actuators.program import call
from listeners.work.failures import RepeatedFailure

log = logging.getLogger("queuebell.scaler")

PLACE: Final = "{}"
AGAIN_FIRST_S: Final = 5.0
AGAIN_CAP_S: Final = 60.0


class CommandActuator:
    """Calls ``command``, which has ``{}`` in it, whenever the number changes; ``within_s`` is how long it may take.

    `close` tells it 0, so that nothing runs on unknown. ``again_s`` is the pause before it is told the first number, if
    none is asked for sooner, or told again what it failed to do. Each further one is twice as long, a minute at most.
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
        self._told: int | None = None
        """What the command has said to be so last, None where it may be anything."""
        self._turn = asyncio.Lock()
        self._events: ProcessEvents | None = None
        self._closed = False
        self._mending: asyncio.Task[None] | None = None
        """Tells it again what it failed to do."""

    def __str__(self) -> str:
        return shlex.join(self._command)

    async def open(self, events: ProcessEvents) -> None:
        """Take who is told; the command events soon what there should be, whether or not anything is started."""
        self._events = events
        self._mend()

    async def start(self, count: int) -> list[str]:
        """Have so many more run; they count as ready once the command says that they do."""
        async with self._turn:
            try:
                await self._tell(len(self._ids) + count)
            except StartFailed:
                self._mend()
                raise
            begun = [str(self._count + step) for step in range(1, count + 1)]
            self._count += count
            self._ids += begun
        if self._events is not None:
            for number in begun:
                self._events.ready(number)
        return begun

    async def stop(self, ids: Sequence[str]) -> None:
        """Have so many fewer run; told again until the command says so."""
        async with self._turn:
            ending = [number for number in self._ids if number in set(ids)]
            if not ending or self._closed:
                return  # `close` tells it 0 for all
            self._ended(ending)
            try:
                await self._tell(len(self._ids))
            except StartFailed as failed:
                log.error("workers are not ended: %s; it is told again from %g s on", failed, self._again_s)
                self._mend()

    async def look(self) -> None:
        """Do nothing: nobody can be asked."""

    def running(self) -> list[str]:
        """Return the ids of all that the command was told of."""
        return list(self._ids)

    async def close(self) -> None:
        """Tell the command 0, once; what it fails to do then stays undone."""
        if self._closed:
            return
        self._closed = True
        mending, self._mending = self._mending, None
        if mending is not None:
            mending.cancel()
            await asyncio.wait([mending])
        async with self._turn:
            ids = list(self._ids)
            if self._told == 0:
                return
            try:
                await self._tell(0)
            except StartFailed as failed:
                log.error("%d workers may run on: %s", len(ids), failed)
            self._ended(ids)

    def _mend(self) -> None:
        """See to it that the command events of the number that is meant: nobody knows what there is."""
        if self._mending is None and not self._closed:
            self._mending = asyncio.create_task(self._until_told(), name=f"mend[{self._command[0]}]")

    async def _until_told(self) -> None:
        pause, failures = self._again_s, RepeatedFailure()
        while self._told != len(self._ids):
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_CAP_S)
            async with self._turn:
                if self._told == len(self._ids):
                    break
                try:
                    await self._tell(len(self._ids))
                except StartFailed as failed:
                    if failures.failed(asyncio.get_running_loop().time()):
                        log.error("how many workers run is not known: %s; it is told again", failed)
        self._mending = None

    def _ended(self, ids: list[str]) -> None:
        self._ids = [number for number in self._ids if number not in ids]
        if self._events is not None:
            for number in ids:
                self._events.ended(number, None, "told to end")

    async def _tell(self, wanted: int) -> None:
        self._told = None
        words = [word.replace(PLACE, str(wanted)) for word in self._command]
        about = f"for {wanted} workers"
        await call(words, about, within_s=self._within_s, environment={"QUEUEBELL_WANTED": str(wanted)})
        self._told = wanted
