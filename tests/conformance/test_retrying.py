"""On every store: a retry policy's pauses and attempts, although each attempt is another worker's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queuebell.bridge.queues import open_store
from queuebell.listeners import PULL_ONLY, Listener, Message, RetryPolicy
from tests.conformance.test_workers import PATIENCE_S, QUEUE, Place, sqs, stores

POLICY = RetryPolicy(attempts=3, first_s=0.6, ceiling_s=1, factor=4, jitter=0)


class Worker:
    """Fails each attempt, notes when it began, and says when it was tried once and when the message came to rest."""

    def __init__(self) -> None:
        self.began: list[float] = []
        self.attempts: list[int] = []

    async def fail(self, message: Message) -> None:
        self.began.append(asyncio.get_running_loop().time())
        self.attempts.append(message.attempt)
        raise ValueError("never")

    async def once(self, url: str) -> None:
        """Run a worker until the store has settled one failed attempt."""
        bridge = None if url.startswith("http") else PULL_ONLY
        listener = Listener(url, QUEUE, self.fail, bridge=bridge, retry=POLICY, handle_signals=False)
        running = asyncio.create_task(listener.run(), name="worker")
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not any(figures.retried + figures.buried for figures in listener.state().queues.values()):
                    await asyncio.sleep(0.01)
        finally:
            await listener.stop()
            await running


@stores(at_length=sqs)
async def test_each_store_puts_off_an_attempt_as_the_policy_says(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never sooner, and buried after the last; the count is the store's, so that it outlasts every worker."""
    worker = Worker()
    async with place(tmp_path, monkeypatch) as url, open_store(url) as store:
        await store.put(QUEUE, ["x"])
        for _ in range(POLICY.attempts):
            await worker.once(url)
        depth, buried = await store.depth(QUEUE), await store.depth(f"{QUEUE}-poison")
    assert worker.attempts == [1, 2, 3]
    assert depth is not None
    assert buried is not None
    assert (depth.visible + depth.invisible, buried.visible) == (0, 1)
    for attempt in (1, 2):
        # A store counts from the moment at which it was told, which is later; its clock may be coarse.
        assert worker.began[attempt] - worker.began[attempt - 1] >= POLICY.middle(attempt) - 0.05
