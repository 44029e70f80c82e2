"""A worker process of tests: says what its handlers do, and misbehaves on demand.

One JSON line each on standard output. Standard input: ``hold`` and ``go`` close and open the gate that handlers wait
at, ``block SECONDS`` has the next handler block the event loop, ``state`` prints the listeners' figures. What a body
begins with decides what its handler does: ``bad`` fails, always.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from typing import Any

import msgspec

from queuebell.bridge.contract.backoff import RandomExponential
from queuebell.bridge.observe.logs import configure
from queuebell.bridge.queues import open_store
from queuebell.listeners import Listener, Message

ODDITIES: dict[str, type[BaseException]] = {
    "memory": MemoryError,
    "base": type("OddBaseException", (BaseException,), {}),
    "exit": SystemExit,
    "interrupt": KeyboardInterrupt,
}


@dataclass
class Options:
    """What one worker process is to do; seconds."""

    store: str
    bridge: str | None
    queue: str | list[str]
    name: str = "worker"
    listeners: int = 1
    concurrency: int = 32
    visibility: float = 30.0
    hold: bool = False
    max_attempts: int = 0
    store_call: float = 10.0
    poll_cap: float = 30.0
    luck: float = 1.0
    """Chance is drawn from [0, luck)."""
    clock_ahead: float = 0.0
    """How far this process's monotonic clock is ahead of everybody else's."""
    collects: bool = False
    """Collect garbage in every turn of the loop: a task that nobody holds is gone."""
    odd: str = ""
    """What the first handler of all raises, see ODDITIES."""

    def arguments(self, *launcher: str) -> list[str]:
        """Return the command that starts such a worker, inside ``launcher``."""
        module = launcher or ("-m", "tests.chaos.worker")
        return [sys.executable, *module, json.dumps(asdict(self))]


class Work:
    """The handlers of one process."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.gate = asyncio.Event()
        self.block_s = 0.0
        self.odd = options.odd
        if not options.hold:
            self.gate.set()

    def say(self, event: str, **what: Any) -> None:
        """Write one line in one call: it is whole, or it is not there, whenever this process is killed."""
        at = time.monotonic() - self.options.clock_ahead
        os.write(1, json.dumps({"event": event, "at": at, **what}).encode() + b"\n")

    def handler(self, who: str) -> Callable[[Message], Awaitable[None]]:
        """Return a handler with a name."""

        async def handle(message: Message) -> None:
            await self.handle(message, who)

        return handle

    async def handle(self, message: Message, who: str) -> None:
        """Handle one message as its body and standard input ask."""
        body = message.text()
        what = {"body": body, "attempt": message.attempt, "who": who}
        poison = message.queue.endswith("-poison")
        self.say("start", source=message.wake_source, poison=poison, **what)
        if body.startswith("bad") and not poison:
            raise ValueError("this message always fails")
        if self.odd:
            odd, self.odd = self.odd, ""
            raise ODDITIES[odd]("the handler raised what none should")
        if self.block_s:
            block_s, self.block_s = self.block_s, 0.0
            threading.Event().wait(block_s)
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.say("cancelled", **what)
            raise
        self.say("done", **what)

    async def obey(self, listeners: list[Listener]) -> None:
        """Follow standard input to its end."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        try:
            while line := await reader.readline():
                word, _, value = line.decode().strip().partition(" ")
                if word == "go":
                    self.gate.set()
                elif word == "hold":
                    self.gate.clear()
                elif word == "block":
                    self.block_s = float(value)
                elif word == "state":
                    self.say("state", listeners=[json.loads(msgspec.json.encode(one.state())) for one in listeners])
        finally:
            transport.close()


async def collect() -> None:
    """Collect garbage in every turn of the loop."""
    while True:
        gc.collect()
        await asyncio.sleep(0.002)


async def run(options: Options) -> None:
    """Run the listeners until SIGTERM."""
    work = Work(options)
    stores = [open_store(options.store, timeout=options.store_call) for _ in range(options.listeners)]

    class Lucky(Listener[bytes]):
        _draw = staticmethod(lambda: options.luck * random.random())

    listeners = [
        Lucky(
            store,
            options.queue,
            work.handler(f"{options.name}.{number}"),
            bridge=options.bridge,
            name=f"{options.name}.{number}",
            concurrency=options.concurrency,
            visibility_timeout=options.visibility,
            max_attempts=options.max_attempts,
            backoff=RandomExponential(0.1, options.poll_cap, 0.1),
            # One of them hears the signals, and takes the others along.
            handle_signals=number == 0,
        )
        for number, store in enumerate(stores)
    ]
    work.say("up", listeners=options.listeners)
    beside = [asyncio.create_task(work.obey(listeners), name="obey")]
    if options.collects:
        beside.append(asyncio.create_task(collect(), name="collect"))
    others = [asyncio.create_task(one.run(), name=one.name) for one in listeners[1:]]
    await listeners[0].run()
    await asyncio.gather(*(one.stop() for one in listeners[1:]))
    await asyncio.gather(*others)
    for task in beside:
        task.cancel()
    await asyncio.wait(beside)
    for store in stores:
        await store.close()
    work.say("stopped")


def main(arguments: list[str]) -> None:
    """Run a worker with the options given as JSON."""
    configure("plain", "info")
    asyncio.run(run(Options(**json.loads(arguments[0]))))


if __name__ == "__main__":
    main(sys.argv[1:])
