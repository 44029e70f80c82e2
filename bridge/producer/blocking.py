"""`BlockingStore`: a store for code without an event loop, such as scripts, Flask, Celery tasks and threads."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import math
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Self, TypeVar

import msgspec

from queuebell.bridge.contract.address import is_http, one_text
from queuebell.bridge.contract.errors import BadInput, Closed, StoreUnavailable, UnknownOutcome
from queuebell.bridge.producer.publisher import Publisher
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues import open_store
from queuebell.bridge.queues.base import (
    NEVER,
    Body,
    Claim,
    Depth,
    Extend,
    PutReceipt,
    QueueStore,
    Received,
    Release,
    Settled,
    Settlement,
    StoredMessage,
    new_messages,
    once,
)

T = TypeVar("T")

SLACK_S: Final = 5.0
"""Added to the time-out of a call, for an event loop that reports it late."""
CLOSE_S: Final = 10.0
"""For closing each part; a publisher waits half of it for pending triggers."""


class BlockingStore:
    """The twin of `open_store` for code without an event loop; one serves all threads of a program.

    ``store`` is a store's URL; options are those of `open_store`. With ``bridge``, a bridge's URL, every put is
    published there (`PublishingQueue`), which the bridge's embedded queues do not need. A call ends with
    `UnknownOutcome` shortly after ``timeout`` seconds; Ctrl-C and other exceptions within it cancel it. It raises what
    the store raises; a wrong address raises immediately. In a thread that runs an event loop it raises `BadInput`: use
    `open_store` there.

    The first call starts a daemon thread with an event loop, which ends with `close` or the program. A process forked
    later (not during another thread's first call, which imports) opens the store again, but a ``memory:`` store is
    empty there, and the file of a ``sqlite:`` one remains its parent's (`StoreOwned`).
    """

    def __init__(
        self,
        store: str | Sequence[str],
        *,
        bridge: str | Sequence[str] | None = None,
        timeout: float = 30.0,
        **options: Any,
    ) -> None:
        if not (math.isfinite(timeout) and timeout > 0):
            raise BadInput("bad_parameter", "timeout must be a number of seconds above 0")
        if not isinstance(one_text(store), str):
            raise TypeError("store: must be a URL; a BlockingStore opens it in its own event loop")
        self._timeout = timeout
        self._make: Callable[[], _Life] = lambda: _Life(store, bridge, options)
        self._lock = threading.Lock()
        self._life: _Life | None = self._make()  # raises for a wrong address; uses no loop yet
        self._closed = False
        _stores.add(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def put(
        self,
        queue: str,
        bodies: Sequence[Body],
        *,
        visible_after_ms: int = 0,
        ttl_s: int = NEVER,
        create: bool = True,
    ) -> list[PutReceipt]:
        """Put messages: `PublishingQueue.put` with a bridge, the store's `put` without one."""

        async def put(life: _Life) -> list[PutReceipt]:
            if life.queue is not None:
                return await life.queue.put(
                    queue, bodies, visible_after_ms=visible_after_ms, ttl_s=ttl_s, create=create
                )
            return await life.store.put(queue, new_messages(bodies, visible_after_ms, ttl_s), create=create)

        return self._ask("put", queue, put)

    def put_once(self, queue: str, key: str, body: Body, *, create: bool = True) -> PutReceipt | None:
        """Put a message once under a key of your own; None if it was put before (`PutOnceStore`)."""

        async def put(life: _Life) -> PutReceipt | None:
            if life.queue is not None:
                return await life.queue.put_once(queue, key, body, patience=self._timeout, create=create)
            return await once(life.store).put_once(queue, key, body, create=create)

        return self._ask("put_once", queue, put)

    def publish(self, queue: str, count: int = 1, *, not_before_ms: int = 0) -> None:
        """Publish messages that others put, as `Publisher.publish`. Raises `BadInput` without a bridge."""

        async def publish(life: _Life) -> None:
            if life.publisher is None:
                raise BadInput("bad_parameter", "publish: needs a bridge: BlockingStore(store, bridge='http://...')")
            await life.publisher.publish(queue, count=count, not_before_ms=not_before_ms)

        self._ask("publish", queue, publish)

    def receive(self, queue: str, limit: int = 1, visibility_s: float = 30.0) -> Received:
        """Receive up to ``limit`` visible messages, leased for ``visibility_s``; does not wait for messages."""
        return self._ask("receive", queue, lambda life: life.store.receive(queue, limit, visibility_s))

    def delete(self, queue: str, message: StoredMessage) -> bool:
        """Delete a received message; False if its lease was lost, so another worker may have it."""
        claim = Claim(message.id, message.pop_receipt)
        return self._settle("delete", queue, Settlement(delete=[claim])).ok

    def release(self, queue: str, message: StoredMessage, after_ms: int = 0) -> bool:
        """Return a message to the queue, visible after ``after_ms``; False if its lease was lost."""
        release = Release(message.id, message.pop_receipt, after_ms)
        return self._settle("release", queue, Settlement(release=[release])).ok

    def extend(self, queue: str, message: StoredMessage, visibility_s: float) -> StoredMessage | None:
        """Extend a lease to ``visibility_s`` from now; None if it was lost.

        Settle the returned message from now on, not the one passed.
        """
        extend = Extend(message.id, message.pop_receipt, visibility_s)
        settled = self._settle("extend", queue, Settlement(extend=[extend]))
        if not settled.ok:
            return None
        return msgspec.structs.replace(message, pop_receipt=settled.pop_receipt or message.pop_receipt)

    def peek(self, queue: str, limit: int = 32) -> list[StoredMessage]:
        """Return visible messages without leasing them."""
        return self._ask("peek", queue, lambda life: life.store.peek(queue, limit))

    def depth(self, queue: str) -> Depth | None:
        """Return the queue's depth; None if it does not exist."""
        return self._ask("depth", queue, lambda life: life.store.depth(queue))

    def exists(self, queue: str) -> bool:
        """Return whether the queue exists."""
        return self._ask("exists", queue, lambda life: life.store.exists(queue))

    def oldest_ms(self, queue: str) -> int | None:
        """Return the longest time that a visible message has waited, in milliseconds; None without one."""
        return self._ask("oldest_ms", queue, lambda life: life.store.oldest_ms(queue))

    def run(self, what: str, call: Callable[[QueueStore, PublishingQueue | None], Awaitable[T]]) -> T:
        """Run ``call`` in the event loop of the store, for what has no method here, and return its result.

        It is given the open store, and with ``bridge`` the queue that publishes each put. ``what`` names it in errors.
        Tasks that it starts go on until `close`, which cancels them. Raises as other calls do.
        """
        return self._ask(what, "", lambda life: call(life.store, life.queue))

    def close(self) -> None:
        """Finish calls in progress, within the time-out, and close everything; may be called twice."""
        self._end(self._timeout)

    def _settle(self, what: str, queue: str, settlement: Settlement) -> Settled:
        settling = self._ask(what, queue, lambda life: life.store.settle(queue, settlement))
        (settled,) = [*settling.delete, *settling.release, *settling.extend]
        return settled

    def _ask(self, what: str, queue: str, call: Callable[[_Life], Awaitable[T]]) -> T:
        _refuse_loop(what)
        with self._lock:
            if self._closed:
                raise Closed("the store is closed")
            if self._life is None:
                self._life = self._make()
            if self._life.begin():
                atexit.register(self._end, 0.0)  # without waiting for calls
            future = self._life.submit(f"{what} {queue}".rstrip(), self._timeout, call)
        try:
            return future.result(self._timeout + SLACK_S)
        except TimeoutError:
            raise UnknownOutcome(f"{what} {queue}: the event loop of the store does not answer") from None
        except concurrent.futures.CancelledError:
            raise UnknownOutcome(f"{what} {queue}: the store was closed meanwhile; it may have been done") from None
        finally:
            future.cancel()  # also if this thread was interrupted

    def _end(self, patience: float) -> None:
        with self._lock:
            first, self._closed = not self._closed, True
            life = self._life
        if life is None or not life.begun:
            return
        if patience:
            _refuse_loop("close")
        if first:
            atexit.unregister(self._end)
        life.end(patience)

    def _forked(self) -> None:
        """Start again in a forked process: it has no threads, and must not use its parent's sockets."""
        self._lock = threading.Lock()
        if self._life is not None and self._life.begun:
            _parents.append(self._life)
            self._life = None


class _Life:
    """A thread with an event loop, and what is open there."""

    def __init__(self, store: str | Sequence[str], bridge: str | Sequence[str] | None, options: dict[str, Any]) -> None:
        self.store = open_store(store, **options)
        self.publisher = (
            None
            if bridge is None
            else Publisher(bridge, api_key=options.get("api_key") if is_http(one_text(bridge)) else None)
        )
        self.queue = None if self.publisher is None else PublishingQueue(self.store, self.publisher)
        self.begun = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready = threading.Event()
        self._calls: set[asyncio.Task[Any]] = set()
        self._patience = 0.0

    def begin(self) -> bool:
        """Start the thread unless it was started; return whether it was not."""
        if self.begun:
            return False
        self._ready.clear()
        self._thread = threading.Thread(target=self._run, name="queuebell-store", daemon=True)
        self._thread.start()
        self._ready.wait()
        self.begun = self._loop is not None
        if not self.begun:
            raise StoreUnavailable("the store's thread could not start its event loop; nothing was done")
        return True

    def submit(self, what: str, timeout: float, call: Callable[[_Life], Awaitable[T]]) -> concurrent.futures.Future[T]:
        """Run a call in the loop for up to ``timeout`` seconds.

        Raises `StoreUnavailable` if the thread has ended, for example by a `SystemExit` in a callback.
        """
        if not self._thread.is_alive():
            raise StoreUnavailable(f"{what}: the store's thread has ended, see the log; nothing was done")

        async def run() -> T:
            task = asyncio.current_task()
            assert task is not None
            task.set_name(what)
            self._calls.add(task)
            try:
                async with asyncio.timeout(timeout):
                    return await call(self)
            except TimeoutError:
                raise UnknownOutcome(f"{what}: no answer within {timeout:g} s; it may have been done") from None
            finally:
                self._calls.discard(task)

        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(run(), self._loop)

    def end(self, patience: float) -> None:
        """Wait up to ``patience`` seconds for calls in progress, close everything, and wait for the thread."""

        def stop() -> None:
            self._patience = patience
            self._stop.set()

        assert self._loop is not None
        with contextlib.suppress(RuntimeError):  # the loop is closed: it was ended before
            self._loop.call_soon_threadsafe(stop)
        self._thread.join(patience + 3 * CLOSE_S + SLACK_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        finally:
            self._ready.set()

    async def _live(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        await self._stop.wait()
        if self._calls and self._patience:
            await asyncio.wait(self._calls, timeout=self._patience)
        for task in self._calls:
            task.cancel()
        for part in (self.queue, self.publisher, self.store):
            if part is not None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(CLOSE_S):
                        await part.close()


_stores: weakref.WeakSet[BlockingStore] = weakref.WeakSet()
_parents: list[_Life] = []
"""Stores of the parent process: kept, because nothing of them may be closed here."""


def _after_fork() -> None:
    for store in list(_stores):
        store._forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _refuse_loop(what: str) -> None:
    """Raise `BadInput` if this thread runs an event loop, which waiting would block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise BadInput(
        "bad_parameter",
        f"BlockingStore.{what}: this thread runs an event loop, which would block; use `await "
        f"store.{what}(...)` with a store of open_store there, or call this with asyncio.to_thread",
    )
