"""What leaves the dequeue tasks of a listener: frames, triggers for other queues, and calls of the host's hooks."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, Protocol

from queuebell.bridge.contract.errors import ENDS_THE_PROCESS, QueuebellError
from queuebell.bridge.contract.names import split_reference
from queuebell.bridge.contract.wire import Report
from queuebell.bridge.observe.swallowed import swallow
from queuebell.listeners.handler import called_with

log = logging.getLogger("queuebell.listener")

Hook = Callable[..., object]
HOOK: Final = "a hook of a listener"
PUBLISHER: Final = "announcing a queue that a message moved to"


class Announces(Protocol):
    """The part of a publisher that is needed here."""

    async def publish(self, account: str, queue: str, *, not_before_ms: int = 0) -> None:
        """Trigger a queue, once so many milliseconds have passed."""
        ...

    async def close(self) -> object:
        """Send pending triggers and close."""
        ...


class ListenerEvents:
    """The outputs of the dequeue tasks; no failure here reaches them.

    ``send`` takes frames for the bridge; it is set with the sessions, and drops them before. ``store_answered`` takes a
    queue and the boot of each answer, None if the queue's fingerprint changed. ``failed`` takes an error after which a
    queue can no longer be trusted to wake: a defect, an error of a scaling or back-off rule, or an unusable store.
    ``publisher`` makes one when it is first needed. ``ready`` is called when a queue is listened to, ``took`` when
    messages were received; both are set where a scaler started the worker.
    """

    def __init__(
        self,
        *,
        on_empty: Hook | None,
        on_work: Hook | None,
        store_answered: Callable[[str, str | None], None],
        failed: Callable[[Exception], None],
        publisher: Callable[[], Announces] | None,
    ) -> None:
        self.send: Callable[[Report], None] = lambda report: None
        self.ready: Callable[[], None] = lambda: None
        self.took: Callable[[], None] = lambda: None
        self.failed = failed
        self.store_answered = store_answered
        self._on_empty = _fitted(on_empty)
        self._on_work = _fitted(on_work)
        self._make_publisher = publisher
        self._publisher: Announces | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` runs a hook."""
        return task in self._tasks

    def emptied(self, queue: str) -> None:
        """Call the hook for a queue that has run empty."""
        self._call(self._on_empty, queue)

    def detected(self, queue: str) -> None:
        """Call the hook for work that was detected."""
        self._call(self._on_work, queue)

    def announce(self, queue: str, after_ms: int) -> None:
        """Trigger a queue that a message moved to, so that its listeners wake."""
        if self._make_publisher is None:
            return
        try:
            if self._publisher is None:
                self._publisher = self._make_publisher()
        except (QueuebellError, TypeError) as error:
            log.warning(
                "%s: a message moved to this queue, but its trigger cannot be sent; a timer finds the message: %s",
                queue,
                error,
            )
            return
        except Exception as error:  # noqa: BLE001 - a sweep finds the message
            swallow(PUBLISHER, error)
            return
        publish = self._publisher.publish(*split_reference(queue), not_before_ms=after_ms)
        self._spawn(_guard(publish, queue, PUBLISHER), f"announce[{queue}]")

    async def close(self) -> None:
        """End hooks that still run, and send pending triggers."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
        if self._publisher is not None:
            await self._publisher.close()

    def _call(self, hook: Hook | None, queue: str) -> None:
        if hook is None:
            return
        try:
            result = hook(queue)
        except ENDS_THE_PROCESS:
            raise
        except BaseException as error:  # noqa: BLE001 - a hook must not fail the queue
            swallow(HOOK, error)
            return
        if inspect.iscoroutine(result):
            self._spawn(_guard(result, queue, HOOK), f"hook[{queue}]")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _guard(work: Coroutine[Any, Any, object], queue: str, what: str) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001 - a hook must not fail the queue, and a sweep finds the message
        swallow(what, error)


def _fitted(hook: Hook | None) -> Hook | None:
    """Return a hook that takes the queue reference, also for one that takes nothing."""
    if hook is None:
        return None
    why = "a hook is given the queue reference, or nothing"
    try:
        called_with(hook, 1, "a hook", why)
    except TypeError as unfit:
        try:
            called_with(hook, 0, "a hook", why)
        except TypeError:
            raise unfit from None
        return lambda queue: hook()
    return hook
