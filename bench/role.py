"""The inside of a process of the bench: it is told what to do line by line, and answers line by line.

A role runs until its standard input ends, so that none outlives the bench.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

Deed = Callable[..., Awaitable[Any]]


async def obey(deeds: dict[str, Deed], **ready: object) -> None:
    """Say ``ready``, then carry out one command a line until there are no more."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=1 << 26)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    _say(ready)
    while line := await reader.readline():
        command = json.loads(line)
        _say(await deeds[command.pop("do")](**command))


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)
