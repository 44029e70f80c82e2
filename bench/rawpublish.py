"""A raw publisher of triggers over NATS or MQTT: messages encoded beforehand and written in blocks.

It knows as much of either protocol as publishing needs, so that who is measured is who hears. ``python -m
bench.rawpublish URL`` (bench.role).
"""

from __future__ import annotations

import asyncio
import sys
import time
from urllib.parse import urlsplit

from bench.role import obey

BLOCK_S = 0.005
KEEPALIVE_S = 600


def nats_message(topic: list[str], payload: bytes) -> bytes:
    """Return one PUB."""
    return b"PUB %s %d\r\n%s\r\n" % (".".join(topic).encode(), len(payload), payload)


def mqtt_message(topic: list[str], payload: bytes) -> bytes:
    """Return one PUBLISH of QoS 0 (MQTT 3.1.1)."""
    name = "/".join(topic).encode()
    return _packet(0x30, len(name).to_bytes(2, "big") + name + payload)


def _packet(kind: int, body: bytes) -> bytes:
    size, length = len(body), bytearray()
    while True:
        size, low = size >> 7, size & 0x7F
        length.append(low | (0x80 if size else 0))
        if not size:
            return bytes((kind,)) + bytes(length) + body


class Wire:
    """One connection that only publishes."""

    def __init__(self, url: str) -> None:
        self._where = urlsplit(url)
        self.encode = nats_message if self._where.scheme == "nats" else mqtt_message
        self._writer: asyncio.StreamWriter | None = None
        self._answering: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()

    async def open(self) -> None:
        """Connect, and from then on answer what the server asks."""
        reader, self._writer = await asyncio.open_connection(self._where.hostname, self._where.port)
        if self._where.scheme == "nats":
            await reader.readline()
            self._writer.write(b'CONNECT {"verbose":false,"pedantic":false,"protocol":1,"echo":false}\r\nPING\r\n')
            while await reader.readline() != b"PONG\r\n":
                pass
        else:
            name = f"bench-{time.monotonic_ns()}".encode()
            head = b"\0\4MQTT\4\2" + KEEPALIVE_S.to_bytes(2, "big")
            self._writer.write(_packet(0x10, head + len(name).to_bytes(2, "big") + name))
            if (await reader.readexactly(4))[3]:
                raise ConnectionError("refused")
        self._answering = asyncio.create_task(self._answer(reader), name="answers")

    async def write(self, data: bytes) -> None:
        """Write, as fast as the server takes it."""
        assert self._writer is not None
        self._writer.write(data)
        await self._writer.drain()

    async def settle(self) -> None:
        """Wait until the server has taken all that was written."""
        self._settled.clear()
        await self.write(b"PING\r\n" if self._where.scheme == "nats" else _packet(0xC0, b""))
        await self._settled.wait()

    async def _answer(self, reader: asyncio.StreamReader) -> None:
        if self._where.scheme != "nats":
            # To one who only publishes without acknowledgement, a broker says nothing but PINGRESP.
            while await reader.readexactly(2):
                self._settled.set()
        while line := await reader.readline():
            if line.startswith(b"PING"):
                await self.write(b"PONG\r\n")
            elif line.startswith(b"PONG"):
                self._settled.set()

    async def close(self) -> None:
        """Hang up."""
        if self._answering is not None:
            self._answering.cancel()
        if self._writer is not None:
            self._writer.close()


async def main(url: str) -> None:
    """Publish what is asked for."""
    wire = Wire(url)
    await wire.open()

    async def run(
        topics: list[list[str]], bodies: list[str], messages: int, rate: float | None = None
    ) -> dict[str, float]:
        """Publish ``messages`` in all, topics in turn: as fast as the server takes them, or ``rate`` a second."""
        encoded = [wire.encode(topic, body.encode()) for topic, body in zip(topics, bodies, strict=True)]
        most = 1000 if rate is None else max(1, round(rate * BLOCK_S))
        # Twice all of them, so that a block may begin anywhere.
        ring = encoded * (2 + most // len(encoded))
        place = done = 0
        begun, cpu = time.monotonic(), time.process_time()
        while done < messages:
            count = min(most, messages - done)
            if rate is not None:
                # Late blocks follow at once: what a stall kept back was due all the same.
                await asyncio.sleep(max(0.0, begun + done / rate - time.monotonic()))
            await wire.write(b"".join(ring[place : place + count]))
            place = (place + count) % len(encoded)
            done += count
        await wire.settle()
        ended = time.monotonic()
        return {"begun": begun, "ended": ended, "cpu": (time.process_time() - cpu) / (ended - begun)}

    await obey({"run": run})
    await wire.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
