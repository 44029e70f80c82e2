"""Blobs that nobody has a claim on any more, and those that only look so."""

from __future__ import annotations

import platform
import uuid
from typing import Any

import msgspec
import pytest

from bridge.contract.claim import place_of, read_claim
from bridge.contract.errors import BadInput
from bridge.producer.publisher import Publisher
from bridge.producer.publishing_queue import PublishingQueue
from bridge.queues.base import Capabilities, NewMessage, Settlement, StoredMessage
from bridge.queues.base import Claim as Lease
from bridge.queues.embedded.memory import MemoryStore
from bridge.queues.http import HttpStore
from bridge.storage.claim_check import Swept
from tests.bridge.storage.test_claim_check import DAY, LARGE, POISON, QUEUE, Blobs, Clock, aside, check_of
from tests.support.buses import RecordingBus


class Site:
    """A queue, its blobs and one clock for both."""

    def __init__(self, kind: type[MemoryStore] = MemoryStore) -> None:
        self.clock = Clock()
        self.blobs = Blobs(self.clock)
        self.check = check_of(self.blobs)
        self.store = kind(uuid.uuid4().hex, clock=self.clock)

    async def put(self, queue: str = QUEUE, **options: Any) -> bytes:
        message = await self.check.put_aside(queue, NewMessage(LARGE, **options), 1024, self.store)
        await self.store.put(queue, [message])
        return message.body

    async def orphan(self, queue: str = QUEUE, **options: Any) -> str:
        """Crash between the blob and the put."""
        message = await self.check.put_aside(queue, NewMessage(LARGE, **options), 1024, self.store)
        return read_claim(message.body).blob

    async def sweep(self, queue: str = QUEUE, **options: Any) -> Swept:
        return await self.check.sweep(self.store, queue, **options)


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


async def test_an_orphan_of_a_queue_never_made_is_removed() -> None:
    """The producer crashed before its very first put."""
    site = Site()
    await site.orphan()
    site.clock.now += 8 * DAY
    assert await site.sweep() == Swept(removed=1)


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


async def test_what_has_expired_goes_late_where_nobody_can_look() -> None:
    """A queue that is always busy proves nothing: by its time to live and 28 days besides, or by a look before."""
    site = Site()
    await site.orphan(ttl_s=int(DAY))
    await site.put()
    site.clock.now += 29 * DAY - 1
    await site.store.receive(QUEUE, 1, 5.0)
    assert await site.sweep() == Swept(unknown=2)
    site.clock.now += 2
    assert await site.sweep() == Swept(removed=1, unknown=1)
    await site.orphan(ttl_s=int(DAY))
    site.clock.now += 8 * DAY + 1
    assert await site.sweep() == Swept(removed=1, referenced=1)


async def test_a_message_that_lives_keeps_its_body_whatever_the_clocks_say() -> None:
    """The store's clock stood still, with its machine: the message is not expired there, though its blob is old."""
    site = Site()
    site.store = MemoryStore(uuid.uuid4().hex, clock=Clock())
    travels = await site.put(ttl_s=3600)
    site.clock.now += 100 * DAY
    assert await site.sweep() == Swept(referenced=1)
    assert await site.check.fetch(travels) == LARGE


async def test_a_blob_of_another_store_is_not_ours_to_prove() -> None:
    """Two stores with one blob store: the empty one's sweep leaves the other's bodies, until they expired long ago."""
    site, staging = Site(), MemoryStore(uuid.uuid4().hex)
    await site.put()
    await site.put(ttl_s=int(DAY))
    site.clock.now += 29 * DAY - 1
    assert await site.check.sweep(staging, QUEUE) == Swept(unknown=2)
    site.clock.now += 2
    assert await site.check.sweep(staging, QUEUE) == Swept(removed=1, unknown=1)
    assert await site.sweep() == Swept(referenced=1)


async def test_a_blob_that_tells_no_store_is_swept_by_any() -> None:
    """As older versions named them."""
    site = Site()
    await aside(site.check, LARGE)
    site.clock.now += 8 * DAY
    assert await site.sweep() == Swept(removed=1)


