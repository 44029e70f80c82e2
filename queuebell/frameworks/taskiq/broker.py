"""The broker: puts what taskiq kicks, and opens a feed for each of its receivers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import logging
import math
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Final, Self

from taskiq import AckableMessage, AsyncBroker, BrokerMessage
from taskiq.abc.formatter import TaskiqFormatter

from bridge.contract.address import one_text
from bridge.contract.errors import BadInput
from bridge.contract.names import parse_reference
from bridge.producer.publisher import Publisher
from bridge.producer.publishing_queue import PublishingQueue
from bridge.queues.base import DELAY_MS_MAX, NewMessage, QueueStore, once
from listeners.handler import Message
from listeners.listener import Listener
from listeners.session.opening import PULL_ONLY, bridge_of, open_store, rings
from listeners.work.retry import RetryPolicy
from queuebell.frameworks.taskiq.feed import Feed
from queuebell.frameworks.taskiq.formatter import CheckedFormatter

log = logging.getLogger("queuebell.taskiq")

GRACE_S: Final = 604_800.0
"""Longer than any task: how long those that run are waited for at a stop, taskiq says (``--wait-tasks-timeout``)."""


class QueuebellBroker(AsyncBroker):
    """A taskiq broker on any store of ours: ``broker = QueuebellBroker("http://127.0.0.1:8470")``.

    A task is done at least once: its message is deleted when taskiq acknowledges it, and comes again where its worker
    dies before. Within one worker tasks begin in the order of their receipt. Raises as `Listener` does, for what cannot
    work; all times are seconds.

    - ``store``: where tasks wait: a store's URL, a `QueueStore`, or a `Bridge` of this process.
    - ``queue``: a queue reference; not a partitioned queue.
    - ``bridge``: who wakes the workers, as for `Listener`; puts are published there, unless the store is its own.
    - ``concurrency``: how many messages one worker process has at once: as many as its ``--max-async-tasks``. Were it
      more, the rest would wait in that process, while other workers may have nothing to do.
    - ``visibility_timeout``: the lease of a message, renewed at half of its time until taskiq acknowledges. After so
      long a task comes again whose worker was killed.
    - ``retry``: attempts and pauses for tasks that taskiq does not acknowledge, unknown ones, and those that kill their
      worker; not for tasks that raise, which taskiq acknowledges: those are for its retry middlewares.
    - ``poison_queue``: where a message goes after the last attempt, and at once what is no task, or has arguments that
      do not fit its function; the queue's name and ``-poison`` unless given.
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

        listener(lambda message: None, self._given)  # what cannot work is refused here, and nothing is opened for it
        self._listener = listener

    def with_formatter(self, formatter: TaskiqFormatter) -> Self:
        """Have tasks written and read by a formatter of taskiq's or your own."""
        self.formatter = CheckedFormatter(formatter, self)
        return self

    async def kick(self, message: BrokerMessage) -> None:
        """Put a task; with a label ``delay`` it is visible after so many seconds (0 to 604800).

        Where the store puts once, a message of the same task id and the same content is put only once, for as long as
        it waits and at least for the store's window; only a schedule's messages are put each time. Raises what the
        store's `put` raises, `BadInput` for a delay that is none, and `Unsupported` where the store has none: nothing
        was put then. After an `UnknownOutcome` it may have been.
        """
        new = NewMessage(message.message, _delay_ms(message.labels.get("delay")))
        store, publishing = self._open()
        # A schedule sends the same message again and again, under the same id where it was given one.
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
        """Hand tasks over as they come, each to one of all who listen; raises what `Listener.run` raises.

        At the end of the generator those that were not handed over are given back at once, as if nobody had had them.
        Those that were are kept until they are acknowledged, or until `shutdown`.
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
        """Let go of everything: tasks not acknowledged are given back at once, at the cost of no attempt.

        Cancelled, it hurries: what a store that is away has not heard then costs an attempt, and comes again.
        """
        async with self._closing.pop_all() as closing:
            self._opened = None
            closing.push_async_callback(super().shutdown)
            await asyncio.gather(*(feed.end() for feed in self._feeds))

    def _open(self) -> tuple[QueueStore, PublishingQueue | None]:
        """Return the store, and what publishes its puts where it does not ring the bridge by itself."""
        if self._opened is None:
            store, ours = open_store(self._given)
            if ours:
                self._closing.push_async_callback(store.close)
            publishing = None
            if self._bridge is not None and not rings(self._bridge, store):
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
