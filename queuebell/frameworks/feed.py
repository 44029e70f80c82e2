"""A feed: a listener whose handler passes its message to a framework's threads and waits until it is settled there."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from queuebell.bridge.contract.claim import is_claim
from queuebell.bridge.contract.errors import BadInput, QueuebellError
from queuebell.bridge.producer.blocking import BlockingStore
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import BODY_BYTES_MAX, DELAY_MS_MAX, NewMessage, QueueStore, once
from queuebell.bridge.storage.claim_check import ClaimCheck
from queuebell.listeners.handler import Bury, Message, Retry
from queuebell.listeners.listener import Listener
from queuebell.listeners.pool import Pool
from queuebell.listeners.work.retry import RetryPolicy

log = logging.getLogger("queuebell")

GRACE_S: Final = 604_800.0
"""Longer than any task: the framework decides how long a worker waits at its end."""

SETTLES_S: Final = 1.0
"""For what a framework settles after it has closed its connection: Celery, what ends while a worker stops."""

EARLY_S: Final = 1.0

Accept = Callable[[str, Message], Awaitable[Any]]
"""Returns what the framework gets of a message of a queue; None for one that it need not get, which is deleted.

Raises what a handler would.
"""


class Rejected(Bury):
    """A worker rejected a message and does not want it back."""

    def __init__(self, why: str) -> None:
        super().__init__(f"rejected by the worker: {why}" if why else "rejected by the worker")


class Delivery:
    """One message on its way through a framework; its methods may be called in any thread."""

    def __init__(self, queue: str, payload: Any, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        self.queue = queue
        self.payload = payload
        self.settled: asyncio.Future[Exception | None] = loop.create_future()
        self._loop = loop
        self._task = task

    def acknowledge(self) -> None:
        """Delete the message."""
        self._call(self._settle, None)

    def reject(self, why: str = "") -> None:
        """Dead-letter the message."""
        self._call(self._settle, Rejected(why))

    def requeue(self) -> None:
        """Return the message to its queue; it comes again as redelivered, and the attempt counts."""
        self._call(self._settle, Retry(after=0))

    def release(self) -> None:
        """Return the message to its queue without counting the attempt."""
        self._call(self._release)

    def _settle(self, failure: Exception | None) -> None:
        if not self.settled.done():
            self.settled.set_result(failure)
        elif self.settled.cancelled() and failure is None:
            log.warning("%s: a task was done whose message was no longer held: it may be done again", self.queue)

    def _release(self) -> None:
        if not self.settled.done():
            self._task.cancel()

    def _call(self, call: Callable[..., None], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(call, *args)
        except RuntimeError:  # the loop is closed: what was held then comes again when its lease ends
            log.warning("%s: a message was settled after its connection was closed: it comes again", self.queue)


class FeedOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a feed receives; times in seconds.

    ``bridge`` wakes it, unless the store is the bridge's own. ``prefetch`` is the most messages that the framework has
    at once. With ``acknowledged`` a message counts as done once the framework has it. ``max_attempts`` 0 is without a
    limit.
    """

    name: str
    bridge: str | Sequence[str] | None = None
    prefetch: int
    visibility_timeout: float = 30.0
    max_attempts: int = 0
    acknowledged: bool = False
    claim_check: str | None = None
    """The URL of the blob store in which producers put bodies that are too large for a message."""


