"""One logical queue over eight, and a worker of all: `python examples/partitioned.py [URL] [NUMBER_OF_ORDERS]`.

All orders of a customer are on one partition. The pool keeps the worker at 16 handlers for all partitions together,
instead of 32 for each. It ends when all orders are charged.
"""

import asyncio
import sys

from queuebell import Listener, Message, PartitionedQueue, Pool, open_store

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8470"
ORDERS = int(sys.argv[2]) if len(sys.argv) > 2 else 20


async def main() -> None:
    charged: asyncio.Queue[tuple[str, str]] = asyncio.Queue()

    async def charge(message: Message) -> None:
        await charged.put((message.text(), message.queue))

    store = open_store(URL)
    # For a queue in another store: PartitionedQueue(PublishingQueue(store, Publisher(URL)), ...)
    orders = PartitionedQueue(store, "billing/orders:8")
    worker = Listener(URL, "billing/orders:8", charge, pool=Pool(size=16))
    async with asyncio.TaskGroup() as group:
        group.create_task(worker.run(), name="worker")
        await orders.put_keyed([(f"customer {number % 5}", f"order {number}") for number in range(ORDERS)])
        for _ in range(ORDERS):
            order, partition = await charged.get()
            print(f"charged {order} from {partition}")
        await worker.stop()
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
