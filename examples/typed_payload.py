"""Messages with a type: `python examples/typed_payload.py [URL]`. A body that does not fit is buried, never handled."""

import asyncio
import sys

import msgspec

from queuebell import Listener, Message, open_store

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8470"


class Order(msgspec.Struct):  # noqa: D101
    customer: str
    cents: int


async def main() -> None:
    store = open_store(URL)

    async def charge(message: Message[Order]) -> None:
        order = message.value
        print(f"{order.customer} pays {order.cents / 100:.2f}", flush=True)
        if order.customer == "last":
            asyncio.get_running_loop().call_soon(done.set)

    done = asyncio.Event()
    bodies = [msgspec.json.encode(Order("ada", 1250)), b'{"customer": 7}', msgspec.json.encode(Order("last", 99))]
    await store.put("shop/orders", bodies)
    worker = Listener(store, "shop/orders", charge, payload=Order, concurrency=1)
    running = asyncio.create_task(worker.run())
    await done.wait()
    await worker.stop()
    await running
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
