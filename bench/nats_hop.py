"""A bare hop over NATS with nats-py: publish in one process, callback in another.

``python -m bench.nats_hop work URL``, ``put URL`` (bench.role).
"""

from __future__ import annotations

import asyncio
import sys

import nats
from nats.aio.msg import Msg

from bench.hop import Stamps, put_in_turn
from bench.role import obey

SUBJECT = "bench.hop"


async def work(url: str) -> None:
    """Subscribe, and note when the callback runs."""
    stamps = Stamps()

    async def callback(message: Msg) -> None:
        stamps.seen(message.data)

    client = await nats.connect(url)
    await client.subscribe(SUBJECT, cb=callback)
    # One flush may overtake the subscription in nats-py 2.16.
    await asyncio.sleep(0)
    await client.flush()
    await client.flush()
    await obey({"take": stamps.take})
    await client.close()


async def put(url: str) -> None:
    """Publish one message at a time."""
    client = await nats.connect(url)

    async def one(body: str) -> None:
        await client.publish(SUBJECT, body.encode())

    await obey({"put": put_in_turn(one)})
    await client.close()


if __name__ == "__main__":
    asyncio.run({"work": work, "put": put}[sys.argv[1]](sys.argv[2]))
