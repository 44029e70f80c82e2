"""A listener and bodies that were put aside: fetched, handled, removed; or buried with the reason."""

from __future__ import annotations

import asyncio
import itertools
import uuid
from typing import Any

import pytest

from bridge.contract.claim import is_claim, lost_claim, read_claim
from bridge.contract.errors import StoreError, StoreUnavailable, UnknownOutcome
from bridge.queues.base import NewMessage
from bridge.storage.blobs.memory import MemoryBlobs
from bridge.storage.claim_check import ClaimCheck
from listeners import Bury, Message, Replay, Retry
from listeners.work.claims import SWEEP_S
from tests.listeners.rig import POISON, QUEUE, Store, listening, raising, run_until, settled
from tests.support.sim_loop import pass_time, simulated

LARGE = b"order " * 50_000


class Blobs(MemoryBlobs):
    """Blobs on the loop's clock, whose next reads may fail or never answer."""

    def __init__(self) -> None:
        super().__init__(uuid.uuid4().hex, clock=asyncio.get_running_loop().time)
        self.reading: list[Any] = []
        self.tries: list[float] = []

    async def get(self, name: str) -> bytes:
        self.tries.append(asyncio.get_running_loop().time())
        if self.reading:
            await self.reading.pop(0)()
        return await super().get(name)

    async def names(self) -> list[str]:
        return [blob.name for blob in await self.blobs()]


class Site:
    def __init__(self) -> None:
        self.store, self.blobs = Store(), Blobs()
        self.check = ClaimCheck(self.blobs)
        self.seen: list[Message] = []

    async def fill(self, *bodies: bytes, queue: str = QUEUE) -> list[bytes]:
        limit = self.store.capabilities.body_bytes_max
        ready = [await self.check.put_aside(queue, NewMessage(body), limit) for body in bodies]
        await self.store.put(queue, ready)
        return [message.body for message in ready]

    async def handle(self, message: Message) -> None:
        self.seen.append(message)

    def listening(self, handler: Any = None, **options: Any) -> Any:
        return listening(self.store, handler or self.handle, claim_check=self.check, **options)


