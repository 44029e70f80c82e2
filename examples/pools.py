"""Two queues, one pool of four handlers, urgent work first: `python examples/pools.py`. It needs nothing but itself."""

import asyncio

from queuebell import PULL_ONLY, Listener, Message, Pool, Share, open_store

URGENT, BULK = "billing/urgent", "billing/bulk"
pool = Pool(4, {BULK: Share(priority=1, reserved=1)})
done: list[str] = []


async def main() -> None:
    store = open_store("memory:example")
    await store.put(BULK, [str(number) for number in range(12)])
    await store.put(URGENT, [str(number) for number in range(12)])

    async def handle(message: Message) -> None:
        await asyncio.sleep(0.05)
        done.append(message.queue)
        if len(done) == 24:
            await listener.stop()

    listener = Listener(store, [URGENT, BULK], handle, bridge=PULL_ONLY, pool=pool)
    async with store:
        await listener.run()
    half = done[:12]
    print(f"of the first 12 handled, {half.count(URGENT)} were urgent and {half.count(BULK)} had the reserved slot")


if __name__ == "__main__":
    asyncio.run(main())
