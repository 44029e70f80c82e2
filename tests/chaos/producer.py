"""A producer process of the fault catalogue: puts and publishes as `PublishingQueue` does, when told to.

Standard input, one line each: ``put BODY ...``; ``cancel TURNS BODY`` puts, and cancels that after so many turns of the
loop; ``close`` ends it. Standard output: ``acknowledged``, ``unknown``, ``refused`` or ``cancelled`` with the bodies,
and ``hesitating`` where ``hesitate`` has it stop for ever between its put and its publish.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from queuebell.bridge import Publisher, PublishingQueue
from queuebell.bridge.contract.errors import QueuebellError, UnknownOutcome
from queuebell.bridge.queues.http.store import HttpStore


@dataclass
class Options:
    """What one producer process is to do; seconds."""

    store: str
    bridge: str
    queue: str
    hesitate: bool = False
    server_timeout: float = 1.0

    def arguments(self) -> list[str]:
        """Return the command that starts such a producer."""
        return [sys.executable, "-m", "tests.chaos.producer", json.dumps(asdict(self))]


class Hesitant(Publisher):
    """Says that it is about to publish, and never does."""

    async def publish(self, *_: Any, **__: Any) -> None:
        """Wait for ever."""
        say("hesitating")
        await asyncio.Event().wait()


def say(event: str, **what: Any) -> None:
    """Write one line in one call."""
    os.write(1, json.dumps({"event": event, "at": time.monotonic(), **what}).encode() + b"\n")


async def put(queue: PublishingQueue, name: str, bodies: list[str]) -> None:
    """Put, and say what came of it."""
    try:
        await queue.put(name, bodies)
    except UnknownOutcome:
        say("unknown", bodies=bodies)
    except QueuebellError as error:
        say("refused", bodies=bodies, why=str(error))
    except asyncio.CancelledError:
        say("cancelled", bodies=bodies)
        raise
    else:
        say("acknowledged", bodies=bodies)


async def run(options: Options) -> None:
    """Follow standard input to its end."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    store = HttpStore(options.store, timeout=1.0)
    kind = Hesitant if options.hesitate else Publisher
    async with kind(options.bridge) as publisher:
        queue = PublishingQueue(store, publisher, server_timeout=options.server_timeout)
        say("up")
        while line := await reader.readline():
            word, *rest = line.decode().split()
            if word == "put":
                await put(queue, options.queue, rest)
            elif word == "cancel":
                putting = asyncio.create_task(put(queue, options.queue, rest[1:]), name="put")
                for _ in range(int(rest[0])):
                    await asyncio.sleep(0)
                putting.cancel()
                await asyncio.wait([putting])
            elif word == "close":
                break
        await queue.close()
    transport.close()
    await store.close()
    say("closed", unsent=publisher.state().unsent)


if __name__ == "__main__":
    asyncio.run(run(Options(**json.loads(sys.argv[1]))))
