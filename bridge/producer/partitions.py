"""A partitioned queue to put to: by key or in turn, and looked after as one."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from bridge.contract.backoff import Draw
from bridge.contract.errors import QueuebellError, QueueNotFound, StoreFull, StoreUnavailable, UnknownOutcome
from bridge.contract.partitioning import Partitions, parse_partitions
from bridge.producer.publishing_queue import PublishingQueue
from bridge.producer.turns import Turns
from bridge.queues.base import (
    BATCH_MAX,
    NEVER,
    AsyncConnection,
    Body,
    Depth,
    NewMessage,
    PutReceipt,
    QueueStore,
    new_messages,
    once,
)
from bridge.queues.checked import missing_from
from bridge.queues.side_by_side import side_by_side

log = logging.getLogger("queuebell.partitions")

AT_ONCE = 16
"""Partitions that one call works on at the same time."""

T = TypeVar("T")


class Placed(msgspec.Struct, frozen=True):
    """Where one message was put: the physical queue, and the store's receipt."""

    queue: str
    receipt: PutReceipt


class PartlyPut(UnknownOutcome):
    """Of several batches some failed; ``outcomes`` says of each message, in the order given, what became of it.

    `Placed` was put. Any other error than `UnknownOutcome` was certainly not put. A caller who repeats only what was
    not put, and what is unknown if twice is better than never, doubles nothing that is known to stand.
    """

    __module__ = "queuebell"

    def __init__(self, queue: str, outcomes: Sequence[Placed | QueuebellError]) -> None:
        self.outcomes = list(outcomes)
        failures = [outcome for outcome in outcomes if isinstance(outcome, QueuebellError)]
        unknown = sum(isinstance(failure, UnknownOutcome) for failure in failures)
        super().__init__(
            f"{queue}: of {len(self.outcomes)} messages {len(self.outcomes) - len(failures)} were put, "
            f"{len(failures) - unknown} were not, and {unknown} are unknown; put only the failed ones "
            f"again, see outcomes; the first failure: {failures[0]}"
        )


class PartitionedState(msgspec.Struct, frozen=True):
    """What was put here: messages known to be put on each physical queue, and batches that went to another one."""

    put: dict[str, int]
    diverted: int