class Feed:
    """The messages of some queues, from their receipt until the framework has settled them.

    ``queues`` maps queue references to the framework's names; ``arrived`` is called with each delivery, in the store's
    thread. Its methods may be called in any other thread, but not in a forked process, where they do nothing.
    """

    def __init__(
        self,
        store: BlockingStore,
        queues: Mapping[str, str],
        accept: Callable[[QueueStore, PublishingQueue | None], Accept],
        arrived: Callable[[Delivery], None],
        options: FeedOptions,
    ) -> None:
        self.queues = [*queues.values()]
        """The framework's names; a name that is no longer wanted is removed here, and stops the feed with the last."""
        self._names = queues
        self._arrived = arrived
        self._options = options
        self._held: set[Delivery] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._process = os.getpid()
        self._store = store
        store.run(
            f"receive from {', '.join(self.queues)}",
            lambda opened, publishing: self._begin(opened, accept(opened, publishing)),
        )

    def stop(self) -> None:
        """Receive no more, and do not wait; what the framework has is held until it is settled."""
        if self._process == os.getpid():
            with contextlib.suppress(QueuebellError):
                self._store.run("stop receiving", self._stop)

    def end_soon(self) -> None:
        """Receive no more; release what is not settled within a second, and do not wait for that."""
        if self._process == os.getpid():
            with contextlib.suppress(QueuebellError):
                self._store.run("end receiving soon", self._end_soon)

    def end(self) -> None:
        """Release what is not settled, and wait up to the store's time-out until the store knows."""
        if self._process == os.getpid():
            try:
                self._store.run("end receiving", self._end)
            except QueuebellError as error:
                names = ", ".join(self._names.values())
                log.warning("%s: %s; what was held comes again when its leases end", names, error)

    # -- in the event loop of the store -----------------------------------------------------------------------------

    async def _begin(self, opened: QueueStore, accept: Accept) -> None:
        self._loop = asyncio.get_running_loop()
        self._accept = accept
        options = self._options
        # Of one queue, wakes carry messages, which a pool of several cannot take.
        several = len(self._names) > 1
        self._listener: Listener[Any] = Listener(
            opened,
            list(self._names),
            self._handle,
            bridge=options.bridge,
            concurrency=None if several else options.prefetch,
            pool=Pool(options.prefetch) if several else None,
            visibility_timeout=options.visibility_timeout,
            retry=RetryPolicy(attempts=options.max_attempts),
            grace=GRACE_S,
            handle_signals=False,
            handler_name=options.name,
            claim_check=options.claim_check,
        )
        self._running = self._loop.create_task(self._listener.run(), name=f"{options.name}-listener[{self.queues}]")
        self._running.add_done_callback(self._ended)

    async def _stop(self, *_: object) -> None:
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._listener.stop(), name=f"{self._options.name}-listener-stop")

    async def _end(self, *_: object) -> None:
        # One turn later: settlements of other threads that were made before this call come first.
        await asyncio.sleep(0)
        await self._stop()
        self._release_all()
        await asyncio.wait([task for task in (self._running, self._stopping) if task is not None])

    async def _end_soon(self, *_: object) -> None:
        await self._stop()
        self._loop.call_later(SETTLES_S, self._release_all)

    def _release_all(self) -> None:
        for delivery in [*self._held]:
            delivery._release()

    def _ended(self, running: asyncio.Task[None]) -> None:
        if not running.cancelled() and (error := running.exception()) is not None:
            log.error("%s: receives no more: %s", ", ".join(self._names.values()), error)

    async def _handle(self, message: Message) -> None:
        queue = self._names[message.queue]
        payload = await self._accept(queue, message)
        if payload is None:
            return
        task = asyncio.current_task()
        assert task is not None
        delivery = Delivery(queue, payload, self._loop, task)
        self._held.add(delivery)
        try:
            if self._stopping is not None:
                task.cancel()
            else:
                self._arrived(delivery)
                if self._options.acknowledged:
                    return
            failure = await delivery.settled
        finally:
            self._held.discard(delivery)
        if failure is not None:
            raise failure


def checked(what: str, body: bytes, claim_check: str | None) -> bytes:
    """Return a body that is not too large for a message; raises `BadInput` for one that is, without a claim check."""
    if len(body) > BODY_BYTES_MAX and claim_check is None:
        raise BadInput(
            "message_too_large",
            f"{what}: this message has {len(body)} bytes, at most {BODY_BYTES_MAX} are allowed; nothing was put. Set"
            " claim_check to a blob store for such bodies, or pass large values by their key",
        )
    return body


async def waits_on(
    opened: QueueStore, publishing: PublishingQueue | None, message: Message, left_s: float, claim_check: str | None
) -> bool:
    """Put a message again whose time is more than a second ahead, and return whether it was: no store delays so long.

    Under a key, so that a crash before its deletion adds none.
    """
    if left_s <= EARLY_S:
        return False
    later = NewMessage(message.body, min(int(left_s * 1000), DELAY_MS_MAX), headers=dict(message.headers))
    await put_under_key(opened, publishing, message.queue, f"later-{message.id}", later, claim_check)
    return True


async def put_under_key(
    opened: QueueStore,
    publishing: PublishingQueue | None,
    queue: str,
    key: str,
    message: NewMessage,
    claim_check: str | None = None,
) -> None:
    """Put a message, under a key where the store can, so that a repeated call adds no second one; does not repeat it.

    A delay is cut to the longest that the store has; none where it has no delays. A large body is put aside first. Its
    blob is named after the key: a repeated put has the same claim.
    """
    can = opened.capabilities
    longest = can.delay_ms_max if can.delayed_put else 0
    message = NewMessage(message.body, min(message.visible_after_ms, longest), message.ttl_s, message.headers)
    if claim_check is not None and (len(message.body) > can.body_bytes_max or is_claim(message.body)):
        token = hashlib.sha256(key.encode()).hexdigest()[:32]
        async with ClaimCheck(claim_check, token=lambda: token) as check:
            message = await check.put_aside(queue, message, can.body_bytes_max, opened)
    if not can.put_once:
        await (publishing or opened).put(queue, [message])
    elif publishing is None:
        await once(opened).put_once(queue, key, message)
    else:
        await publishing.put_once(queue, key, message, patience=0.0)
