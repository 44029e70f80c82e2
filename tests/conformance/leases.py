"""The questions about leases and receipts: a part of what every queue store is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from time import monotonic

import pytest

from queuebell.bridge.contract.errors import Unsupported
from queuebell.bridge.queues.base import (
    Claim,
    Depth,
    Extend,
    NewMessage,
    QueueStore,
    Received,
    Release,
    Settlement,
    StoredMessage,
)

LetPass = Callable[[float], Awaitable[None]]

QUEUE = "conformance/orders"
OTHER = "conformance/others"
LEASE = 0.05
LONG = 30.0


def new(*bodies: bytes, delay_ms: int = 0, ttl_s: int = -1) -> list[NewMessage]:
    """Return messages to put."""
    return [NewMessage(body, delay_ms, ttl_s) for body in bodies]


def bodies(received: Received | list[StoredMessage]) -> list[bytes]:
    """Return the bodies in the order received."""
    return [message.body for message in (received.messages if isinstance(received, Received) else received)]


def claim(message: StoredMessage) -> Claim:
    """Return the lease of a message received."""
    return Claim(message.id, message.pop_receipt)


async def take(store: QueueStore, lease_s: float = LONG) -> StoredMessage:
    """Receive the one message that is visible."""
    (message,) = (await store.receive(QUEUE, 1, lease_s)).messages
    return message


class LeaseConformance:
    async def test_a_leased_message_is_invisible(self, store: QueueStore) -> None:
        """Within its lease a message is given to nobody else."""
        await store.put(QUEUE, new(b"one"))
        await take(store)
        assert (await store.receive(QUEUE, 32, LONG)).messages == []

    async def test_a_lapsed_lease_gives_the_message_back(self, store: QueueStore, let_pass: LetPass) -> None:
        """After its lease a message comes again, counted twice, under another receipt."""
        await store.put(QUEUE, new(b"one"))
        first = await take(store, LEASE)
        await let_pass(LEASE)
        second = await take(store)
        assert (second.id, second.dequeue_count) == (first.id, 2)
        assert second.pop_receipt != first.pop_receipt

    async def test_a_message_keeps_its_id_and_its_time(self, store: QueueStore, let_pass: LetPass) -> None:
        """Whether its lease lapsed or it was given back, it is known again: a ledger goes by both."""
        (receipt,) = await store.put(QUEUE, new(b"one"))
        first = await take(store, LEASE)
        await let_pass(LEASE)
        second = await take(store)
        await store.settle(QUEUE, Settlement(release=[Release(second.id, second.pop_receipt)]))
        third = await take(store)
        assert [m.dequeue_count for m in (first, second, third)] == [1, 2, 3]
        assert {(m.id, m.inserted_at) for m in (first, second, third)} == {(receipt.id, first.inserted_at)}

    async def test_a_lease_lasts_its_time(self, store: QueueStore, let_pass: LetPass) -> None:
        await store.put(QUEUE, new(b"one"))
        await take(store, LONG)
        await let_pass(LEASE)
        assert (await store.receive(QUEUE, 1, LONG)).messages == []

    async def test_delete_needs_the_newest_receipt(self, store: QueueStore, let_pass: LetPass) -> None:
        """The receipt of a lease that was lost to another holder deletes nothing."""
        await store.put(QUEUE, new(b"one"))
        stale = await take(store, LEASE)
        await let_pass(LEASE)
        fresh = await take(store)
        if not store.capabilities.fenced:
            assert (await store.settle(QUEUE, Settlement(delete=[claim(fresh)]))).delete[0].ok
            return
        settling = await store.settle(QUEUE, Settlement(delete=[claim(stale), claim(fresh), claim(fresh)]))
        assert [settled.ok for settled in settling.delete] == [False, True, False]
        assert [settled.code for settled in settling.delete] == ["pop_receipt_mismatch", None, "message_not_found"]

    async def test_a_lapsed_lease_nobody_took_may_still_delete(self, store: QueueStore, let_pass: LetPass) -> None:
        """Until someone else receives the message, the receipt stays good."""
        await store.put(QUEUE, new(b"one"))
        held = await take(store, LEASE)
        await let_pass(LEASE)
        settling = await store.settle(QUEUE, Settlement(delete=[claim(held)]))
        assert settling.delete[0].ok
        assert (await store.receive(QUEUE, 1, LONG)).messages == []

    async def test_a_puts_receipt_deletes(self, store: QueueStore) -> None:
        """Whoever put a message may take it back while nobody received it."""
        (receipt,) = await store.put(QUEUE, new(b"one"))
        if not store.capabilities.put_receipts:
            assert receipt.pop_receipt == ""
            return
        settling = await store.settle(QUEUE, Settlement(delete=[Claim(receipt.id, receipt.pop_receipt)]))
        assert settling.delete[0].ok

    async def test_strange_claims_hit_nothing(self, store: QueueStore) -> None:
        """Ids and receipts that this store never gave are refused one by one and harm nobody."""
        await store.put(QUEUE, new(b"one"))
        held = await take(store)
        strange = ["", "x", "g" * 16, "f" * 16, "é" * 16, "0" * 400, held.id.upper() + " ", "1_0"]
        if store.capabilities.fenced:
            asked = Settlement(delete=[Claim(id_, held.pop_receipt) for id_ in strange])
            assert [settled.code for settled in (await store.settle(QUEUE, asked)).delete] == ["message_not_found"] * 8
        asked = Settlement(delete=[Claim(held.id, receipt) for receipt in strange])
        assert [settled.code for settled in (await store.settle(QUEUE, asked)).delete] == ["pop_receipt_mismatch"] * 8
        assert (await store.settle(QUEUE, Settlement(delete=[claim(held)]))).delete[0].ok

    async def test_one_settlement_of_everything(self, store: QueueStore) -> None:
        """Delete, release and extend go together, each list answered in its order."""
        await store.put(QUEUE, new(b"a", b"b", b"c"))
        a, b, c = (await store.receive(QUEUE, 3, LONG)).messages
        settling = await store.settle(
            QUEUE,
            Settlement(
                delete=[claim(a)],
                release=[Release(b.id, b.pop_receipt)],
                extend=[Extend(c.id, c.pop_receipt, LONG)],
            ),
        )
        assert [settled.ok for settled in (*settling.delete, *settling.release, *settling.extend)] == [True] * 3
        assert bodies(await store.receive(QUEUE, 3, LONG)) == [b"b"]
        empty = await store.settle(QUEUE, Settlement())
        assert (list(empty.delete), list(empty.release), list(empty.extend)) == ([], [], [])

    async def test_many_deletes_each_have_their_own_outcome(self, store: QueueStore) -> None:
        """Of many claims in one request the stale, the strange and the one named twice fail alone."""
        await store.put(QUEUE, new(*(b"%d" % n for n in range(8))))
        held = (await store.receive(QUEUE, 6, LONG)).messages
        stale = Claim(held[0].id, "0" * 16)
        claims = [stale, *map(claim, held[1:]), claim(held[1]), Claim("f" * 16, "f" * 16), Claim("no id", "")]
        outcomes = (await store.settle(QUEUE, Settlement(delete=claims))).delete
        codes = [outcome.code for outcome in outcomes]
        expected = ["pop_receipt_mismatch", *[None] * 5, *["message_not_found"] * 3]
        if store.capabilities.fenced:
            assert codes == expected
        else:
            assert codes[:6] == expected[:6]
            assert not outcomes[7].ok and not outcomes[8].ok
        found = await store.depth(QUEUE)
        assert found is not None
        assert found == Depth(2, 1) if store.capabilities.exact_depth else found.visible + found.invisible == 3

    async def test_release_gives_back_at_once(self, store: QueueStore) -> None:
        """A released message is visible, its old receipt void, its count kept."""
        await store.put(QUEUE, new(b"one"))
        held = await take(store)
        settling = await store.settle(QUEUE, Settlement(release=[Release(held.id, held.pop_receipt)]))
        assert settling.release[0].ok
        again = await take(store)
        assert again.dequeue_count == 2
        if not store.capabilities.fenced:
            return
        settling = await store.settle(QUEUE, Settlement(release=[Release(held.id, held.pop_receipt)]))
        assert settling.release[0].code == "pop_receipt_mismatch"

    async def test_an_uncounted_release_undoes_its_receive(self, store: QueueStore) -> None:
        """What is given back so was not handed out: however often, and beside one that is counted."""
        await store.put(QUEUE, new(b"counted", b"uncounted"))
        held = {message.body: message for message in (await store.receive(QUEUE, 2, LONG)).messages}
        if not store.capabilities.uncounted_release:
            back = [Release(m.id, m.pop_receipt, uncounted=True) for m in held.values()]
            with pytest.raises(Unsupported):
                await store.settle(QUEUE, Settlement(release=back))
            assert (await store.receive(QUEUE, 2, LONG)).messages == []
            return
        for round_ in (1, 2, 3):
            assert {body: m.dequeue_count for body, m in held.items()} == {b"counted": round_, b"uncounted": 1}
            back = [Release(m.id, m.pop_receipt, uncounted=body == b"uncounted") for body, m in held.items()]
            assert [one.ok for one in (await store.settle(QUEUE, Settlement(release=back))).release] == [True, True]
            held = {message.body: message for message in (await store.receive(QUEUE, 2, LONG)).messages}
            assert len(held) == 2

    async def test_an_uncounted_release_counts_no_further_down(self, store: QueueStore, let_pass: LetPass) -> None:
        """Only this lease is undone, under its newest receipt, and once: earlier hand-outs stay counted."""
        if not store.capabilities.uncounted_release:
            return
        await store.put(QUEUE, new(b"one"))
        await take(store, LEASE)
        await let_pass(LEASE)
        second = await take(store, LONG)
        longer = Settlement(extend=[Extend(second.id, second.pop_receipt, LONG)])
        newest = (await store.settle(QUEUE, longer)).extend[0].pop_receipt or ""
        stale = Release(second.id, second.pop_receipt, uncounted=True)
        asked = Settlement(release=[stale, Release(second.id, newest, 50, uncounted=True)])
        assert [one.ok for one in (await store.settle(QUEUE, asked)).release] == [False, True]
        again = await store.settle(QUEUE, Settlement(release=[Release(second.id, newest, uncounted=True)]))
        assert not again.release[0].ok
        await let_pass(LEASE)
        assert (await take(store)).dequeue_count == 2

    async def test_a_puts_receipt_takes_nothing_off_the_count(self, store: QueueStore) -> None:
        """Whoever put a message and was not handed it cannot count below nothing."""
        if not store.capabilities.uncounted_release or not store.capabilities.put_receipts:
            return
        (put,) = await store.put(QUEUE, new(b"one"))
        back = Settlement(release=[Release(put.id, put.pop_receipt, uncounted=True)])
        assert (await store.settle(QUEUE, back)).release[0].ok
        assert (await take(store)).dequeue_count == 1

    async def test_delayed_release(self, store: QueueStore, let_pass: LetPass) -> None:
        """A message given back for later comes when its delay is over, not before."""
        await store.put(QUEUE, new(b"one", b"two"))
        held, later = (await store.receive(QUEUE, 2, LONG)).messages
        asked = Settlement(release=[Release(later.id, later.pop_receipt, int(LONG * 1000))])
        assert (await store.settle(QUEUE, asked)).release[0].ok
        assert (await store.receive(QUEUE, 1, LONG)).messages == []
        asked = Settlement(release=[Release(held.id, held.pop_receipt, 50)])
        assert (await store.settle(QUEUE, asked)).release[0].ok
        await let_pass(0.05)
        again = await take(store)
        assert (again.id, again.dequeue_count) == (held.id, 2)

    async def test_extend_gives_a_new_receipt(self, store: QueueStore, let_pass: LetPass) -> None:
        """An extended lease outlives its first end, and only its new receipt counts."""
        await store.put(QUEUE, new(b"one"))
        began = monotonic()
        held = await take(store, LEASE)
        settling = await store.settle(QUEUE, Settlement(extend=[Extend(held.id, held.pop_receipt, LONG)]))
        if not store.capabilities.own_leases and monotonic() - began >= LEASE:
            return  # This machine was too busy: the consumer's lease may have lapsed before it was extended.
        newest = settling.extend[0].pop_receipt
        await let_pass(LEASE)
        assert (await store.receive(QUEUE, 1, LONG)).messages == []
        if not store.capabilities.fenced:
            asked = Settlement(delete=[Claim(held.id, newest or "")])
            assert (await store.settle(QUEUE, asked)).delete[0].ok
            return
        assert newest not in (None, held.pop_receipt)
        asked = Settlement(delete=[claim(held), Claim(held.id, newest or "")])
        assert [settled.code for settled in (await store.settle(QUEUE, asked)).delete] == ["pop_receipt_mismatch", None]

    async def test_extend_with_a_new_body(self, store: QueueStore, let_pass: LetPass) -> None:
        """A holder may write its progress into the message."""
        await store.put(QUEUE, new(b"one"))
        held = await take(store)
        asked = Settlement(extend=[Extend(held.id, held.pop_receipt, LEASE, b"half done")])
        if not store.capabilities.update_body:
            with pytest.raises(Unsupported):
                await store.settle(QUEUE, asked)
            return
        assert (await store.settle(QUEUE, asked)).extend[0].ok
        await let_pass(LEASE)
        assert (await take(store)).body == b"half done"
