"""Workers that something else runs: a command is told how many there should be, and sees to it.

``kubectl scale``, ``docker service scale``, a script. It is called with the number in place of ``{}``, and in
``QUEUEBELL_WANTED``; exit code 0 says that it is so. Nobody knows which of those workers is busy, so that they end only
while the queue is quiet, and which of them ends is the command's choice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shlex
import signal
from collections.abc import Sequence

from bridge.contract.errors import ConfigurationError
from listeners.scaling.actuators.base import Hears, StartFailed

log = logging.getLogger("queuebell.scaler")

OUTPUT_CHARS = 300
AGAIN_S = 5.0


class CommandActuator:
    """Calls ``command`` whenever the number changes; ``within_s`` is how long it may take.

    ``close`` tells it 0, so that nothing runs on unknown.
    """

    def __init__(self, command: Sequence[str], *, within_s: float = 30.0) -> None:
        if not command or not command[0]:
            raise ConfigurationError("command: nothing was given to call with the number of workers")
        self._command = list(command)
        self._within_s = within_s
        self._ids: list[str] = []
        self._count = 0
        self._turn = asyncio.Lock()
        self._hears: Hears | None = None
        self._closed = False

    def __str__(self) -> str:
        return shlex.join(self._command)

    async def open(self, hears: Hears) -> None:
        """Take who is told."""
        self._hears = hears

    async def start(self, count: int) -> list[str]:
        """Have so many more run; they count as ready once the command says that they do."""
        async with self._turn:
            await self._tell(len(self._ids) + count)
            begun = [str(self._count + step) for step in range(1, count + 1)]
            self._count += count
            self._ids += begun
        if self._hears is not None:
            for number in begun:
                self._hears.ready(number)
        return begun

    async def stop(self, ids: Sequence[str]) -> None:
        """Have so many fewer run; repeated until the command says so."""
        async with self._turn:
            ending = [number for number in self._ids if number in set(ids)]
            while ending and not self._closed:
                try:
                    await self._tell(len(self._ids) - len(ending))
                    break
                except StartFailed as failed:
                    log.error("workers are not ended: %s; it is called again in %g s", failed, AGAIN_S)
                    await asyncio.sleep(AGAIN_S)
            else:
                return  # `close` tells it 0 for all
            self._ended(ending)

    def running(self) -> list[str]:
        """Return the ids of all that the command was told of."""
        return list(self._ids)

    async def close(self) -> None:
        """Tell the command 0, once."""
        self._closed = True
        async with self._turn:
            ids = list(self._ids)
            if not ids:
                return
            try:
                await self._tell(0)
            except StartFailed as failed:
                log.error("%d workers may run on: %s", len(ids), failed)
            self._ended(ids)

    def _ended(self, ids: list[str]) -> None:
        self._ids = [number for number in self._ids if number not in ids]
        if self._hears is not None:
            for number in ids:
                self._hears.ended(number, None, "told to end")

    async def _tell(self, wanted: int) -> None:
        words = [word.replace("{}", str(wanted)) for word in self._command]
        try:
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "QUEUEBELL_WANTED": str(wanted)},
            )
        except (OSError, ValueError) as error:
            raise StartFailed(f"{words[0]} cannot be called: {getattr(error, 'strerror', None) or error}") from error
        try:
            async with asyncio.timeout(self._within_s):
                _, said = await process.communicate()
        except TimeoutError:
            raise StartFailed(f"{words[0]} took more than {self._within_s:g} s for {wanted} workers") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            text = said.decode("utf-8", "backslashreplace").strip()[-OUTPUT_CHARS:]
            raise StartFailed(f"{words[0]}: exit code {process.returncode} for {wanted} workers: {text}".rstrip(": "))
