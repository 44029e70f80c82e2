"""What a producer put a message under is told to the handler, whichever way the message came."""

from __future__ import annotations

import asyncio

from bridge.observe.facts import Fact, Woken
from listeners.handler import Message
from tests.listeners.rig import QUEUE, listening
from tests.support.web import serving


async def test_a_handler_sees_the_key() -> None:
    """Received by the listener or carried by its wake; a message that was put plainly has none."""
    seen: asyncio.Queue[tuple[bytes, str | None]] = asyncio.Queue()
    facts: list[Fact] = []

    async def handle(message: Message) -> None:
        await seen.put((message.body, message.key))

    path = f"/v1/queues/{QUEUE}/messages"
    async with serving() as served, asyncio.timeout(200):
        served.bridge.observe(facts.append)
        await served.ask("PUT", path + "/first", b"received")
        url = served.server.url
        async with listening(url, handle, bridge=url):
            assert await seen.get() == (b"received", "first")
            carried, number = 0, 0
            while not carried:
                # A session that is still settling is not handed anything; the next put finds it with nothing to do.
                number += 1
                await served.ask("PUT", f"{path}/id-{number}", b"put")
                assert await seen.get() == (b"put", f"id-{number}")
                carried = sum(fact.carried for fact in facts if isinstance(fact, Woken))
            await served.ask("POST", path, b"plain", media="text/plain")
            assert await seen.get() == (b"plain", None)
