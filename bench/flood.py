"""A client that sends requests on schedule and does not care for answers, as many as the server will take.

``python -m bench.flood`` (bench.role).
"""

from __future__ import annotations

import asyncio
import time
from typing import Final
from urllib.parse import urlsplit

from bench.role import obey

TICK_S: Final = 0.005
UNSENT_MAX: Final = 64 * 1024


class Wire(asyncio.Protocol):
    """One connection; the answers that it reads are counted."""

    def __init__(self, flood: Flood) -> None:
        self._flood = flood
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._flood.answered += data.count(b"HTTP/1.1 ")

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None


class Flood:
    """Requests at a rate, until it is ended."""

    def __init__(self) -> None:
        self.answered = 0
        self._task: asyncio.Task[None] | None = None
        self._sent = 0
        self._due = 0

    async def begin(self, url: str, path: str, headers: str, body: str, rate: float, connections: int) -> None:
        """Begin: ``rate`` POST a second, over so many connections; one that was closed is opened again."""
        where = urlsplit(url)
        head = f"POST {path} HTTP/1.1\r\nHost: {where.netloc}\r\n{headers}Content-Length: {len(body.encode())}\r\n\r\n"
        request = (head + body).encode()
        self.answered = self._sent = self._due = 0
        self._task = asyncio.create_task(
            self._send(str(where.hostname), where.port or 80, request, rate, connections), name="flood"
        )

    async def end(self) -> dict[str, int]:
        """End it, and say how many were due, how many left, and how many were answered."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        return {"due": self._due, "sent": self._sent, "answered": self.answered}

    async def _send(self, host: str, port: int, request: bytes, rate: float, connections: int) -> None:
        loop = asyncio.get_running_loop()
        wires: list[Wire] = []
        begun = time.monotonic()
        try:
            while True:
                while len(wires) < connections:
                    wires.append((await loop.create_connection(lambda: Wire(self), host, port))[1])
                count = int((time.monotonic() - begun) * rate) - self._due
                self._due += count
                share = -(-count // connections)
                for wire in wires:
                    if wire.transport is not None and wire.transport.get_write_buffer_size() < UNSENT_MAX:
                        wire.transport.write(request * min(share, count))
                        self._sent += min(share, count)
                        count -= min(share, count)
                wires = [wire for wire in wires if wire.transport is not None]
                await asyncio.sleep(TICK_S)
        finally:
            for wire in wires:
                if wire.transport is not None:
                    wire.transport.abort()


async def main() -> None:
    """Flood when asked to."""
    flood = Flood()
    await obey({"begin": flood.begin, "end": flood.end})


if __name__ == "__main__":
    asyncio.run(main())
