"""A producer process of the long run: puts numbered messages in batches over HTTP, and notes what became of them.

``python -m tests.chaos.bulk_producer URL QUEUE NUMBER COUNT FOLDER``. Bodies are decimal numbers, ``NUMBER << 40`` and
on. Notes go to ``attempted-NUMBER`` before a batch is sent and to ``acknowledged-NUMBER`` after its 201: one record of
two 64-bit numbers each, the first message and how many. A batch that fails is never sent again: the next one is.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import struct
import sys
from pathlib import Path

import aiohttp

from bridge.brokers.credential import Credential
from bridge.contract.address import http_addresses

BATCH = 32
CALLERS = 4
RECORD = struct.Struct("<QQ")
PAUSE_S = 0.05


class Producer:
    """Puts until so many messages are acknowledged."""

    def __init__(self, url: str, queue: str, number: int, count: int, folder: Path) -> None:
        self._headers = Credential.of(http_addresses(url, "bridge")).headers()
        self._url = f"{url}/v1/queues/{queue}/messages"
        self._count = count
        self._next = itertools.count(number << 40, BATCH)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._attempted = os.open(folder / f"attempted-{number}", flags, 0o644)
        self._acknowledged = os.open(folder / f"acknowledged-{number}", flags, 0o644)

    async def run(self) -> None:
        """Put with several callers at once."""
        timeout = aiohttp.ClientTimeout(total=10)
        async with aiohttp.ClientSession(timeout=timeout, headers=self._headers) as client:
            await asyncio.gather(*(self._call(client) for _ in range(CALLERS)))

    async def _call(self, client: aiohttp.ClientSession) -> None:
        while self._count > 0:
            first = next(self._next)
            size = min(BATCH, self._count)
            self._count -= size
            note = RECORD.pack(first, size)
            body = json.dumps({"messages": [{"body": str(number)} for number in range(first, first + size)]})
            os.write(self._attempted, note)
            try:
                async with client.post(self._url, data=body, headers={"Content-Type": "application/json"}) as answer:
                    await answer.read()
                    taken = answer.status == 201
            except (aiohttp.ClientError, OSError, TimeoutError):
                taken = False  # stored or not: nobody knows
            if taken:
                os.write(self._acknowledged, note)
            else:
                self._count += size
                await asyncio.sleep(PAUSE_S)


if __name__ == "__main__":
    asyncio.run(Producer(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5])).run())
