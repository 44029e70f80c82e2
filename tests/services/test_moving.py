"""Messages move from a bridge's file to PostgreSQL behind another bridge, cut off half-way: none is lost or doubled."""

from __future__ import annotations

import collections
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from queuebell.bridge.queues.base import Depth
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.queues.postgres.schema import init
from tests.support.postgres import PostgresServer, execute, running
from tests.support.processes import Processes, Program, until

QUEUE = "shop/orders"
COUNT = 2_000
pytestmark = pytest.mark.system


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


async def queue(processes: Processes, action: str, *words: str) -> Program:
    """Begin one action on the queue."""
    return await processes.start(sys.executable, "-m", "queuebell", "queue", action, QUEUE, *words)


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


async def all_visible(store: HttpStore) -> bool:
    depth = await store.depth(QUEUE)
    return depth is not None and not depth.invisible


async def test_what_is_moved_is_neither_lost_nor_doubled(
    processes: Processes, server: PostgresServer, tmp_path: Path
) -> None:
    """The export is interrupted and done again, the import killed and done again, and once more for nothing."""
    file = tmp_path / "orders.jsonl"
    before = await processes.serve(data="file")
    async with HttpStore(before.url) as store:
        for start in range(0, COUNT, 32):
            await store.put(QUEUE, [f"order {number}" for number in range(start, min(COUNT, start + 32))])

        export = ("export", "--delete", "--file", str(file), "--store", before.url)
        first = await queue(processes, *export)
        await until(lambda: len(lines(file)) >= COUNT // 3, "a third is written")
        first.interrupt()
        await first.ended()
        await until(lambda: all_visible(store), "what it held is given back")
        cut = lines(file)
        assert COUNT // 3 <= len(cut) < COUNT
        # As if it had been killed: a message that is written and was not deleted, and a line that is not whole.
        with file.open("a") as torn:
            torn.write(cut[-1] + "\n" + cut[-2][:40])
        assert await (await queue(processes, *export)).ended() == 0
        assert await store.depth(QUEUE) == Depth(0, 0)
    written = len(lines(file))
    assert written > COUNT
    assert len({json.loads(line)["body"] for line in lines(file)}) == COUNT

    url = server.url(search_path="moved")
    await init(url, notify=True)

    async def put() -> collections.Counter[str]:
        rows = await execute(url, "SELECT convert_from(body, 'UTF8') AS body FROM queuebell_messages")
        return collections.Counter(row["body"] for row in rows)

    async def at_least(count: int) -> bool:
        return (await put()).total() >= count

    import_ = ("import", "--once", "--file", str(file), "--store", url)
    # Cut off twice, if it is not faster than that.
    for part in (8, 4):
        cut_off = await queue(processes, *import_)
        await until(functools.partial(at_least, COUNT // part), f"one of {part} is put")
        await cut_off.kill()
    for told in (None, f"imported 0; {written} were put before"):
        last = await queue(processes, *import_)
        assert await last.ended() == 0
        assert told is None or told in last.errors
        assert await put() == collections.Counter(f"order {number}" for number in range(COUNT))

    # By a bridge there it is one by one, under the same ids.
    after = await processes.serve("--store", url, data="moved")
    last = await queue(processes, *import_[:-1], after.url)
    assert await last.ended() == 0
    assert f"imported 0; {written} were put before" in last.errors
