"""Many messages at once, each with its own outcome: `python examples/batch_handler.py [URL] [NUMBER_OF_READINGS]`."""

import asyncio
import sys

from queuebell import Bury, Listener, Message, open_store

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8470"
READINGS = int(sys.argv[2]) if len(sys.argv) > 2 else 40


async def main() -> None:
    seen: asyncio.Queue[int] = asyncio.Queue()

    # A list as the parameter's type makes it a batch handler; it returns one outcome per message, None is success.
    async def insert(messages: list[Message]) -> list[Bury | None]:
        print(f"one insert of {len(messages)} readings", flush=True)
        seen.put_nowait(len(messages))
        return [None if message.text().isdigit() else Bury("not a number") for message in messages]

    store = open_store(URL)
    bodies = [str(number) for number in range(READINGS - 1)] + ["a cat on the sensor"]
    for start in range(0, READINGS, 32):
        await store.put("lab/readings", bodies[start : start + 32])
    worker = Listener(store, "lab/readings", insert, batch=32)
    running = asyncio.create_task(worker.run())
    missing = READINGS
    while missing > 0:
        missing -= await seen.get()
    await worker.stop()
    await running
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
