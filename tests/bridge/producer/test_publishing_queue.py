"""Put and publish: P1 and P2, with the mutant that publishes too early."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from queuebell.bridge.contract.errors import BadInput, Overloaded, StoreFull, UnknownOutcome
from queuebell.bridge.contract.event import NOT_BEFORE_MS_MAX
from queuebell.bridge.producer.publisher import Publisher
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import Capabilities, NewMessage, PutReceipt, QueueStore
from queuebell.bridge.storage.claim_check import ClaimCheck
from tests.support.buses import RecordingBus
from tests.support.sim_loop import simulated


class SlowStore:
    """A store whose puts become visible when ``gate`` opens; ``fault`` is raised instead of an answer."""

    def __init__(self) -> None:
        self.capabilities = Capabilities(batch_max=32)
        self.gate = asyncio.Event()
        self.gate.set()
        self.visible: list[bytes] = []
        self.fault: Exception | None = None
        self.begun = asyncio.Event()

    def fingerprint(self, queue: str) -> str:
        return "f" * 32

    async def put(self, queue: str, messages: Sequence[NewMessage], **more: Any) -> list[PutReceipt]:
        self.begun.set()
        await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        self.visible += [message.body for message in messages]
        return [PutReceipt("id", "receipt", message.visible_after_ms) for message in messages]


class PublishesTooEarly(PublishingQueue):
    """V5: the publish is sent before the put is visible."""

    async def _put(self, queue: str, batch: list[NewMessage], *_: Any) -> list[PutReceipt]:
        await self._publish(queue, [message.visible_after_ms for message in batch])
        return await self.store.put(queue, batch)


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
    """P1."""
    assert await unseen(PublishingQueue) == 0


async def test_mutant_v5_is_caught() -> None:
    """V5: a publish before the put is visible covers no message."""
    assert await unseen(PublishesTooEarly) == 2


@simulated
async def test_an_unknown_outcome_is_published_twice() -> None:
    """P2: now, and at the store's own time-out, each with its own id."""
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


async def test_a_cancelled_put_goes_on_and_is_published() -> None:
    """P2: the caller returns immediately; triggers come now, at the time-out, and after the put is visible."""
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


@pytest.mark.parametrize("seconds", [-0.001, NOT_BEFORE_MS_MAX / 1000 + 1, float("nan")])
def test_a_wrong_time_out_of_the_server_is_refused(seconds: float) -> None:
    """No trigger can be that late; the limits themselves are valid."""
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
    """Its blob is dropped; after an unknown outcome it stays, because the message may be there."""
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


QUEUE = "billing/orders"


class Scripted:
    """A store whose puts end as they are told to, one after the other."""

    capabilities = Capabilities(put_once=True)

    def __init__(self, *outcomes: Exception | PutReceipt | None) -> None:
        self.outcomes = list(outcomes)
        self.asked: list[tuple[str, str, NewMessage]] = []

    async def put_once(self, queue: str, key: str, message: NewMessage, **more: object) -> PutReceipt | None:
        self.asked.append((queue, key, message))
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def queue_of_publishing_once(store: object, publisher: Publisher) -> PublishingQueue:
    promise: QueueStore = store  # type: ignore[assignment]
    return PublishingQueue(promise, publisher, server_timeout=30.0)


def told(bus: RecordingBus) -> list[int]:
    """Return the delays that were published, in seconds."""
    return sorted(event.not_before_ms // 1000 for event in bus.taken)


async def test_what_fails_in_passing_is_asked_again() -> None:
    """With the same key and body until the store answers; an unknown outcome is published now and for later."""
    store, bus = Scripted(Overloaded("busy", 0.0), UnknownOutcome("lost"), None), RecordingBus()
    async with Publisher(bus) as publisher:
        queue = queue_of_publishing_once(store, publisher)
        assert await queue.put_once(QUEUE, "key", "body") is None
    assert store.asked == [(QUEUE, "key", NewMessage(b"body"))] * 3
    assert told(bus)[0] == 0
    assert told(bus)[-1] in (29, 30)
