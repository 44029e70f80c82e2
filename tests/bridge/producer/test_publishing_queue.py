"""Put and publish: P1 and P2, with the mutant that publishes too early."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pathlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from bridge.contract.errors import BadInput, StoreFull, UnknownOutcome
from bridge.contract.event import NOT_BEFORE_MS_MAX
from bridge.producer.publisher import Publisher
from bridge.producer.publishing_queue import PublishingQueue
from bridge.queues.base import Capabilities, NewMessage, PutReceipt, QueueStore
from bridge.storage.claim_check import ClaimCheck
from tests.support.buses import RecordingBus
from tests.support.sim_loop import simulated


class SlowStore:
    """A store whose puts become visible when ``gate`` opens; ``fault`` is raised instead of an answer."""

    def __init__(self, resolution_ms: int = 1, batch_max: int = 32) -> None:
        self.capabilities = Capabilities(resolution_ms=resolution_ms, batch_max=batch_max)
        self.gate = asyncio.Event()
        self.gate.set()
        self.visible: list[bytes] = []
        self.batches: list[int] = []
        self.fault: Exception | None = None
        self.begun = asyncio.Event()
        self.said: list[dict[str, Any]] = []

    def fingerprint(self, queue: str) -> str:
        return "f" * 32

    async def put(self, queue: str, messages: Sequence[NewMessage], **more: Any) -> list[PutReceipt]:
        self.said.append({**more, "ttl_s": {message.ttl_s for message in messages}})
        self.begun.set()
        self.batches.append(len(messages))
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        self.visible += [message.body for message in messages]
        return [PutReceipt("id", "receipt", message.visible_after_ms) for message in messages]


class PublishesTooEarly(PublishingQueue):
    """V5: the publish is sent before the put is visible."""

    async def _put(self, queue: str, batch: list[NewMessage], more: Any) -> list[PutReceipt]:
        await self._tell(queue, [message.visible_after_ms for message in batch])
        return await self._store.put(queue, batch)


def queue_of(store: SlowStore, publisher: Publisher, kind: type[PublishingQueue] = PublishingQueue) -> PublishingQueue:
    promise: QueueStore = store  # type: ignore[assignment]
    return kind(promise, publisher, server_timeout=30.0)


async def unseen(kind: type[PublishingQueue]) -> int:
    """Put while the bus is quick and the store is slow; return how many messages no later publish speaks of."""
    store, bus = SlowStore(), RecordingBus()
    seen = 0

    def look(_: object) -> None:
        nonlocal seen
        seen = len(store.visible)

    bus.on_publish = look
    store.gate.clear()
    async with Publisher(bus) as publisher:
        queue = queue_of(store, publisher, kind)
        putting = asyncio.create_task(queue.put("a/q", [b"one", b"two"]), name="putting")
        await store.begun.wait()
        if kind is not PublishingQueue:
            await bus.until(lambda bus: bool(bus.taken))
        store.gate.set()
        await putting
    return len(store.visible) - seen


async def test_the_publish_follows_the_visible_put() -> None:
    """P1: whoever looks when the trigger comes finds the messages."""
    assert await unseen(PublishingQueue) == 0


async def test_mutant_v5_is_caught() -> None:
    """V5: a publish before the put is visible leaves messages that nobody is told of."""
    assert await unseen(PublishesTooEarly) == 2


@pytest.mark.parametrize(("batch_max", "batches"), [(32, [32, 32, 6]), (10, [10] * 7), (64, [64, 6])])
async def test_puts_go_in_batches_and_sizes_are_told(batch_max: int, batches: list[int]) -> None:
    """As many messages a put as the store takes; the receipts come in order, and the triggers count every message."""
    store, bus = SlowStore(batch_max=batch_max), RecordingBus()
    async with Publisher(bus) as publisher:
        receipts = await queue_of(store, publisher).put("a/q", [b"x"] * 70)
    assert store.batches == batches
    assert len(receipts) == 70
    assert sum(event.payload_size for event in bus.taken) == 70


@simulated
async def test_text_and_messages_are_taken() -> None:
    """Bodies are bytes, text, or messages with their own delay."""
    store, bus = SlowStore(), RecordingBus()
    async with Publisher(bus) as publisher:
        await queue_of(store, publisher).put("a/q", ["é", b"\xff", NewMessage(b"later", visible_after_ms=5000)])
    assert store.visible == ["é".encode(), b"\xff", b"later"]
    delays = sorted((event.not_before_ms, event.payload_size) for event in bus.taken)
    assert delays[0] == (0, 2)
    assert 5000 <= delays[1][0] <= 5003
    assert delays[1][1] == 1


@simulated
async def test_a_coarse_store_is_given_its_tick() -> None:
    """B2: a delay is rounded up by the store's resolution and 1e-4 of itself."""
    store, bus = SlowStore(resolution_ms=1000), RecordingBus()
    async with Publisher(bus) as publisher:
        await queue_of(store, publisher).put("a/q", [b"x"], visible_after_ms=100_000)
    assert 101_009 <= bus.taken[0].not_before_ms <= 101_010


