"""A supervisor of buried messages compensates, replays or reports: `python examples/supervisor.py [URL]`."""

import asyncio
import sys

from queuebell import Bury, Listener, Message, Replay, open_store

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8470"
ended: asyncio.Queue[str] = asyncio.Queue()


async def deliver(message: Message) -> None:
    if message.text() == "to nowhere":
        raise Bury("no such address")
    if message.text() == "to the moon" or message.burial is None:
        raise ConnectionError("no drone")
    await ended.put(f"{message.text()}: delivered, after {message.burial.burials} burial")


async def supervise(message: Message) -> None:
    burial = message.burial  # None for what somebody else put here
    if burial is not None and burial.failure == "exhausted" and burial.burials < 2:
        raise Replay(after=0.1)  # once more, when the trouble may be over
    what = "money back" if burial is not None and burial.failure == "poisoned" else "reported"  # compensate, or tell
    await ended.put(f"{message.text()}: {what}, {burial and burial.reason}")


async def main() -> None:
    async with open_store(URL) as store:
        await store.put("drones/parcels", ["to nowhere", "to Ada", "to the moon"])
        works = [("drones/parcels", deliver), ("drones/parcels-poison", supervise)]
        both = [Listener(store, *work, max_attempts=1) for work in works]
        running = [asyncio.create_task(each.run()) for each in both]
        print(*[await ended.get() for _ in range(3)], sep="\n")
        await asyncio.gather(*(each.stop() for each in both), *running)


if __name__ == "__main__":
    asyncio.run(main())
