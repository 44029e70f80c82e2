"""A worker process of the tests: says what its handlers do, one JSON line each, and obeys standard input.

``go`` opens the gate that handlers wait at, ``hold`` closes it, ``state`` prints the listeners' figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from bridge.observe.logs import configure
from listeners import Listener, Message


@dataclass
class Options:
    """What one worker process is to do."""

    store: str
    bridge: str | None
    queue: str | list[str]
    name: str = "worker"
    listeners: int = 1
    concurrency: int = 32
    visibility: float = 30.0
    hold: bool = False
    max_attempts: int = 0
    grace: float = 20.0

    def arguments(self) -> list[str]:
        """Return the command that starts such a worker."""
        return [sys.executable, "-m", "tests.services.worker", json.dumps(asdict(self))]


def say(event: str, **what: Any) -> None:
    """Write one line in one call: it is whole, or it is not there, whenever this process is killed."""
    os.write(1, json.dumps({"event": event, **what}).encode() + b"\n")


async def obey(gate: asyncio.Event, all_of_them: list[Listener]) -> None:
    """Follow standard input to its end."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    try:
        while line := await reader.readline():
            word = line.decode().strip()
            if word == "go":
                gate.set()
            elif word == "hold":
                gate.clear()
            elif word == "state":
                say("state", listeners=[json.loads(msgspec.json.encode(one.state())) for one in all_of_them])
    finally:
        transport.close()


async def main(options: Options) -> None:
    """Run the listeners until SIGTERM."""
    gate = asyncio.Event()
    if not options.hold:
        gate.set()

    def handler(number: int) -> Any:
        async def handle(message: Message) -> None:
            what = {"body": message.text(), "attempt": message.attempt, "who": f"{options.name}.{number}"}
            say("start", source=message.wake_source, **what)
            try:
                await gate.wait()
            except asyncio.CancelledError:
                say("cancelled", **what)
                raise
            say("done", **what)

        return handle

    all_of_them = [
        Listener(
            options.store,
            options.queue,
            handler(number),
            bridge=options.bridge,
            name=f"{options.name}.{number}",
            concurrency=options.concurrency,
            visibility_timeout=options.visibility,
            max_attempts=options.max_attempts,
            grace=options.grace,
            # One of them hears the signals, and takes the others along.
            handle_signals=number == 0,
        )
        for number in range(options.listeners)
    ]
    say("up")
    obeying = asyncio.create_task(obey(gate, all_of_them), name="obey")
    others = [asyncio.create_task(one.run(), name=one.name) for one in all_of_them[1:]]
    await all_of_them[0].run()
    await asyncio.gather(*(one.stop() for one in all_of_them[1:]))
    await asyncio.gather(*others)
    obeying.cancel()
    await asyncio.wait([obeying])
    say("stopped")


if __name__ == "__main__":
    configure("plain", "info")
    asyncio.run(main(Options(**json.loads(sys.argv[1]))))