@simulated
async def test_an_unknown_outcome_is_published_twice() -> None:
    """P2: once now and once for a put that lands at the store's own time-out, each under an id of its own."""
    store, bus = SlowStore(), RecordingBus()
    store.fault = UnknownOutcome("no answer")
    async with Publisher(bus) as publisher:
        with pytest.raises(UnknownOutcome) as caught:
            await queue_of(store, publisher).put("a/q", [b"x"])
    now, later = sorted(bus.taken, key=lambda event: event.not_before_ms)
    assert now.not_before_ms == 0
    assert later.not_before_ms >= 30_000 - 1
    assert now.id != later.id
    assert "0 of 1" in caught.value.__notes__[0]


async def test_a_known_failure_is_not_published() -> None:
    """What was certainly not put is no trigger; batches before it stay put and published."""
    store, bus = SlowStore(), RecordingBus()
    store.fault = StoreFull("full")
    async with Publisher(bus) as publisher:
        with pytest.raises(StoreFull):
            await queue_of(store, publisher).put("a/q", [b"x"])
    assert bus.batches == []


async def test_a_cancelled_put_goes_on_and_is_published() -> None:
    """P2: the caller is free at once; the trigger comes now, at the time-out, and after the put is visible."""
    store, bus = SlowStore(), RecordingBus()
    store.gate.clear()
    async with Publisher(bus) as publisher:
        queue = queue_of(store, publisher)
        putting = asyncio.create_task(queue.put("a/q", [b"x"]), name="putting")
        await store.begun.wait()
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        await bus.until(lambda bus: len(bus.taken) == 2)
        assert store.visible == []
        store.gate.set()
        await queue.close()
        await bus.until(lambda bus: len(bus.taken) == 3)
    assert store.visible == [b"x"]
    assert bus.taken[2].not_before_ms == 0


async def test_a_closed_publisher_does_not_fail_the_put(caplog: pytest.LogCaptureFixture) -> None:
    """P4: a put that outlives its publisher stands, and says so in the log."""
    store, bus = SlowStore(), RecordingBus()
    publisher = Publisher(bus)
    await publisher.close()
    assert len(await queue_of(store, publisher).put("a/q", [b"x"])) == 1
    assert "not published" in caplog.text


async def test_a_bad_reference_puts_nothing() -> None:
    """A malformed queue reference is refused before the store is asked."""
    store = SlowStore()
    async with Publisher(RecordingBus()) as publisher:
        with pytest.raises(ValueError):
            await queue_of(store, publisher).put("nonsense", [b"x"])
    assert store.batches == []


