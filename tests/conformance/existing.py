"""The questions about queues that are to be there, and how long they have kept their messages waiting."""

from __future__ import annotations

import pytest

from queuebell.bridge.contract.errors import BadInput, QueueNotFound, Unsupported
from queuebell.bridge.queues.base import NewMessage, QueueStore, Release, RoundStore, Settlement
from tests.conformance.leases import LONG, OTHER, QUEUE, LetPass, bodies, claim, new, take
from tests.conformance.once import KEY, ONE, putting

WAIT = 0.05


class ExistingConformance:
    async def test_a_put_may_ask_for_a_queue_that_is_there(self, store: QueueStore) -> None:
        """Nothing is put where it is not, and none is made; once it is there, it is put to, emptied or not."""
        for _ in range(2):
            with pytest.raises(QueueNotFound, match="nothing was put") as refused:
                await store.put(QUEUE, new(b"one"), create=False)
            assert refused.value.code == "queue_not_found"
            assert not await store.exists(QUEUE)
        assert await store.depth(QUEUE) is None
        await store.create(QUEUE)
        assert await store.exists(QUEUE)
        assert len(await store.put(QUEUE, new(b"one"), create=False)) == 1
        message = await take(store)
        assert message.body == b"one"
        await store.settle(QUEUE, Settlement(delete=[claim(message)]))
        await store.put(QUEUE, new(b"two"), create=False)
        assert bodies(await store.receive(QUEUE, 5, LONG)) == [b"two"]
        assert await store.exists(QUEUE)

    async def test_a_slip_of_the_pen_is_told_what_was_meant(self, store: QueueStore) -> None:
        account, _, name = QUEUE.partition("/")
        await store.create(QUEUE)
        with pytest.raises(QueueNotFound, match=QUEUE):
            await store.put(f"{account}/{name}s", new(b"one"), create=False)
        with pytest.raises(QueueNotFound) as refused:
            await store.put(f"{account}/zzzzzzzzzz", new(b"one"), create=False)
        assert "Did you mean" not in str(refused.value)

    async def test_what_is_wrong_is_told_before_what_is_missing(self, store: QueueStore) -> None:
        """A put that no queue would take is refused for that."""
        with pytest.raises(BadInput):
            await store.put(QUEUE, [], create=False)
        with pytest.raises(BadInput):
            await store.put(QUEUE, new(b"x" * (store.capabilities.body_bytes_max + 1)), create=False)

    async def test_a_put_under_a_key_may_ask_for_a_queue_too(self, store: QueueStore) -> None:
        if (putter := putting(store)) is None:
            return
        with pytest.raises(QueueNotFound, match="nothing was put"):
            await putter.put_once(QUEUE, KEY, ONE, create=False)
        assert not await store.exists(QUEUE)
        await store.create(QUEUE)
        assert await putter.put_once(QUEUE, KEY, ONE, create=False) is not None
        assert await putter.put_once(QUEUE, KEY, ONE, create=False) is None
        with pytest.raises(BadInput):
            await putter.put_once(QUEUE, KEY, b"other", create=False)
        await store.delete(QUEUE)
        with pytest.raises(QueueNotFound):
            await putter.put_once(QUEUE, KEY, ONE, create=False)
        assert await store.depth(QUEUE) is None

    async def test_the_oldest_has_waited_since_it_was_visible(self, store: QueueStore, let_pass: LetPass) -> None:
        """Not what is leased, delayed or kept back by a pause; a message that was given back begins anew."""
        if not store.capabilities.oldest_age:
            with pytest.raises(Unsupported):
                await store.oldest_ms(QUEUE)
            return
        assert await store.oldest_ms(QUEUE) is None
        await store.create(QUEUE)
        assert await store.oldest_ms(QUEUE) is None
        await store.put(QUEUE, [NewMessage(b"later", visible_after_ms=60_000)])
        assert await store.oldest_ms(QUEUE) is None
        await store.put(QUEUE, new(b"one"))
        await let_pass(WAIT)
        await store.put(QUEUE, new(b"two"))
        first = await store.oldest_ms(QUEUE)
        assert first is not None
        assert first >= WAIT * 1000 - 1
        await let_pass(WAIT)
        one = await take(store)
        second = await store.oldest_ms(QUEUE)
        assert second is not None
        # The second of the two is the oldest now, younger than the first by what passed between their puts.
        assert second >= WAIT * 1000 - 1
        await let_pass(WAIT)
        await store.settle(QUEUE, Settlement(release=[Release(one.id, one.pop_receipt)]))
        two = await take(store)
        assert two.body == b"two"
        await let_pass(0.002)
        third, now = await store.oldest_ms(QUEUE), await store.oldest_ms(OTHER)
        assert third is not None
        assert now is None
        assert await store.oldest_ms(QUEUE) is not None
        if store.capabilities.pause:
            await store.pause(QUEUE)
            assert await store.oldest_ms(QUEUE) is None
            await store.pause(QUEUE, False)
            assert await store.oldest_ms(QUEUE) is not None

    async def test_a_round_names_the_queues_with_visible_messages(self, store: QueueStore, let_pass: LetPass) -> None:
        """Not those whose messages are all delayed, leased, expired or paused, nor an empty one."""
        if not isinstance(store, RoundStore):
            return

        async def visible() -> list[str]:
            found = await store.visible_queues()
            assert found is not None
            assert found.place == (await store.receive(empty)).place == await store.place()
            return found.queues

        await store.create(empty := "conformance/empty")
        assert await visible() == [] and len(bytes.fromhex(store.scope)) == 16
        names = [f"conformance/{name}" for name in ("delayed", "leased", "both", "lapsed")]
        delayed, leased, both, lapsed = names
        await store.put(delayed, new(b"1", delay_ms=60_000))
        for queue in (leased, lapsed, both):
            await store.put(queue, new(b"1"))
        await store.put(both, new(b"2", delay_ms=60_000))
        await store.receive(leased, 1, LONG)
        await store.receive(lapsed, 1, WAIT)
        await let_pass(WAIT)
        expected = {lapsed, both}
        if store.capabilities.time_to_live:
            await store.put("conformance/expired", new(b"1", ttl_s=1))
            await let_pass(1.0)
        if store.capabilities.pause:
            await store.put("conformance/paused", new(b"1"))
            await store.pause("conformance/paused")
        found = await visible()
        assert (len(found), set(found)) == (2, expected)
        (message,) = (await store.receive(both)).messages
        await store.settle(both, Settlement(delete=[claim(message)]))
        assert await visible() == [lapsed]
