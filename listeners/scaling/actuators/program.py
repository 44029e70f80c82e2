"""Calling a program that starts or ends workers, within a time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final

from listeners.scaling.actuators.base import StartFailed

OUTPUT_CHARS: Final = 300


async def call(words: Sequence[str], about: str, *, within_s: float, environment: Mapping[str, str]) -> str:
    """Return what a program wrote to its standard output; ``about`` is what its errors call the call.

    ``environment`` is added to our own. Cancelled or late, the program and all that it started is killed. Raises
    `StartFailed` with the end of what it wrote to its standard error.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, **environment},
        )
    except (OSError, ValueError) as error:
        raise StartFailed(f"{words[0]} cannot be called: {getattr(error, 'strerror', None) or error}") from error
    try:
        async with asyncio.timeout(within_s):
            out, said = await process.communicate()
    except TimeoutError:
        raise StartFailed(f"{words[0]} took more than {within_s:g} s {about}") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode:
        text = " | ".join(said.decode("utf-8", "backslashreplace").split("\n")).strip(" |")[-OUTPUT_CHARS:]
        raise StartFailed(f"{words[0]}: exit code {process.returncode} {about}: {text}".rstrip(": "))
    return out.decode("utf-8", "backslashreplace")
