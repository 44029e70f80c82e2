"""Puts that are carried out once, where the store is ours: how long keys are known, and that they cost no more."""

from __future__ import annotations

import hashlib
import sqlite3
from pathlib import Path

import pytest

from queuebell.bridge.contract.errors import QueueNotFound, StoreUnavailable
from queuebell.bridge.queues.base import AsyncConnection, Capabilities, NewMessage, PutReceipt
from queuebell.bridge.queues.checked import LISTED_MAX, CheckedOnceStore, missing_from
from queuebell.bridge.queues.embedded.sqlite import SqliteStore
from queuebell.bridge.queues.embedded.store import MemoryStore
from tests.bridge.queues.clocks import FakeClock

QUEUE = "billing/orders"
ONE = NewMessage(b"one")
WINDOW_S = 600.0


def sqlite(tmp_path: Path, clock: FakeClock) -> SqliteStore:
    return SqliteStore(tmp_path / "queue.db", clock=clock, wall=clock.wall)


async def test_what_expired_is_forgotten_after_its_window() -> None:
    """A message that nobody took in time was still put: only the window counts."""
    clock = FakeClock()
    async with MemoryStore("expired", clock=clock, wall=clock.wall) as store:
        brief = NewMessage(b"one", ttl_s=10)
        assert await store.put_once(QUEUE, "brief", brief) is not None
        clock.now += 20
        assert await store.put_once(QUEUE, "brief", brief) is None
        clock.now += WINDOW_S
        assert await store.put_once(QUEUE, "brief", brief) is not None


async def test_keys_are_forgotten_between_calls(tmp_path: Path) -> None:
    """Where puts have ended, the upkeep forgets as soon as anything is written; and counts as the table does."""
    clock = FakeClock()
    store = sqlite(tmp_path, clock)
    async with store:
        for number in range(20):
            await store.put_once(QUEUE, f"k{number}", ONE)
        await store.clear(QUEUE)
        clock.now += WINDOW_S + 1
        while store.remembered:
            await store.put(QUEUE, [ONE])
    connection = sqlite3.connect(tmp_path / "queue.db")
    assert connection.execute("SELECT COUNT(*) FROM once").fetchone() == (0,)
    connection.close()


class Dictionary(CheckedOnceStore):
    """Knows one queue's keys; ``asked`` is what came through the checks."""

    kind = "dictionary"
    capabilities = Capabilities(put_once=True, delay_ms_max=1000)

    def __init__(self, *queues: str) -> None:
        self.asked: list[tuple[str, str, NewMessage, bool, AsyncConnection | None]] = []
        self._names = list(queues)
        self._keys: dict[tuple[str, str], str] = {}

    async def _put_once(
        self,
        queue: str,
        key: str,
        message: NewMessage,
        digest: str,
        create: bool,
        connection: AsyncConnection | None,
    ) -> PutReceipt | bool:
        self.asked.append((queue, key, message, create, connection))
        assert digest == hashlib.sha256(message.body).hexdigest()
        if queue not in self._names:
            raise QueueNotFound("missing")
        known = self._keys.setdefault((queue, key), digest)
        return PutReceipt("1", "2", message.visible_after_ms) if len(self.asked) == 1 else known == digest

    async def _queues(self, prefix: str, after: str, limit: int) -> list[str]:
        return [name for name in self._names if name.startswith(prefix)]


async def test_a_missing_queue_is_told_with_what_was_meant() -> None:
    """Only to whoever asked for one that is there; else the store's own words go on."""
    store = Dictionary(QUEUE)
    with pytest.raises(QueueNotFound, match=f"Did you mean {QUEUE}"):
        await store.put_once("billing/order", "k", "x", create=False)
    with pytest.raises(QueueNotFound, match=r"\Amissing\Z"):
        await store.put_once("billing/order", "k", "x")


class Listing(MemoryStore):
    """Remembers what is listed, and fails where it is told to."""

    def __init__(self) -> None:
        super().__init__("listing")
        self.asked: list[tuple[str, str, int]] = []
        self.away = False

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        self.asked.append((prefix, after, limit))
        if self.away:
            raise StoreUnavailable("away")
        return await super().queues(prefix, after, limit)


async def test_names_are_looked_for_in_the_account_and_then_everywhere() -> None:
    """Two listings at most; where they fail, the refusal stands all the same."""
    async with Listing() as store:
        await store.create("billing/orders")
        assert "billing/orders" in str(await missing_from(store, "billing/order"))
        assert store.asked == [("billing/", "", LISTED_MAX)]
        assert "billing/orders" in str(await missing_from(store, "biling/orders"))
        assert store.asked[1:] == [("biling/", "", LISTED_MAX), ("", "", LISTED_MAX)]
        store.away = True
        assert "Did you mean" not in str(await missing_from(store, "billing/order"))
        assert LISTED_MAX == 1000
