"""The questions about puts that are carried out once: a part of what every queue store is asked."""

from __future__ import annotations

import asyncio

import pytest

from queuebell.bridge.contract.errors import BadInput, QueuebellError, Unsupported
from queuebell.bridge.queues.base import Depth, NewMessage, PutOnceStore, PutReceipt, QueueStore, Settlement, once
from tests.conformance.leases import LONG, OTHER, QUEUE, bodies, claim, new, take

KEY = "7order-@a.b~c:d=e+f_g"
ONE = NewMessage(b"\xff one")


def putting(store: QueueStore) -> PutOnceStore | None:
    """Return the store as one that puts once; None where it says, as it must, that it cannot."""
    if store.capabilities.put_once:
        return once(store)
    with pytest.raises(Unsupported):
        once(store)
    return None


class OnceConformance:
    async def test_a_put_under_a_known_key_is_carried_out_once(self, store: QueueStore) -> None:
        """The first gives a receipt, the next nothing; the message tells its key, and others have none."""
        if (putter := putting(store)) is None:
            return
        receipt = await putter.put_once(QUEUE, KEY, ONE)
        assert receipt is not None
        assert await putter.put_once(QUEUE, KEY, ONE) is None
        # How it was to be put does not matter any more, only what.
        assert await putter.put_once(QUEUE, KEY, NewMessage(ONE.body, 60_000, 60)) is None
        await store.put(QUEUE, new(b"two"))
        assert [message.key for message in await store.peek(QUEUE)] == [KEY, None]
        one = await take(store)
        assert (one.id, one.body, one.key, one.dequeue_count) == (receipt.id, ONE.body, KEY, 1)
        two = await take(store)
        assert (two.body, two.key) == (b"two", None)
        settling = await store.settle(QUEUE, Settlement(delete=[claim(one), claim(two)]))
        assert all(settled.ok for settled in settling.delete)

    async def test_text_is_put_once_as_its_bytes(self, store: QueueStore) -> None:
        if (putter := putting(store)) is None:
            return
        assert await putter.put_once(QUEUE, KEY, "grün") is not None
        for same in ("grün", "grün".encode(), NewMessage("grün")):
            assert await putter.put_once(QUEUE, KEY, same) is None
        assert (await take(store)).body == "grün".encode()

    async def test_it_may_be_delayed(self, store: QueueStore) -> None:
        if (putter := putting(store)) is None or not store.capabilities.delayed_put:
            return
        later = NewMessage(b"later", int(LONG * 1000))
        assert await putter.put_once(QUEUE, KEY, later) is not None
        assert await store.depth(QUEUE) in (None, Depth(0, 1))
        assert (await store.receive(QUEUE, 1, LONG)).messages == []
        assert await putter.put_once(QUEUE, KEY, later) is None

    async def test_a_handled_message_is_not_put_again(self, store: QueueStore) -> None:
        """Its producer may have lost the answer, and ask after a worker was done with it."""
        if (putter := putting(store)) is None:
            return
        await putter.put_once(QUEUE, KEY, ONE)
        await store.settle(QUEUE, Settlement(delete=[claim(await take(store))]))
        assert await putter.put_once(QUEUE, KEY, ONE) is None
        assert (await store.receive(QUEUE, 32, LONG)).messages == []

    async def test_another_body_under_a_known_key_is_refused(self, store: QueueStore) -> None:
        """Neither body is lost in silence; and a key is its queue's own."""
        if (putter := putting(store)) is None:
            return
        await putter.put_once(QUEUE, KEY, ONE)
        with pytest.raises(BadInput) as refused:
            await putter.put_once(QUEUE, KEY, NewMessage(b"other"))
        assert refused.value.code == "message_conflict"
        assert bodies(await store.receive(QUEUE, 32, LONG)) == [ONE.body]
        assert await putter.put_once(OTHER, KEY, NewMessage(b"other")) is not None
        assert await putter.put_once(QUEUE, KEY + "2", NewMessage(b"other")) is not None

    async def test_of_many_at_once_one_is_carried_out(self, store: QueueStore) -> None:
        """Exactly one gets the receipt, and of different bodies exactly one stands."""
        if (putter := putting(store)) is None:
            return
        receipts = await asyncio.gather(*(putter.put_once(QUEUE, KEY, ONE) for _ in range(20)))
        assert sum(receipt is not None for receipt in receipts) == 1

        async def put(number: int) -> PutReceipt | str | None:
            try:
                return await putter.put_once(QUEUE, "mixed", NewMessage(b"%d" % (number % 2)))
            except QueuebellError as error:
                return error.code

        mixed = await asyncio.gather(*(put(number) for number in range(20)))
        assert sum(isinstance(outcome, PutReceipt) for outcome in mixed) == 1
        assert (mixed.count(None), mixed.count("message_conflict")) == (9, 10)
        assert len((await store.receive(QUEUE, 32, LONG)).messages) == 2

    async def test_clearing_and_deleting_forget_keys(self, store: QueueStore) -> None:
        """What was thrown away may be put again, also from a queue that was empty."""
        if (putter := putting(store)) is None:
            return
        await putter.put_once(QUEUE, KEY, ONE)
        await store.clear(QUEUE)
        assert await putter.put_once(QUEUE, KEY, NewMessage(b"other")) is not None
        await store.settle(QUEUE, Settlement(delete=[claim(await take(store))]))
        await store.clear(QUEUE)
        assert await putter.put_once(QUEUE, KEY, ONE) is not None
        await store.delete(QUEUE)
        assert await putter.put_once(QUEUE, KEY, NewMessage(b"third")) is not None
        assert bodies(await store.receive(QUEUE, 32, LONG)) == [b"third"]

    async def test_a_key_out_of_form_changes_nothing(self, store: QueueStore) -> None:
        if (putter := putting(store)) is None:
            return
        for key in ("", ".", "..", "-a", "a/b", "a b", "a%20", "\u00e4", "a\n", "x" * 129):
            with pytest.raises(BadInput) as refused:
                await putter.put_once(QUEUE, key, ONE)
            assert refused.value.code == "bad_parameter"
        with pytest.raises(BadInput) as refused:
            await putter.put_once(QUEUE, KEY, NewMessage(b"x" * (store.capabilities.body_bytes_max + 1)))
        assert refused.value.code == "message_too_large"
        assert await store.depth(QUEUE) is None
        assert await putter.put_once(QUEUE, "x" * 128, ONE) is not None
