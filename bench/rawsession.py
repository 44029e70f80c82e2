"""Raw WebSocket clients, thousands in one process: they say hello, heartbeat evenly spread, and read what comes.

``python -m bench.rawsession URL`` (bench.role).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import secrets
import struct
import sys
import time
from urllib.parse import urlsplit

from bench.machine import raise_file_limit
from bench.role import obey

AT_ONCE = 64
TICK_S = 0.02
WITHIN_S = 20.0
QUEUES = 100


def masked(text: bytes) -> bytes:
    """Return a text frame of a client, under the mask of zeros, which leaves it as it is."""
    size = len(text)
    head = bytes((0x81, 0x80 | size)) if size < 126 else struct.pack("!BBH", 0x81, 0xFE, size)
    return head + b"\0\0\0\0" + text


class Session(asyncio.Protocol):
    """One session: upgraded when the blank line came, standing when its welcome did."""

    __slots__ = ("_buffer", "_fleet", "_own", "queue", "standing", "transport", "upgraded")

    def __init__(self, fleet: Fleet, queue: str, own: bool) -> None:
        self._fleet = fleet
        self._own = own
        self._buffer = b""
        self.queue = queue
        self.transport: asyncio.Transport | None = None
        self.upgraded = False
        self.standing = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        transport.write(self._fleet.handshake)

    def data_received(self, data: bytes) -> None:
        data = self._buffer + data
        if not self.upgraded:
            head, blank, data = data.partition(b"\r\n\r\n")
            if not blank:
                self._buffer = head
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self.fail(f"no session: {head[:100]!r}")
                return
            self.upgraded = True
            hello = {
                "type": "hello",
                "instance": secrets.token_hex(16),
                "listener": "bench",
                "queues": [{"queue": self.queue, "capacity": 32, "own": self._own}],
                "accept": ["messages"],
            }
            assert self.transport is not None
            self.transport.write(masked(json.dumps(hello).encode()))
        while len(data) >= 2:
            size, start = data[1] & 0x7F, 2
            if size == 126:
                if len(data) < 4:
                    break
                size, start = struct.unpack_from("!H", data, 2)[0], 4
            if len(data) < start + size:
                break
            if data[0] & 0x0F == 1:
                self.heard(data[start : start + size])
            data = data[start + size :]
        self._buffer = data

    def heard(self, frame: bytes) -> None:
        """Take a frame: only its welcome is read."""
        fleet = self._fleet
        if frame.startswith(b'{"type":"ready"'):
            return
        fleet.frames += 1
        if frame.startswith(b'{"type":"wake"'):
            fleet.wakes += 1
            if fleet.wakes == fleet.wanted:
                fleet.woken.set()
        if not self.standing.done():
            self._fleet.heartbeat_s = max(self._fleet.heartbeat_s, json.loads(frame)["heartbeat_ms"] / 1000)
            self.standing.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fail("the connection was closed")

    def fail(self, why: str) -> None:
        """Note a session that did not stand, or fell."""
        if not self.standing.done():
            self.standing.set_exception(ConnectionError(why))
        elif not self._fleet.ending:
            self._fleet.lost += 1

    def beat(self, frame: bytes) -> None:
        """Send a heartbeat."""
        if self.transport is not None:
            self.transport.write(frame)


class Fleet:
    """All sessions of this process."""

    def __init__(self, url: str) -> None:
        self._where = urlsplit(url)
        self.handshake = (
            f"GET /v1/sessions HTTP/1.1\r\nHost: {self._where.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Protocol: queuebell.v2\r\n\r\n"
        ).encode()
        self.sessions: list[Session] = []
        self.frames = 0
        self.wakes = 0
        self.wanted = 0
        self.woken = asyncio.Event()
        self.lost = 0
        self.ending = False
        self.heartbeat_s = 5.0
        self._period: float | None = None
        self._beating: asyncio.Task[None] | None = None
        self.beats = 0

    async def open(
        self, count: int, period: float | None = None, queues: int = QUEUES, own: bool = True
    ) -> dict[str, float]:
        """Open sessions, some at once, on so many queues; they beat every ``period`` seconds, or as welcomes say.

        Triggers of queues that are the bridge's ``own`` tell it nothing new, and wake nobody.
        """
        self._period = period
        loop = asyncio.get_running_loop()
        begun = time.monotonic()
        numbers = iter(range(count))

        async def one_after_the_other() -> None:
            for number in numbers:
                make = functools.partial(Session, self, f"bench/idle{number % queues}", own)
                _, session = await loop.create_connection(make, str(self._where.hostname), self._where.port or 80)
                await session.standing
                self.sessions.append(session)

        # They beat from the first on: opening ten thousand takes longer than a silent session lives.
        if self._beating is None:
            self._beating = asyncio.create_task(self._beat(), name="heartbeats")
        await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))
        return {"seconds": time.monotonic() - begun, "heartbeat_s": self._period or self.heartbeat_s}

    async def _beat(self) -> None:
        place = 0
        due = 0.0
        last = time.monotonic()
        frames = [
            masked(
                json.dumps(
                    {
                        "type": "heartbeat",
                        "stamp": 1,
                        "queues": {f"bench/idle{number}": {"gen": 0, "covered": 0, "free": 32}},
                    },
                    separators=(",", ":"),
                ).encode()
            )
            for number in range(QUEUES)
        ]
        by_queue = {f"bench/idle{number}": frame for number, frame in enumerate(frames)}
        while True:
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            due += (now - last) * len(self.sessions) / (self._period or self.heartbeat_s)
            last = now
            for _ in range(int(due)):
                session = self.sessions[place % len(self.sessions)]
                session.beat(by_queue[session.queue])
                place += 1
                self.beats += 1
            due -= int(due)

    async def fan(self, path: str, body: str, seconds: float) -> float:
        """POST, wait until every session was woken, and again; return the wakes heard a second."""
        reader, writer = await asyncio.open_connection(self._where.hostname, self._where.port)
        request = (
            f"POST {path} HTTP/1.1\r\nHost: {self._where.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body.encode())}\r\n\r\n{body}"
        ).encode()
        begun, first = time.monotonic(), self.wakes
        while time.monotonic() < begun + seconds:
            self.woken.clear()
            self.wanted = self.wakes + len(self.sessions)
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if head[9:12] != b"202":
                raise RuntimeError(f"an answer was wrong: {head[:300]!r}")
            await reader.readexactly(int(re.findall(rb"(?i)content-length: *(\d+)", head)[0]))
            async with asyncio.timeout(WITHIN_S):
                await self.woken.wait()
        taken = time.monotonic() - begun
        writer.close()
        return (self.wakes - first) / taken

    async def counts(self) -> dict[str, float]:
        """Say how many frames came and heartbeats left."""
        return {"frames": self.frames, "beats": self.beats, "lost": self.lost, "open": len(self.sessions)}

    async def close(self) -> None:
        """Cut all connections."""
        self.ending = True
        if self._beating is not None:
            self._beating.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._beating
        for session in self.sessions:
            if session.transport is not None:
                session.transport.abort()


async def main(url: str) -> None:
    """Do what is asked for."""
    raise_file_limit()
    fleet = Fleet(url)
    await obey({"open": fleet.open, "counts": fleet.counts, "fan": fleet.fan})
    await fleet.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
