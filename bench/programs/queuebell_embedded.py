"""Queuebell with its embedded queue. Worker: ``python -m bench.programs.queuebell_embedded``.

Beside it runs ``queuebell serve``.
"""

import os

from bench.programs.sample import sample
from queuebell import Listener, Message, open_store, run


async def handle(message: Message) -> None:
    sample(message.text())


async def producing():
    async with open_store(os.environ["SERVER"]) as queue:
        yield lambda stamp: queue.put("bench/tasks", [stamp])


if __name__ == "__main__":
    run(Listener(os.environ["SERVER"], "bench/tasks", handle))
