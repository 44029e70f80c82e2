"""A raw HTTP client: keep-alive connections, one request at a time on each, requests written beforehand.

It reads no more of an answer than its status and length, so that the server is what limits. ``python -m
bench.rawhttp`` (bench.role).
"""

from __future__ import annotations

import asyncio
import functools
import re
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

from bench.role import obey

_length = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE).search


class Drive:
    """One run: when it ends, and what was answered."""

    def __init__(self, requests: Sequence[bytes], status: bytes) -> None:
        self.requests = requests
        self.status = status
        self.answered = 0
        self.running = True
        self.wrong: bytes | None = None


class Wire(asyncio.Protocol):
    """One connection: the next request leaves when the whole answer to the last is there."""

    def __init__(self, drive: Drive, first: int) -> None:
        self._drive = drive
        self._next = first
        self._transport: asyncio.Transport | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def ask(self) -> None:
        """Send the next request."""
        assert self._transport is not None
        requests = self._drive.requests
        self._next = (self._next + 1) % len(requests)
        self._transport.write(requests[self._next])

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        head = data.find(b"\r\n\r\n")
        length = _length(data) if head >= 0 else None
        if length is None or len(data) < head + 4 + int(length[1]):
            self._buffer = data
            return
        self._buffer = b""
        drive = self._drive
        if data[9:12] != drive.status:
            drive.wrong = data
            drive.running = False
        drive.answered += 1
        if drive.running:
            self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._drive.running:
            self._drive.wrong = b"the connection was closed"

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()


async def run(
    url: str, path: str, bodies: list[str], connections: int, seconds: float, status: int, headers: str = ""
) -> dict[str, float]:
    """POST ``bodies`` in turn for some seconds; return answers a second and the share of a core that this used.

    ``headers`` are further lines, each with its end.
    """
    where = urlsplit(url)
    requests = [
        f"POST {path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n{headers}"
        f"Content-Length: {len(body.encode())}\r\n\r\n{body}".encode()
        for body in bodies
    ]
    loop = asyncio.get_running_loop()
    drive = Drive(requests, b"%d" % status)
    wires = []
    for number in range(connections):
        make = functools.partial(Wire, drive, number * 7 % len(requests))
        _, wire = await loop.create_connection(make, str(where.hostname), where.port or 80)
        wires.append(wire)
    begun, cpu = time.monotonic(), time.process_time()
    for wire in wires:
        wire.ask()
    await asyncio.sleep(seconds)
    drive.running = False
    taken = time.monotonic() - begun
    used = time.process_time() - cpu
    answered = drive.answered
    for wire in wires:
        wire.close()
    if drive.wrong is not None:
        raise RuntimeError(f"an answer was wrong: {drive.wrong[:300]!r}")
    return {"rate": answered / taken, "cpu": used / taken}


async def main() -> None:
    """Run what is asked for."""
    await obey({"run": run})


if __name__ == "__main__":
    asyncio.run(main())
