"""Numbered messages of a long run: its producer and worker processes, and the six numbers from what they noted.

``python -m tests.chaos.bulk put URL QUEUE NUMBER COUNT FOLDER`` puts in batches over HTTP; URL may have the addresses
of several bridges. Bodies are decimal numbers, ``NUMBER << 40`` and on. Notes go to ``attempted-NUMBER`` before a batch
is sent and to ``acknowledged-NUMBER`` after its 201: one record of two 64-bit numbers each, the first message and how
many. A batch that fails is never sent again: the next one is.

``python -m tests.chaos.bulk work STORE BRIDGE QUEUE PROBE VISIBILITY FILE`` handles batches, and a probe queue beside
them. What is handled is appended to FILE as 64-bit numbers before the handler returns, so before anything of it is
deleted. Every 997th message fails its first attempt. A probe is one JSON line. Standard input: ``block SECONDS`` blocks
the event loop.
"""

from __future__ import annotations

import array
import asyncio
import itertools
import json
import os
import struct
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

from queuebell.bridge.contract.errors import StoreError
from queuebell.bridge.observe.logs import configure
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.listeners import Done, Listener, Message, Retry
from tests.chaos.tally import TotalQueue

BATCH, CALLERS, CALL_S, PAUSE_S = 32, 4, 10.0, 0.05
SLOTS, FAILS, RETRY_S = 256, 997, 0.05
RECORD = struct.Struct("<QQ")
SHIFT = 40
LOW = (1 << SHIFT) - 1
ATTEMPTED, ACKNOWLEDGED, HANDLED = 1, 2, 4


class Producer:
    """Puts until so many messages are acknowledged."""

    def __init__(self, url: str, queue: str, number: int, count: int, folder: Path) -> None:
        self._url = url
        self._queue = queue
        self._count = count
        self._next = itertools.count(number << SHIFT, BATCH)
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


async def _obey() -> None:
    """Follow standard input to its end."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            word, _, value = line.decode().strip().partition(" ")
            if word == "block":
                threading.Event().wait(float(value))
    finally:
        transport.close()


async def work(store: str, bridge: str, queue: str, probe: str, visibility: float, file: Path) -> None:
    """Listen until SIGTERM."""
    notes = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    async def handle(messages: list[Message]) -> list[Done | Retry]:
        outcomes: list[Done | Retry] = []
        handled = array.array("Q")
        for message in messages:
            number = int(message.body)
            if number % FAILS == 0 and message.attempt == 1:
                outcomes.append(Retry(RETRY_S))
            else:
                outcomes.append(Done())
                handled.append(number)
        os.write(notes, handled.tobytes())
        return outcomes

    async def look(message: Message) -> None:
        os.write(1, json.dumps({"event": "probe", "body": message.text(), "at": time.monotonic()}).encode() + b"\n")

    options = {"bridge": bridge, "visibility_timeout": visibility, "max_attempts": 0}
    beside = Listener(store, probe, look, name=f"{file.name}.probe", handle_signals=False, **options)
    listener = Listener(store, queue, handle, name=file.name, concurrency=SLOTS, **options)
    obeying = asyncio.create_task(_obey(), name="obey")
    probing = asyncio.create_task(beside.run(), name="probe")
    os.write(1, b'{"event": "up"}\n')
    await listener.run()
    await beside.stop()
    await probing
    obeying.cancel()
    await asyncio.wait([obeying])


class BulkTally:
    """Reads the notes in ``folder``, one byte for each message: of producers, and ``handled-N`` of workers.

    A last record that is not whole was being written when its process was killed, and counts as not written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def acknowledged(self, number: int) -> int:
        """Return how many messages of one producer were acknowledged."""
        return sum(count for _, count in self._records(f"acknowledged-{number}"))

    def handled(self) -> int:
        """Return how often messages were handled, as the sizes of the notes say."""
        return sum(file.stat().st_size // 8 for file in self._folder.glob("handled-*"))

    def total(self) -> TotalQueue:
        """Sum up."""
        marks: dict[int, bytearray] = defaultdict(bytearray)
        for name, mark in (("attempted", ATTEMPTED), ("acknowledged", ACKNOWLEDGED)):
            for file in sorted(self._folder.glob(f"{name}-*")):
                for first, count in self._records(file.name):
                    flags, at = marks[first >> SHIFT], first & LOW
                    if len(flags) < at + count:
                        flags.extend(bytes(at + count - len(flags)))
                    for index in range(at, at + count):
                        flags[index] |= mark
        duplicated = 0
        strangers: set[int] = set()
        for file in sorted(self._folder.glob("handled-*")):
            data = file.read_bytes()
            for number in array.array("Q", data[: len(data) // 8 * 8]):
                flags, at = marks.get(number >> SHIFT, bytearray()), number & LOW
                if at >= len(flags) or not flags[at] & ATTEMPTED:
                    strangers.add(number)
                elif flags[at] & HANDLED:
                    duplicated += 1
                else:
                    flags[at] |= HANDLED
        counts = [0] * 8
        for flags in marks.values():
            for value in range(8):
                counts[value] += flags.count(value)
        return TotalQueue(
            attempted=sum(counts[1:]),
            acknowledged=sum(counts[value] for value in range(8) if value & ACKNOWLEDGED),
            lost=sum(counts[value] for value in range(8) if value & ACKNOWLEDGED and not value & HANDLED),
            duplicated=duplicated,
            recovered=sum(counts[value] for value in range(8) if value & HANDLED and not value & ACKNOWLEDGED),
            unexpected=len(strangers),
        )

    def _records(self, name: str) -> list[tuple[int, int]]:
        file = self._folder / name
        data = file.read_bytes() if file.exists() else b""
        return [(first, count) for first, count in RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size])]


if __name__ == "__main__":
    word, *given, last = sys.argv[1:]
    if word == "put":
        asyncio.run(Producer(given[0], given[1], int(given[2]), int(given[3]), Path(last)).run())
    else:
        configure("plain", "warning")
        asyncio.run(work(*given[:4], float(given[4]), Path(last)))
