"""What every queue store is asked, as far as its capabilities claim it.

A subclass gives two fixtures: ``store``, open and empty, and ``let_pass``, which makes time pass for it, be it by a
clock of its own or by really waiting. The times asked for are short, so that waiting is cheap.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

import msgspec
import pytest

from queuebell.bridge.contract.errors import BadInput, Closed, QueueNotFound, Unsupported
from queuebell.bridge.queues.base import (
    BODY_BYTES_MAX,
    DELAY_MS_MAX,
    VISIBILITY_S_MAX,
    Claim,
    Depth,
    Extend,
    NewMessage,
    QueueStore,
    Release,
    Settlement,
)
from tests.conformance.counts import CountsConformance
from tests.conformance.existing import ExistingConformance
from tests.conformance.headers import HeadersConformance
from tests.conformance.leases import (
    LEASE,
    LONG,
    OTHER,
    QUEUE,
    LeaseConformance,
    LetPass,
    bodies,
    claim,
    new,
    take,
)
from tests.conformance.once import OnceConformance
from tests.conformance.times import TimesConformance

__all__ = ["LetPass", "QueueStoreConformance"]


class QueueStoreConformance(
    LeaseConformance, OnceConformance, ExistingConformance, HeadersConformance, CountsConformance, TimesConformance
):
    accounts = ("A", "a", "a-b")
    names = ("q1", "q10", "q2")
    """What the store can have as accounts and queue names; the first queue name begins the second."""
    word = "Ünicode"
    """What it can have as metadata."""

    async def test_put_then_receive_gives_the_message(self, store: QueueStore) -> None:
        (receipt,) = await store.put(QUEUE, new(b"one"))
        received = await store.receive(QUEUE, 5, LONG)
        assert bodies(received) == [b"one"]
        message = received.messages[0]
        assert message.id == receipt.id
        assert message.dequeue_count == 1
        assert message.pop_receipt
        assert message.inserted_at.utcoffset() is not None
        assert message.expires_at is None
        assert receipt.visible_in_ms == 0

    async def test_any_bytes_survive(self, store: QueueStore) -> None:
        """Bodies are bytes: empty, not UTF-8, and as long as allowed."""
        wanted = [b"", bytes(range(256)), b"\xff\xfe", b"x" * store.capabilities.body_bytes_max]
        for body in wanted:
            await store.put(QUEUE, new(body))
        assert sorted(bodies(await store.receive(QUEUE, 4, LONG))) == sorted(wanted)

    async def test_a_body_is_text_bytes_or_a_message(self, store: QueueStore) -> None:
        """Side by side in one put; one body where a list is meant would be put letter by letter, and is refused."""
        await store.put(QUEUE, ["grün", b"\xff", NewMessage("text"), NewMessage(b"bytes")])
        assert sorted(bodies(await store.receive(QUEUE, 4, LONG))) == [b"bytes", "grün".encode(), b"text", b"\xff"]
        for wrong in ("text", b"bytes", NewMessage(b"x"), [7], [None], [{"body": "x"}]):
            with pytest.raises(BadInput) as refused:
                await store.put(QUEUE, wrong)  # type: ignore[arg-type]
            assert refused.value.code == "bad_parameter"

    async def test_a_put_joins_a_transaction_or_is_refused(self, store: QueueStore) -> None:
        with pytest.raises(BadInput if store.capabilities.joins_transaction else Unsupported, match="nothing was put"):
            await store.put(QUEUE, ["one"], connection=object())  # type: ignore[arg-type]
        await store.put(QUEUE, ["two"])
        assert bodies(await store.receive(QUEUE, 5, LONG)) == [b"two"]

    async def test_oldest_visible_first(self, store: QueueStore) -> None:
        """Messages come in the order in which they became visible."""
        for number in range(5):
            await store.put(QUEUE, new(b"%d" % number))
        found = bodies(await store.receive(QUEUE, 3, LONG))
        assert len(found) == 3
        found += bodies(await store.receive(QUEUE, 3, LONG))
        assert (found if store.capabilities.ordered else sorted(found)) == [b"0", b"1", b"2", b"3", b"4"]

    async def test_batches_up_to_the_limit(self, store: QueueStore) -> None:
        """A full batch goes in, comes out, is held on to, given back and deleted, in one call each."""
        most = store.capabilities.batch_max
        receipts = await store.put(QUEUE, new(*(b"%d" % n for n in range(most))))
        assert len({receipt.id for receipt in receipts}) == most
        taken = (await store.receive(QUEUE, most, LONG)).messages
        assert len({message.id for message in taken}) == most
        longer = Settlement(extend=[Extend(message.id, message.pop_receipt, LONG) for message in taken])
        extended = (await store.settle(QUEUE, longer)).extend
        assert [one.ok for one in extended] == [True] * most
        held = [
            Claim(message.id, one.pop_receipt or message.pop_receipt)
            for message, one in zip(taken, extended, strict=True)
        ]
        back = Settlement(release=[Release(claim.id, claim.pop_receipt) for claim in held])
        assert [one.ok for one in (await store.settle(QUEUE, back)).release] == [True] * most
        again = (await store.receive(QUEUE, most, LONG)).messages
        assert len({message.id for message in again}) == most
        gone = await store.settle(QUEUE, Settlement(delete=[claim(message) for message in again]))
        assert [one.ok for one in gone.delete] == [True] * most
        assert (await store.receive(QUEUE, 1, LONG)).messages == []

    async def test_a_call_names_no_more_than_it_says(self, store: QueueStore) -> None:
        """One more than ``call_max`` is refused by each kind of call, and so many are not."""
        most = store.capabilities.call_max
        await store.put(QUEUE, new(*[b"x"] * most))
        await store.receive(QUEUE, most, LONG)
        nobody = Claim("0" * 16, "0" * 16)
        assert len((await store.settle(QUEUE, Settlement(delete=[nobody] * most))).delete) == most
        cases = (
            (store.put(QUEUE, new(*[b"x"] * (most + 1))), "too_many_items"),
            (store.receive(QUEUE, most + 1, LONG), "bad_parameter"),
            (store.settle(QUEUE, Settlement(delete=[nobody] * (most + 1))), "too_many_items"),
        )
        for call, code in cases:
            with pytest.raises(BadInput) as refused:
                await call
            assert refused.value.code == code

    async def test_delayed_put(self, store: QueueStore, let_pass: LetPass) -> None:
        """A delayed message is counted but not visible before its time."""
        messages = new(b"much later", delay_ms=int(LONG * 1000))
        if not store.capabilities.delayed_put:
            with pytest.raises(Unsupported):
                await store.put(QUEUE, messages)
            return
        await store.put(QUEUE, messages)
        assert (await store.receive(QUEUE, 1, LONG)).messages == []
        (receipt,) = await store.put(QUEUE, new(b"later", delay_ms=50))
        assert receipt.visible_in_ms == max(50, store.capabilities.resolution_ms)
        await let_pass(0.05)
        message = await take(store)
        assert (message.body, message.dequeue_count) == (b"later", 1)

    async def test_next_visible_tells_when_to_come_back(self, store: QueueStore, let_pass: LetPass) -> None:
        """An empty receive says when the earliest delayed or leased message comes, and keeps its word."""
        if not store.capabilities.next_visible:
            return
        await store.put(QUEUE, new(b"leased"))
        await take(store, LONG)
        await store.put(QUEUE, new(b"later", delay_ms=1000))
        received = await store.receive(QUEUE, 1, LONG)
        if not received.messages:  # A machine so busy that the second is over has nothing to wait for.
            assert received.next_visible_in_ms is not None
            assert 0 < received.next_visible_in_ms <= 1000
            await let_pass((received.next_visible_in_ms + store.capabilities.resolution_ms) / 1000)
            received = await store.receive(QUEUE, 1, LONG)
        assert bodies(received) == [b"later"]
        received = await store.receive(QUEUE, 1, LONG)
        assert received.next_visible_in_ms is not None
        assert 1000 < received.next_visible_in_ms <= LONG * 1000

    async def test_a_lease_is_no_delay(self, store: QueueStore, let_pass: LetPass) -> None:
        """Whoever tells delays from leases names the end of a delay although leases end before it, and else nothing."""
        await store.put(QUEUE, new(b"leased"))
        await take(store, 30)
        received = await store.receive(QUEUE, 1, LONG)
        if received.next_delayed_in_ms is msgspec.UNSET:
            return
        assert received.next_delayed_in_ms is None
        await store.put(QUEUE, new(b"later", delay_ms=60_000))
        received = await store.receive(QUEUE, 1, LONG)
        assert received.next_delayed_in_ms is not None
        assert 30_000 < cast(int, received.next_delayed_in_ms) <= 60_000

    async def test_nothing_to_wait_for(self, store: QueueStore) -> None:
        await store.create(QUEUE)
        received = await store.receive(QUEUE, 1, LONG)
        assert received.messages == []
        assert received.next_visible_in_ms is None

    async def test_depth_is_exact(self, store: QueueStore, let_pass: LetPass) -> None:
        """Depth follows every put, lease, lapse and delete."""
        if not store.capabilities.exact_depth:
            return

        async def depth() -> tuple[int, int] | None:
            found = await store.depth(QUEUE)
            return None if found is None else (found.visible, found.invisible)

        assert await depth() is None
        await store.put(QUEUE, new(b"a", b"b", b"c"))
        assert await depth() == (3, 0)
        delayed = store.capabilities.delayed_put
        if delayed:
            await store.put(QUEUE, new(b"d", delay_ms=int(LONG * 1000)))
            assert await depth() == (3, 1)
        received = await store.receive(QUEUE, 2, LONG)
        assert (received.depth.visible, received.depth.invisible) == (1, 2 + delayed)
        assert await depth() == (1, 2 + delayed)
        await store.settle(QUEUE, Settlement(delete=[claim(received.messages[0])]))
        assert await depth() == (1, 1 + delayed)
        if delayed:
            await store.put(QUEUE, new(b"e", delay_ms=50))
            await let_pass(0.05)
            assert await depth() == (2, 2)

    async def test_what_takes_too_long_is_unsupported(self, store: QueueStore) -> None:
        """Delays and leases longer than the store's own limits are refused before anything happens."""
        able = store.capabilities
        await store.put(QUEUE, new(b"one"))
        held = await take(store)
        if able.delayed_put and able.delay_ms_max < DELAY_MS_MAX:
            with pytest.raises(Unsupported):
                await store.put(QUEUE, new(b"too late", delay_ms=able.delay_ms_max + 1))
        if able.visibility_s_max < VISIBILITY_S_MAX:
            longer = able.visibility_s_max + 1
            extend = Settlement(extend=[Extend(held.id, held.pop_receipt, longer)])
            release = Settlement(release=[Release(held.id, held.pop_receipt, longer * 1000)])
            with pytest.raises(Unsupported):
                await store.receive(QUEUE, 1, longer)
            for settlement in (extend, release):
                with pytest.raises(Unsupported):
                    await store.settle(QUEUE, settlement)
        assert (await store.receive(QUEUE, 1, LONG)).messages == []

    @pytest.mark.parametrize("odd", [True, "1", 1.5, None], ids=repr)
    async def test_a_number_is_a_number(self, store: QueueStore, odd: Any) -> None:
        """Not a truth, a text or a fraction, which JSON or a client would read as one."""
        await store.put(QUEUE, new(b"one"))
        with pytest.raises(BadInput):
            await store.receive(QUEUE, odd, LONG)
        if store.capabilities.peek:
            with pytest.raises(BadInput):
                await store.peek(QUEUE, odd)
        if odd != 1.5:
            with pytest.raises(BadInput):
                await store.receive(QUEUE, 1, odd)
        assert len((await store.receive(QUEUE, 1, LONG)).messages) == 1

    async def test_the_longest_release_is_carried_out(self, store: QueueStore) -> None:
        await store.put(QUEUE, new(b"one"))
        held = await take(store)
        after_ms = store.capabilities.visibility_s_max * 1000
        settling = await store.settle(QUEUE, Settlement(release=[Release(held.id, held.pop_receipt, after_ms)]))
        assert [outcome.ok for outcome in settling.release] == [True]
        assert (await store.receive(QUEUE, 1, LONG)).messages == []

    async def test_expired_messages_are_gone(self, store: QueueStore, let_pass: LetPass) -> None:
        """After its time to live a message is neither given out nor counted; one without stays."""
        messages = new(b"short", ttl_s=1)
        if not store.capabilities.time_to_live:
            with pytest.raises(Unsupported):
                await store.put(QUEUE, messages)
            return
        await store.put(QUEUE, messages)
        await store.put(QUEUE, new(b"stays"))
        await store.put(OTHER, messages)
        await store.receive(QUEUE, 1, LEASE)
        await let_pass(1.0)
        if store.capabilities.oldest_age:
            waited = await store.oldest_ms(QUEUE)
            assert waited is not None
            assert await store.oldest_ms(OTHER) is None
        assert bodies(await store.receive(QUEUE, 32, LONG)) == [b"stays"]
        found = await store.depth(QUEUE)
        assert (found.visible, found.invisible) == (0, 1) or not store.capabilities.exact_depth

    async def test_peek_takes_nothing(self, store: QueueStore) -> None:
        """Looking neither leases nor counts, and gives no receipt."""
        await store.put(QUEUE, new(b"a", b"b"))
        if not store.capabilities.peek:
            with pytest.raises(Unsupported):
                await store.peek(QUEUE)
            return
        seen = await store.peek(QUEUE)
        assert bodies(seen) == [b"a", b"b"]
        assert {(message.pop_receipt, message.dequeue_count) for message in seen} == {("", 0)}
        assert bodies(await store.peek(QUEUE, 1)) == [b"a"]
        assert (await take(store)).dequeue_count == 1

    async def test_clear_removes_everything(self, store: QueueStore) -> None:
        """Cleared is empty, for leased messages too; the queue stays and works."""
        await store.put(QUEUE, new(b"a", b"b"))
        held = await take(store)
        await store.clear(QUEUE)
        assert (await store.receive(QUEUE, 32, LONG)).messages == []
        settling = await store.settle(QUEUE, Settlement(delete=[claim(held)]))
        assert settling.delete[0].code == "message_not_found" or not store.capabilities.fenced
        await store.put(QUEUE, new(b"c"))
        assert (await take(store)).body == b"c"

    async def test_a_paused_queue_gives_nothing_out(self, store: QueueStore, let_pass: LetPass) -> None:
        """It takes puts and settles, all its messages count as invisible, and resumed it goes on where it was."""
        await store.put(QUEUE, new(b"held", b"lapsing", b"waits"))
        if not store.capabilities.pause:
            with pytest.raises(Unsupported):
                await store.pause(QUEUE)
            return
        held = await take(store)
        await take(store, LEASE)
        assert not await store.paused(QUEUE)
        await store.pause(QUEUE)
        await store.pause(QUEUE)
        assert await store.paused(QUEUE)
        await store.put(QUEUE, new(b"new"))
        await store.put(OTHER, new(b"other"))
        await let_pass(LEASE)
        received = await store.receive(QUEUE, 32, LONG)
        assert received.messages == []
        assert received.next_visible_in_ms is None
        for depth in (received.depth, await store.depth(QUEUE)):
            assert depth == Depth(0, 4) or not store.capabilities.exact_depth
        if store.capabilities.peek:
            assert sorted(bodies(await store.peek(QUEUE))) == [b"lapsing", b"new", b"waits"]
        settling = await store.settle(QUEUE, Settlement(delete=[claim(held)]))
        assert settling.delete[0].ok
        assert bodies(await store.receive(OTHER, 32, LONG)) == [b"other"]
        await store.pause(QUEUE, False)
        await store.pause(QUEUE, False)
        assert not await store.paused(QUEUE)
        assert sorted(bodies(await store.receive(QUEUE, 32, LONG))) == [b"lapsing", b"new", b"waits"]

    async def test_a_pause_outlives_the_messages_but_not_the_queue(self, store: QueueStore) -> None:
        """Cleared it stays paused; deleted and made again it is a new queue."""
        await store.create(QUEUE)
        if not store.capabilities.pause:
            with pytest.raises(Unsupported):
                await store.pause(QUEUE)
            return
        await store.pause(QUEUE)
        await store.put(QUEUE, new(b"one"))
        await store.clear(QUEUE)
        await store.create(QUEUE)
        await store.put(QUEUE, new(b"two"))
        assert (await store.receive(QUEUE, 32, LONG)).messages == []
        assert await store.paused(QUEUE)
        await store.delete(QUEUE)
        assert not await store.paused(QUEUE)
        await store.put(QUEUE, new(b"three"))
        assert (await take(store)).body == b"three"

    async def test_queues_come_and_go(self, store: QueueStore) -> None:
        """Create says whether it is new; delete takes the messages along and may be repeated."""
        assert await store.create(QUEUE) is True
        assert await store.create(QUEUE) is False
        await store.put(QUEUE, new(b"one"))
        await store.delete(QUEUE)
        await store.delete(QUEUE)
        assert await store.depth(QUEUE) is None
        await store.put(QUEUE, new(b"two"))
        assert bodies(await store.receive(QUEUE, 32, LONG)) == [b"two"]

    async def test_metadata(self, store: QueueStore) -> None:
        if not store.capabilities.metadata:
            with pytest.raises(Unsupported):
                await store.create(QUEUE, {"a": "b"})
            return
        assert await store.create(QUEUE, {"owner": self.word}) is True
        assert await store.create(QUEUE, {"owner": "other"}) is False

    async def test_unknown_queues_are_told(self, store: QueueStore) -> None:
        """Where there is no queue, every question about its messages says so."""
        for question in (
            store.receive(QUEUE, 1, LONG),
            store.settle(QUEUE, Settlement(delete=[Claim("0" * 16, "0" * 16)])),
            store.clear(QUEUE),
        ):
            with pytest.raises(QueueNotFound):
                await question
        with pytest.raises(QueueNotFound if store.capabilities.peek else Unsupported):
            await store.peek(QUEUE)
        for paused in (True, False):
            with pytest.raises(QueueNotFound if store.capabilities.pause else Unsupported):
                await store.pause(QUEUE, paused)
        assert await store.depth(QUEUE) is None

    async def test_queues_are_kept_apart(self, store: QueueStore) -> None:
        await store.put(QUEUE, new(b"one"))
        await store.put(OTHER, new(b"other"))
        held = await take(store)
        settling = await store.settle(OTHER, Settlement(delete=[claim(held)]))
        assert not settling.delete[0].ok
        # Ids are unique in their queue only: the other one may have such a message too, under another receipt.
        codes = ("message_not_found", "pop_receipt_mismatch")
        assert settling.delete[0].code in codes or not store.capabilities.fenced
        assert bodies(await store.receive(OTHER, 32, LONG)) == [b"other"]

    async def test_listing_by_pages(self, store: QueueStore) -> None:
        """Names come in ascending order, page by page, by prefix."""
        names = sorted(f"{account}/{name}" for account in self.accounts for name in self.names)
        for name in names:
            await store.create(name)
        assert await store.queues() == names
        pages: list[str] = []
        while page := await store.queues(after=pages[-1] if pages else "", limit=2):
            assert len(page) <= 2
            pages += page
        assert pages == names
        account, (first, second, _) = self.accounts[min(1, len(self.accounts) - 1)], self.names
        assert await store.queues(prefix=f"{account}/") == [f"{account}/{name}" for name in self.names]
        assert await store.queues(prefix=f"{account}/{first}", after=f"{account}/{first}") == [f"{account}/{second}"]
        assert await store.queues(prefix="zz") == []

    async def test_what_is_out_of_range_changes_nothing(self, store: QueueStore) -> None:
        """Every bound is refused with its code, and a refused put leaves nothing behind."""
        too_long = b"x" * (min(store.capabilities.body_bytes_max, BODY_BYTES_MAX) + 1)
        await store.create(QUEUE)
        cases = [
            (store.put(QUEUE, new(b"fine", too_long)), "message_too_large"),
            (store.put(QUEUE, []), "bad_parameter"),
            (store.put(QUEUE, new(b"", delay_ms=-1)), "bad_parameter"),
            (store.put(QUEUE, new(b"", delay_ms=DELAY_MS_MAX + 1)), "bad_parameter"),
            (store.put(QUEUE, new(b"", ttl_s=0)), "bad_parameter"),
            (store.receive(QUEUE, 0, LONG), "bad_parameter"),
            (store.receive(QUEUE, 1, 0), "bad_parameter"),
            (store.receive(QUEUE, 1, VISIBILITY_S_MAX + 1), "bad_parameter"),
            (store.receive(QUEUE, 1, float("nan")), "bad_parameter"),
            (store.receive(QUEUE, 1, 10**400), "bad_parameter"),
            (store.settle(QUEUE, Settlement(release=[Release("0" * 16, "0" * 16, -1)])), "bad_parameter"),
            (store.settle(QUEUE, Settlement(extend=[Extend("0" * 16, "0" * 16, 0)])), "bad_parameter"),
            (store.settle(QUEUE, Settlement(extend=[Extend("0" * 16, "0" * 16, 1, too_long)])), "message_too_large"),
            (store.peek(QUEUE, 0), "bad_parameter"),
            (store.put("no reference", new(b"")), "bad_queue_reference"),
        ]
        for question, code in cases:
            with pytest.raises(BadInput) as refused:
                await question
            assert refused.value.code == code
        found = await store.depth(QUEUE)
        assert found.visible == 0

    async def test_many_at_once_share_fairly(self, store: QueueStore) -> None:
        """Receives that run at the same time never get the same message, and together get all."""
        for _ in range(4):
            await store.put(QUEUE, new(*[b"x"] * 25))
        answers = await asyncio.gather(*(store.receive(QUEUE, 7, LONG) for _ in range(20)))
        ids = [message.id for answer in answers for message in answer.messages]
        assert len(ids) == len(set(ids)) == 100

    async def test_cancelled_in_the_middle(self, store: QueueStore) -> None:
        """A cancelled receive may have leased or not; nothing is lost and the store works on."""
        await store.put(QUEUE, new(*[b"x"] * 10))
        task = asyncio.create_task(store.receive(QUEUE, 5, LONG), name="cancelled receive")
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await store.put(QUEUE, new(b"y"))
        async with asyncio.timeout(10):
            while (found := await store.depth(QUEUE)).visible + found.invisible != 11:
                assert not store.capabilities.exact_depth  # others count a put a moment after it is acknowledged
                await asyncio.sleep(0.01)

    async def test_fingerprints_name_one_queue(self, store: QueueStore) -> None:
        """A fingerprint is hex, the same each time, and another one for another queue."""
        assert store.fingerprint(QUEUE) == store.fingerprint(QUEUE) != store.fingerprint(OTHER)
        assert int(store.fingerprint(QUEUE), 16) >= 0

    async def test_after_close_nothing_goes(self, store: QueueStore) -> None:
        """Closing twice is fine; using it afterwards is not."""
        await store.put(QUEUE, new(b"one"))
        await store.close()
        await store.close()
        for question in (
            store.put(QUEUE, new(b"two")),
            store.receive(QUEUE, 1, LONG),
            store.settle(QUEUE, Settlement()),
            store.peek(QUEUE),
            store.depth(QUEUE),
            store.clear(QUEUE),
            store.pause(QUEUE),
            store.create(QUEUE),
            store.delete(QUEUE),
            store.queues(),
        ):
            with pytest.raises(Closed):
                await question
