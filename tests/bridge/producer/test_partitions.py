"""A partitioned queue to put to: where messages go, what is said where some do not, and all partitions as one."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from queuebell.bridge.contract.errors import (
    QueueNotFound,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.contract.partitioning import Partitions
from queuebell.bridge.producer.partitions import REST_MAX_S, TRIES, PartitionedQueue, PartlyPut, Placed, RoundRobin
from queuebell.bridge.queues.base import Capabilities, Depth, NewMessage, PutReceipt
from queuebell.bridge.queues.embedded.store import MemoryStore

ORDERS = Partitions("billing/orders", 4)
_names = itertools.count()


class Store(MemoryStore):
    """Partitions in memory; ``faults`` by queue are raised in place of a put, which is done first if ``late``."""

    def __init__(self) -> None:
        super().__init__(f"partitions-{next(_names)}")
        self.faults: dict[str, Exception] = {}
        self.late = False
        self.asked: list[tuple[str, int]] = []

    async def put(self, queue: str, messages: Sequence[NewMessage]) -> list[PutReceipt]:
        self.asked.append((queue, len(messages)))
        fault = self.faults.get(queue)
        if fault is None or self.late:
            receipts = await super().put(queue, messages)
        if fault is not None:
            raise fault
        return receipts

    async def bodies(self, number: int) -> list[bytes]:
        return [message.body for message in await self.peek(ORDERS.reference(number))]


def drawn(value: float = 0.0) -> Callable[[], float]:
    """Chance that is none."""
    return lambda: value


def key_of(number: int) -> str:
    """Return a key that belongs to this partition."""
    return next(key for key in map(str, itertools.count()) if ORDERS.of(key) == ORDERS.reference(number))


async def test_where_three_are_away_the_put_fails() -> None:
    """An unavailable store is not tried under each of a hundred names."""
    async with Store() as store:
        store.faults = {ref: StoreUnavailable("away") for ref in ORDERS.references}
        queue = PartitionedQueue(store, ORDERS)
        with pytest.raises(StoreUnavailable, match="away"):
            await queue.put([b"x"])
        assert len(store.asked) == 3
        assert queue.state().diverted == 2


async def test_a_long_put_says_which_batches_stand() -> None:
    """The second of three fails: the first was put, the third was not tried."""
    async with Store() as store:
        queue = PartitionedQueue(store, ORDERS, draw=drawn())
        store.faults[ORDERS.reference(1)] = UnknownOutcome("no answer")
        with pytest.raises(PartlyPut, match="of 70 messages 32 were put, 6 were not, and 32 are unknown") as caught:
            await queue.put([b"x"] * 70)
        assert [isinstance(outcome, Placed) for outcome in caught.value.outcomes] == [True] * 32 + [False] * 38
        assert len(store.asked) == 2


async def test_all_partitions_as_one() -> None:
    """Created, counted, paused, cleared and deleted together; a repetition does nothing."""
    async with Store() as store:
        queue = PartitionedQueue(store, ORDERS)
        await store.create(ORDERS.reference(1))
        assert [await queue.create({"team": "billing"}), await queue.create()] == [3, 0]
        await queue.put_keyed([(key_of(number), b"x") for number in range(4)])
        await queue.pause()
        assert await queue.depth() == Depth(0, 4)
        await queue.pause(False)
        assert await queue.depth() == Depth(4, 0)
        await queue.clear()
        assert await queue.depth() == Depth(0, 0)
        await queue.delete()
        await queue.delete()
        assert await queue.depth() is None
        for call in (queue.clear, queue.pause):
            with pytest.raises(QueueNotFound, match="billing/orders:4"):
                await call()


async def test_a_pause_holds_for_partitions_that_were_not_there_yet() -> None:
    """The first put to a missing partition is held back too."""
    async with Store() as store:
        queue = PartitionedQueue(store, ORDERS)
        await queue.put([b"x"], key=key_of(2))
        await queue.pause()
        await queue.put_keyed([(key_of(number), b"x") for number in range(4)])
        assert await queue.depth() == Depth(0, 5)
        await store.delete(ORDERS.reference(0))
        await queue.clear()
        await queue.pause(False)
        assert await queue.depth() == Depth(0, 0)


class Noting:
    """A store, or one's publishing queue, that notes all that is said of each put."""

    capabilities = Capabilities(put_once=True, batch_max=2)

    def __init__(self) -> None:
        self.noted: list[tuple[str, list[bytes], set[tuple[int, int]], object]] = []

    async def put(self, queue: str, messages: list[NewMessage], *, connection: object = None) -> list[PutReceipt]:
        said = {(message.visible_after_ms, message.ttl_s) for message in messages}
        self.noted.append((queue, [message.body for message in messages], said, connection))
        return [PutReceipt(message.body.decode(), "receipt", 0) for message in messages]

    async def put_once(self, queue: str, key: str, body: bytes, *, connection: object = None) -> PutReceipt | None:
        self.noted.append((queue, [body], {key}, connection))  # type: ignore[arg-type]
        return PutReceipt(key, "receipt", 0) if body == b"new" else None

    async def exists(self, queue: str) -> bool:
        return queue == ORDERS.reference(1)


