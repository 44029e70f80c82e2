"""A store to put to that tells the bridge of every put."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Sequence
from typing import Final, TypedDict

from bridge.contract.backoff import RandomExponential
from bridge.contract.errors import (
    BadInput,
    QueuebellError,
    StoreError,
    StoreFull,
    StoreUnavailable,
    UnknownOutcome,
)
from bridge.contract.event import NOT_BEFORE_MS_MAX, rounded_up
from bridge.contract.names import parse_reference, split_reference
from bridge.contract.trace_context import TRACEPARENT
from bridge.observe import tracing
from bridge.producer.publisher import Publisher
from bridge.queues.base import (
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
from bridge.queues.checked import sent
from bridge.storage.claim_check import ClaimCheck, drop_all, put_aside_all

log = logging.getLogger("queuebell.publisher")

SERVER_TIMEOUT_S = 30.0
PATIENCE_S = 60.0
RETRY_S_MAX = 5.0


class _More(TypedDict, total=False):
    create: bool


_EXISTING: Final[_More] = {"create": False}


class PublishingQueue:
    """A store to put to that tells the bridge of every put, also of one whose outcome is unknown (P1, P2).

    ``server_timeout`` is how long, in seconds, the store may still carry out a request whose answer was lost.
    ``claim_check`` puts bodies aside that are over the store's limit; its listeners need one of the same blob store.
    """

    def __init__(
        self,
        store: QueueStore,
        publisher: Publisher,
        *,
        server_timeout: float = SERVER_TIMEOUT_S,
        claim_check: ClaimCheck | None = None,
    ) -> None:
        if not 0 <= server_timeout * 1000 <= NOT_BEFORE_MS_MAX:
            raise BadInput("bad_parameter", f"server_timeout must be from 0 to {NOT_BEFORE_MS_MAX // 1000} seconds")
        self._store = store
        self._publisher = publisher
        self._claim_check = claim_check
        self._server_timeout_ms = math.ceil(server_timeout * 1000)
        self._under_way: set[asyncio.Task[list[PutReceipt]]] = set()

    @property
    def store(self) -> QueueStore:
        """The store that is put to."""
        return self._store

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

        A batch is all or nothing; when one fails, those before it stay put and published, and a note on the error
        says how many. ``visible_after_ms`` and ``ttl_s`` hold for bodies given as bytes or text. Raises what the
        store's `put` raises. Cancelling it leaves the batch in flight to finish, and it is published all the same.

        With a ``connection`` all batches are part of the transaction that is open there (see `QueueStore.put`), and
        nothing is published here: before the commit nobody would find them, and the commit itself rings. With
        ``create`` False a missing queue is not made (`QueueNotFound`).
        """
        parse_reference(queue)
        messages = new_messages(bodies, visible_after_ms, ttl_s)
        more = {} if create else _EXISTING
        return await sent(
            self._store, queue, messages, lambda messages: self._put_all(queue, messages, connection, more)
        )

    async def _put_all(
        self, queue: str, messages: list[NewMessage], connection: AsyncConnection | None, more: _More
    ) -> list[PutReceipt]:
        size = self._store.capabilities.batch_max
        receipts: list[PutReceipt] = []
        for start in range(0, len(messages), size):
            batch = messages[start : start + size]
            if connection is not None:
                receipts += await self._put_on(connection, queue, batch, more)
                continue
            task = asyncio.get_running_loop().create_task(self._put(queue, batch, more), name=f"queuebell-put:{queue}")
            self._under_way.add(task)
            task.add_done_callback(self._ended)
            try:
                receipts += await asyncio.shield(task)
            except asyncio.CancelledError:
                # The put goes on and is published when it is acknowledged, unless the publisher is closed before that.
                await self._tell_unknown(queue, batch)
                raise
            except Exception as error:
                error.add_note(f"{len(receipts)} of {len(messages)} messages had been put and published")
                raise
        return receipts

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
        """Put a message once under a key of your own, and publish; None where this very one was put before.

        What fails in passing, also where its outcome is unknown, is asked again, with a back-off and no sooner than the
        store allows, for ``patience`` seconds; then it is raised. Asking again with the same key and body is safe, from
        any process. The body is not put aside, however long. Raises `Unsupported` for a store without keys, and
        what its `put_once` raises. With a ``connection`` it is one try in the transaction that is open there, and
        nothing is published, as for `put`; ``create`` is as there.
        """
        store = once(self._store)
        parse_reference(queue)
        more = {} if create else _EXISTING

        async def put(messages: list[NewMessage]) -> PutReceipt | None:
            (message,) = messages
            if connection is not None:
                return await store.put_once(queue, key, message, connection=connection, **more)
            return await self._put_until(store, queue, key, message, patience, more)

        return await sent(self._store, queue, new_messages([body], visible_after_ms, ttl_s), put)

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
                await self._tell_unknown(queue, [message])
                if isinstance(error, asyncio.CancelledError):
                    raise
                failure: StoreError = error
            except (StoreUnavailable, StoreFull) as error:
                failure = error
            else:
                await self._tell(queue, [message.visible_after_ms])
                return receipt
            asked = getattr(failure, "retry_after", None) or 0.0
            # On top of it: all that were refused together would come back together.
            pause = asked + backoff.miss(random.random)
            if loop.time() + pause > give_up:
                raise failure
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Wait for puts that go on after their callers were cancelled; close the publisher only after this."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _put(self, queue: str, given: list[NewMessage], more: _More) -> list[PutReceipt]:
        check, batch = self._claim_check, given
        if check is not None:
            batch = await put_aside_all(check, self._store, queue, given)
        try:
            receipts = await self._store.put(queue, batch, **more)
        except (UnknownOutcome, asyncio.CancelledError):
            await self._tell_unknown(queue, batch)
            raise
        except QueuebellError:
            if check is not None:
                await drop_all(check, batch, given)
            raise
        await self._tell(queue, [receipt.visible_in_ms for receipt in receipts])
        return receipts

    async def _put_on(
        self, connection: AsyncConnection, queue: str, given: list[NewMessage], more: _More
    ) -> list[PutReceipt]:
        check, batch = self._claim_check, given
        if check is not None:
            batch = await put_aside_all(check, self._store, queue, given)
        try:
            return await self._store.put(queue, batch, connection=connection, **more)
        except QueuebellError:
            if check is not None:
                await drop_all(check, batch, given)
            raise

    async def _tell_unknown(self, queue: str, batch: list[NewMessage]) -> None:
        """Publish now, and once more for a put that lands only at the store's own time-out (P2).

        The second is a timer at the bridge, with an id of its own: it comes even if this process has ended by then.
        """
        await self._tell(queue, [message.visible_after_ms for message in batch])
        await self._tell(queue, [message.visible_after_ms + self._server_timeout_ms for message in batch])

    async def _tell(self, queue: str, delays_ms: list[int]) -> None:
        account, name = split_reference(queue)
        # That of the put: it goes on in tasks of its own, which inherit it.
        context = None if tracing.on is None else tracing.on.carried().get(TRACEPARENT)
        sizes: dict[int, int] = {}
        for delay in delays_ms:
            due = rounded_up(delay, self._store.capabilities.resolution_ms)
            sizes[due] = sizes.get(due, 0) + 1
        for due, size in sizes.items():
            try:
                await self._publisher.publish(account, name, size, not_before_ms=due, traceparent=context)
            except BadInput as error:
                # The publisher was closed under a put that went on. The put stands; the sweep will find it (P4).
                log.warning("a put was not published: %s", error, extra={"queue": queue})

    def _ended(self, task: asyncio.Task[list[PutReceipt]]) -> None:
        self._under_way.discard(task)
        # Whoever awaited the put has the error; of a put whose caller was cancelled nobody else would see it.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a put failed: %s", error)
