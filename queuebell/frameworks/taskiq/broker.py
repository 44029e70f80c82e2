"""The broker: puts each task that taskiq sends, and opens a feed for each of its receivers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import math
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Final, Self

from taskiq import AckableMessage, AsyncBroker, BrokerMessage
from taskiq.abc.formatter import TaskiqFormatter

from queuebell.bridge.contract.address import one_text
from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.names import parse_reference
from queuebell.bridge.producer.publisher import Publisher
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import DELAY_MS_MAX, NewMessage, QueueStore, once
from queuebell.frameworks.taskiq.delivery import Delivery
from queuebell.frameworks.taskiq.formatter import CheckedFormatter
from queuebell.listeners.handler import Message
from queuebell.listeners.listener import Listener
from queuebell.listeners.session.opening import PULL_ONLY, bridge_of, open_store, puts_wake_listeners
from queuebell.listeners.work.retry import RetryPolicy

log = logging.getLogger("queuebell.taskiq")

GRACE_S: Final = 604_800.0
"""Longer than any task: at a stop taskiq decides how long to wait (``--wait-tasks-timeout``)."""


class QueuebellBroker(AsyncBroker):
    """A taskiq broker on any store: ``broker = QueuebellBroker("http://127.0.0.1:8470")``.

    Each task runs at least once: its message is deleted when taskiq acknowledges it, and comes again if the worker
    dies before. One worker starts tasks in the order of their receipt. Raises as `Listener` does for invalid settings.
    All times are in seconds.

    - ``store``: where tasks wait: a store's URL, a `QueueStore`, or a `Bridge` in this process.
    - ``queue``: a queue reference; not a partitioned queue.
    - ``bridge``: wakes the workers, as for `Listener`; puts are published to it, unless it has the store.
    - ``concurrency``: the most messages of one worker process; give the same number as its ``--max-async-tasks``. With
      more, messages would wait in this process while other workers are idle.
    - ``visibility_timeout``: the lease of a message, renewed at half of its time until taskiq acknowledges. A task of a
      killed worker comes again after this time.
    - ``retry``: attempts and pauses for tasks that taskiq does not acknowledge, unknown tasks, and tasks that
      kill their worker. Not for tasks that raise: taskiq acknowledges them, and its retry middlewares repeat them.
    - ``poison_queue``: where a message goes after its last attempt, or at once if it is not a task or its arguments do
      not fit the function; default the queue's name and ``-poison``.
    """

    def __init__(
        self,
        store: str | Sequence[str] | QueueStore | Any,
        queue: str = "taskiq/tasks",
        *,
        bridge: str | Sequence[str] | Any | None = None,
        concurrency: int = 100,
        visibility_timeout: float = 30.0,
        retry: RetryPolicy | None = None,
        poison_queue: str | None = None,
    ) -> None:
        super().__init__()
        self.with_formatter(self.formatter)
        self._given = one_text(store)
        self._queue = parse_reference(queue)
        self._concurrency = concurrency
        self._opened: tuple[QueueStore, PublishingQueue | None] | None = None
        self._closing = contextlib.AsyncExitStack()
        self._feeds: set[Feed] = set()

        self._bridge = bridge_of(bridge, self._given)

        def listener(handler: Callable[[Message], object], store: Any) -> Listener[Any]:
            return Listener(
                store,
                queue,
                handler,
                bridge=PULL_ONLY if self._bridge is None else self._bridge,
                concurrency=concurrency,
                visibility_timeout=visibility_timeout,
                retry=retry,
                poison_queue=poison_queue,
                grace=GRACE_S,
                handle_signals=False,
            )

        listener(lambda message: None, self._given)  # refuses invalid settings; opens nothing
        self._listener = listener

    def with_formatter(self, formatter: TaskiqFormatter) -> Self:
        """Write and read tasks with this formatter."""
        self.formatter = CheckedFormatter(formatter, self)
        return self

    async def kick(self, message: BrokerMessage) -> None:
        """Put a task; a label ``delay`` is the seconds until it becomes visible (0 to 604800).

        If the store can put once, a message with the same task id and content is put only once, as long as it waits
        and at least for the store's window; a schedule's messages are put each time. Raises what the store's `put`
        raises, `BadInput` for an invalid delay, and `Unsupported` if the store has no delays: nothing was put. After an
        `UnknownOutcome` it may have been.
        """
        new = NewMessage(message.message, _delay_ms(message.labels.get("delay")))
        store, publishing = self._open()
        # A schedule sends the same message repeatedly, with the same id if it has one.
        if not store.capabilities.put_once or "schedule_id" in message.labels:
            await (publishing or store).put(self._queue, [new])
            return
        key = hashlib.sha256(message.task_id.encode() + b"\n" + message.message).hexdigest()
        if publishing is None:
            receipt = await once(store).put_once(self._queue, key, new)
        else:
            receipt = await publishing.put_once(self._queue, key, new, patience=0.0)
        if receipt is None:
            log.info("%s: task %s was put before, and is not put again", self._queue, message.task_id)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield tasks as they arrive, each to one of all receivers; raises what `Listener.run` raises.

        When the generator ends, received tasks that it did not yield are released uncounted. Yielded ones are kept
        until they are acknowledged, or until `shutdown`.
        """
        store, _ = self._open()
        feed = Feed(self._queue, self._concurrency, functools.partial(self._listener, store=store))
        self._feeds.add(feed)
        feed.running.add_done_callback(lambda _: self._feeds.discard(feed))
        try:
            while (message := await feed.next()) is not None:
                yield message
        finally:
            feed.close()

    async def shutdown(self) -> None:
        """Stop: release unacknowledged tasks without counting the attempt, and close the store.

        If it is cancelled, it does not wait for a store that is away: those tasks come again, and the attempt counts.
        """
        async with self._closing.pop_all() as closing:
            self._opened = None
            closing.push_async_callback(super().shutdown)
            await asyncio.gather(*(feed.end() for feed in self._feeds))

    def _open(self) -> tuple[QueueStore, PublishingQueue | None]:
        """Return the store, and the queue that publishes its puts unless the store notifies the bridge itself."""
        if self._opened is None:
            store, ours = open_store(self._given)
            if ours:
                self._closing.push_async_callback(store.close)
            publishing = None
            if self._bridge is not None and not puts_wake_listeners(self._bridge, store):
                publisher = Publisher(self._bridge)
                self._closing.push_async_callback(publisher.close)
                publishing = PublishingQueue(store, publisher)
                self._closing.push_async_callback(publishing.close)
            self._opened = store, publishing
        return self._opened


