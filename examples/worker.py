"""A worker, asleep until there is work: `python examples/worker.py [URL]`. Ctrl-C or SIGTERM ends it gracefully."""

import sys

from queuebell import Listener, Message, run

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8470"


async def charge(message: Message) -> None:
    print(f"charged {message.text()}, attempt {message.attempt}", flush=True)


if __name__ == "__main__":
    run(Listener(URL, "billing/orders", charge))
