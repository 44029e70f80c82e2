"""A producer process of the long run: puts numbered messages in batches over HTTP, and notes what became of them.

``python -m tests.chaos.bulk_producer URL QUEUE NUMBER COUNT FOLDER``. Bodies are decimal numbers, ``NUMBER << 40`` and
on. Notes go to ``attempted-NUMBER`` before a batch is sent and to ``acknowledged-NUMBER`` after its 201: one record of
two 64-bit numbers each, the first message and how many. A batch that fails is never sent again: the next one is.
URL may have the addresses of several bridges.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import struct
import sys
from pathlib import Path

from bridge.contract.errors import StoreError
from bridge.queues.http import HttpStore

BATCH = 32
CALLERS = 4
RECORD = struct.Struct("<QQ")
CALL_S = 10.0
PAUSE_S = 0.05


class Producer:
    """Puts until so many messages are acknowledged."""

    def __init__(self, url: str, queue: str, number: int, count: int, folder: Path) -> None:
        self._url = url
        self._queue = queue
        self._count = count
        self._next = itertools.count(number << 40, BATCH)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._attempted = os.open(folder / f"attempted-{number}", flags, 0o644)
        self._acknowledged = os.open(folder / f"acknowledged-{number}", flags, 0o644)

    async def run(self) -> None:
        """Put with several callers at once."""
        await asyncio.gather(*(self._call() for _ in range(CALLERS)))

    async def _call(self) -> None:
        # A store each: of several addresses every caller begins with another one.
        async with HttpStore(self._url, timeout=CALL_S) as store:
            while self._count > 0:
                first = next(self._next)
                size = min(BATCH, self._count)
                self._count -= size
                note = RECORD.pack(first, size)
                os.write(self._attempted, note)
                try:
                    await store.put(self._queue, [str(number) for number in range(first, first + size)])
                except StoreError:
                    # Stored or not: of some errors nobody knows.
                    self._count += size
                    await asyncio.sleep(PAUSE_S)
                else:
                    os.write(self._acknowledged, note)


if __name__ == "__main__":
    asyncio.run(Producer(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5])).run())
