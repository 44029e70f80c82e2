"""Bodies put aside and fetched back, and blobs that nobody has a claim on any more."""

from __future__ import annotations

import asyncio
import itertools
import os
import uuid
import zlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from bridge.blobs.memory import MemoryBlobs
from bridge.claim_check import ClaimCheck, Swept
from bridge.contract.claim import BadClaim, Claim, is_claim, read_claim, write_claim
from bridge.contract.errors import (
    BadInput,
    BlobNotFound,
    Closed,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from bridge.publisher import Publisher
from bridge.publishing_queue import PublishingQueue
from bridge.queue import Capabilities, NewMessage, Settlement, StoredMessage
from bridge.queue import Claim as Lease
from bridge.queues.memory import MemoryStore
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


@pytest.mark.asyncio
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


@pytest.mark.asyncio
async def test_a_small_body_travels_as_it_is() -> None:
    """At the limit nothing is put aside, and nothing is fetched."""
    blobs = Blobs()
    check = check_of(blobs)
    body = b"x" * (64 * 1024)
    assert await aside(check, body) is body
    assert await check.fetch(body) is body
    await check.drop(body)
    assert await blobs.blobs() == []


@pytest.mark.asyncio
async def test_an_own_limit_is_below_the_stores() -> None:
    """A lower limit counts; a higher one than the store's does not."""
    assert is_claim(await aside(check_of(Blobs(), limit=10), b"x" * 11))
    assert is_claim(await aside(check_of(Blobs(), limit=10**9), LARGE))
    with pytest.raises(BadInput):
        check_of(Blobs(), limit=-1)


@pytest.mark.asyncio
async def test_a_body_that_looks_like_a_claim_is_put_aside() -> None:
    """Whoever puts such a text gets it back as it was, and nobody's blob is fetched or removed by it."""
    check = check_of(Blobs())
    other = await aside(check, LARGE)
    travels = await aside(check, other)
    assert travels != other
    assert await check.fetch(travels) == other


@pytest.mark.asyncio
async def test_delay_and_time_to_live_stay_with_the_message() -> None:
    """The claim waits and lives as its body would have."""
    message = await check_of(Blobs()).put_aside(QUEUE, NewMessage(LARGE, 5000, 60), 1024)
    assert (message.visible_after_ms, message.ttl_s) == (5000, 60)
    assert read_claim(message.body).blob.startswith(f"{QUEUE}/60-")


@pytest.mark.asyncio
async def test_a_body_beyond_all_bounds_is_refused() -> None:
    """When it is put, and when a claim says so: nothing is unpacked beyond the bound."""
    with pytest.raises(BadInput, match="at most 1000 bytes"):
        await aside(check_of(Blobs(), body_max=1000, limit=0), b"x" * 1001)
    blobs = Blobs()
    travels = await aside(check_of(blobs), LARGE)
    with pytest.raises(BadClaim, match="above the 1000"):
        await check_of(blobs, body_max=1000).fetch(travels)


@pytest.mark.asyncio
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


@pytest.mark.asyncio
async def test_a_bomb_stops_at_its_first_byte_too_many() -> None:
    """A claim that says little and unpacks to much is refused without unpacking it."""
    blobs = Blobs()
    name = f"{QUEUE}/never-{0:032x}"
    await blobs.put(name, zlib.compress(b"\0" * 50_000_000, 1))
    with pytest.raises(BadClaim, match="damaged"):
        await check_of(blobs).fetch(write_claim(Claim(name, "0" * 64, 10, "zlib")))


@pytest.mark.asyncio
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


@pytest.mark.asyncio
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


@pytest.mark.asyncio
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


@pytest.mark.asyncio
@pytest.mark.parametrize(("fault", "left"), [(StoreUnavailable("x"), 0), (StoreFull("x"), 0), (UnknownOutcome("x"), 1)])
async def test_a_put_that_failed_leaves_no_blob_but_where_nobody_knows(fault: Exception, left: int) -> None:
    """An unknown outcome may have put the message: its blob stays."""
    blobs = Blobs()
    async with Breaking(uuid.uuid4().hex) as store, Publisher(RecordingBus()) as publisher:
        store.fault = fault
        with pytest.raises(type(fault)):
            await PublishingQueue(store, publisher, claim_check=check_of(blobs)).put(QUEUE, [b"small", LARGE])
    assert len(await blobs.names()) == left


@pytest.mark.asyncio
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


# Orphans --------------------------------------------------------------------------------------------------------------


class Site:
    """A queue, its blobs and one clock for both."""

    def __init__(self, kind: type[MemoryStore] = MemoryStore) -> None:
        self.clock = Clock()
        self.blobs = Blobs(self.clock)
        self.check = check_of(self.blobs)
        self.store = kind(uuid.uuid4().hex, clock=self.clock)

    async def put(self, queue: str = QUEUE, **options: Any) -> bytes:
        message = await self.check.put_aside(queue, NewMessage(LARGE, **options), 1024)
        await self.store.put(queue, [message])
        return message.body

    async def orphan(self, queue: str = QUEUE, **options: Any) -> str:
        """Crash between the blob and the put."""
        message = await self.check.put_aside(queue, NewMessage(LARGE, **options), 1024)
        return read_claim(message.body).blob

    async def sweep(self, queue: str = QUEUE, **options: Any) -> Swept:
        return await self.check.sweep(self.store, queue, **options)


@pytest.mark.asyncio
async def test_an_old_orphan_is_removed_and_nothing_else() -> None:
    """A crash between blob and put leaves an orphan only; what a message claims stays, and so does what is young."""
    site = Site()
    await site.store.create(QUEUE)
    orphan, kept = await site.orphan(), read_claim(await site.put()).blob
    assert await site.sweep() == Swept()
    site.clock.now += 7 * DAY + 1
    young = await site.orphan()
    assert await site.sweep() == Swept(removed=1, referenced=1)
    names = await site.blobs.names()
    assert orphan not in names
    assert {kept, young} <= set(names)


@pytest.mark.asyncio
async def test_an_orphan_of_a_queue_never_made_is_removed() -> None:
    """The producer crashed before its very first put."""
    site = Site()
    await site.orphan()
    site.clock.now += 8 * DAY
    assert await site.sweep() == Swept(removed=1)


@pytest.mark.asyncio
async def test_what_cannot_be_told_stays() -> None:
    """A leased, a delayed or a 33rd message may have the claim: nothing is removed."""
    for hide in ("leased", "delayed", "many", "paused"):
        site = Site()
        await site.orphan()
        site.clock.now += 8 * DAY
        await site.put(visible_after_ms=5000 if hide == "delayed" else 0)
        if hide == "leased":
            await site.store.receive(QUEUE)
        if hide == "many":
            await site.store.put(QUEUE, [NewMessage(b"x")] * 32)
        if hide == "paused":
            await site.store.pause(QUEUE)
        assert await site.sweep() == Swept(unknown=1), hide
        assert len(await site.blobs.names()) == 2


@pytest.mark.asyncio
async def test_a_claim_that_was_moved_to_the_poison_queue_and_back_counts() -> None:
    """Moved as it stands, a claim still names a blob below the other queue."""
    site = Site()
    for origin, goal in ((QUEUE, POISON), (POISON, QUEUE), (QUEUE, "billing/elsewhere")):
        message = await site.check.put_aside(origin, NewMessage(LARGE), 1024)
        await site.store.put(goal, [message])
    site.clock.now += 8 * DAY
    assert await site.sweep(also=["billing/elsewhere"]) == Swept(referenced=2)
    assert await site.sweep(POISON) == Swept(referenced=1)
    assert await site.sweep() == Swept(removed=1, referenced=1), "without `also` nobody looks elsewhere"


@pytest.mark.asyncio
async def test_a_claim_that_was_moved_between_partitions_and_their_poison_queue_counts() -> None:
    """All partitions bury in one queue, and what is replayed goes back to one of them, where its blob stays."""
    site = Site()
    partitions = [f"{QUEUE}-p{number}" for number in range(12)]
    for origin, goal in ((partitions[3], POISON), (POISON, partitions[11]), (POISON, f"{QUEUE}-plus")):
        await site.store.put(goal, [await site.check.put_aside(origin, NewMessage(LARGE), 1024)])
    site.clock.now += 8 * DAY
    assert await site.sweep(partitions[3]) == Swept(referenced=1)
    assert await site.sweep(POISON) == Swept(removed=1, referenced=1), "a name that only begins alike is no partition"
    await site.store.receive(partitions[11])
    assert await site.sweep(POISON) == Swept(unknown=1)


@pytest.mark.asyncio
async def test_what_has_expired_needs_no_look() -> None:
    """By its time to live and the age besides, even where the queue can tell nothing."""
    site = Site()
    await site.orphan(ttl_s=int(DAY))
    await site.put()
    site.clock.now += 8 * DAY - 1
    await site.store.receive(QUEUE)
    assert await site.sweep() == Swept(unknown=2)
    site.clock.now += 2
    assert await site.sweep() == Swept(removed=1, unknown=1)


class Approximate(MemoryStore):
    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, exact_depth=False)


