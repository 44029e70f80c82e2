"""A worker without any bridge: `python examples/pull_only.py [STORE]`. It polls, and backs off while there is nothing.

This is what the bridge spares: compare the receives of `queuebell queue depth` and of the metrics. STORE is any store's
URL; without one, a queue within this process. It ends after the last of three letters.
"""

import asyncio
import sys

from queuebell import PULL_ONLY, Listener, Message, open_store

STORE = sys.argv[1] if len(sys.argv) > 1 else "memory:post"


async def main() -> None:
    store = open_store(STORE)
    letters: asyncio.Queue[str] = asyncio.Queue()

    async def deliver(message: Message) -> None:
        letters.put_nowait(message.text())

    worker = Listener(store, "post/letters", deliver, bridge=PULL_ONLY)  # one poller stays
    running = asyncio.create_task(worker.run())
    for number in range(1, 4):
        await store.put("post/letters", [f"letter {number}"])
        print("delivered", await letters.get(), flush=True)
    print(f"what the worker counted: {worker.state()}")
    await worker.stop()
    await running
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