class PartitionedQueue:
    """One logical queue over several physical ones: ``partitions`` is `Partitions` or text, as ``billing/orders:8``.

    ``queue`` is a store, where a put rings by itself (the bridge's own queues), or a `PublishingQueue`, which tells the
    bridge of each partition's puts. It is the caller's to close. Raises `BadInput` for a name that cannot be
    partitioned. ``draw`` is chance, for a simulation.
    """

    def __init__(
        self, queue: QueueStore | PublishingQueue, partitions: Partitions | str, *, draw: Draw = random.random
    ) -> None:
        self.partitions = partitions if isinstance(partitions, Partitions) else parse_partitions(partitions)
        """The logical queue's name and the number of its partitions."""
        self._store = queue.store if isinstance(queue, PublishingQueue) else queue
        self._queue = queue
        self._send: Callable[[str, list[NewMessage]], Awaitable[list[PutReceipt]]] = queue.put
        self._turns = Turns(self.partitions.count, draw)
        self._counts = dict.fromkeys(self.partitions.references, 0)
        self._diverted = 0

    @property
    def queues(self) -> tuple[str, ...]:
        """The physical queues, partition 0 first."""
        return self.partitions.references

    async def put(
        self,
        bodies: Sequence[Body],
        *,
        key: str | bytes | None = None,
        visible_after_ms: int = 0,
        ttl_s: int = NEVER,
        connection: AsyncConnection | None = None,
        create: bool = True,
    ) -> list[Placed]:
        """Put messages in batches of up to 32, and say in order where each went.

        With a ``key`` all go to the partition of the key. Without one each batch goes to the next partition in turn;
        one that is unavailable or full, and certainly did not take it, is passed over for up to two others, which is
        counted and logged; not where the store says when to come again. ``visible_after_ms`` and ``ttl_s`` hold for
        bodies given as bytes or text.

        Stops at the first batch that fails. Raises its error where nothing stands, `PartlyPut` where something does.

        With a ``connection`` all are part of the transaction that is open there (see `QueueStore.put`): one after the
        other, none is passed over, the first error is raised, and `state` does not count them. With ``create`` False
        partitions are made only where at least one of them is there; otherwise `QueueNotFound`.
        """
        messages = new_messages(bodies, visible_after_ms, ttl_s)
        queue = None if key is None else self.partitions.of(key)
        if not create:
            await self._require(queue)
        if connection is not None:
            return await self._put_on(connection, [(queue, messages)])
        outcomes = await self._put_all(queue, messages)
        return self._all_placed([outcomes], outcomes)

    async def put_keyed(
        self,
        items: Iterable[tuple[str | bytes, Body]],
        *,
        visible_after_ms: int = 0,
        ttl_s: int = NEVER,
        connection: AsyncConnection | None = None,
        create: bool = True,
    ) -> list[Placed]:
        """Put pairs of key and message, each on the partition of its key, and say in order where each went.

        What belongs to one partition goes there in the order given, in batches of up to 32; up to 16 partitions are
        put to at the same time, and one that fails does not stop the others. Raises its error where nothing stands and
        only one partition was asked, or all certainly took nothing; `PartlyPut` otherwise. ``connection`` and
        ``create`` are as for `put`.
        """
        pairs = list(items)
        messages = new_messages([body for _, body in pairs], visible_after_ms, ttl_s)
        shares: dict[str, list[int]] = {}
        for place, (key, _) in enumerate(pairs):
            shares.setdefault(self.partitions.of(key), []).append(place)

        if not create:
            await self._require(None)
        if connection is not None:
            parts = [(queue, [messages[place] for place in places]) for queue, places in shares.items()]
            placed = iter(await self._put_on(connection, parts))
            there = {place: next(placed) for places in shares.values() for place in places}
            return [there[place] for place in range(len(pairs))]

        async def share(queue: str) -> list[Placed | QueuebellError]:
            return await self._put_all(queue, [messages[place] for place in shares[queue]])

        answers = await self._each(list(shares), share)
        found = {
            place: outcome
            for places, answer in zip(shares.values(), answers, strict=True)
            for place, outcome in zip(places, answer, strict=True)
        }
        return self._all_placed(answers, [found[place] for place in range(len(pairs))])

    async def put_once(
        self,
        key: str | bytes,
        once_key: str,
        body: Body,
        *,
        connection: AsyncConnection | None = None,
        create: bool = True,
    ) -> Placed | None:
        """Put a message once, to the partition of ``key``, under ``once_key`` (`PutOnceStore.put_once`).

        None where this very one was put before. A key of a put belongs to one partition: with another ``key`` the
        same message would be put again.
        """
        queue = self.partitions.of(key)
        if not create:
            await self._require(queue)
        target = self._queue if isinstance(self._queue, PublishingQueue) else once(self._queue)
        if connection is not None:
            receipt = await target.put_once(queue, once_key, body, connection=connection)
            return None if receipt is None else Placed(queue, receipt)
        receipt = await target.put_once(queue, once_key, body)
        if receipt is None:
            return None
        self._counts[queue] += 1
        return Placed(queue, receipt)

    def state(self) -> PartitionedState:
        """Return the counters since this object was made."""
        return PartitionedState(dict(self._counts), self._diverted)

    async def depth(self) -> Depth | None:
        """Count the messages of all partitions together; None where none of them exists. Raises what a store raises.

        The partitions are counted one beside the other, not at one moment.
        """
        depths = await self._each(self.queues, self._store.depth)
        found = [depth for depth in depths if depth is not None]
        if not found:
            return None
        return Depth(sum(depth.visible for depth in found), sum(depth.invisible for depth in found))

    async def exists(self) -> bool:
        """Say whether any of the partitions is there; each is asked until one is."""
        for queue in self.queues:
            if await self._store.exists(queue):
                return True
        return False

    async def oldest_ms(self) -> int | None:
        """Return for how long the message has waited that has been visible longest on any partition; None for none."""
        waits = [ms for ms in await self._each(self.queues, self._store.oldest_ms) if ms is not None]
        return max(waits, default=None)

    async def create(self, metadata: dict[str, str] | None = None) -> int:
        """Make all partitions, and say how many are new. Puts and listeners need no such call on most stores."""
        return sum(await self._each(self.queues, lambda queue: self._store.create(queue, metadata)))

    async def clear(self) -> None:
        """Remove every message of every partition; raises `QueueNotFound` where none of them exists."""
        await self._where_there(self._store.clear)

    async def pause(self, paused: bool = True) -> None:
        """Give nothing out of any partition, or with ``paused`` False give out again.

        A partition that is missing is made, and paused: otherwise the first put to it would slip through. Raises
        `QueueNotFound` where none of them exists.
        """
        missing = await self._where_there(lambda queue: self._store.pause(queue, paused))
        if paused:
            await self._each(missing, self._make_paused)

    async def delete(self) -> None:
        """Remove all partitions and their messages; the poison queue stays."""
        await self._each(self.queues, self._store.delete)

    # Puts ----------------------------------------------------------------------------------------------------------

    async def _put_all(self, queue: str | None, messages: list[NewMessage]) -> list[Placed | QueuebellError]:
        """Put batch after batch until one fails, and return the outcome of each message."""
        size = self._store.capabilities.batch_max
        if queue is None:
            size = min(BATCH_MAX, size)  # larger ones would fill one partition after the other
        outcomes: list[Placed | QueuebellError] = []
        for start in range(0, len(messages), size):
            batch = messages[start : start + size]
            try:
                outcomes += await (self._put(queue, batch) if queue is not None else self._put_in_turn(batch))
            except QueuebellError as error:
                outcomes += [error] * len(batch)
                left = len(messages) - len(outcomes)
                outcomes += [StoreUnavailable("not put: an earlier batch failed")] * left
                break
        return outcomes

    async def _require(self, queue: str | None) -> None:
        """Refuse a put on a logical queue of which nothing is there: puts by key make partitions one by one."""
        if (queue is None or not await self._store.exists(queue)) and not await self.exists():
            raise await missing_from(self._store, str(self.partitions))

    async def _put_on(
        self, connection: AsyncConnection, parts: Iterable[tuple[str | None, list[NewMessage]]]
    ) -> list[Placed]:
        """Put each part in the one transaction of a connection, to its partition or to the next in turn."""
        size = self._store.capabilities.batch_max
        placed: list[Placed] = []
        for queue, messages in parts:
            step = size if queue is not None else min(BATCH_MAX, size)
            for start in range(0, len(messages), step):
                number = self._turns.take(asyncio.get_running_loop().time(), ()) if queue is None else None
                chosen = self.partitions.reference(number) if number is not None else queue
                assert chosen is not None, "a first turn is always given"
                receipts = await self._queue.put(chosen, messages[start : start + step], connection=connection)
                placed += [Placed(chosen, receipt) for receipt in receipts]
        return placed

    async def _put_in_turn(self, batch: list[NewMessage]) -> list[Placed]:
        now = asyncio.get_running_loop().time
        tried: list[int] = []
        failure: QueuebellError | None = None
        while (number := self._turns.take(now(), tried)) is not None:
            queue = self.partitions.reference(number)
            if failure is not None:
                self._diverted += 1
                log.warning("a put goes to %s instead: %s", queue, failure, extra={"queue": queue})
            try:
                placed = await self._put(queue, batch)
            except (StoreUnavailable, StoreFull) as error:
                if isinstance(error, StoreUnavailable) and error.retry_after is not None:
                    raise  # the whole service asks to be left alone: it is the same one behind every name
                self._turns.failed(now(), number)
                if isinstance(error, UnknownOutcome):  # it may stand there: elsewhere it would come twice
                    raise
                tried.append(number)
                failure = error
            else:
                self._turns.worked(number)
                return placed
        assert failure is not None, "a first turn is always given"
        raise failure

    async def _put(self, queue: str, batch: list[NewMessage]) -> list[Placed]:
        receipts = await self._send(queue, batch)
        self._counts[queue] += len(receipts)
        return [Placed(queue, receipt) for receipt in receipts]

    def _all_placed(
        self, asked: Sequence[Sequence[Placed | QueuebellError]], outcomes: Sequence[Placed | QueuebellError]
    ) -> list[Placed]:
        """Return the outcomes if all are good; ``asked`` are those of each partition, or of one call in turn."""
        placed = [outcome for outcome in outcomes if isinstance(outcome, Placed)]
        if len(placed) == len(outcomes):
            return placed
        firsts = [failure for part in asked for failure in part if isinstance(failure, QueuebellError)]
        certain = not any(isinstance(failure, UnknownOutcome) for failure in firsts)
        if not placed and (certain or len(asked) == 1):
            raise firsts[0]
        raise PartlyPut(str(self.partitions), outcomes) from firsts[0]

    # All partitions ------------------------------------------------------------------------------------------------

    async def _where_there(self, call: Callable[[str], Coroutine[Any, Any, None]]) -> list[str]:
        """Do something with every partition that exists, and return those that do not."""
        missing: list[str] = []

        async def one(queue: str) -> None:
            try:
                await call(queue)
            except QueueNotFound:
                missing.append(queue)

        await self._each(self.queues, one)
        if len(missing) == self.partitions.count:
            raise QueueNotFound(f"none of the partitions of {self.partitions} exists")
        return missing

    async def _make_paused(self, queue: str) -> None:
        await self._store.create(queue)
        await self._store.pause(queue)

    async def _each(self, queues: Sequence[str], call: Callable[[str], Coroutine[Any, Any, T]]) -> list[T]:
        """Call with each queue, some at the same time; the first failure cancels the rest and is raised."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(queue: str) -> T:
            async with turns:
                return await call(queue)

        return await side_by_side(f"partitions:{self.partitions.queue}", [one(queue) for queue in queues])
