"""Bare NATS, which keeps nothing. Worker: ``python -m bench.programs.nats_bare``."""

import asyncio
import os

import nats

from bench.programs.sample import sample


async def handle(message):
    sample(message.data)


async def producing():
    client = await nats.connect(os.environ["SERVER"])
    yield lambda stamp: client.publish("tasks", stamp.encode())
    await client.close()


async def main():
    client = await nats.connect(os.environ["SERVER"])
    await client.subscribe("tasks", cb=handle)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
