"""Bodies put aside and fetched back, and blobs that nobody has a claim on any more."""

from __future__ import annotations

import asyncio
import itertools
import os
import uuid
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from bridge.contract.claim import BadClaim, Claim, is_claim, read_claim, write_claim
from bridge.contract.errors import (
    BadInput,
    BlobNotFound,
    Closed,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from bridge.producer.publisher import Publisher
from bridge.producer.publishing_queue import PublishingQueue
from bridge.queues.base import NewMessage
from bridge.queues.embedded.memory import MemoryStore
from bridge.storage.blobs.memory import MemoryBlobs
from bridge.storage.claim_check import ClaimCheck
from tests.support.buses import RecordingBus

QUEUE, POISON = "billing/orders", "billing/orders-poison"
LARGE = b"order " * 50_000
DAY = 86_400.0


class Clock:
    """Hours pass by word."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Blobs(MemoryBlobs):
    """Blobs that can be made to fail: ``fault`` is raised by the next put, after it was done if ``late``."""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(uuid.uuid4().hex, clock=clock or Clock())
        self.fault: Exception | None = None
        self.faults_from = 1
        self.puts = 0

    async def put(self, name: str, data: bytes) -> None:
        self.puts += 1
        if self.fault is not None and self.puts >= self.faults_from:
            raise self.fault
        await super().put(name, data)

    async def names(self) -> list[str]:
        return [blob.name for blob in await self.blobs()]


class Breaking(MemoryStore):
    """A queue store whose puts fail with ``fault``."""

    fault: Exception | None = None

    async def put(self, queue: str, messages: Any) -> Any:
        if self.fault is not None:
            raise self.fault
        return await super().put(queue, messages)


def check_of(blobs: MemoryBlobs, **options: Any) -> ClaimCheck:
    numbers = itertools.count()
    return ClaimCheck(blobs, token=lambda: f"{next(numbers):032x}", **options)


async def aside(check: ClaimCheck, body: bytes, **options: Any) -> bytes:
    return (await check.put_aside(QUEUE, NewMessage(body, **options), 64 * 1024)).body


@pytest.mark.parametrize("body", [LARGE, os.urandom(70_000), b"\0" * 10_000_000], ids=["text", "random", "zeros"])
async def test_a_large_body_travels_as_a_claim(body: bytes) -> None:
    """What travels is short; what is kept is compressed where that helps; what comes back is what was put."""
    blobs = Blobs()
    check = check_of(blobs)
    travels = await aside(check, body)
    assert len(travels) < 400
    (blob,) = await blobs.blobs(f"{QUEUE}/")
    assert blob.size <= len(body)
    assert await check.fetch(travels) == body


async def test_a_small_body_travels_as_it_is() -> None:
    """At the limit nothing is put aside, and nothing is fetched."""
    blobs = Blobs()
    check = check_of(blobs)
    body = b"x" * (64 * 1024)
    assert await aside(check, body) is body
    assert await check.fetch(body) is body
    await check.drop(body)
    assert await blobs.blobs() == []


async def test_an_own_limit_is_below_the_stores() -> None:
    """A lower limit counts; a higher one than the store's does not."""
    assert is_claim(await aside(check_of(Blobs(), limit=10), b"x" * 11))
    assert is_claim(await aside(check_of(Blobs(), limit=10**9), LARGE))
    with pytest.raises(BadInput):
        check_of(Blobs(), limit=-1)


async def test_a_body_that_looks_like_a_claim_is_put_aside() -> None:
    """Whoever puts such a text gets it back as it was, and nobody's blob is fetched or removed by it."""
    check = check_of(Blobs())
    other = await aside(check, LARGE)
    travels = await aside(check, other)
    assert travels != other
    assert await check.fetch(travels) == other


async def test_delay_and_time_to_live_stay_with_the_message() -> None:
    """The claim waits and lives as its body would have."""
    message = await check_of(Blobs()).put_aside(QUEUE, NewMessage(LARGE, 5000, 60), 1024)
    assert (message.visible_after_ms, message.ttl_s) == (5000, 60)
    assert read_claim(message.body).blob.startswith(f"{QUEUE}/60-")


async def test_a_body_beyond_all_bounds_is_refused() -> None:
    """When it is put, and when a claim says so: nothing is unpacked beyond the bound."""
    with pytest.raises(BadInput, match="at most 1000 bytes"):
        await aside(check_of(Blobs(), body_max=1000, limit=0), b"x" * 1001)
    blobs = Blobs()
    travels = await aside(check_of(blobs), LARGE)
    with pytest.raises(BadClaim, match="above the 1000"):
        await check_of(blobs, body_max=1000).fetch(travels)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-20],
        lambda data: b"x" + data,
        lambda data: zlib.compress(LARGE + b"x"),
        lambda data: zlib.compress(b"X" + LARGE[1:]),
        lambda data: b"",
    ],
)
async def test_a_damaged_blob_is_told(damage: Callable[[bytes], bytes]) -> None:
    """Cut, overwritten or exchanged: the body is not handed out."""
    blobs = Blobs()
    check = check_of(blobs)
    travels = await aside(check, LARGE)
    name = read_claim(travels).blob
    await blobs.put(name, damage(await blobs.get(name)))
    with pytest.raises(BadClaim, match="damaged"):
        await check.fetch(travels)


