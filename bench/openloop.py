"""An open-loop HTTP client: requests leave on schedule, whether or not the ones before were answered.

Latency is counted from the moment a request was due, so that a server that stops for a second is charged with every
request of that second (no coordinated omission). A request that is due while every connection is in use waits here, and
its wait counts. It reads no more of an answer than its status, its length and whether it says when to come back.
``python -m bench.openloop`` (bench.role).
"""

from __future__ import annotations

import asyncio
import gc
import re
import time
from array import array
from collections import deque
from typing import Final
from urllib.parse import urlsplit

from bench.figures import percentile
from bench.machine import raise_file_limit
from bench.role import obey

TICK_S: Final = 0.001
"""How often the schedule is looked at; what came due meanwhile leaves together, and is charged with the wait."""
SLOT: Final = b"{id}"
"""Stands in a path or a body for a number that no other request of the client has, in 16 digits."""

_length = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE).search
_retry_after = re.compile(rb"\r\nretry-after: *[1-9]\d*\r\n", re.IGNORECASE).search


class Schedule:
    """One run: what is due when, what waits for a connection, and what was answered after how long."""

    def __init__(self, parts: list[bytes], first: int, rate: float, count: int) -> None:
        self._parts = parts
        self._first = first
        self._rate = rate
        self._count = count
        self.begun = 0.0
        self.sent = 0
        self.answered = 0
        self.latencies: dict[bytes, array[float]] = {}
        self.begged = 0
        """Answers that said when to come back."""
        self.wrong: bytes | None = None
        self.free: deque[Wire] = deque()
        self.done = asyncio.Event()

    @property
    def running(self) -> bool:
        """Whether answers are still to come."""
        return not self.done.is_set()

    @property
    def last_due(self) -> float:
        """When the last request is due."""
        return self.begun + (self._count - 1) / self._rate

    def send_due(self, now: float) -> bool:
        """Send all that is due, as far as connections are free; False when nothing is left to send."""
        due = min(self._count, int((now - self.begun) * self._rate) + 1)
        free, parts = self.free, self._parts
        while self.sent < due and free:
            number = self.sent
            self.sent += 1
            request = parts[0] if len(parts) == 1 else (b"%016d" % (self._first + number)).join(parts)
            free.popleft().ask(request, self.begun + number / self._rate)
        return self.sent < self._count

    def answer(self, status: bytes, due: float, begged: bool) -> None:
        """Count an answer."""
        taken = self.latencies.get(status)
        if taken is None:
            taken = self.latencies[status] = array("d")
        taken.append(time.monotonic() - due)
        self.begged += begged
        self.answered += 1
        if self.answered == self._count:
            self.done.set()

    def fail(self, what: bytes) -> None:
        """End the run: an answer was none."""
        if self.running:
            self.wrong = what
            self.done.set()


class Wire(asyncio.Protocol):
    """One connection with at most one request under way."""

    def __init__(self) -> None:
        self._schedule: Schedule | None = None
        self._transport: asyncio.Transport | None = None
        self._buffer = b""
        self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        # Less to allocate for each answer; what the client does not use is left for the server.
        transport.max_size = 65_536  # type: ignore[attr-defined]

    def join(self, schedule: Schedule) -> None:
        """Take part in a run."""
        self._schedule = schedule
        schedule.free.append(self)

    def ask(self, request: bytes, due: float) -> None:
        """Send a request that was due at ``due``."""
        assert self._transport is not None
        self._due = due
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        head = data.find(b"\r\n\r\n")
        if head < 0:
            self._buffer = data
            return
        status = data[9:12]
        length = _length(data, 0, head + 2)
        if length is None and status != b"204":
            self.connection_lost(None)
            return
        if length is not None and len(data) < head + 4 + int(length[1]):
            self._buffer = data
            return
        self._buffer = b""
        schedule = self._schedule
        assert schedule is not None
        schedule.answer(status, self._due, status >= b"400" and _retry_after(data, 0, head + 2) is not None)
        schedule.free.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._schedule is not None:
            self._schedule.fail(b"a connection was closed, or an answer had no length: " + self._buffer[:300])

    def close(self) -> None:
        """Close the connection."""
        self._schedule = None
        if self._transport is not None:
            self._transport.close()


async def run(
    url: str,
    method: str,
    path: str,
    body: str,
    media: str,
    rate: float,
    seconds: float,
    connections: int,
    first: int = 0,
) -> dict[str, object]:
    """Send ``rate`` requests a second for some seconds, and wait for every answer.

    Latencies are milliseconds from when a request was due. ``statuses`` counts the answers by status, ``begged`` those
    that said when to come back, ``drained`` is how long after the last request was due its answer was there, and
    ``cpu`` the share of a core that this process used: near 1 it measured itself.
    """
    where = urlsplit(url)
    wires = [
        (await asyncio.get_running_loop().create_connection(Wire, str(where.hostname), where.port or 80))[1]
        for _ in range(connections)
    ]
    request = (
        f"{method} {path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: {media}\r\n"
        f"Content-Length: {len(body.encode())}\r\n\r\n{body}".encode()
    )
    schedule = Schedule(request.split(SLOT), first, rate, max(1, round(rate * seconds)))
    for wire in wires:
        wire.join(schedule)
    gc.collect()
    gc.freeze()
    cpu = time.process_time()
    schedule.begun = time.monotonic() + TICK_S
    sending = True
    while schedule.running and sending:
        sending = schedule.send_due(time.monotonic())
        await asyncio.sleep(TICK_S)
    await schedule.done.wait()
    ended = time.monotonic()
    used = time.process_time() - cpu
    for wire in wires:
        wire.close()
    if schedule.wrong is not None:
        raise RuntimeError(f"after {schedule.answered} answers: {schedule.wrong!r}")
    return {
        "offered": schedule.sent,
        "statuses": {status.decode(): len(taken) for status, taken in schedule.latencies.items()},
        "latency_ms": {
            status.decode(): [percentile(taken, share) * 1000 for share in (0.5, 0.99, 1.0)]
            for status, taken in schedule.latencies.items()
        },
        "begged": schedule.begged,
        "drained": ended - schedule.last_due,
        "rate": schedule.answered / (ended - schedule.begun),
        "cpu": used / (ended - schedule.begun),
    }


async def main() -> None:
    """Run what is asked for."""
    raise_file_limit()
    await obey({"run": run})


if __name__ == "__main__":
    asyncio.run(main())
