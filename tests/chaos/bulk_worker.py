"""A worker process of the long run: handles numbered messages in batches, and a probe queue beside them.

``python -m tests.chaos.bulk_worker STORE BRIDGE QUEUE PROBE VISIBILITY FILE``. What is handled is appended to FILE as
64-bit numbers before the handler returns, so before anything of it is deleted. Every 997th message fails its first
attempt. A probe is one JSON line. Standard input: ``block SECONDS`` blocks the event loop.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import sys
import threading
import time
from pathlib import Path

from bridge.observe.logs import configure
from listeners import Done, Listener, Message, Retry

SLOTS = 256
FAILS = 997
RETRY_S = 0.05


async def obey() -> None:
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


async def run(store: str, bridge: str, queue: str, probe: str, visibility: float, file: Path) -> None:
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
    obeying = asyncio.create_task(obey(), name="obey")
    probing = asyncio.create_task(beside.run(), name="probe")
    os.write(1, b'{"event": "up"}\n')
    await listener.run()
    await beside.stop()
    await probing
    obeying.cancel()
    await asyncio.wait([obeying])


if __name__ == "__main__":
    configure("plain", "warning")
    asyncio.run(run(*sys.argv[1:5], float(sys.argv[5]), Path(sys.argv[6])))