@pytest.mark.asyncio
async def test_a_rough_count_proves_nothing() -> None:
    """Where the store only guesses, blobs stay until their time to live is over."""
    site = Site(Approximate)
    await site.orphan()
    site.clock.now += 8 * DAY
    assert await site.sweep() == Swept(unknown=1)


class Slippery(MemoryStore):
    """Somebody leases the only claim before the first look and brings it back in time for the count."""

    async def peek(self, queue: str, limit: int = 32) -> list[StoredMessage]:
        seen = await super().peek(queue, limit)
        return seen[1:] if queue == QUEUE else seen


@pytest.mark.asyncio
async def test_looks_that_do_not_add_up_prove_nothing() -> None:
    """Fewer seen than counted: one of them was with somebody else."""
    site = Site(Slippery)
    await site.put()
    site.clock.now += 8 * DAY
    assert await site.sweep() == Swept(unknown=1)


@pytest.mark.asyncio
async def test_a_stranger_s_blob_is_left_alone() -> None:
    """Only what a claim check has made is swept."""
    site = Site()
    await site.blobs.put(f"{QUEUE}/mine", b"x")
    site.clock.now += 100 * DAY
    assert await site.sweep() == Swept()
    assert await site.blobs.names() == [f"{QUEUE}/mine"]


@pytest.mark.asyncio
async def test_a_deleted_message_s_orphan_goes() -> None:
    """A worker that died between delete and drop leaves a blob that nobody claims."""
    site = Site()
    await site.put()
    (message,) = (await site.store.receive(QUEUE)).messages
    await site.store.settle(QUEUE, Settlement(delete=[Lease(message.id, message.pop_receipt)]))
    site.clock.now += 8 * DAY
    assert await site.sweep() == Swept(removed=1)


@pytest.mark.asyncio
@pytest.mark.parametrize("age", [0, 3599, -1, float("nan")])
async def test_a_sweep_of_young_blobs_is_refused(age: float) -> None:
    """A put under way has its blob already: an hour is the least."""
    site = Site()
    with pytest.raises(BadInput):
        await site.sweep(older_than=age)


@pytest.mark.asyncio
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


@pytest.mark.asyncio
async def test_tokens_are_never_the_same() -> None:
    """Two bodies put aside at the same time have two blobs."""
    blobs = Blobs()
    check = ClaimCheck(blobs)
    await asyncio.gather(*(aside(check, LARGE) for _ in range(20)))
    assert len(await blobs.names()) == 20
