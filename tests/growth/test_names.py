"""What a bridge holds in memory for each queue that stands on its disk, and what is left of it when they are gone."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path

from queuebell.bridge.queues.embedded.sqlite import SqliteStore
from queuebell.bridge.service.bridge import Bridge

QUEUES = 3000
BYTES_MAX = 1500
LEFT_MAX = 250


def held() -> int:
    """Return the bytes that Python objects take now."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


async def test_a_queue_takes_little_memory_and_gives_it_back(tmp_path: Path) -> None:
    """Each of 3,000 queues with a message takes under 1.5 KB, and a deleted one leaves next to nothing."""
    async with SqliteStore(tmp_path / "queue.db") as store:
        await asyncio.gather(*(store.put(f"many/q{number}", [b"x"]) for number in range(QUEUES)))
    async with Bridge(str(tmp_path / "warm")):
        # What is imported or made once counts for no queue.
        pass
    tracemalloc.start()
    try:
        before = held()
        async with Bridge(str(tmp_path)) as bridge:
            while sum(work.visible for work in bridge.scheduler.pending.by_queue.values()) < QUEUES:
                await asyncio.sleep(0)
            full = held()
            store = bridge.store
            assert isinstance(store, SqliteStore)
            for number in range(QUEUES):
                await store.delete(f"many/q{number}")
            while bridge.scheduler.pending.by_queue:
                await asyncio.sleep(0)
            left = held()
    finally:
        tracemalloc.stop()
    assert (full - before) / QUEUES < BYTES_MAX
    assert (left - before) / QUEUES < LEFT_MAX
