"""Queuebell with PostgreSQL. Worker: ``python -m bench.programs.queuebell_postgres``.

Beside it runs ``queuebell serve --postgres URL``, after ``queuebell queue init URL --notify``.
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
    run(Listener(os.environ["SERVER"], "bench/tasks", handle, bridge=os.environ["BRIDGE"]))
