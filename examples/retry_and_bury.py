"""What a handler may say, and a supervisor at the poison queue: `python examples/retry_and_bury.py [URL]`."""

import asyncio
import sys

from queuebell import Bury, Listener, Message, Retry, open_store

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8470"
buried: asyncio.Queue[str] = asyncio.Queue()


async def pay(message: Message) -> None:
    print(f"{message.text()}, attempt {message.attempt}", flush=True)
    match message.text():
        case "busy" if message.attempt == 1:
            raise Retry(after=0.1)  # later, please
        case "broken":
            raise Bury("no such account")  # no attempt will help: to the poison queue at once
        case "cursed":
            raise RuntimeError("a bug")  # a failed attempt, made again until max_attempts is reached


async def compensate(message: Message) -> None:
    await buried.put(message.text())


async def main() -> None:
    store = open_store(URL)
    await store.put("bank/payments", ["fine", "busy", "broken", "cursed"])
    payer = Listener(store, "bank/payments", pay, max_attempts=2)
    supervisor = Listener(store, "bank/payments-poison", compensate)
    running = [asyncio.create_task(each.run()) for each in (payer, supervisor)]
    print("buried:", await buried.get(), flush=True)
    print("buried:", await buried.get(), flush=True)
    await asyncio.gather(payer.stop(), supervisor.stop(), *running)
    await store.close()


if __name__ == "__main__":
    asyncio.run(main())
