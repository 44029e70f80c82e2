"""A producer and a worker in one process, with the bridge between them and no server anywhere.

Run it: `python examples/embedded.py [NUMBER_OF_ORDERS]`. It ends when all orders are charged.
"""

import asyncio
import sys

from queuebell import Bridge, Listener, Message

ORDERS = int(sys.argv[1]) if len(sys.argv) > 1 else 3


async def main() -> None:
    charged: asyncio.Queue[str] = asyncio.Queue()

    async def charge(message: Message) -> None:
        await charged.put(message.text())

    # Bridge() keeps its queues in memory; Bridge(data="folder") keeps them on disk.
    async with Bridge() as bridge, asyncio.TaskGroup() as group:
        worker = Listener(bridge, "billing/orders", charge)
        group.create_task(worker.run(), name="worker")
        for number in range(1, ORDERS + 1):
            # A put on the bridge's own queue is its own trigger: the worker starts within milliseconds.
            await bridge.store.put("billing/orders", [f"order {number}"])
        for _ in range(ORDERS):
            print("charged", await charged.get())
        await worker.stop()


if __name__ == "__main__":
    asyncio.run(main())
