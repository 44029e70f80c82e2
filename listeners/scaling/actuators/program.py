"""Calling a program that starts or ends workers, within a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final

from queuebell.listeners.scaling.actuators.base import StartFailed

OUTPUT_CHARS: Final = 300
OUTPUT_BYTES: Final = 4 * 1024 * 1024
"""Of what a program writes no more is kept, and of that the end."""
DRAIN_S: Final = 1.0
"""How long the output of a program that has ended is read on: what it has started may hold it open for ever."""


async def call(
    words: Sequence[str], about: str, *, within_s: float, environment: Mapping[str, str], whole: bool = False
) -> str:
    """Return what a program wrote to its standard output; ``about`` is what its errors call the call.

    ``environment`` is added to our own. Cancelled or late, the program and all that it started is killed. Raises
    `StartFailed` with the end of what it wrote to its standard error, and, where what it wrote is to be read ``whole``,
    for one that wrote more than `OUTPUT_BYTES`.
    """
    # Its own pipes: asyncio would wait for the end of its pipes, and what the program has left running may hold them
    # for ever. It is for starting workers, after all.
    with contextlib.ExitStack() as ours:
        outputs: list[_Output] = []
        ends: list[int] = []
        with contextlib.ExitStack() as theirs:
            try:
                for _ in range(2):
                    read, write = os.pipe()
                    theirs.callback(os.close, write)
                    transport, output = await asyncio.get_running_loop().connect_read_pipe(
                        _Output, os.fdopen(read, "rb", buffering=0)
                    )
                    ours.callback(transport.close)
                    outputs.append(output)
                    ends.append(write)
                process = await asyncio.create_subprocess_exec(
                    *words,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=ends[0],
                    stderr=ends[1],
                    start_new_session=True,
                    env={**os.environ, **environment},
                )
            except (OSError, ValueError) as error:
                raise StartFailed(
                    f"{words[0]} cannot be called: {getattr(error, 'strerror', None) or error}"
                ) from error
        out, said = outputs
        try:
            async with asyncio.timeout(within_s):
                await process.wait()
        except TimeoutError:
            raise StartFailed(f"{words[0]} took more than {within_s:g} s {about}") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        await asyncio.wait([out.ended, said.ended], timeout=DRAIN_S)
    if process.returncode:
        text = " | ".join(str(said).split("\n")).strip(" |")[-OUTPUT_CHARS:]
        raise StartFailed(f"{words[0]}: exit code {process.returncode} {about}: {text}".rstrip(": "))
    if whole and out.cut:
        raise StartFailed(f"{words[0]} wrote more than {OUTPUT_BYTES} bytes {about}")
    return str(out)


class _Output(asyncio.Protocol):
    """The end of what a program has written until now; ``cut`` where it was more."""

    def __init__(self) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.cut = False
        self._written = bytearray()

    def __str__(self) -> str:
        return self._written.decode("utf-8", "backslashreplace")

    def data_received(self, data: bytes) -> None:
        """Keep the end of it."""
        self._written += data
        if len(self._written) > OUTPUT_BYTES:
            self.cut = True
            del self._written[: -OUTPUT_BYTES // 2]

    def connection_lost(self, exc: Exception | None) -> None:
        """Record the end of the output."""
        if not self.ended.done():
            self.ended.set_result(None)