async def test_a_bomb_stops_at_its_first_byte_too_many() -> None:
    """A claim that says little and unpacks to much is refused without unpacking it."""
    blobs = Blobs()
    name = f"{QUEUE}/never-{0:032x}"
    await blobs.put(name, zlib.compress(b"\0" * 50_000_000, 1))
    with pytest.raises(BadClaim, match="damaged"):
        await check_of(blobs).fetch(write_claim(Claim(name, "0" * 64, 10, "zlib")))


async def test_a_claim_without_its_blob_says_so() -> None:
    """A drop removes the blob; the claim then leads nowhere, and a second drop is content."""
    check = check_of(Blobs())
    travels = await aside(check, LARGE)
    await check.drop(travels)
    await check.drop(travels)
    await check.drop(b"queuebell-claim:nonsense")
    for call in (check.fetch(travels), check.copy(travels, POISON)):
        with pytest.raises(BlobNotFound):
            await call


async def test_a_copy_has_a_blob_of_its_own() -> None:
    """It outlives the first message's blob, and never expires."""
    blobs = Blobs()
    check = check_of(blobs)
    travels = await aside(check, LARGE, ttl_s=60)
    copied = await check.copy(travels, POISON)
    await check.drop(travels)
    assert await check.fetch(copied) == LARGE
    assert await blobs.names() == [f"{POISON}/never-{1:032x}"]
    assert await check.copy(b"plain", POISON) == b"plain"


# Producers ------------------------------------------------------------------------------------------------------------


async def test_a_producer_puts_bodies_of_any_size() -> None:
    """Small ones and large ones in one put; each comes back whole, and the bell rings for all."""
    blobs, bus = Blobs(), RecordingBus()
    check = check_of(blobs)
    async with MemoryStore(uuid.uuid4().hex) as store, Publisher(bus) as publisher:
        queue = PublishingQueue(store, publisher, claim_check=check)
        bodies = [b"small", LARGE, b"", LARGE + b"!"]
        await queue.put(QUEUE, bodies)
        messages = (await store.receive(QUEUE, 32)).messages
        assert [await check.fetch(message.body) for message in messages] == bodies
        assert len(await blobs.names()) == 2


@pytest.mark.parametrize(("fault", "left"), [(StoreUnavailable("x"), 0), (StoreFull("x"), 0), (UnknownOutcome("x"), 1)])
async def test_a_put_that_failed_leaves_no_blob_but_where_nobody_knows(fault: Exception, left: int) -> None:
    """An unknown outcome may have put the message: its blob stays."""
    blobs = Blobs()
    async with Breaking(uuid.uuid4().hex) as store, Publisher(RecordingBus()) as publisher:
        store.fault = fault
        with pytest.raises(type(fault)):
            await PublishingQueue(store, publisher, claim_check=check_of(blobs)).put(QUEUE, [b"small", LARGE])
    assert len(await blobs.names()) == left


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), UnknownOutcome("no answer"), StoreFull("full")])
async def test_a_blob_store_that_fails_puts_nothing(fault: Exception) -> None:
    """No message without its body: the put fails, it is known that it did, and the first body's blob is removed."""
    blobs, bus = Blobs(), RecordingBus()
    blobs.fault, blobs.faults_from = fault, 2
    async with MemoryStore(uuid.uuid4().hex) as store, Publisher(bus) as publisher:
        queue = PublishingQueue(store, publisher, claim_check=check_of(blobs))
        with pytest.raises((StoreUnavailable, StoreFull)) as failed:
            await queue.put(QUEUE, [LARGE, LARGE])
        assert not isinstance(failed.value, UnknownOutcome)
        assert await store.depth(QUEUE) is None
    assert await blobs.names() == []
    assert bus.taken == []


async def test_it_closes_only_what_it_opened() -> None:
    """A store that was given is the caller's; one made of a URL is closed."""
    blobs = Blobs()
    async with ClaimCheck(blobs):
        pass
    assert await blobs.blobs() == []
    async with ClaimCheck(f"memory:{uuid.uuid4().hex}") as check:
        travels = await aside(check, LARGE)
    with pytest.raises(Closed):
        await check.fetch(travels)


async def test_tokens_are_never_the_same() -> None:
    """Two bodies put aside at the same time have two blobs."""
    blobs = Blobs()
    check = ClaimCheck(blobs)
    await asyncio.gather(*(aside(check, LARGE) for _ in range(20)))
    assert len(await blobs.names()) == 20
