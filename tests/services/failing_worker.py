"""A worker process of the tests that fails: for good, until it is replayed, or never, as the body says."""

from __future__ import annotations

import asyncio
import sys

from bridge.observe.logs import configure
from listeners import Bury, Listener, Message
from tests.services.worker import say


async def work(message: Message) -> None:
    """Give up what is hopeless, and fail at what was not replayed."""
    say("start", text=message.text(), attempt=message.attempt, replayed=message.burial is not None)
    if message.text().startswith("hopeless"):
        raise Bury("no such customer")
    if message.text().startswith("later") and message.burial is None:
        raise RuntimeError("not today")
    say("done", text=message.text())


async def main(url: str, queue: str) -> None:
    """Work until SIGTERM."""
    say("up")
    await Listener(url, queue, work, bridge=url, name="worker", max_attempts=2).run()


if __name__ == "__main__":
    configure("plain", "info")
    asyncio.run(main(*sys.argv[1:]))
