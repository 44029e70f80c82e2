"""`PublishingQueue`: puts to a store and publishes each put."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Sequence
from typing import Final, TypedDict

from queuebell.bridge.contract.backoff import RandomExponential
from queuebell.bridge.contract.errors import (
    BadInput,
    QueuebellError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.contract.event import NOT_BEFORE_MS_MAX, rounded_up
from queuebell.bridge.contract.names import parse_reference, split_reference
from queuebell.bridge.contract.trace_context import TRACEPARENT
from queuebell.bridge.observe import tracing
from queuebell.bridge.producer.publisher import Publisher
from queuebell.bridge.queues.base import (
    NEVER,
    AsyncConnection,
    Body,
    NewMessage,
    PutOnceStore,
    PutReceipt,
    QueueStore,
    new_messages,
    once,
)
from queuebell.bridge.queues.checked import put_traced
from queuebell.bridge.storage.claim_check import ClaimCheck, drop_all, put_aside_all

log = logging.getLogger("queuebell.publisher")

SERVER_TIMEOUT_S = 30.0
PATIENCE_S = 60.0
RETRY_S_MAX = 5.0


class _More(TypedDict, total=False):
    create: bool


_EXISTING: Final[_More] = {"create": False}


class PublishingQueue:
    """Puts to a store and publishes every put to the bridge, also one with an unknown outcome (P1, P2).

    ``server_timeout`` is how many seconds later the store may still carry out a request whose answer was lost.
    ``claim_check`` stores bodies over the store's limit as blobs; listeners need one with the same blob store.
    """

    def __init__(
        self,
        store: QueueStore,
        publisher: Publisher,
        *,
        server_timeout: float = SERVER_TIMEOUT_S,
        claim_check: ClaimCheck | None = None,
    ) -> None:
        if not (hasattr(store, "capabilities") and hasattr(publisher, "publish")):
            raise TypeError("a PublishingQueue is given a store and a publisher: PublishingQueue(store, publisher)")
        if not 0 <= server_timeout * 1000 <= NOT_BEFORE_MS_MAX:
            raise BadInput("bad_parameter", f"server_timeout must be from 0 to {NOT_BEFORE_MS_MAX // 1000} seconds")
        self.store: Final = store
        self._publisher = publisher
        self._claim_check = claim_check
        self._server_timeout_ms = math.ceil(server_timeout * 1000)
        self._under_way: set[asyncio.Task[list[PutReceipt]]] = set()

    async def put(
        self,
        queue: str,
        bodies: Sequence[Body],
        *,
        visible_after_ms: int = 0,
        ttl_s: int = NEVER,
        connection: AsyncConnection | None = None,
        create: bool = True,
    ) -> list[PutReceipt]:
        """Put messages in batches and publish after each acknowledged one; return their receipts in order.

        A batch is all or nothing; if one fails, those before it stay put and published, and a note on the error has
        their number. ``visible_after_ms`` and ``ttl_s`` hold for bodies given as bytes or text. Raises what the
        store's `put` raises. After a cancellation the batch in flight finishes and is published.

        With a ``connection`` all batches are part of its open transaction (see `QueueStore.put`), and nothing is
        published here, because the commit itself triggers. With ``create`` False a missing queue is not created
        (`QueueNotFound`).
        """
        parse_reference(queue)
        messages = new_messages(bodies, visible_after_ms, ttl_s)
        more = {} if create else _EXISTING
        return await put_traced(
            self.store, queue, messages, lambda messages: self._put_all(queue, messages, connection, more)
        )

    async def put_once(
        self,
        queue: str,
        key: str,
        body: Body,
        *,
        visible_after_ms: int = 0,
        ttl_s: int = NEVER,
        patience: float = PATIENCE_S,
        connection: AsyncConnection | None = None,
        create: bool = True,
    ) -> PutReceipt | None:
        """Put a message once under a key of your own, and publish; None if it was put before.

        Temporary failures and unknown outcomes are retried for ``patience`` seconds, with a back-off and no sooner than
        the store allows; then the error is raised. Repeating it with the same key and body is safe, from any process.
        The body is not stored as a blob, however long. Raises `Unsupported` for a store without put-once, and what its
        `put_once` raises. With a ``connection`` it is tried once in its open transaction, and not published;
        ``connection`` and ``create`` are as for `put`.
        """
        store = once(self.store)
        parse_reference(queue)
        more = {} if create else _EXISTING

        async def put(messages: list[NewMessage]) -> PutReceipt | None:
            (message,) = messages
            if connection is not None:
                return await store.put_once(queue, key, message, connection=connection, **more)
            return await self._put_until(store, queue, key, message, patience, more)

        return await put_traced(self.store, queue, new_messages([body], visible_after_ms, ttl_s), put)

    async def close(self) -> None:
        """Wait for puts that continue after their callers were cancelled; close the publisher only after this."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _put_all(
        self, queue: str, messages: list[NewMessage], connection: AsyncConnection | None, more: _More
    ) -> list[PutReceipt]:
        size = self.store.capabilities.batch_max
        receipts: list[PutReceipt] = []
        for start in range(0, len(messages), size):
            batch = messages[start : start + size]
            if connection is not None:
                receipts += await self._put(queue, batch, more, connection)
                continue
            task = asyncio.get_running_loop().create_task(self._put(queue, batch, more), name=f"queuebell-put:{queue}")
            self._under_way.add(task)
            task.add_done_callback(self._ended)
            try:
                receipts += await asyncio.shield(task)
            except asyncio.CancelledError:
                # The put continues and is published once acknowledged, unless the publisher is closed before that.
                await self._publish_unknown(queue, batch)
                raise
            except Exception as error:
                error.add_note(f"{len(receipts)} of {len(messages)} messages had been put and published")
                raise
        return receipts

    async def _put(
        self, queue: str, given: list[NewMessage], more: _More, connection: AsyncConnection | None = None
    ) -> list[PutReceipt]:
        check, batch = self._claim_check, given
        if check is not None:
            batch = await put_aside_all(check, self.store, queue, given)
        try:
            if connection is not None:
                return await self.store.put(queue, batch, connection=connection, **more)
            receipts = await self.store.put(queue, batch, **more)
        except (QueuebellError, asyncio.CancelledError) as error:
            if isinstance(error, UnknownOutcome | asyncio.CancelledError) and connection is None:
                await self._publish_unknown(queue, batch)
            elif check is not None and isinstance(error, QueuebellError):
                await drop_all(check, batch, given)
            raise
        await self._publish(queue, [receipt.visible_in_ms for receipt in receipts])
        return receipts

    async def _put_until(
        self, store: PutOnceStore, queue: str, key: str, message: NewMessage, patience: float, more: _More
    ) -> PutReceipt | None:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + patience
        backoff = RandomExponential(0.1, RETRY_S_MAX)
        while True:
            try:
                receipt = await store.put_once(queue, key, message, **more)
            except (UnknownOutcome, asyncio.CancelledError) as error:
                await self._publish_unknown(queue, [message])
                if isinstance(error, asyncio.CancelledError):
                    raise
                failure: StoreError = error
            except (StoreUnavailable, StoreFull) as error:
                failure = error
            else:
                await self._publish(queue, [message.visible_after_ms])
                return receipt
            asked = getattr(failure, "retry_after", None) or 0.0
            # In addition: all that were rejected together would come back together.
            pause = asked + backoff.miss(random.random)
            if loop.time() + pause > give_up:
                raise failure
            await asyncio.sleep(pause)

    async def _publish_unknown(self, queue: str, batch: list[NewMessage]) -> None:
        """Publish now, and again for a put that the store carries out as late as its time-out (P2).

        The second one is a timer at the bridge with its own id: it triggers even if this process has ended by then.
        """
        await self._publish(queue, [message.visible_after_ms for message in batch])
        await self._publish(queue, [message.visible_after_ms + self._server_timeout_ms for message in batch])

    async def _publish(self, queue: str, delays_ms: list[int]) -> None:
        account, name = split_reference(queue)
        # The context of the put, which its tasks inherit.
        context = None if tracing.on is None else tracing.on.carried().get(TRACEPARENT)
        sizes: dict[int, int] = {}
        for delay in delays_ms:
            due = rounded_up(delay, self.store.capabilities.resolution_ms)
            sizes[due] = sizes.get(due, 0) + 1
        for due, size in sizes.items():
            try:
                await self._publisher.publish(account, name, size, not_before_ms=due, traceparent=context)
            except BadInput as error:
                # The publisher was closed during the put. The messages are put; the sweep will find them (P4).
                log.warning("a put was not published: %s", error, extra={"queue": queue})

    def _ended(self, task: asyncio.Task[list[PutReceipt]]) -> None:
        self._under_way.discard(task)
        # The caller has the error, unless it was cancelled.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a put failed: %s", error)
