"""`Publisher` and its blocking twin: tell a bridge about new messages without delaying or failing the put (P4)."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import contextvars
import itertools
import logging
import math
import os
import random
import secrets
import threading
from collections.abc import Sequence
from typing import Self, cast

import msgspec

from queuebell.bridge.brokers.credential import ApiKey
from queuebell.bridge.contract.address import one_text
from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.errors import BadInput, BusUnavailable, ConfigurationError, QueuebellError, WrongThread
from queuebell.bridge.contract.event import CloudQueueWorkDetected, check_event
from queuebell.bridge.contract.names import parse_reference, split_reference
from queuebell.bridge.observe import tracing
from queuebell.bridge.producer.buses import Bus, open_bus
from queuebell.bridge.producer.buses.memory import MemoryBus, Triggerable
from queuebell.bridge.producer.publication import Publication, Sending

log = logging.getLogger("queuebell.publisher")

REQUEST_TIMEOUT_S = 10.0


class PublisherState(msgspec.Struct, frozen=True):
    """Counters of a publisher: events acknowledged, failed tries, events rejected, and events unsent at its close."""

    sent: int = 0
    failures: int = 0
    refused: int = 0
    unsent: int = 0


class Publisher:
    """Sends triggers to a bridge: ``target`` is its URL, a `Bridge` of this process, or any `Bus`.

    A list of ``http://`` addresses are equal bridges, any of which is used; one of ``nats://`` are the servers of one
    cluster. ``source`` names the producer in every event (default: random per publisher). ``api_key`` is for a bridge
    that requires one (default: that of the environment).

    Publishes of a queue merge while another of it is in flight (P3). An unavailable bridge is retried with a jittered
    back-off, 30 s at most. Leaving waits up to ``close_timeout`` seconds for pending triggers, then logs and counts
    them.
    """

    def __init__(
        self,
        target: str | Sequence[str] | Triggerable | Bus,
        *,
        source: str | None = None,
        close_timeout: float = 5.0,
        instance: str | None = None,
        draw: Draw = random.random,
        api_key: ApiKey = None,
    ) -> None:
        if not (math.isfinite(close_timeout) and close_timeout >= 0):
            raise BadInput("bad_parameter", "close_timeout must be a number of seconds, 0 or more")
        instance = instance or secrets.token_hex(16)
        numbers = itertools.count(1)
        self._draw = draw
        self._source = source or f"queuebell:publisher:{instance}"
        # The account and queue are valid: this checks the source.
        check_event(CloudQueueWorkDetected("a", "q", source=self._source))
        self._publication = Publication(self._source, lambda: f"{instance}-{next(numbers)}")
        self._bus = _open(target, api_key)
        self._close_timeout = close_timeout
        self._added = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._thread = 0
        self._closing = False
        self._closers = 0
        self._closed: asyncio.Task[list[CloudQueueWorkDetected]] | None = None
        self._failing = False
        self._sent = self._failures = self._refused = self._unsent = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def publish(
        self,
        account: str,
        queue: str | None = None,
        payload_size: int | None = None,
        *,
        count: int | None = None,
        not_before_ms: int = 0,
        id: str | None = None,  # noqa: A002 - the name that the event has on the wire
        traceparent: str | None = None,
    ) -> None:
        """Publish that messages are visible on a queue, or will be in ``not_before_ms``.

        The queue is one name, as in ``publish("billing/orders", count=3)``, or two, as in
        ``publish("billing", "orders", 3)``; the number of messages is ``count`` or ``payload_size``, by default 1.
        Call it after the put is visible (P1). It returns immediately, whether or not the bridge is available. Pass an
        ``id`` only to repeat a publish that may have been lost (P5). Raises only `BadInput` for arguments out of range
        or after `close`, and `WrongThread`.
        """
        self._add(_event(account, queue, payload_size, count, not_before_ms, id, traceparent))

    async def close(self) -> list[CloudQueueWorkDetected]:
        """Send what is pending, wait up to ``close_timeout`` seconds for it, and return what was not sent.

        May be called several times, also concurrently: all calls return the same. If the last one that waits is
        cancelled, sending ends immediately and the connection is closed.
        """
        if self._closed is None:
            self._closing = True
            self._publication.reset_backoff()
            self._added.set()
            self._closed = asyncio.create_task(self._close(), name="queuebell-publisher's end")
        self._closers += 1
        try:
            return await asyncio.shield(self._closed)
        except asyncio.CancelledError:
            if self._closers == 1:
                if self._task is not None:
                    self._task.cancel()
                # At the end of `asyncio.run` nothing could close it later.
                await asyncio.wait({self._closed})
            raise
        finally:
            self._closers -= 1

    def state(self) -> PublisherState:
        """Return the counters since the publisher was created."""
        return PublisherState(self._sent, self._failures, self._refused, self._unsent)

    def _add(self, event: CloudQueueWorkDetected) -> None:
        if self._closing:
            raise BadInput("bad_parameter", "the publisher is closed")
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._thread = threading.get_ident()
        elif threading.get_ident() != self._thread:
            raise WrongThread("publisher")
        self._publication.add(loop.time(), event)
        self._added.set()
        if self._task is None:
            # It serves every caller, so it does not inherit the context of the first one.
            empty = contextvars.Context()
            self._task = loop.create_task(self._send(), name="queuebell-publisher", context=empty)

    async def _close(self) -> list[CloudQueueWorkDetected]:
        if self._task is not None:
            # Not `timeout`: it would cancel a request whose answer is just arriving.
            await asyncio.wait({self._task}, timeout=self._close_timeout)
            self._task.cancel()
            await asyncio.wait({self._task})
            if not self._task.cancelled() and (bug := self._task.exception()) is not None:
                log.error("unexpected error in the publisher's task", exc_info=bug)
        try:
            await self._bus.close()
        except Exception:
            # What is unsent is returned all the same.
            log.exception("unexpected error while closing a bus; its connection may stay open")
        unsent = self._publication.pending(asyncio.get_running_loop().time())
        self._unsent = len(unsent)
        if unsent:
            # The sweep will find the work (P4); the caller can also publish these later.
            log.warning(
                "closed with %d unsent triggers", len(unsent), extra={"unsent": len(unsent), "source": self._source}
            )
        return unsent

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._added.clear()
            batch = self._publication.take(loop.time())
            if batch:
                await self._send_batch(batch)
                continue
            deadline = self._publication.deadline()
            if self._closing and deadline is None:
                return
            try:
                async with asyncio.timeout_at(deadline):
                    await self._added.wait()
            except TimeoutError:
                continue  # the back-off is over

    async def _send_batch(self, batch: list[Sending]) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._bus.publish([sending.event for sending in batch])
        except asyncio.CancelledError:
            # Unknown outcome: still pending, and returned as unsent. A duplicate only adds a receive (I7).
            self._publication.failed(batch, loop.time(), self._draw)
            raise
        except BadInput as error:
            dropped = self._publication.refused(batch)
            if dropped is not None:
                self._refused += 1
                log.error(
                    "the bridge rejected a trigger: %s",
                    error,
                    extra={"queue": dropped.queue, "id": dropped.id, "code": error.code},
                )
        except Exception as error:
            if not isinstance(error, QueuebellError | TimeoutError):
                # A bug in a bus must not end the publisher.
                log.exception("unexpected error from a bus")
            self._failures += 1
            if not self._failing:  # one line for each change of state
                self._failing = True
                log.warning(
                    "the bridge does not accept triggers; they are kept while this process runs: %s",
                    str(error) or type(error).__name__,
                )
            self._publication.failed(batch, loop.time(), self._draw)
        else:
            self._publication.sent(batch)
            self._sent += len(batch)
            if self._failing:
                self._failing = False
                log.info("the bridge accepts triggers again")


class BlockingPublisher:
    """The twin of `Publisher` for code without an event loop; usable from any thread.

    It has its own thread, so create one after the fork in each process of a forking server. For a `Bridge` of this
    process, create it within that bridge's event loop and close it from another thread.
    """

    def __init__(
        self, target: str | Sequence[str] | Triggerable | Bus, *, source: str | None = None, close_timeout: float = 5.0
    ) -> None:
        # Created here to raise for wrong arguments; it uses no event loop before it is used.
        self._publisher = Publisher(target, source=source, close_timeout=close_timeout)
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closing = False
        self._unsent: list[CloudQueueWorkDetected] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="queuebell-publisher", daemon=True)
        self._thread.start()
        # A daemon thread would lose pending triggers when the interpreter ends.
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(
        self,
        account: str,
        queue: str | None = None,
        payload_size: int | None = None,
        *,
        count: int | None = None,
        not_before_ms: int = 0,
        id: str | None = None,  # noqa: A002 - the name that the event has on the wire
        traceparent: str | None = None,
    ) -> None:
        """Publish as `Publisher.publish` does, from any thread."""
        event = _event(account, queue, payload_size, count, not_before_ms, id, traceparent)
        if os.getpid() != self._pid:
            raise BadInput("bad_parameter", "a blocking publisher does not survive a fork: create one in each process")
        with self._lock:
            if self._closing:
                raise BadInput("bad_parameter", "the publisher is closed")
            if not self._thread.is_alive():
                raise BusUnavailable("the publisher's thread has ended, see the log; nothing was published")
            self._loop.call_soon_threadsafe(self._publisher._add, event)

    def close(self) -> list[CloudQueueWorkDetected]:
        """Close as `Publisher.close` does; blocks for a little over ``close_timeout`` seconds at most."""
        if os.getpid() != self._pid:
            return []  # the thread and its triggers are the parent's; waiting would never end
        with self._lock:
            first = not self._closing
            self._closing = True
        if first:
            atexit.unregister(self.close)
            # After every accepted publish: the loop keeps their order.
            with contextlib.suppress(RuntimeError):  # its thread has ended
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._done.wait()
        return self._unsent

    def state(self) -> PublisherState:
        """Return the counters since the publisher was created."""
        return self._publisher.state()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._unsent = self._loop.run_until_complete(self._publisher.close())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            asyncio.set_event_loop(None)
            self._loop.close()
            self._done.set()


def _event(
    account: str,
    queue: str | None,
    payload_size: int | None,
    count: int | None,
    not_before_ms: int,
    id_: str | None,
    traceparent: str | None,
) -> CloudQueueWorkDetected:
    if queue is None:
        account, queue = split_reference(parse_reference(account))
    elif "/" in str(account):
        raise BadInput(
            "bad_parameter", "publish: give the queue as one name with a slash or as two without; a number is count="
        )
    if payload_size is None:
        payload_size = 1 if count is None else count
    elif count is not None:
        raise BadInput("bad_parameter", "publish: count and payload_size mean the same; give only one of them")
    event = check_event(
        CloudQueueWorkDetected(
            storage_account=account,
            queue_name=queue,
            payload_size=payload_size,
            id=id_,
            not_before_ms=not_before_ms,
            traceparent=traceparent,
        )
    )
    if tracing.on is None or traceparent is not None:
        return event
    return msgspec.structs.replace(event, traceparent=tracing.on.publish(event.queue, event.payload_size))


def _open(given: str | Sequence[str] | Triggerable | Bus, api_key: ApiKey) -> Bus:
    target = cast("str | Triggerable | Bus", one_text(given))
    if isinstance(target, str):
        return open_bus(target, api_key)
    if hasattr(target, "trigger"):
        return MemoryBus(cast(Triggerable, target))
    if not hasattr(target, "publish"):
        raise ConfigurationError(
            f"a publisher's target is a bridge's or a broker's URL, a list of URLs, or a Bridge of this process, not "
            f"{type(target).__name__}"
        )
    return target