def _delay_ms(label: object) -> int:
    try:
        seconds = float(label or 0)  # type: ignore[arg-type] # what it cannot read it says
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 <= seconds * 1000 <= DELAY_MS_MAX:
        raise BadInput(
            "bad_parameter",
            f"delay: the label is a number of seconds from 0 to {DELAY_MS_MAX // 1000}; nothing was put",
        )
    return math.ceil(seconds * 1000)


log = logging.getLogger("queuebell.taskiq")

IDLE_S: Final = 1.0
"""A warning is logged if a message waits longer than this for taskiq."""


class Feed:
    """One `listen`: a listener, and its messages from their receipt until taskiq has finished them."""

    def __init__(self, queue: str, concurrency: int, make: Callable[[Callable[[Message], object]], Listener]) -> None:
        self._queue = queue
        self._concurrency = concurrency
        self._deliveries: set[Delivery] = set()
        self._arrived: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self._closed = False
        self._told = False
        self._loop = asyncio.get_running_loop()
        self._listener = make(self._handle)
        self._stopping: asyncio.Task[None] | None = None
        self.running = self._loop.create_task(self._listener.run(), name=f"taskiq-listener[{queue}]")
        self.running.add_done_callback(lambda _: self._arrived.put_nowait(None))

    async def next(self) -> AckableMessage | None:
        """Wait for the next message; None once the listener has ended. Raises the listener's error."""
        asked = self._loop.time()
        while (delivery := await self._arrived.get()) is not None:
            if not delivery.settled.done():  # its lease was not lost meanwhile
                if asked - delivery.arrived > IDLE_S and not self._told:
                    self._tell_idle(asked - delivery.arrived)
                return delivery.hand_over()
        self.running.result()
        return None

    def close(self) -> None:
        """Receive no more, and release the messages that taskiq has not taken."""
        if not self._closed:
            self._closed = True
            self._stopping = self._loop.create_task(self._listener.stop(), name=f"taskiq-listener-stop[{self._queue}]")
            self._give_back(delivery for delivery in self._deliveries if not delivery.handed)

    async def end(self) -> None:
        """Release all unacknowledged messages, and wait until the listener has settled; if cancelled, do not wait."""
        self.close()
        self._give_back(self._deliveries)
        ending = [task for task in (self.running, self._stopping) if task is not None]
        try:
            await asyncio.wait(ending)
        except asyncio.CancelledError:
            self.running.cancel()
            await asyncio.wait(ending)
            raise
        if not self.running.cancelled() and (error := self.running.exception()) is not None:
            log.error("%s: the listener broke: %s", self._queue, error)

    async def _handle(self, message: Message) -> None:
        task = asyncio.current_task()
        assert task is not None
        delivery = Delivery(message, task, self._loop)
        self._deliveries.add(delivery)
        self._arrived.put_nowait(delivery)
        if self._closed:
            delivery.give_back()
        try:
            failure = await delivery.settled
        finally:
            self._deliveries.discard(delivery)
        if failure is not None:
            raise failure

    def _give_back(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in [*deliveries]:
            delivery.give_back()

    def _tell_idle(self, seconds: float) -> None:
        self._told = True
        runs = sum(delivery.handed for delivery in self._deliveries) + 1
        log.warning(
            "%s: a task waited for %.0f s in this process, where taskiq runs %d at once while up to %d are received:"
            " another worker could have had it. Make `concurrency` of QueuebellBroker %d, as --max-async-tasks is",
            self._queue,
            seconds,
            runs,
            self._concurrency,
            runs,
        )