@pytest.mark.parametrize("ours", [True, False])
@simulated
async def test_a_listener_closes_the_blob_store_that_it_opened(ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given its URL; one that was given open stays so."""
    site, closed = Site(), list[ClaimCheck]()

    async def close(check: ClaimCheck) -> None:
        closed.append(check)

    monkeypatch.setattr(ClaimCheck, "close", close)
    await site.store.fill(b"small")
    await run_until(listening(site.store, site.handle, claim_check="memory:owned" if ours else site.check), 1)
    assert len(closed) == ours


@simulated
async def test_a_handler_sees_the_whole_body_and_the_blob_goes() -> None:
    """Fetched before the handler, removed after the delete; a small body beside it is as ever."""
    site = Site()
    await site.fill(LARGE, b"small")
    await run_until(site.listening(), 2)
    assert sorted(len(message.body) for message in site.seen) == [5, len(LARGE)]
    assert await site.blobs.names() == []


@simulated
async def test_a_batch_handler_sees_whole_bodies() -> None:
    """Each message of the batch is fetched."""
    site = Site()
    sizes: list[int] = []

    async def handle(messages: list[Message]) -> None:
        sizes.extend(len(message.body) for message in messages)

    await site.fill(LARGE, b"small", LARGE + b"!")
    await run_until(site.listening(handle), 3)
    assert sorted(sizes) == [5, len(LARGE), len(LARGE) + 1]
    assert await site.blobs.names() == []


@simulated
async def test_a_retry_finds_the_blob_again() -> None:
    """The blob stays until an attempt succeeds."""
    site = Site()

    async def handle(message: Message) -> None:
        assert message.body == LARGE
        if message.attempt < 3:
            raise Retry

    await site.fill(LARGE)
    async with site.listening(handle) as listener:
        await settled(listener, 1)
        assert listener.state().queues[QUEUE].retried == 2
    assert await site.blobs.names() == []


@simulated
async def test_a_buried_message_takes_its_body_along() -> None:
    """The copy on the poison queue has a blob of its own, and whoever listens there sees the whole body."""
    site = Site()

    async def handle(message: Message) -> None:
        raise Bury("no good")

    await site.fill(LARGE)
    await run_until(site.listening(handle), 1, "buried")
    (grave,) = await site.store.bodies(POISON)
    assert await site.blobs.names() == [read_claim(grave).blob]
    await run_until(site.listening(queue=POISON), 1, queue=POISON)
    assert [message.body for message in site.seen] == [LARGE]
    assert await site.blobs.names() == []


@simulated
async def test_a_missing_blob_is_buried_with_its_reason() -> None:
    """No attempt would bring it back: buried at once with the claim as it stands, and unseen by the handler."""
    site = Site()
    (claim,) = await site.fill(LARGE)
    await site.check.drop(claim)
    async with site.listening() as listener:
        await settled(listener, 1, "buried")
        burial = listener.state().queues[QUEUE].last_burial
        assert burial is not None
        assert "put aside and is gone" in burial
        assert read_claim(claim).blob in burial
    assert await site.store.bodies(POISON) == [claim]
    assert site.seen == []


@simulated
async def test_a_body_that_comes_back_after_its_burial_is_found() -> None:
    """The supervisor is told of the claim as text while the body is gone, and replays the whole once it is there."""
    site = Site()
    (claim,) = await site.fill(LARGE)
    name = read_claim(claim).blob
    kept = await site.blobs.get(name)
    await site.blobs.delete(name)

    async def supervise(message: Message) -> None:
        site.seen.append(message)
        raise Replay

    await run_until(site.listening(), 1, "buried")
    async with site.listening(supervise, queue=POISON) as listener:
        await settled(listener, 1, "retried", POISON)
        assert [(message.body, is_claim(message.body)) for message in site.seen] == [(lost_claim(claim), False)]
        await site.blobs.put(name, kept)
        await settled(listener, 1, "replayed", POISON)
    assert site.seen.pop().body == LARGE
    site.seen.clear()
    await run_until(site.listening(), 1)
    assert [message.body for message in site.seen] == [LARGE]
    assert await site.blobs.names() == []


@simulated
async def test_a_blob_that_is_there_when_the_delete_is_known_stays_with_the_buried_claim() -> None:
    """The burial shares the blob with the message that it was: the delete of the one takes nothing from the other."""
    site = Site()
    (claim,) = await site.fill(LARGE)
    name = read_claim(claim).blob
    kept = await site.blobs.get(name)
    await site.blobs.delete(name)

    async def back() -> None:
        await site.blobs.put(name, kept)

    site.store.settling = [back]
    async with site.listening() as listener:
        await settled(listener, 1, "buried")
        await pass_time(10)
    assert await site.blobs.names() == [name]


@simulated
async def test_a_claim_that_cannot_be_read_is_buried() -> None:
    """A damaged claim, or a stranger's: nothing is fetched for it."""
    site = Site()
    await site.store.fill(b'queuebell-claim:1 {"blob": "../../etc/passwd"}')
    await run_until(site.listening(), 1, "buried")
    assert site.blobs.tries == []
    assert (await site.store.bodies(POISON))[0].startswith(b"queuebell-claim:1 ")
    (burial,) = await site.store.burials()
    assert "its body was put aside and cannot be read: " in burial.reason


@simulated
async def test_a_blob_store_that_is_away_costs_no_attempt() -> None:
    """The message is held, its lease renewed, and the handler gets it at its first attempt once the body is there."""
    site = Site()
    site.blobs.reading = [raising(StoreUnavailable("away"))] * 10 + [raising(StoreError("no rights"))]
    await site.fill(LARGE)
    async with site.listening(visibility_timeout=5.0) as listener:
        await settled(listener, 1)
        figures = listener.state().queues[QUEUE]
    assert [message.attempt for message in site.seen] == [1]
    assert (figures.lost_leases, figures.retried, figures.buried) == (0, 0, 0)
    assert len(site.blobs.tries) == 12


@simulated
async def test_a_blob_store_that_does_not_answer_gets_longer(caplog: pytest.LogCaptureFixture) -> None:
    """10, 20, 40 and 40 s at most, with pauses in between."""
    site = Site()

    async def hang() -> None:
        await pass_time(1e6)

    site.blobs.reading = [hang] * 4
    await site.fill(LARGE)
    await run_until(site.listening(), 1)
    waits = [after - before for before, after in itertools.pairwise(site.blobs.tries)]
    assert [pytest.approx(wait, abs=1.7) for wait in waits] == [10, 20, 40, 40]
    assert caplog.text.count("cannot fetch a body that was put aside yet, trying again: time-out") == 4
    assert len(site.seen) == 1


@simulated
async def test_a_listener_that_stops_gives_back_what_it_could_not_fetch() -> None:
    """Nobody waits for the blob store when the listener goes; the message is there for others."""
    site = Site()
    site.blobs.reading = [raising(StoreUnavailable("away"))] * 1000
    await site.fill(LARGE)
    async with site.listening(grace=1.0):
        async with asyncio.timeout(60):
            while len(site.blobs.tries) < 3:
                await asyncio.sleep(0.01)
    depth = await site.store.depth(QUEUE)
    assert depth.visible == 1
    assert len(await site.blobs.names()) == 1


@simulated
async def test_a_doubtful_delete_leaves_the_blob() -> None:
    """Where nobody knows whose delete it was, another may still need the body: the sweep will see."""
    site = Site()
    await site.fill(LARGE)
    site.store.settling = [raising(UnknownOutcome("no answer"))]
    await run_until(site.listening(), 1)
    assert len(await site.blobs.names()) == 1


@pytest.mark.parametrize(("seconds", "left"), [(1.0, 0), (3.0, 1)])
@simulated
async def test_the_last_removals_have_two_seconds_at_the_end(seconds: float, left: int) -> None:
    """A blob whose removal takes longer is left to the sweep."""
    site, remove = Site(), MemoryBlobs.delete

    async def delete(name: str) -> None:
        await pass_time(seconds)
        await remove(site.blobs, name)

    site.blobs.delete = delete  # type: ignore[method-assign]
    await site.fill(LARGE)
    await run_until(site.listening(), 1)
    assert len(await site.blobs.names()) == left


@simulated
async def test_orphans_are_swept_by_a_listener() -> None:
    """Every six hours or so, those older than a week; a queue without old blobs is not even looked at."""
    site = Site()
    await site.store.create(QUEUE)
    peeks = 0
    peek = site.store.peek

    async def counted(*arguments: Any) -> Any:
        nonlocal peeks
        peeks += 1
        return await peek(*arguments)

    site.store.peek = counted  # type: ignore[method-assign]
    await site.check.put_aside(QUEUE, NewMessage(LARGE), 1024)
    await pass_time(6.3 * 86_400)
    async with site.listening():
        await pass_time(0.6 * 86_400)
        assert len(await site.blobs.names()) == 1
        assert peeks == 0
        await pass_time(0.1 * 86_400 + 1.3 * SWEEP_S)
        assert await site.blobs.names() == []


@simulated
async def test_the_sweep_knows_the_poison_queue_that_was_given() -> None:
    """A worker without a claim check buries there as it stands; the sweep of one that has one leaves the body."""
    site, grave = Site(), "billing/graveyard"
    (claim,) = await site.fill(LARGE)
    options = {"poison_queue": grave, "max_attempts": 1}
    await run_until(listening(site.store, site.handle, **options), 1, "buried")
    await pass_time(7 * 86_400)
    async with site.listening(**options):
        await pass_time(1.3 * SWEEP_S)
    assert await site.store.bodies(grave) == [claim]
    assert await site.check.fetch(claim) == LARGE


@simulated
async def test_a_sweep_that_fails_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """A blob store that is away or broken ends no listener, and what broke is told with the queue."""
    site = Site()
    listings = 0

    async def broken(*arguments: Any) -> Any:
        nonlocal listings
        listings += 1
        raise StoreUnavailable("away") if listings % 2 else RuntimeError("defect")

    site.blobs.blobs = broken  # type: ignore[method-assign]
    async with site.listening() as listener:
        await pass_time(10 * SWEEP_S)
        assert listings > 5
        assert f"{QUEUE}: looking for orphaned blobs broke" in caplog.text
        assert f"{QUEUE}: orphaned blobs could not be searched for now: away" in caplog.text
        await site.store.fill(b"small")
        await settled(listener, 1)
