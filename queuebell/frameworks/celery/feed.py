"""A feed: a listener whose handler passes its message to Celery and waits until it is acknowledged."""

from __future__ import annotations

import asyncio
import datetime
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from queuebell.bridge.queues.base import DELAY_MS_MAX, NewMessage
from queuebell.listeners.handler import Bury, Message, Retry, Undecodable
from queuebell.listeners.listener import Listener

log = logging.getLogger("queuebell.celery")

EARLY_S: Final = 1.0
"""A task that comes earlier than this before its time is put again with the rest of its delay."""


class Rejected(Bury):
    """A worker rejected a message and does not want it back."""

    def __init__(self) -> None:
        super().__init__("rejected by the worker: Reject(requeue=False), or a task that it does not know")


class Delivery:
    """One message on its way through Celery; its methods may be called in any thread."""

    def __init__(self, queue: str, payload: dict[str, Any], loop: asyncio.AbstractEventLoop, task: Any) -> None:
        self.queue = queue
        self.payload = payload
        self.settled: asyncio.Future[Exception | None] = loop.create_future()
        self._loop = loop
        self._task: asyncio.Task[Any] = task

    @property
    def tag(self) -> str:
        """Its number at Celery."""
        return str(self.payload["properties"]["delivery_tag"])

    def acknowledge(self) -> None:
        """Delete the message."""
        self._call(self._settle, None)

    def reject(self) -> None:
        """Dead-letter the message."""
        self._call(self._settle, Rejected())

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


class Feed:
    """The messages of some queues, from their receipt until Celery has settled them; lives in the store's event loop.

    ``queues`` maps queue references to Celery's names. ``arrived`` is called with each delivery. ``again`` puts a
    message once under a key. With ``acknowledged`` a message counts as settled once Celery has it.
    """

    def __init__(
        self,
        queues: Mapping[str, str],
        arrived: Callable[[Delivery], None],
        again: Callable[[str, str, NewMessage], Any],
        make: Callable[[Callable[[Message], object]], Listener],
        *,
        acknowledged: bool = False,
        transient: bool = False,
    ) -> None:
        self._queues = queues
        self._arrived = arrived
        self._again = again
        self._acknowledged = acknowledged
        self._transient = transient
        self._loop = asyncio.get_running_loop()
        self._held: set[Delivery] = set()
        self._listener = make(self._handle)
        self._stopping: asyncio.Task[None] | None = None
        names = ",".join(queues.values())
        self._running = self._loop.create_task(self._listener.run(), name=f"celery-listener[{names}]")
        self._running.add_done_callback(self._ended)

    def stop(self) -> None:
        """Receive no more; what Celery has is held until it is settled."""
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._listener.stop(), name="celery-listener-stop")

    async def end(self) -> None:
        """Release whatever is not settled, and wait until the store knows."""
        # One turn later: settlements of other threads that were made before this call come first.
        await asyncio.sleep(0)
        self.stop()
        for delivery in [*self._held]:
            delivery._release()
        await asyncio.wait([task for task in (self._running, self._stopping) if task is not None])

    def _ended(self, running: asyncio.Task[None]) -> None:
        if not running.cancelled() and (error := running.exception()) is not None:
            log.error("%s: receives no more: %s", ", ".join(self._queues.values()), error)

    async def _handle(self, message: Message) -> None:
        queue = self._queues[message.queue]
        try:
            payload = _payload(message.body)
        except ValueError as error:
            if self._transient:
                log.warning("%s: a message that is none of Celery's is dropped: %s", queue, error)
                return
            raise Undecodable(f"no message of Celery's: {error}") from None
        left_s = seconds_left(payload)
        if left_s > EARLY_S:
            # Longer than the store can delay. Under a key, so that a crash before the deletion adds none.
            later = NewMessage(message.body, min(int(left_s * 1000), DELAY_MS_MAX), headers=dict(message.headers))
            await self._again(message.queue, f"later-{message.id}", later)
            return
        task = asyncio.current_task()
        assert task is not None
        properties = payload["properties"]
        # Of this delivery: a message that comes again is another one to Celery.
        properties["delivery_tag"] = uuid.uuid4().hex
        properties.setdefault("delivery_info", {})["redelivered"] = message.attempt > 1
        delivery = Delivery(queue, payload, self._loop, task)
        self._held.add(delivery)
        try:
            if self._stopping is not None:
                task.cancel()
            else:
                self._arrived(delivery)
                if self._acknowledged:
                    return
            failure = await delivery.settled
        finally:
            self._held.discard(delivery)
        if failure is not None:
            raise failure


def seconds_left(payload: Mapping[str, Any]) -> float:
    """Return how long a task has to wait for its time; 0 without one, or with one that cannot be read."""
    eta = (payload.get("headers") or {}).get("eta")
    if not isinstance(eta, str):
        return 0.0
    try:
        at = datetime.datetime.fromisoformat(eta)
    except ValueError:
        return 0.0
    return at.timestamp() - time.time()  # without a zone it is the local time: Celery's without `enable_utc`


def _payload(body: bytes) -> dict[str, Any]:
    try:
        payload = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise ValueError("it is not JSON") from None
    if not isinstance(payload, dict) or "body" not in payload or not isinstance(payload.get("properties"), dict):
        raise ValueError("it has no body and properties; was it put by something else than Celery?")
    if not isinstance(payload["properties"].setdefault("delivery_info", {}), dict):
        raise ValueError("its delivery_info is no table")
    return payload