async def test_a_producer_names_its_store() -> None:
    """Also in copies, which belong to the queue that they go to."""
    blobs, store = Blobs(), MemoryStore(uuid.uuid4().hex)
    check = check_of(blobs)
    async with Publisher(RecordingBus()) as publisher:
        await PublishingQueue(store, publisher, claim_check=check).put(QUEUE, [LARGE])
    (message,) = await store.peek(QUEUE)
    copied = await check.copy(message.body, POISON, store)
    places = [place_of(read_claim(body).blob) for body in (message.body, copied)]
    assert None not in places
    assert places[0] != places[1]


async def test_a_claim_that_moves_back_during_the_sweep_counts() -> None:
    """Put on its queue right after that was looked at: it had been seen where it came from."""
    site, other = Site(), "billing/graveyard"
    message = await site.check.put_aside(QUEUE, NewMessage(LARGE), 1024, site.store)
    await site.store.create(QUEUE)
    await site.store.put(other, [message])
    site.clock.now += 8 * DAY
    peek, looks = site.store.peek, 0

    async def moving(queue: str, limit: int = 32) -> list[StoredMessage]:
        nonlocal looks
        seen = await peek(queue, limit)
        looks += queue == QUEUE
        if queue == QUEUE and looks == 2:
            await site.store.put(QUEUE, [message])
            await site.store.clear(other)
        return seen

    site.store.peek = moving  # type: ignore[method-assign]
    assert await site.sweep(also=[other]) == Swept(referenced=1)


class Approximate(MemoryStore):
    @property
    def capabilities(self) -> Capabilities:
        return msgspec.structs.replace(super().capabilities, exact_depth=False)


async def test_a_rough_count_proves_nothing() -> None:
    """Where the store only guesses, blobs stay until their time to live is over, and a week besides."""
    site = Site(Approximate)
    await site.orphan()
    await site.orphan(ttl_s=int(DAY))
    site.clock.now += 8 * DAY
    assert await site.sweep() == Swept(unknown=2)
    site.clock.now += 1
    assert await site.sweep() == Swept(removed=1, unknown=1)


class Slippery(MemoryStore):
    """Somebody leases the only claim before the first look and brings it back in time for the count."""

    async def peek(self, queue: str, limit: int = 32) -> list[StoredMessage]:
        seen = await super().peek(queue, limit)
        return seen[1:] if queue == QUEUE else seen


async def test_looks_that_do_not_add_up_prove_nothing() -> None:
    """Fewer seen than counted: one of them was with somebody else."""
    site = Site(Slippery)
    await site.put()
    site.clock.now += 8 * DAY
    assert await site.sweep() == Swept(unknown=1)


async def test_a_stranger_s_blob_is_left_alone() -> None:
    """Only what a claim check has made is swept."""
    site = Site()
    await site.blobs.put(f"{QUEUE}/mine", b"x")
    site.clock.now += 100 * DAY
    assert await site.sweep() == Swept()
    assert await site.blobs.names() == [f"{QUEUE}/mine"]


async def test_a_deleted_message_s_orphan_goes() -> None:
    """A worker that died between delete and drop leaves a blob that nobody claims."""
    site = Site()
    await site.put()
    (message,) = (await site.store.receive(QUEUE)).messages
    await site.store.settle(QUEUE, Settlement(delete=[Lease(message.id, message.pop_receipt)]))
    site.clock.now += 8 * DAY
    assert await site.sweep() == Swept(removed=1)


@pytest.mark.parametrize("age", [0, 3599, -1, float("nan")])
async def test_a_sweep_of_young_blobs_is_refused(age: float) -> None:
    """A put under way has its blob already: an hour is the least."""
    site = Site()
    with pytest.raises(BadInput):
        await site.sweep(older_than=age)


@pytest.mark.parametrize(
    ("url", "alike"),
    [("http://127.0.0.1:8470", False), ("http://localhost:8470", False), ("http://queues.example:8470", True)],
)
async def test_a_loopback_address_is_another_store_on_each_machine(
    url: str, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines with a blob store between them do not sweep away each other's."""
    check, store, places = check_of(Blobs(Clock())), HttpStore(url), []
    for machine in ("one", "two"):
        monkeypatch.setattr(platform, "node", lambda name=machine: name)
        message = await check.put_aside(QUEUE, NewMessage(LARGE), 1024, store)
        places.append(place_of(read_claim(message.body).blob))
    assert (places[0] == places[1]) is alike
    await store.close()
