"""The questions about what a store tells of a queue beside its messages: leased, delayed, and the oldest one's age."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from queuebell.bridge.queues.base import Counts, QueueStore, Release, Settlement
from tests.conformance.leases import LEASE, LONG, QUEUE, LetPass, claim, new, take

LATER_MS = int(LONG * 1000)
ROUNDING_MS = 5
"""What two ages of whole milliseconds, and the clocks of the store and the test, may differ by."""


async def counted(store: QueueStore) -> Counts:
    """Return the counts of the queue, which agree with its depth."""
    told, depth = await store.counts(QUEUE), await store.depth(QUEUE)
    assert told is not None
    assert depth is not None
    assert (told.visible, told.invisible) == (depth.visible, depth.invisible)
    assert (told.leased or 0) + (told.delayed or 0) <= told.invisible
    return told


class CountsConformance:
    async def test_counts_tell_the_leased_from_the_delayed(self, store: QueueStore) -> None:
        """Leased is what somebody holds, delayed what was put or given back for later; neither is a guess."""
        able = store.capabilities
        assert await store.counts(QUEUE) is None
        await store.put(QUEUE, new(b"a", b"b", b"c", b"d"))
        delayed = 0
        if able.delayed_put:
            await store.put(QUEUE, new(b"later", b"too", delay_ms=LATER_MS))
            delayed = 2
        held = [await take(store) for _ in range(3)]
        back = Release(held[0].id, held[0].pop_receipt, LATER_MS)
        await store.settle(QUEUE, Settlement(release=[back], delete=[claim(held[1])]))
        told = await counted(store)
        if able.counts_leased:
            assert (told.visible, told.leased, told.delayed) == (1, 1, delayed + 1)
        beside = (await store.receive(QUEUE, 5, LONG)).counts
        if able.counts_leased and beside is not None:
            assert (beside.visible, beside.leased, beside.delayed) == (0, 2, delayed + 1)
            assert beside == await counted(store)
        empty = (await store.receive(QUEUE, 5, LONG)).counts
        if empty is not None:
            assert empty == await counted(store)
        if able.put_receipts and able.counts_leased:
            (receipt,) = await store.put(QUEUE, new(b"again", delay_ms=LATER_MS))
            gone = Settlement(
                delete=[claim(msgspec.structs.replace(held[0], id=receipt.id, pop_receipt=receipt.pop_receipt))]
            )
            assert (await counted(store)).delayed == delayed + 2
            await store.settle(QUEUE, gone)
            assert (await counted(store)).delayed == delayed + 1
        if able.pause:
            await store.put(QUEUE, new(b"waits"))
            await store.pause(QUEUE)
            told = await counted(store)
            assert (told.visible, told.leased, told.delayed, told.oldest_ms) == (0, 2, delayed + 1, None)

    async def test_what_came_back_is_neither_leased_nor_delayed(self, store: QueueStore, let_pass: LetPass) -> None:
        """A lease that lapsed and a delay that ended are visible again, and the store counts them as such."""
        able = store.capabilities
        if not able.counts_leased:
            return
        await store.put(QUEUE, new(b"a", b"b"))
        await store.put(QUEUE, new(b"later", delay_ms=50))
        await store.receive(QUEUE, 1, LEASE)
        held = await take(store)
        await store.settle(QUEUE, Settlement(release=[Release(held.id, held.pop_receipt, 50)]))
        await let_pass(0.06)
        told = await counted(store)
        assert (told.visible, told.leased, told.delayed) == (3, 0, 0)
        await take(store)
        told = await counted(store)
        assert (told.visible, told.leased, told.delayed) == (2, 1, 0)

    async def test_the_oldest_grows_while_it_waits(
        self, store: QueueStore, let_pass: LetPass, wall: Callable[[], float]
    ) -> None:
        """Until it is received; a younger one is the oldest then. What is held, or is not there, has no age."""
        await store.put(QUEUE, new(b"first"))
        if (await counted(store)).oldest_ms is None:
            assert not store.capabilities.oldest_age
            return
        await let_pass(1.0)
        await store.put(QUEUE, new(b"second"))
        asked_at = wall()
        old = (await counted(store)).oldest_ms
        assert old is not None
        assert old >= 1000
        received = await store.receive(QUEUE, 1, LONG)
        young = (await counted(store)).oldest_ms
        assert young is not None
        since_ms = (wall() - asked_at) * 1000
        assert young + 1000 <= old + since_ms + ROUNDING_MS
        if received.counts is not None:
            assert received.counts.oldest_ms is not None
            assert received.counts.oldest_ms <= young
        await take(store)
        assert (await counted(store)).oldest_ms is None
