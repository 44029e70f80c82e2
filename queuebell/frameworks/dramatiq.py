"""A broker for Dramatiq: workers are woken by their messages instead of polling, and delays are the store's.

::

    import dramatiq
    from queuebell.frameworks.dramatiq import QueuebellBroker

    dramatiq.set_broker(QueuebellBroker("http://127.0.0.1:8470"))

Actors, retries, results and middlewares are Dramatiq's own.
"""

from __future__ import annotations

import contextlib
import queue
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import dramatiq
from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound

from queuebell.bridge.contract.errors import (
    BusUnavailable,
    StoreUnavailable,
    UnknownOutcome,
)
from queuebell.bridge.contract.errors import (
    QueueNotFound as NoSuchQueue,
)
from queuebell.bridge.contract.names import reference
from queuebell.bridge.producer.blocking import BlockingStore
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import DELAY_MS_MAX, NewMessage, QueueStore
from queuebell.frameworks.feed import Accept, Delivery, Feed, FeedOptions, checked, put_under_key, waits_on
from queuebell.frameworks.names import queue_name
from queuebell.listeners.handler import Message, Undecodable

JOIN_S: Final = 0.1


class QueuebellBroker(dramatiq.Broker):
    """A Dramatiq broker on any store.

    A message is deleted when its actor has ended, and comes again if the worker dies before. Rejected messages, also
    those whose retries are exhausted, become dead letters. Raises as `BlockingStore` does for a wrong address.

    - ``store``: the URL of the store; the queue ``default`` is the queue ``dramatiq/default`` there.
    - ``bridge``: the bridge that wakes workers, unless the store is the bridge's own.
    - ``account``: the first half of the queues' names.
    - ``visibility_timeout``: the lease in seconds, renewed until the actor ends. The messages of a killed worker come
      again after it.
    - ``max_attempts``: how often a message is received before it is dead-lettered, where its worker dies each time; 0
      is without a limit.
    - ``timeout``: of a call to the store, in seconds.
    - ``claim_check``: the URL of a blob store for messages above 64 KiB, the same for producers and workers.
    - ``middleware``: as for every broker of Dramatiq's.
    """

    def __init__(
        self,
        store: str | Sequence[str] = "http://127.0.0.1:8470",
        *,
        bridge: str | Sequence[str] | None = None,
        account: str = "dramatiq",
        visibility_timeout: float = 30.0,
        max_attempts: int = 20,
        timeout: float = 30.0,
        claim_check: str | None = None,
        middleware: list[Any] | None = None,
    ) -> None:
        super().__init__(middleware)
        self._store = BlockingStore(store, bridge=bridge, timeout=timeout)
        self._account = account
        self._bridge = bridge
        self._lease_s = visibility_timeout
        self._attempts = max_attempts
        self._claim_check = claim_check
        self._accepts = partial(_accepts, claim_check)
        reference(account, "default")

    def declare_queue(self, queue_name: str) -> None:
        """Declare a queue; the first message creates it in the store."""
        if queue_name not in self.queues:
            self._ref(queue_name)
            self.emit_before("declare_queue", queue_name)
            self.queues[queue_name] = None
            self.emit_after("declare_queue", queue_name)

    def enqueue(self, message: Any, *, delay: int | None = None) -> Any:
        """Put a message that becomes visible after ``delay`` ms. Raises `ConnectionClosed` if the store is away."""
        if message.queue_name not in self.queues:
            raise QueueNotFound(message.queue_name)
        if delay is not None:
            message = message.copy(options={"eta": int(time.time() * 1000) + delay})
        self.emit_before("enqueue", message, delay)
        aside = self._claim_check
        body = checked(f"{message.queue_name}: {message.actor_name}", message.encode(), aside)
        new, key = NewMessage(body, min(max(0, delay or 0), DELAY_MS_MAX)), f"dramatiq-{uuid.uuid4().hex}"
        ref = self._ref(message.queue_name)
        with _as_connection_errors():
            self._store.run(
                f"put {ref}", lambda opened, publishing: put_under_key(opened, publishing, ref, key, new, aside)
            )
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 30_000) -> Any:
        """Receive up to ``prefetch`` messages at once; returns an iterator that waits ``timeout`` ms at a time."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        options = FeedOptions(
            name="dramatiq",
            bridge=self._bridge,
            prefetch=prefetch,
            visibility_timeout=self._lease_s,
            max_attempts=self._attempts,
            claim_check=self._claim_check,
        )

        def begin(arrived: Callable[[Delivery], None]) -> Feed:
            return Feed(self._store, {self._ref(queue_name): queue_name}, self._accepts, arrived, options)

        with _as_connection_errors():
            return Consumer(begin, timeout / 1000)

    def flush(self, queue_name: str) -> None:
        """Remove the messages of a queue."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        ref = self._ref(queue_name)
        with _as_connection_errors(), contextlib.suppress(NoSuchQueue):
            self._store.run(f"clear {ref}", lambda opened, _: opened.clear(ref))

    def flush_all(self) -> None:
        """Remove the messages of all declared queues."""
        for name in self.queues:
            self.flush(name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Wait until no message is left, in tests. Raises `QueueJoinTimeout` after ``timeout`` ms."""
        if queue_name not in self.queues:
            raise QueueNotFound(queue_name)
        until = None if timeout is None else time.monotonic() + timeout / 1000
        while True:
            with _as_connection_errors():
                depth = self._store.depth(self._ref(queue_name))
            if depth is None or not (depth.visible or depth.invisible):
                return
            if until is not None and time.monotonic() >= until:
                raise QueueJoinTimeout(queue_name)
            time.sleep(JOIN_S)

    def close(self) -> None:
        """Close the store."""
        self._store.close()

    def _ref(self, name: str) -> str:
        return reference(self._account, queue_name(name))


class Consumer(dramatiq.Consumer):
    """The messages of a queue, for a thread of a worker."""

    def __init__(self, begin: Callable[[Callable[[Delivery], None]], Feed], timeout_s: float) -> None:
        self._arrived: queue.SimpleQueue[Delivery] = queue.SimpleQueue()
        self._timeout_s = timeout_s
        self._feed = begin(self._arrived.put)

    def __next__(self) -> Any:
        until = time.monotonic() + self._timeout_s
        while True:
            try:
                delivery = self._arrived.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                return None
            if not delivery.settled.done():  # its lease was not lost meanwhile
                message = dramatiq.MessageProxy(delivery.payload)
                message.delivery = delivery
                return message

    def ack(self, message: Any) -> None:
        """Delete a message."""
        message.delivery.acknowledge()

    def nack(self, message: Any) -> None:
        """Dead-letter a message, with the last line of its traceback where its retries have ended."""
        trace = message.options.get("traceback")
        message.delivery.reject(trace.strip().splitlines()[-1] if isinstance(trace, str) and trace.strip() else "")

    def requeue(self, messages: Iterable[Any]) -> None:
        """Return messages to their queue; no attempt counts."""
        for message in messages:
            message.delivery.release()

    def close(self) -> None:
        """Receive no more, and return what is not settled."""
        self._feed.end()


def _accepts(claim_check: str | None, opened: QueueStore, publishing: PublishingQueue | None) -> Accept:
    async def accept(_: str, message: Message) -> Any:
        try:
            found = dramatiq.Message.decode(message.body)
        except DecodeError as error:
            raise Undecodable(f"not a Dramatiq message: {error.error}") from None
        eta = found.options.get("eta")
        left_s = eta / 1000 - time.time() if isinstance(eta, int) else 0.0
        return None if await waits_on(opened, publishing, message, left_s, claim_check) else found

    return accept


@contextlib.contextmanager
def _as_connection_errors() -> Iterator[None]:
    """Raise what Dramatiq's workers try again for."""
    try:
        yield
    except (StoreUnavailable, BusUnavailable, UnknownOutcome) as error:
        raise ConnectionClosed(error) from error
