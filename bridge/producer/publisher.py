"""The producer's side: say that work was put, without ever holding up or failing the put (P4)."""

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
from types import TracebackType
from typing import Self, cast

import msgspec

from bridge.brokers.credential import ApiKey
from bridge.contract.address import one_text
from bridge.contract.backoff import Draw
from bridge.contract.errors import BadInput, BusUnavailable, QueuebellError, WrongThread
from bridge.contract.event import CloudQueueWorkDetected, check_event
from bridge.contract.names import parse_reference, split_reference
from bridge.observe import tracing
from bridge.producer.buses import Bus, open_bus
from bridge.producer.buses.memory import MemoryBus, Triggerable
from bridge.producer.publication import Publication, Sending

log = logging.getLogger("queuebell.publisher")

REQUEST_TIMEOUT_S = 10.0


class PublisherState(msgspec.Struct, frozen=True):
    """What a publisher has done: events sent and acknowledged, tries that failed, events refused and given up."""

    sent: int = 0
    failures: int = 0
    refused: int = 0
    unsent: int = 0


class Publisher:
    """Brings triggers to a bridge: ``target`` is its URL, a `Bridge` of this process, or any `Bus`.

    A list of ``http://`` addresses names equal bridges, any of which is told; one of ``nats://`` the servers of one
    cluster.

    Publishes of one queue while another is on its way merge into one (P3). A bridge that is away is tried again with
    a jittered back-off, 30 s at most. ``source`` names the producer in every event (default: random per publisher).
    Leaving waits ``close_timeout`` seconds for what is owed, then logs and counts it. ``api_key`` is for a bridge that
    asks for one; without it that of the environment is used.
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
        # An account and a queue that are always right: only the source is asked about here.
        check_event(CloudQueueWorkDetected("a", "q", source=self._source))
        self._publication = Publication(self._source, lambda: f"{instance}-{next(numbers)}")
        self._bus = _bus_of(target, api_key)
        self._close_timeout = close_timeout
        self._something = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._thread = 0
        self._closing = False
        self._closers = 0
        self._closed: asyncio.Task[list[CloudQueueWorkDetected]] | None = None
        self._away = False
        self._sent = self._failures = self._refused = self._unsent = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Say that messages became visible on a queue, or will in ``not_before_ms``.

        The queue is one name, as in ``publish("billing/orders", count=3)``, or two, as in
        ``publish("billing", "orders", 3)``; their number is ``count`` or ``payload_size``, 1 where neither is given.
        Call it after the put is visible (P1). Returns at once, whether or not the bridge can be reached. ``id`` names
        this very publish; give one only to repeat a publish that may have been lost (P5). Raises only `BadInput`
        for arguments out of range, or after `close`, and `WrongThread`.
        """
        self._owe(_traced(_event(account, queue, payload_size, count, not_before_ms, id, traceparent)))

    async def close(self) -> list[CloudQueueWorkDetected]:
        """Send what is owed at once, wait for it ``close_timeout`` seconds, and return what was not sent.

        May be called twice, at the same time too: every call returns the same, at the same end. Where the last one that
        waits is cancelled, sending is given up at once, and the connection is closed all the same.
        """
        if self._closed is None:
            self._closing = True
            self._publication.hurry()
            self._something.set()
            self._closed = asyncio.create_task(self._close(), name="queuebell-publisher's end")
        self._closers += 1
        try:
            return await asyncio.shield(self._closed)
        except asyncio.CancelledError:
            if self._closers == 1:
                if self._task is not None:
                    self._task.cancel()
                # Where `asyncio.run` ends, what is left open now is left for ever.
                await asyncio.wait({self._closed})
            raise
        finally:
            self._closers -= 1

    def state(self) -> PublisherState:
        """Return the counters since the publisher was made."""
        return PublisherState(self._sent, self._failures, self._refused, self._unsent)

    def _owe(self, event: CloudQueueWorkDetected) -> None:
        if self._closing:
            raise BadInput("bad_parameter", "the publisher is closed")
        loop = asyncio.get_running_loop()
        if self._task is None:
            self._thread = threading.get_ident()
        elif threading.get_ident() != self._thread:
            raise WrongThread("publisher")
        self._publication.owe(loop.time(), event)
        self._something.set()
        if self._task is None:
            # It serves every caller: what is current for the first of them is nothing to the others.
            nobodys = contextvars.Context()
            self._task = loop.create_task(self._send(), name="queuebell-publisher", context=nobodys)

    async def _close(self) -> list[CloudQueueWorkDetected]:
        if self._task is not None:
            # Not the task itself: a time-out must not cancel a request whose answer is just coming in.
            await asyncio.wait({self._task}, timeout=self._close_timeout)
            self._task.cancel()
            await asyncio.wait({self._task})
            if not self._task.cancelled() and (bug := self._task.exception()) is not None:
                log.error("unexpected error in the publisher's task", exc_info=bug)
        try:
            await self._bus.close()
        except Exception:
            # What is unsent is told all the same, and nothing more is to be done with this bus.
            log.exception("unexpected error while closing a bus; its connection may stay open")
        unsent = self._publication.owed(asyncio.get_running_loop().time())
        self._unsent = len(unsent)
        if unsent:
            # The sweep will find the work (P4); whoever called may also keep these and publish them later.
            log.warning(
                "closed with %d unsent triggers", len(unsent), extra={"unsent": len(unsent), "source": self._source}
            )
        return unsent

    async def _send(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._something.clear()
            batch = self._publication.take(loop.time())
            if batch:
                await self._carry(batch)
                continue
            deadline = self._publication.deadline()
            if self._closing and deadline is None:
                return
            try:
                async with asyncio.timeout_at(deadline):
                    await self._something.wait()
            except TimeoutError:
                continue  # the back-off is over

    async def _carry(self, batch: list[Sending]) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                await self._bus.publish([sending.event for sending in batch])
        except asyncio.CancelledError:
            # Unknown outcome: owed still, and told as unsent. A duplicate only adds a receive (I7).
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
        except (QueuebellError, TimeoutError) as error:
            self._count_failure(error)
            self._publication.failed(batch, loop.time(), self._draw)
        except Exception as error:
            # A fault of a bus must not end the publisher for good.
            log.exception("unexpected error from a bus")
            self._count_failure(error)
            self._publication.failed(batch, loop.time(), self._draw)
        else:
            self._publication.sent(batch)
            self._sent += len(batch)
            if self._away:
                self._away = False
                log.info("the bridge accepts triggers again")

    def _count_failure(self, error: Exception) -> None:
        self._failures += 1
        if not self._away:  # one line for each change of state
            self._away = True
            log.warning(
                "the bridge does not accept triggers; they are kept while this process runs: %s",
                str(error) or type(error).__name__,
            )


class BlockingPublisher:
    """The twin of `Publisher` for code without an event loop; usable from any thread.

    It has a thread of its own, so each process of a forking server makes one after the fork. To reach a `Bridge` of
    this process, make it within that bridge's event loop and close it from another thread.
    """

    def __init__(
        self, target: str | Sequence[str] | Triggerable | Bus, *, source: str | None = None, close_timeout: float = 5.0
    ) -> None:
        # Made here, so that a wrong argument is told here; it touches no loop before it is used.
        self._publisher = Publisher(target, source=source, close_timeout=close_timeout)
        self._loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closing = False
        self._unsent: list[CloudQueueWorkDetected] = []
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="queuebell-publisher", daemon=True)
        self._thread.start()
        # A daemon thread would be cut off with what it owes when the interpreter ends.
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
        """Do what `Publisher.publish` does, from any thread."""
        event = _traced(_event(account, queue, payload_size, count, not_before_ms, id, traceparent))
        if os.getpid() != self._pid:
            raise BadInput("bad_parameter", "a blocking publisher does not survive a fork: create one in each process")
        with self._lock:
            if self._closing:
                raise BadInput("bad_parameter", "the publisher is closed")
            if not self._thread.is_alive():
                raise BusUnavailable("the publisher's thread has ended, see the log; nothing was published")
            self._loop.call_soon_threadsafe(self._publisher._owe, event)

    def close(self) -> list[CloudQueueWorkDetected]:
        """Do what `Publisher.close` does; blocks ``close_timeout`` seconds at most, and a little."""
        if os.getpid() != self._pid:
            return []  # the thread and all that was owed stayed in the parent; waiting for it would never end
        with self._lock:
            first = not self._closing
            self._closing = True
        if first:
            atexit.unregister(self.close)
            # After every publish that was accepted, for the loop keeps their order.
            with contextlib.suppress(RuntimeError):  # its thread has ended
                self._loop.call_soon_threadsafe(self._loop.stop)
        self._done.wait()
        return self._unsent

    def state(self) -> PublisherState:
        """Return the counters since the publisher was made."""
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
    return check_event(
        CloudQueueWorkDetected(
            storage_account=account,
            queue_name=queue,
            payload_size=payload_size,
            id=id_,
            not_before_ms=not_before_ms,
            traceparent=traceparent,
        )
    )


def _traced(event: CloudQueueWorkDetected) -> CloudQueueWorkDetected:
    """Return an event with the context of a span of its own, where spans are asked for and no put gave one."""
    if tracing.on is None or event.traceparent is not None:
        return event
    return msgspec.structs.replace(event, traceparent=tracing.on.publish(event.queue, event.payload_size))


def _bus_of(given: str | Sequence[str] | Triggerable | Bus, api_key: ApiKey) -> Bus:
    target = cast("str | Triggerable | Bus", one_text(given))
    if isinstance(target, str):
        return open_bus(target, api_key)
    if hasattr(target, "trigger"):
        return MemoryBus(cast(Triggerable, target))
    return target
