"""A producer process of the tests that says when it is between its put and its publish, and stays there."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from bridge import Publisher, PublishingQueue, open_store


class Hesitant(Publisher):
    """Says that it is about to publish, and never does."""

    async def publish(self, *_: Any, **__: Any) -> None:
        """Wait for ever."""
        os.write(1, b"about to publish\n")
        await asyncio.Event().wait()


async def main(store_url: str, bridge_url: str, queue: str, *bodies: str) -> None:
    """Put the bodies."""
    store = open_store(store_url)
    async with Hesitant(bridge_url) as publisher:
        await PublishingQueue(store, publisher).put(queue, bodies)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
