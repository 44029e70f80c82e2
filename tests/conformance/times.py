"""The questions about times, about the bounds of counts, and about all that `clear` removes."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable

import pytest

from queuebell.bridge.queues.base import QueueStore, Release, Settlement, StoredMessage
from tests.conformance.leases import LEASE, LONG, OTHER, QUEUE, LetPass, claim, new, take

MINUTE = datetime.timedelta(minutes=1)
TEN_MINUTES_MS = 600_000


class TimesConformance:
    @pytest.fixture
    def wall(self) -> Callable[[], float]:
        """Return the wall clock of the store: the machine's, unless the test moves time by hand."""
        return time.time

    async def test_a_message_tells_when_it_was_put_and_when_it_expires(
        self, store: QueueStore, wall: Callable[[], float]
    ) -> None:
        """The time of insertion is now, within a minute, whichever call tells it; a time to live counts from it."""
        able = store.capabilities
        await store.put(QUEUE, new(b"one", ttl_s=3600 if able.time_to_live else -1))
        seen = await store.peek(QUEUE) if able.peek else []
        taken = await take(store)
        now = datetime.datetime.fromtimestamp(wall(), datetime.UTC)

        def near(message: StoredMessage) -> bool:
            return abs(message.inserted_at - now) <= MINUTE

        assert all(near(message) for message in (*seen, taken))
        for message in (*seen, taken) if able.time_to_live else ():
            assert message.expires_at is not None
            assert abs(message.expires_at - message.inserted_at - datetime.timedelta(hours=1)) <= MINUTE

    async def test_the_next_visible_is_neither_too_early_nor_too_late(self, store: QueueStore) -> None:
        """An empty receive tells the end of the nearest lease or delay, to the store's own resolution and a minute."""
        able = store.capabilities
        await store.put(QUEUE, new(b"leased"))
        await take(store, 600)
        told = (await store.receive(QUEUE, 1, LONG)).next_visible_in_ms
        if not able.next_visible:
            assert told is None
            return
        assert told is not None
        assert TEN_MINUTES_MS - 60_000 < told <= TEN_MINUTES_MS + able.resolution_ms
        if able.delayed_put:
            (receipt,) = await store.put(QUEUE, new(b"sooner", delay_ms=300_000))
            assert 300_000 - 60_000 < receipt.visible_in_ms <= 300_000 + able.resolution_ms
            told = (await store.receive(QUEUE, 1, LONG)).next_visible_in_ms
            assert told is not None
            assert 300_000 - 60_000 < told <= 300_000 + able.resolution_ms

    async def test_counts_stay_within_what_was_put(self, store: QueueStore, let_pass: LetPass) -> None:
        """A rough count is no larger than what is there, and a whole one equals it; the oldest waits since its put."""
        able = store.capabilities
        await store.put(QUEUE, new(b"a", b"b", b"c", b"d", b"e"))
        await take(store)
        await take(store)
        await let_pass(LEASE)
        told = await store.counts(QUEUE)
        assert told is not None
        assert 0 <= told.visible <= 5
        assert 0 <= told.invisible <= 5
        assert told.visible + told.invisible <= 5
        if able.exact_depth:
            assert (told.visible, told.invisible, told.at_least) == (3, 2, False)
        assert told.leased in ((2,) if able.counts_leased else (None, 2))
        assert told.delayed in ((0,) if able.counts_leased else (None, 0))
        assert told.oldest_ms is None or 1000 * LEASE <= told.oldest_ms < 60_000
        assert told.oldest_ms is not None or not able.oldest_age

    async def test_clear_takes_the_leased_and_the_delayed_too(self, store: QueueStore, let_pass: LetPass) -> None:
        """Nothing comes back after it, and another queue keeps all that it has; a key may be used again."""
        able = store.capabilities
        await store.put(QUEUE, new(b"visible", b"leased", b"given back"))
        if able.delayed_put:
            await store.put(QUEUE, new(b"delayed", delay_ms=50))
        await store.put(OTHER, new(b"stays"))
        back = await take(store)
        await take(store, LEASE)
        await store.settle(QUEUE, Settlement(release=[Release(back.id, back.pop_receipt, 50)]))
        await store.clear(QUEUE)
        if able.exact_depth:
            told = await store.counts(QUEUE)
            assert told is not None
            assert (told.visible, told.invisible, told.leased or 0, told.delayed or 0) == (0, 0, 0, 0)
            assert told.oldest_ms is None
        await let_pass(2 * LEASE)
        assert (await store.receive(QUEUE, 32, LONG)).messages == []
        late = (await store.settle(QUEUE, Settlement(release=[Release(back.id, back.pop_receipt)]))).release
        assert not late[0].ok or not able.fenced
        assert (await store.receive(QUEUE, 32, LONG)).messages == []
        kept = (await store.receive(OTHER, 32, LONG)).messages
        assert [message.body for message in kept] == [b"stays"]
        assert (await store.settle(OTHER, Settlement(delete=[claim(kept[0])]))).delete[0].ok
