"""The table of schemes."""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys

import pytest

from queuebell.bridge.brokers.extras import install
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.queues import STORES, open_store
from queuebell.bridge.queues.base import NewMessage, StoredMessage
from queuebell.bridge.queues.embedded import file as sqlite_file
from queuebell.bridge.queues.embedded.engine import Engine
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.listeners import PULL_ONLY, Listener, Message
from tests.bridge.queues.clocks import FakeClock
from tests.bridge.queues.ears import Ear
from tests.support.processes import ROOT, environment
from tests.support.writers import engine_of

QUEUE = "billing/orders"


def test_looking_at_the_table_loads_no_store() -> None:
    """`import queuebell.bridge.queues` costs neither a web client nor a database."""
    code = "import sys, queuebell.bridge.queues; print(sorted(m for m in sys.modules if m in ('aiohttp', 'sqlite3')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert set(STORES) >= {"memory", "sqlite", "http", "https"}


def test_no_sdk_is_loaded_before_the_first_call() -> None:
    """Opening a store of another system loads neither its SDK nor a web client."""
    program = """
import sys
from queuebell.bridge.queues import open_store
for url in ("sqs://eu-central-1", "azure:", "nats://127.0.0.1:1", "redis://127.0.0.1:1"):
    open_store(url)
print(sorted({"aiobotocore", "botocore", "azure", "nats", "redis", "aiohttp"} & set(sys.modules)))
"""
    told = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(AZURE_STORAGE_CONNECTION_STRING="UseDevelopmentStorage=true"),
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [
        ("sqs://eu-central-1", "aiobotocore.session", "sqs"),
        ("azure:?account=shop", "azure.storage.queue.aio", "azure"),
        ("nats://127.0.0.1:1", "nats.aio.client", "nats"),
        ("redis://127.0.0.1:1", "redis.asyncio", "redis"),
        ("postgres://127.0.0.1:1/db", "asyncpg", "postgres"),
    ],
)
async def test_a_missing_sdk_is_named(url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has not installed the extra is told how, by a listener at its start: with a bridge and without."""
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")
    monkeypatch.setitem(sys.modules, module, None)
    async with open_store(url) as store:
        with pytest.raises(ConfigurationError, match=re.escape(install(extra))):
            await store.receive("shop/orders")
    for bridge in (PULL_ONLY, "http://127.0.0.1:1"):
        asked = open_store(url)
        monkeypatch.setattr(asked, "receive", lambda *_, **__: pytest.fail("the store was asked"))
        with pytest.raises(ConfigurationError, match=re.escape(install(extra))):
            async with asyncio.timeout(100):
                await Listener(asked, "shop/orders", _handle, bridge=bridge, handle_signals=False).run()
        await asked.close()


async def _handle(message: Message) -> None:
    """Succeed."""


Q = "billing/orders"


async def test_close_carries_out_what_was_asked() -> None:
    """A call under way is answered, not dropped."""
    keeper, store = MemoryStore("kept"), MemoryStore("kept")
    await keeper.open()
    await store.open()
    task = asyncio.create_task(store.put(Q, [NewMessage(b"x")]), name="put")
    await asyncio.sleep(0)
    await store.close()
    assert len(await task) == 1
    depth = await keeper.depth(Q)
    assert depth.visible == 1
    await keeper.close()


async def test_a_large_queue_is_cleared_bit_by_bit() -> None:
    """Clearing answers at once; what is left goes in the following turns of the loop."""
    store = MemoryStore("large")
    for _ in range(100):
        await store.put(Q, [NewMessage(b"x")] * 32)
    await store.clear(Q)
    engine = engine_of(store)
    depth = await store.depth(Q)
    assert depth.visible == 0
    while engine.state.deleted_queue_ids:
        await asyncio.sleep(0)
    assert engine.state.execute("SELECT COUNT(*) FROM messages").fetchone() == (0,)
    await store.close()


async def test_a_store_never_opened_closes() -> None:
    """Nothing was taken, so there is nothing to let go."""
    store = MemoryStore("never")
    store.refresh(Q)
    store.reclaim(Q, [])
    assert store.backlogs() == []
    assert store.failure() is not None
    await store.close()


def test_a_store_left_on_a_closed_loop_holds_up_nobody() -> None:
    """A put is carried out, acknowledged and heard of by those who still listen."""
    left, near, far = MemoryStore("left"), MemoryStore("left"), MemoryStore("left")

    async def leave() -> None:
        await left.open()
        left.observe(Ear())

    async def put() -> tuple[int, int]:
        ear = Ear()
        await near.open()
        near.observe(ear)
        async with asyncio.timeout(10):
            put = await far.put(Q, [NewMessage(b"x")])
        visible = ear.backlogs[-1].visible
        for store in (left, near, far):
            await store.close()
        return len(put), visible

    asyncio.run(leave())
    assert asyncio.run(put()) == (1, 1)
    gc.collect()


class Room:
    """Room for so many bytes, which remembers what it was asked for."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept = 0

    def take(self, size: int) -> bool:
        return size <= self.size

    def shrink(self, size: int) -> None:
        self.kept = size


def told(messages: list[StoredMessage]) -> list[tuple[bytes, dict[str, str]]]:
    return [(message.body, message.headers) for message in messages]


def test_headers_count_in_the_log() -> None:
    """Whose length is guessed, so that it is written back into the file in time."""
    clock = FakeClock()
    connection = sqlite_file.open_memory()
    engine = Engine(connection, clock=clock, wall=clock.wall, receipts=lambda: 1, boot="0" * 32)
    engine.put(QUEUE, [NewMessage(b"", headers={"a": "x" * 8000})] * 32, None)
    engine.state.commit()
    assert engine.state.log_pages > 32 * 8000 // 4096
    connection.close()


async def test_one_name_is_one_store() -> None:
    """Stores of one name see each other's messages and are heard by each other's bridge, until the last one closes."""
    producer, bridge, other = MemoryStore("shared"), MemoryStore("shared", boot="ab" * 16), MemoryStore("other")
    ear = Ear()
    await producer.put(Q, [NewMessage(b"x")])
    await bridge.open()
    bridge.observe(ear)
    assert [backlog.visible for backlog in bridge.backlogs()] == [1]
    await producer.put(Q, [NewMessage(b"y")])
    assert [backlog.visible for backlog in ear.backlogs] == [2]
    assert (await producer.receive(Q, 1, 1.0)).boot == "ab" * 16
    assert await other.depth(Q) is None
    assert producer.fingerprint(Q) == bridge.fingerprint(Q) != other.fingerprint(Q)
    await producer.close()
    assert await bridge.depth(Q) is not None
    await bridge.close()
    again = MemoryStore("shared")
    assert await again.depth(Q) is None
    await again.close()
    await other.close()
