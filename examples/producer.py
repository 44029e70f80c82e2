"""A producer: `python examples/producer.py [URL] [NUMBER_OF_ORDERS]`.

With the bridge's own queues a put is all there is to it. For a queue in another store, put through a
`PublishingQueue(store, Publisher(URL))`, which tells the bridge of every put.
"""

import asyncio
import sys

from queuebell import open_store

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8470"
ORDERS = int(sys.argv[2]) if len(sys.argv) > 2 else 3


async def main() -> None:
    store = open_store(URL)
    try:
        for number in range(1, ORDERS + 1):
            await store.put("billing/orders", [f"order {number}"])
            print(f"put order {number}")
    finally:
        await store.close()


if __name__ == "__main__":
    asyncio.run(main())
