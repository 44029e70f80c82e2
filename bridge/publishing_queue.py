"""A store to put to that tells the bridge of every put."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence

from bridge.claim_check import ClaimCheck, drop_all, put_aside_all
from bridge.contract.errors import BadInput, QueuebellError, UnknownOutcome
from bridge.contract.event import NOT_BEFORE_MS_MAX
from bridge.contract.names import parse_reference, split_reference
from bridge.publisher import Publisher
from bridge.queue import BATCH_MAX, NEVER, NewMessage, PutReceipt, QueueStore

log = logging.getLogger("queuebell.publisher")

SERVER_TIMEOUT_S = 30.0


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
            raise BadInput("bad_parameter", f"server_timeout is from 0 to {NOT_BEFORE_MS_MAX // 1000} seconds")
        self._store = store
        self._publisher = publisher
        self._claim_check = claim_check
        self._server_timeout_ms = math.ceil(server_timeout * 1000)
        self._under_way: set[asyncio.Task[list[PutReceipt]]] = set()

    async def put(
        self,
        queue: str,
        bodies: Sequence[bytes | str | NewMessage],
        *,
        visible_after_ms: int = 0,
        ttl_s: int = NEVER,
    ) -> list[PutReceipt]:
        """Put messages in batches and publish after each acknowledged one; return their receipts in order.

        A batch is all or nothing; when one fails, those before it stay put and published, and a note on the error
        says how many. ``visible_after_ms`` and ``ttl_s`` hold for bodies given as bytes or text. Raises what the
        store's `put` raises. Cancelling it leaves the batch in flight to finish, and it is published all the same.
        """
        parse_reference(queue)
        messages = [
            body
            if isinstance(body, NewMessage)
            else NewMessage(body.encode() if isinstance(body, str) else body, visible_after_ms, ttl_s)
            for body in bodies
        ]
        size = min(BATCH_MAX, self._store.capabilities.batch_max)
        receipts: list[PutReceipt] = []
        for start in range(0, len(messages), size):
            batch = messages[start : start + size]
            task = asyncio.get_running_loop().create_task(self._put(queue, batch), name=f"queuebell-put:{queue}")
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

    async def close(self) -> None:
        """Wait for puts that go on after their callers were cancelled; close the publisher only after this."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    async def _put(self, queue: str, given: list[NewMessage]) -> list[PutReceipt]:
        check, batch = self._claim_check, given
        if check is not None:
            batch = await put_aside_all(check, self._store, queue, given)
        try:
            receipts = await self._store.put(queue, batch)
        except (UnknownOutcome, asyncio.CancelledError):
            await self._tell_unknown(queue, batch)
            raise
        except QueuebellError:
            if check is not None:
                await drop_all(check, batch, given)
            raise
        await self._tell(queue, [receipt.visible_in_ms for receipt in receipts])
        return receipts

    async def _tell_unknown(self, queue: str, batch: list[NewMessage]) -> None:
        """Publish now, and once more for a put that lands only at the store's own time-out (P2).

        The second is a timer at the bridge, with an id of its own: it comes even if this process has ended by then.
        """
        await self._tell(queue, [message.visible_after_ms for message in batch])
        await self._tell(queue, [message.visible_after_ms + self._server_timeout_ms for message in batch])

    async def _tell(self, queue: str, delays_ms: list[int]) -> None:
        account, name = split_reference(queue)
        sizes: dict[int, int] = {}
        for delay in delays_ms:
            due = _rounded_up(delay, self._store.capabilities.resolution_ms)
            sizes[due] = sizes.get(due, 0) + 1
        for due, size in sizes.items():
            try:
                await self._publisher.publish(account, name, size, not_before_ms=due)
            except BadInput as error:
                # The publisher was closed under a put that went on. The put stands; the sweep will find it (P4).
                log.warning("a put was not published: %s", error, extra={"queue": queue})

    def _ended(self, task: asyncio.Task[list[PutReceipt]]) -> None:
        self._under_way.discard(task)
        # Whoever awaited the put has the error; of a put whose caller was cancelled nobody else would see it.
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a put failed: %s", error)


def _rounded_up(delay_ms: int, resolution_ms: int) -> int:
    """Round a delay up by the store's resolution and 1e-4 of itself: one tick early is a loss (B2)."""
    if delay_ms <= 0:
        return 0
    return min(NOT_BEFORE_MS_MAX, delay_ms + math.ceil(delay_ms * 1e-4) + resolution_ms)
