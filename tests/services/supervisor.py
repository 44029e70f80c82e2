"""A supervisor process of the tests: replays what failed once, compensates what the handler gave up.

With ``hold`` as its last word it stops before the first delete, so that a test can kill it there.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from bridge.observe.logs import configure
from bridge.queues import open_store
from bridge.queues.base import Settlement, Settling
from listeners import Listener, Message, Replay
from tests.services.worker import say


async def supervise(message: Message) -> None:
    """Replay what ran out of attempts, once; anything else is compensated."""
    burial = message.burial
    what = {"failure": burial.failure, "burials": burial.burials, "listener": burial.listener, "error": burial.error}
    if burial.failure == "exhausted" and burial.burials == 1:
        say("replaying", text=message.text(), **what)
        raise Replay
    say("compensated", text=message.text(), **what)


async def main(url: str, queue: str, *words: str) -> None:
    """Supervise until SIGTERM."""
    store: Any = open_store(url)
    settle = store.settle

    async def held(where: str, settlement: Settlement) -> Settling:
        if settlement.delete:
            say("about to delete")
            await asyncio.Event().wait()
        settling: Settling = await settle(where, settlement)
        return settling

    if "hold" in words:
        store.settle = held
    listener = Listener(store, queue, supervise, bridge=url, name="supervisor", visibility_timeout=1)
    say("up")
    await listener.run()
    await store.close()


if __name__ == "__main__":
    configure("plain", "info")
    asyncio.run(main(*sys.argv[1:]))