@pytest.mark.parametrize("create", [True, False])
async def test_what_is_said_of_a_put_reaches_the_store(create: bool) -> None:
    """Time to live, connection and whether a queue is made, in each batch; on a connection nothing is published."""
    existing, connection = {} if create else {"create": False}, object()
    store, bus = SlowStore(batch_max=2), RecordingBus()
    async with Publisher(bus) as publisher:
        queue = queue_of(store, publisher)
        assert len(await queue.put("a/q", ["x"] * 3, ttl_s=9, create=create)) == 3
        assert store.said == [{"ttl_s": {9}, **existing}] * 2
        await queue.put("a/q", ["x"] * 3, ttl_s=9, connection=connection, create=create)  # type: ignore[arg-type]
    assert store.said[2:] == [{"ttl_s": {9}, "connection": connection, **existing}] * 2
    assert sum(event.payload_size for event in bus.taken) == 3


@pytest.mark.parametrize("seconds", [-0.001, NOT_BEFORE_MS_MAX / 1000 + 1, float("nan")])
def test_a_wrong_time_out_of_the_server_is_refused(seconds: float) -> None:
    """No trigger can be that late; the longest and none at all are right."""
    store: Any = SlowStore()
    for right in (0, NOT_BEFORE_MS_MAX / 1000):
        PublishingQueue(store, Publisher(RecordingBus()), server_timeout=right)
    with pytest.raises(BadInput, match=f"from 0 to {NOT_BEFORE_MS_MAX // 1000} seconds") as refused:
        PublishingQueue(store, Publisher(RecordingBus()), server_timeout=seconds)
    assert refused.value.code == "bad_parameter"


@pytest.mark.parametrize("connection", [None, object()])
async def test_a_body_that_is_put_aside_goes_with_a_put_that_fails_for_certain(
    connection: Any, tmp_path: pathlib.Path
) -> None:
    """Its blob is dropped; where the outcome is unknown it stays, for the message may be there."""
    store, blobs = SlowStore(), tmp_path / "blobs"

    def left() -> int:
        return len([path for path in blobs.rglob("*") if path.is_file() and not path.name.startswith(".")])

    store.capabilities = msgspec.structs.replace(store.capabilities, body_bytes_max=300)
    bus = RecordingBus()
    async with Publisher(bus) as publisher, ClaimCheck(blobs.as_uri()) as check:
        queue = PublishingQueue(store, publisher, claim_check=check)  # type: ignore[arg-type]
        await queue.put("a/q", [b"x" * 1000, b"small"], connection=connection)
        assert await check.fetch(store.visible[0]) == b"x" * 1000 != store.visible[0]
        assert (store.visible[1], left()) == (b"small", 1)
        for fault, kept in ((StoreFull("full"), 1), (None if connection else UnknownOutcome("lost"), 2)):
            store.fault = fault
            with contextlib.suppress(StoreFull, UnknownOutcome):
                await queue.put("a/q", [b"y" * 1000], connection=connection)
            assert left() == kept


async def test_how_far_a_put_came_is_noted_and_a_failure_that_nobody_awaits_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the error of the batch that failed; who was cancelled does not hear of it."""
    caplog.set_level(logging.DEBUG, "queuebell.publisher")
    store, bus = SlowStore(batch_max=2), RecordingBus()

    class Fails(SlowStore):
        async def put(self, queue: str, messages: Sequence[NewMessage], **more: Any) -> list[PutReceipt]:
            if len(self.batches) == 2:
                self.fault = StoreFull("full")
            return await super().put(queue, messages, **more)

    async with Publisher(bus) as publisher:
        with pytest.raises(StoreFull) as caught:
            await queue_of(Fails(batch_max=2), publisher).put("a/q", [b"x"] * 7)
        assert caught.value.__notes__ == ["4 of 7 messages had been put and published"]
        assert caplog.messages == ["a put failed: full"]
        queue = queue_of(store, publisher)
        store.gate.clear()
        putting = asyncio.create_task(queue.put("a/q", [b"x", b"y"], visible_after_ms=50), name="putting")
        await store.begun.wait()
        assert {task.get_name() for task in asyncio.all_tasks()} >= {"queuebell-put:a/q"}
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting
        store.fault = StoreFull("full")
        store.gate.set()
        await queue.close()
    assert caplog.messages[1:] == ["a put failed: full"]
    assert [event.payload_size for event in bus.taken][-2:] == [2, 2]
