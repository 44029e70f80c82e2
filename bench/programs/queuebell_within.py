"""Queuebell with bridge, producer and worker in one process."""

import asyncio
import os

from bench.programs.sample import sample
from queuebell import Bridge, Listener, Message


async def handle(message: Message) -> None:
    sample(message.text())


async def producing():
    async with Bridge(data=os.environ["SERVER"]) as bridge:
        listener = Listener(bridge, "bench/tasks", handle)
        running = asyncio.create_task(listener.run())
        yield lambda stamp: bridge.store.put("bench/tasks", [stamp])
        await listener.stop()
        await running
