"""On every store: workers that are stopped while they work, and exports, take no message its only attempt."""

from __future__ import annotations

import argparse
import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import NewMessage, QueueStore
from queuebell.command import queue_transfer
from queuebell.listeners import PULL_ONLY, Listener, Message, Pool
from tests.conformance.test_workers import PATIENCE_S, Place, sqs, stores

QUEUE = "billing/orders"
ROUNDS = 3
KINDS = ("single", "batch", "thread", "pool")


class Worker:
    """A handler of one kind, that does not end while ``gate`` is closed."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.gate = threading.Event()
        self.attempts: list[int] = []
        self.loop = asyncio.get_running_loop()
        self.began = asyncio.Event()

    def _starts(self, messages: list[Message]) -> None:
        self.attempts += [message.attempt for message in messages]
        self.loop.call_soon_threadsafe(self.began.set)

    async def _one(self, message: Message) -> None:
        self._starts([message])
        if not self.gate.is_set():
            await self.loop.create_future()

    async def _many(self, messages: list[Message]) -> None:
        self._starts(messages)
        if not self.gate.is_set():
            await self.loop.create_future()

    def _plainly(self, message: Message) -> None:
        self._starts([message])
        self.gate.wait(PATIENCE_S)

    @property
    def handler(self) -> Any:
        return {"batch": self._many, "thread": self._plainly}.get(self.kind, self._one)

    async def work(self, url: str, queue: str) -> None:
        """Run a worker until its handler has begun, then stop it without any grace; with the gate open, to its end."""
        self.began.clear()
        listener = Listener(
            url,
            queue,
            self.handler,
            bridge=None if url.startswith("http") else PULL_ONLY,
            max_attempts=1,
            grace=PATIENCE_S if self.gate.is_set() else 0.0,
            handle_signals=False,
            pool=Pool(4) if self.kind == "pool" else None,
        )
        running = asyncio.create_task(listener.run(), name="worker")
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.began.wait()
        finally:
            await listener.stop()
            await running


async def export(store: QueueStore, queue: str, file: Path) -> int:
    """Export a queue and return how many messages that wrote."""
    assert await queue_transfer.export(store, argparse.Namespace(queue=queue, file=str(file), delete=False)) == 0
    lines = file.read_bytes().splitlines()
    file.unlink()
    return len(lines)


async def stopped_and_exported(url: str, store: QueueStore, kind: str, file: Path) -> None:
    """Stop workers and export, in turn, then let a handler end."""
    queue, worker = f"{QUEUE}-{kind}", Worker(kind)
    await store.put(queue, [NewMessage(b"long")])
    for _ in range(ROUNDS):
        await worker.work(url, queue)
        assert await export(store, queue, file) == 1
    # A store that counts all has counted each stop and each export; it buries nothing for that either.
    taken = 0 if store.capabilities.uncounted_release else 2 * ROUNDS
    worker.gate.set()
    worker.attempts.clear()
    await worker.work(url, queue)
    assert worker.attempts == [taken + 1]
    depth = await store.depth(queue)
    assert depth.visible + depth.invisible == 0
    assert await store.depth(queue + "-poison") is None


@stores(at_length=sqs)
async def test_stops_and_exports_bury_nothing(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one attempt allowed: the handler that may end is the first, and where the store can say so, told as that."""
    async with place(tmp_path, monkeypatch) as url, open_store(url) as store, asyncio.TaskGroup() as kinds:
        for kind in KINDS:
            kinds.create_task(stopped_and_exported(url, store, kind, tmp_path / kind), name=kind)
