"""What a bridge is told of each store by the very listeners that work there, on the real thing."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from queuebell.bridge import Publisher
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import NewMessage, QueueStore
from queuebell.bridge.service.bridge import Bridge
from queuebell.bridge.service.state.answers import QueueState
from queuebell.listeners import Bury, Listener, Message
from tests.conformance.test_workers import Place, azure_endpoint, http, jetstream, memory, postgres, redis, sqs
from tests.support.processes import until

QUEUE = "billing/orders"
ONE = {"visible", "oldest_ms", "leased", "delayed"}
"""What Azure does not tell: it has one count for all."""


def messages(state: QueueState) -> int:
    """Return how many messages a queue holds, as was told."""
    return -1 if state.depth is None else state.depth.visible + state.depth.invisible


def calls_of(store: QueueStore) -> list[str]:
    """Return the queues that the store is asked to count, as it is asked."""
    made: list[str] = []
    ask = store.counts

    async def counts(queue: str) -> object:
        made.append(queue)
        return await ask(queue)

    store.counts = counts  # type: ignore[method-assign, assignment]
    return made


@pytest.mark.rest
@pytest.mark.parametrize(
    ("place", "visible", "leased", "oldest", "untold"),
    [
        (memory, 3, 1, True, set()),
        (http, 3, 1, True, set()),
        (sqs, 3, 1, False, {"oldest_ms", "delayed"}),
        (azure_endpoint, 4, None, False, ONE),
        (jetstream, 3, 1, True, {"oldest_ms", "delayed"}),
        pytest.param(redis, 3, 1, True, set(), marks=pytest.mark.system),
        pytest.param(postgres, 3, 1, True, set(), marks=pytest.mark.system),
    ],
)
async def test_a_bridge_is_told_what_a_store_tells(
    place: Place, visible: int, leased: int | None, oldest: bool, untold: set[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Backlog, age, leased and buried, for a few counts while work is found and none afterwards."""
    goes_on = asyncio.Event()

    async def work(message: Message) -> None:
        await goes_on.wait()
        if message.text() == "bad":
            raise Bury("cannot be done")

    async with (
        place(tmp_path, monkeypatch) as url, Bridge() as bridge, open_store(url) as store,
        Publisher(bridge) as publisher,
    ):  # fmt: skip
        made = calls_of(store)

        def state() -> QueueState:
            return bridge.describe(QUEUE) or QueueState(queue=QUEUE)

        await PublishingQueue(store, publisher).put(QUEUE, [NewMessage(body) for body in (b"a", b"b", b"c", b"bad")])
        listener = Listener(store, QUEUE, work, bridge=bridge, concurrency=1, batch=1, handle_signals=False)
        running = asyncio.create_task(listener.run(), name="worker")
        try:
            await until(lambda: state().depth is not None and state().buried == 0, "it is told")
            first = state()
            assert first.depth is not None
            assert (first.depth.visible, first.leased, first.oldest_ms is not None) == (visible, leased, oldest)
            assert set(first.untold) == untold
            if oldest:
                await until(lambda: (state().oldest_ms or 0) > (first.oldest_ms or 0), "it grows")
            assert made.count(QUEUE) <= 1
            goes_on.set()
            await until(lambda: state().buried == 1 and messages(state()) == 0, "all is done, and one is buried")
            assert (state().oldest_ms, state().leased) == (None, None if leased is None else 0)
            assert made.count(QUEUE) <= 1 or place in (sqs, azure_endpoint), "those count what an empty answer hides"
            assert made.count(QUEUE + "-poison") == 2
        finally:
            await listener.stop()
            await running