@pytest.mark.parametrize("connection", [None, object()])
@pytest.mark.parametrize("create", [True, False])
async def test_what_is_said_of_a_put_reaches_the_store(connection: object, create: bool) -> None:
    """Delay, time to live and connection, of puts by key, round robin and with many keys, in batches."""
    store = Noting()
    queue = PartitionedQueue(store, ORDERS, draw=drawn())  # type: ignore[arg-type]
    more: dict[str, Any] = {"visible_after_ms": 7, "ttl_s": 9, "connection": connection, "create": create}
    placed = await queue.put(["a", "b", "c"], **more)
    placed += await queue.put(["d", "e", "f"], key=key_of(3), **more)
    placed += await queue.put_keyed([(key_of(2), "g"), (key_of(1), "h"), (key_of(2), "i")], **more)
    assert [each.queue[-1] + each.receipt.id for each in placed] == [
        "0a",
        "0b",
        "1c",
        "3d",
        "3e",
        "3f",
        "2g",
        "1h",
        "2i",
    ]
    batches = [name[-1].encode() + b"".join(bodies) for name, bodies, _, _ in store.noted]
    assert batches == [b"0ab", b"1c", b"3de", b"3f", b"2gi", b"1h"]
    assert {one for _, _, said, _ in store.noted for one in said} == {(7, 9)}
    counted = dict(zip(ORDERS.references, (2, 2, 2, 3), strict=True))
    assert queue.state().put == (dict.fromkeys(ORDERS.references, 0) if connection else counted)
    once = [
        await queue.put_once(key_of(1), "order-1", body, connection=connection, create=create)
        for body in (b"new", b"old")
    ]  # type: ignore[arg-type]
    assert once == [Placed(ORDERS.reference(1), PutReceipt("order-1", "receipt", 0)), None]
    assert store.noted[-2:] == [(ORDERS.reference(1), [body], {"order-1"}, connection) for body in (b"new", b"old")]
    assert {each for *_, each in store.noted} == {connection}


async def test_the_longest_wait_of_all_partitions() -> None:
    waits = dict(zip(ORDERS.references, (None, 30, 70, None), strict=True))

    class Waiting(Store):
        async def oldest_ms(self, queue: str) -> int | None:
            return waits[queue]

    async with Waiting() as store:
        queue = PartitionedQueue(store, ORDERS)
        assert await queue.oldest_ms() == 70
        waits.update(dict.fromkeys(waits))
        assert await queue.oldest_ms() is None


# -- round robin
def half() -> float:
    """Chance as it comes on average."""
    return 0.5


def test_turns_are_exactly_even() -> None:
    turns = RoundRobin(8, half)
    assert [turns.take(0.0) for _ in range(16)] == [4, 5, 6, 7, 0, 1, 2, 3] * 2


def test_producers_begin_anywhere() -> None:
    firsts = Counter(RoundRobin(10, lambda place=place: place / 1000).take(0.0) for place in range(1000))
    assert firsts == dict.fromkeys(range(10), 100)


def test_what_failed_rests_longer_each_time() -> None:
    """One second, doubling up to half a minute; others are chosen in the meantime."""
    turns, now = RoundRobin(2, lambda: 0.0), 0.0
    rests = []
    for _ in range(8):
        while turns.take(now) != 0:
            now += 0.01
        turns.failed(now, 0)
        began = now
        while {turns.take(now), turns.take(now)} == {1}:
            now += 0.01
        rests.append(now - began)
        now += 0.01
    assert 0.9 < rests[0] < 1.1
    assert rests == sorted(rests)
    assert REST_MAX_S * 0.79 < rests[-1] <= REST_MAX_S + 0.02


def test_what_works_again_rests_no_more() -> None:
    turns = RoundRobin(2, lambda: 0.0)
    turns.failed(0.0, 0)
    assert [turns.take(0.5), turns.take(0.5)] == [1, 1]
    turns.worked(0)
    assert {turns.take(0.5), turns.take(0.5)} == {0, 1}


def test_where_all_rest_the_one_that_is_due_first_is_asked() -> None:
    """A put is always tried: a resting partition may work again."""
    turns = RoundRobin(3, lambda: 0.0)
    for now, number in ((0.0, 2), (0.1, 0), (0.2, 1)):
        turns.failed(now, number)
    assert turns.take(0.3) == 2
    assert turns.take(0.3, [2]) == 0


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_batch_is_tried_on_three_at_most(count: int) -> None:
    """Each time on another one; if three fail, the store is unavailable."""
    turns, tried = RoundRobin(count, half), list[int]()
    while (number := turns.take(0.0, tried)) is not None:
        turns.failed(0.0, number)
        tried.append(number)
    assert len(tried) == len(set(tried)) == min(TRIES, count)


def test_what_was_tried_is_passed_over_wherever_the_turn_stands() -> None:
    turns = RoundRobin(3, lambda: 0.0)
    assert turns.take(0.0, [0]) == 1
    assert turns.take(0.0, [2, 0]) == 1


def test_each_partition_has_a_rest_of_its_own() -> None:
    """Failures of one do not lengthen the rest of another, and a success resets it."""
    turns = RoundRobin(2, lambda: 0.5)
    for _ in range(5):
        turns.failed(0.0, 0)
    turns.failed(0.0, 1)
    assert turns.take(0.9) == 1
    assert turns.take(1.1) == 1
    assert turns.take(1.1, [1]) == 0
    turns.worked(0)
    turns.failed(10.0, 0)
    turns.worked(1)
    assert {turns.take(11.1), turns.take(11.1)} == {0, 1}
