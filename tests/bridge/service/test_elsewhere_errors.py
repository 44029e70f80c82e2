"""What a bridge does about an engine that raises what no store promises to raise."""

from __future__ import annotations

import asyncio

import pytest

from bridge.contract.errors import Overloaded, QueuebellError, StoreUnavailable
from bridge.contract.event import CloudQueueWorkDetected
from bridge.queues.base import Depth, NewMessage, PutReceipt, QueueStore
from bridge.queues.embedded.memory import MemoryStore
from bridge.service.elsewhere import AGAIN_S, SERVER_TIMEOUT_MS, Elsewhere
from tests.support.sim_loop import pass_time, simulated

QUEUE = "billing/orders"


class Scripted(MemoryStore):
    """An engine that raises what it is told to."""

    def __init__(self) -> None:
        super().__init__("scripted", boot="0" * 32)
        self.counting: list[BaseException] = []
        self.listing: list[BaseException] = []
        self.putting: list[BaseException] = []

    async def depth(self, queue: str) -> Depth | None:
        if self.counting:
            raise self.counting.pop(0)
        return await super().depth(queue)

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        if self.listing:
            raise self.listing.pop(0)
        return await super().queues(prefix, after, limit)

    async def put(self, *given: object, **named: object) -> list[PutReceipt]:  # type: ignore[override]
        receipts = await super().put(*given, **named)  # type: ignore[arg-type]
        if self.putting:
            raise self.putting.pop(0)
        return receipts


def served(engine: QueueStore) -> tuple[Elsewhere, list[CloudQueueWorkDetected]]:
    """Return the queues of an engine, and what is marked for them."""
    marked: list[CloudQueueWorkDetected] = []
    return Elsewhere(engine, marked.extend, lambda queue: None), marked


@simulated
async def test_an_engine_that_raises_what_it_should_not_is_asked_until_it_answers() -> None:
    """Nor does that end the asking for the next time that it fails."""
    engine = Scripted()
    store, _ = served(engine)
    await store.open()
    for _ in range(2):
        engine.counting.append(StoreUnavailable("away"))
        engine.listing += [RuntimeError("a driver"), StoreUnavailable("away")]
        with pytest.raises(StoreUnavailable):
            await store.depth(QUEUE)
        assert store.failure() == "away"
        await pass_time(AGAIN_S + 0.1)
        assert store.failure() == "the store raised RuntimeError"
        await pass_time(2 * AGAIN_S)
        assert store.failure() is None
    await store.close()


@pytest.mark.parametrize("error", [RuntimeError("a driver"), asyncio.CancelledError()])
@simulated
async def test_a_put_that_ended_as_no_put_should_is_marked_for_it_may_be_there(error: BaseException) -> None:
    """P2, as for one without an answer; a refusal marks nothing."""
    engine = Scripted()
    store, marked = served(engine)
    await store.open()
    engine.putting.append(error)
    with pytest.raises(RuntimeError):  # a cancellation that nobody asked for is an error like others
        await store.put(QUEUE, [NewMessage(b"x")])
    assert [event.not_before_ms // 1000 for event in marked] == [0, SERVER_TIMEOUT_MS // 1000]
    marked.clear()
    engine.putting.append(StoreUnavailable("no"))
    with pytest.raises(QueuebellError):
        await store.put(QUEUE, [NewMessage(b"x")])
    assert marked == []
    await store.close()


@simulated
async def test_a_pool_with_too_much_to_do_is_no_engine_that_fails() -> None:
    """The bridge stays ready: nothing is known of the engine."""
    engine = Scripted()
    store, _ = served(engine)
    await store.open()
    engine.counting.append(Overloaded("all connections are in use"))
    with pytest.raises(Overloaded):
        await store.depth(QUEUE)
    assert store.failure() is None
    await store.close()
