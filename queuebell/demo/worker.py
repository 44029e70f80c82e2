"""One worker process of the demo: ``python -m queuebell.demo.worker URL`` analyses files until SIGTERM."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from queuebell.bridge.queues import open_store
from queuebell.demo.analysis import COLLECT_EVERY, Facts, analyse
from queuebell.listeners.handler import Message
from queuebell.listeners.listener import Listener

FILES: Final = "demo/files"
RESULTS: Final = "demo/results"
BATCH: Final = 16
VISIBILITY_S: Final = 3.0
"""Short: the messages of a killed worker come back after it. Living workers renew their leases."""


class Item(msgspec.Struct, frozen=True):
    """A file to analyse; without a path only the time until its handler runs counts. ``put_ns`` is when it was put.

    Times are nanoseconds of the machine's monotonic clock, which all processes share.
    """

    id: int
    put_ns: int
    path: str | None = None


class Result(msgspec.Struct, frozen=True):
    """The answer to an item, by the process ``pid``, whose handler began at ``started_ns``."""

    item: Item
    pid: int
    started_ns: int
    facts: Facts | None


async def work(url: str) -> None:
    """Work until SIGTERM. Results are put before their items are deleted: a crash in between makes a duplicate."""
    store = open_store(url)
    # One thread: parsing holds the interpreter's lock, so a second thread would delay both.
    thread = ThreadPoolExecutor(1, thread_name_prefix="analysis")

    async def handle(messages: list[Message]) -> None:
        started_ns, items = time.monotonic_ns(), [message.value for message in messages]
        results = [
            Result(item, os.getpid(), started_ns, facts)
            for item, facts in zip(items, await _analyse(thread, items), strict=True)
        ]
        await store.put(RESULTS, [msgspec.json.encode(result) for result in results])

    listener = Listener(
        store, FILES, handle, batch=BATCH, concurrency=2 * BATCH, visibility_timeout=VISIBILITY_S, payload=Item, grace=2
    )
    try:
        await listener.run()
    finally:
        thread.shutdown(wait=False, cancel_futures=True)
        await store.close()


async def _analyse(thread: ThreadPoolExecutor, items: list[Item]) -> list[Facts | None]:
    if not any(item.path for item in items):
        return [None] * len(items)

    def analyse_all() -> list[Facts | None]:
        return [None if item.path is None else analyse(item.path) for item in items]

    return await asyncio.get_running_loop().run_in_executor(thread, analyse_all)


if __name__ == "__main__":
    gc.set_threshold(COLLECT_EVERY)
    # The lease is short on purpose; a warning about it would stand in the middle of the demo's lines.
    logging.getLogger("queuebell").setLevel(logging.ERROR)
    asyncio.run(work(sys.argv[1]))
