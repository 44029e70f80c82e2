"""A partitioned queue: puts by key or round robin, and operations on all partitions."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from queuebell.bridge.contract.backoff import Draw, RandomExponential
from queuebell.bridge.contract.errors import QueuebellError, QueueNotFound, StoreFull, StoreUnavailable, UnknownOutcome
from queuebell.bridge.contract.partitioning import Partitions, parse_partitions
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import (
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
from queuebell.bridge.queues.checked import missing_from
from queuebell.bridge.queues.side_by_side import side_by_side

log = logging.getLogger("queuebell.partitions")

AT_ONCE: Final = 16
"""Partitions that one call works on at the same time."""
TRIES: Final = 3
"""Partitions that one batch is tried on at most: if three fail, the store itself is unavailable."""
REST_MIN_S: Final = 1.0
REST_MAX_S: Final = 30.0

T = TypeVar("T")


class Placed(msgspec.Struct, frozen=True):
    """The physical queue that a message was put to, and the store's receipt."""

    queue: str
    receipt: PutReceipt


class PartlyPut(UnknownOutcome):
    """Some of several batches failed; ``outcomes`` has a `Placed` or an error for each message, in the order given.

    A message with an `UnknownOutcome` may have been put, one with any other error has not. Repeat the latter, and the
    unknown ones if twice is better than never; nothing that was put is doubled.
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
    """Counters: messages known to be put on each physical queue, and batches diverted to another partition."""

    put: dict[str, int]
    diverted: int


class PartitionedQueue:
    """One logical queue over several physical ones: ``partitions`` is `Partitions` or text, as ``billing/orders:8``.

    ``queue`` is a store whose puts trigger by themselves (the bridge's embedded queues), or a `PublishingQueue`; the
    caller closes it. Raises `BadInput` for a name that cannot be partitioned. ``draw`` is for a simulation.
    """

    def __init__(
        self, queue: QueueStore | PublishingQueue, partitions: Partitions | str, *, draw: Draw = random.random
    ) -> None:
        self.partitions = partitions if isinstance(partitions, Partitions) else parse_partitions(partitions)
        """The logical queue's name and the number of its partitions."""
        self._store = queue.store if isinstance(queue, PublishingQueue) else queue
        self._queue = queue
        self._rotation = RoundRobin(self.partitions.count, draw)
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
        """Put messages in batches of up to 32, and return in order where each went.

        With a ``key`` all go to its partition. Without one, batches go to the partitions round robin; a batch that is
        certainly not put because a partition is unavailable or full is diverted to up to two others, counted and
        logged, unless the store asks for a pause. ``visible_after_ms`` and ``ttl_s`` hold for bodies given as bytes or
        text. Stops at the first batch that fails: raises its error if nothing was put, otherwise `PartlyPut`.

        With a ``connection`` all are part of its open transaction (see `QueueStore.put`): none is diverted, the first
        error is raised, and `state` does not count them. With ``create`` False missing partitions are created only if
        at least one exists; otherwise `QueueNotFound`.
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
        """Put pairs of key and message, each on the partition of its key, and return in order where each went.

        Messages of one partition keep their order, in batches of up to 32; up to 16 partitions are put to at the same
        time, and a failure stops only its own. Raises the error if nothing was put and this is certain or only one
        partition was involved; otherwise `PartlyPut`. ``connection`` and ``create`` are as for `put`.
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

        Returns None if it was put before. With another ``key``, and so on another partition, it would be put again.
        """
        queue = self.partitions.of(key)
        if not create:
            await self._require(queue)
        target = self._queue if isinstance(self._queue, PublishingQueue) else once(self._queue)
        receipt = await target.put_once(queue, once_key, body, connection=connection)
        if receipt is None:
            return None
        if connection is None:
            self._counts[queue] += 1
        return Placed(queue, receipt)

    def state(self) -> PartitionedState:
        """Return the counters since this object was created."""
        return PartitionedState(dict(self._counts), self._diverted)

    async def depth(self) -> Depth | None:
        """Return the sum of the depths of all partitions, not of one moment; None if none exists."""
        depths = await self._each(self.queues, self._store.depth)
        found = [depth for depth in depths if depth is not None]
        if not found:
            return None
        return Depth(sum(depth.visible for depth in found), sum(depth.invisible for depth in found))

    async def exists(self) -> bool:
        """Return whether any partition exists."""
        for queue in self.queues:
            if await self._store.exists(queue):
                return True
        return False

    async def oldest_ms(self) -> int | None:
        """Return the longest time that a visible message has waited on any partition; None without one."""
        waits = [ms for ms in await self._each(self.queues, self._store.oldest_ms) if ms is not None]
        return max(waits, default=None)

    async def create(self, metadata: dict[str, str] | None = None) -> int:
        """Create all partitions and return the number of new ones. Most stores create them by the first put."""
        return sum(await self._each(self.queues, lambda queue: self._store.create(queue, metadata)))

    async def clear(self) -> None:
        """Remove all messages of all partitions; raises `QueueNotFound` if none exists."""
        await self._where_there(self._store.clear)

    async def pause(self, paused: bool = True) -> None:
        """Pause all partitions, or resume them with ``paused`` False.

        A missing partition is created paused, so that the first put to it is held back too. Raises `QueueNotFound` if
        none exists.
        """
        missing = await self._where_there(lambda queue: self._store.pause(queue, paused))
        if paused:
            await self._each(missing, self._make_paused)

    async def delete(self) -> None:
        """Delete all partitions and their messages; the poison queue stays."""
        await self._each(self.queues, self._store.delete)

    # Puts ----------------------------------------------------------------------------------------------------------

    async def _put_all(self, queue: str | None, messages: list[NewMessage]) -> list[Placed | QueuebellError]:
        """Put batches until one fails, and return the outcome of each message."""
        size = self._store.capabilities.batch_max
        if queue is None:
            size = min(BATCH_MAX, size)  # a larger one would fill one partition after the other
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
        """Raise `QueueNotFound` unless any partition exists: puts by key create partitions one by one."""
        if (queue is None or not await self._store.exists(queue)) and not await self.exists():
            raise await missing_from(self._store, str(self.partitions))

    async def _put_on(
        self, connection: AsyncConnection, parts: Iterable[tuple[str | None, list[NewMessage]]]
    ) -> list[Placed]:
        """Put each part in the transaction of a connection, to its queue or round robin."""
        size = self._store.capabilities.batch_max
        placed: list[Placed] = []
        for queue, messages in parts:
            step = size if queue is not None else min(BATCH_MAX, size)
            for start in range(0, len(messages), step):
                number = self._rotation.take(asyncio.get_running_loop().time()) if queue is None else None
                chosen = self.partitions.reference(number) if number is not None else queue
                assert chosen is not None, "the first try always has a partition"
                receipts = await self._queue.put(chosen, messages[start : start + step], connection=connection)
                placed += [Placed(chosen, receipt) for receipt in receipts]
        return placed

    async def _put_in_turn(self, batch: list[NewMessage]) -> list[Placed]:
        now = asyncio.get_running_loop().time
        tried: list[int] = []
        failure: QueuebellError | None = None
        while (number := self._rotation.take(now(), tried)) is not None:
            queue = self.partitions.reference(number)
            if failure is not None:
                self._diverted += 1
                log.warning("a put goes to %s instead: %s", queue, failure, extra={"queue": queue})
            try:
                placed = await self._put(queue, batch)
            except (StoreUnavailable, StoreFull) as error:
                if isinstance(error, StoreUnavailable) and error.retry_after is not None:
                    raise  # the service behind all partitions asks for a pause
                self._rotation.failed(now(), number)
                if isinstance(error, UnknownOutcome):  # it may have been put, and a second put would double it
                    raise
                tried.append(number)
                failure = error
            else:
                self._rotation.worked(number)
                return placed
        assert failure is not None, "the first try always has a partition"
        raise failure

    async def _put(self, queue: str, batch: list[NewMessage]) -> list[Placed]:
        receipts = await self._queue.put(queue, batch)
        self._counts[queue] += len(receipts)
        return [Placed(queue, receipt) for receipt in receipts]

    def _all_placed(
        self, asked: Sequence[Sequence[Placed | QueuebellError]], outcomes: Sequence[Placed | QueuebellError]
    ) -> list[Placed]:
        """Return the outcomes if all are `Placed`; ``asked`` has those of each partition, or of one round robin."""
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
        """Call with every partition, and return those that do not exist."""
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
        """Call with each queue, up to 16 at the same time; the first failure cancels the rest and is raised."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(queue: str) -> T:
            async with turns:
                return await call(queue)

        return await side_by_side(f"partitions:{self.partitions.queue}", [one(queue) for queue in queues])


class RoundRobin:
    """Chooses partitions 0 to ``count`` - 1 in turn from a random first, so that short-lived producers spread evenly.

    A partition that failed is skipped for 1 s, doubling up to 30 s, +-20 %, until a put works there; otherwise every
    n-th put would wait for a time-out. If all rest, the one that is due first is chosen.
    """

    __slots__ = ("_backoffs", "_count", "_draw", "_next", "_rests")

    def __init__(self, count: int, draw: Draw) -> None:
        self._count = count
        self._draw = draw
        self._next = int(draw() * count)
        self._rests: dict[int, float] = {}
        self._backoffs: dict[int, RandomExponential] = {}

    def take(self, now: float, tried: Collection[int] = ()) -> int | None:
        """Return the next partition, not one of ``tried``; None after `TRIES`."""
        if len(tried) >= min(TRIES, self._count):
            return None
        resting: list[int] = []
        for step in range(self._count):
            number = (self._next + step) % self._count
            if number in tried:
                continue
            if self._rests.get(number, now) > now:
                resting.append(number)
                continue
            self._next = (number + 1) % self._count
            return number
        return min(resting, key=self._rests.__getitem__)

    def failed(self, now: float, number: int) -> None:
        """Skip a partition for a while."""
        backoff = self._backoffs.setdefault(number, RandomExponential(REST_MIN_S, REST_MAX_S, REST_MIN_S))
        self._rests[number] = now + backoff.miss(self._draw)

    def worked(self, number: int) -> None:
        """Forget the failures of a partition."""
        self._rests.pop(number, None)
        self._backoffs.pop(number, None)
