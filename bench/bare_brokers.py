"""Bare subscribers that only count, and a bare hop: what the clients' libraries cost by themselves.

``python -m bench.bare_brokers nats URL``, ``mqtt URL``, ``hear URL``, ``put URL`` (bench.role).
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from typing import Any

from bench.hop import Stamps, put_in_turn
from bench.role import obey

SUBJECT = "bench.hop"
WITHIN_S = 60.0


class Count:
    """How many came, and when the last of them did."""

    def __init__(self) -> None:
        self.heard = 0
        self.wanted = 0
        self.at = 0.0
        self.full = threading.Event()

    def one(self) -> None:
        """Count one."""
        self.heard += 1
        if self.heard == self.wanted:
            self.at = time.monotonic()
            self.full.set()

    async def expect(self, messages: int) -> int:
        """Begin to count anew, up to ``messages``."""
        self.full.clear()
        self.heard, self.wanted = 0, messages
        return messages

    async def taken(self) -> dict[str, float]:
        """Wait until all have come."""
        begun = time.monotonic()
        while not self.full.is_set() and time.monotonic() < begun + WITHIN_S:
            await asyncio.sleep(0.01)
        return {"heard": self.heard, "at": self.at}


async def nats_count(url: str) -> None:
    """Subscribe to all triggers with nats-py."""
    import nats
    from nats.aio.msg import Msg

    count = Count()

    async def callback(message: Msg) -> None:
        count.one()

    client = await nats.connect(url)
    await client.subscribe(
        "queuebell.trigger.*.*", cb=callback, pending_msgs_limit=1 << 22, pending_bytes_limit=1 << 30
    )
    await _settled(client)
    await obey({"expect": count.expect, "taken": count.taken})
    await client.close()


async def mqtt_count(url: str) -> None:
    """Subscribe to all triggers with paho, which reads in a thread of its own."""
    from urllib.parse import urlsplit

    from paho.mqtt.client import Client
    from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion

    count = Count()
    ready = threading.Event()
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)

    def subscribed(*_: Any) -> None:
        ready.set()

    def heard(*_: Any) -> None:
        count.one()

    client.on_subscribe = subscribed
    client.on_message = heard
    where = urlsplit(url)
    client.connect(str(where.hostname), where.port or 1883)
    client.subscribe("queuebell/trigger/+/+", qos=1)
    client.loop_start()
    if not await asyncio.to_thread(ready.wait, 10):
        raise ConnectionError("not subscribed")
    await obey({"expect": count.expect, "taken": count.taken})
    client.disconnect()
    client.loop_stop()


async def hear(url: str) -> None:
    """Subscribe with nats-py, and note when the callback runs."""
    import nats
    from nats.aio.msg import Msg

    stamps = Stamps()

    async def callback(message: Msg) -> None:
        stamps.seen(message.data)

    client = await nats.connect(url)
    await client.subscribe(SUBJECT, cb=callback)
    await _settled(client)
    await obey({"take": stamps.take})
    await client.close()


async def put(url: str) -> None:
    """Publish one message at a time with nats-py."""
    import nats

    client = await nats.connect(url)

    async def one(body: str) -> None:
        await client.publish(SUBJECT, body.encode())

    await obey({"put": put_in_turn(one)})
    await client.close()


async def _settled(client: Any) -> None:
    # One flush may overtake the subscription in nats-py 2.16.
    await asyncio.sleep(0)
    await client.flush()
    await client.flush()


if __name__ == "__main__":
    asyncio.run({"nats": nats_count, "mqtt": mqtt_count, "hear": hear, "put": put}[sys.argv[1]](sys.argv[2]))
