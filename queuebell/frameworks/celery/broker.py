"""What a broker URL leads to: the queue service of a bridge, the store of the tasks, and the bindings."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import difflib
import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from queuebell.bridge.contract.claim import is_claim
from queuebell.bridge.contract.errors import (
    BadInput,
    ConfigurationError,
    NotAllowed,
    QueueNotFound,
    StoreError,
    Unsupported,
)
from queuebell.bridge.contract.names import reference
from queuebell.bridge.producer.blocking import BlockingStore
from queuebell.bridge.producer.publishing_queue import PublishingQueue
from queuebell.bridge.queues.base import BATCH_MAX, Claim, NewMessage, QueueStore, Settlement, StoredMessage
from queuebell.bridge.queues.http.store import HttpStore
from queuebell.bridge.storage.claim_check import ClaimCheck
from queuebell.frameworks.celery.bindings import Binding, BindingNames
from queuebell.frameworks.celery.message import payload_of, seconds_left
from queuebell.frameworks.feed import Accept, Delivery, Feed, FeedOptions, checked, put_under_key, waits_on
from queuebell.frameworks.names import queue_name
from queuebell.listeners.handler import Message, Undecodable

log = logging.getLogger("queuebell.celery")

PREFETCH: Final = 256
"""The most messages of a channel that sets no limit."""
KEPT_S: Final = 5.0
"""For which a producer uses the bindings of an exchange that it has read, unless it finds no queue in them."""
SEEN_S: Final = 3600
"""How often a process renews the bindings of its transient queues."""
TRANSIENT: Final = {"celery": "transient"}
"""The metadata of a transient queue in the bridge, if tasks are in another store: it may have one of a task's name."""
TRANSIENT_LEASE_S: Final = 30.0
"""The lease of a message of a transient queue; it is acknowledged once Celery has it."""
GONE_S: Final = 3 * SEEN_S
"""If a process has neither renewed a binding for this time nor receives from its queue, the queue is removed."""


class TransportOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``broker_transport_options``; times in seconds.

    - ``store``: the URL of another store for the tasks; what workers say to each other stays with the bridge.
    - ``account``: the first half of the queues' names, unless the URL ends with one.
    - ``visibility_timeout``: the lease of a message, renewed until it is acknowledged. Tasks of a killed worker come
      again after this time.
    - ``max_attempts``: how often a message is received before it is dead-lettered, where its worker dies or requeues it
      each time; 0 is without a limit.
    - ``timeout``: of a call to the store.
    - ``claim_check``: the URL of a blob store for bodies above 64 KiB, the same for producers and workers.
    """

    store: str | None = None
    account: str = "celery"
    visibility_timeout: float = 30.0
    max_attempts: int = 20
    timeout: float = 30.0
    claim_check: str | None = None


class Broker:
    """The stores behind a broker URL, for all connections of a process; its methods may be called in any thread."""

    def __init__(self, bridge: str | Sequence[str], api_key: str | None, options: TransportOptions) -> None:
        self.options = options
        self._bridge = bridge
        self._names = BindingNames(options.account)
        keyed = {} if api_key is None else {"api_key": api_key}
        self._own = BlockingStore(bridge, timeout=options.timeout, **keyed)
        self._tasks = (
            self._own if options.store is None else BlockingStore(options.store, bridge=bridge, timeout=options.timeout)
        )
        self._transient: dict[str, bool] = {}
        self.ttl_s: dict[str, int] = {}
        """After how long the messages of a queue expire; queues without a limit are missing."""
        self._tables: dict[str, tuple[float, list[Binding]]] = {}
        self._mine: dict[str, Binding] = {}
        self._feeds: weakref.WeakSet[Feed] = weakref.WeakSet()
        self._renewing_in = 0
        self._cleaned = False

    # -- queues -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Ask the bridge for something; raises what the store raises if it is away."""
        with contextlib.suppress(NotAllowed, QueueNotFound):
            self._own.exists(reference(self.options.account, "celery"))

    def declare(self, queue: str, *, transient: bool, ttl_s: int) -> None:
        """Create a queue unless it is there; a transient one is that of one process. ``ttl_s`` 0 is without an end."""
        self._transient[queue] = transient
        if ttl_s:
            self.ttl_s[queue] = ttl_s
        store, ref = self._at(queue)
        with contextlib.suppress(NotAllowed):  # the key of a producer: its put creates the queue, or is refused
            mark = TRANSIENT if transient and store is not self._tasks else None
            store.run(f"create {ref}", lambda opened, _: opened.create(ref, mark))

    def exists(self, queue: str) -> bool:
        """Return whether a queue exists."""
        store, ref = self._at(queue)
        return store.exists(ref)

    def size(self, queue: str) -> int:
        """Return how many messages wait to be received."""
        store, ref = self._at(queue)
        depth = store.depth(ref)
        return 0 if depth is None else depth.visible

    def purge(self, queue: str) -> int:
        """Remove the messages of a queue that no worker has, and return how many.

        Outside the bridge's own queues delayed ones stay, unless the store counts exactly and no worker has a message.
        So do all of a paused queue while a worker has one.
        """
        store, ref = self._at(queue)
        removed = 0
        with contextlib.suppress(QueueNotFound):
            while some := store.run(f"clear {ref}", partial(_purge, ref)):
                removed += some
        return removed

    def delete(self, queue: str) -> None:
        """Delete a queue, its messages and its bindings."""
        store, ref = self._at(queue)
        self.unbind(each for each in self._read(None) if each.queue == queue)
        store.run(f"delete {ref}", lambda opened, _: opened.delete(ref))
        self._transient.pop(queue, None)
        self.ttl_s.pop(queue, None)

    def put(self, queue: str, body: bytes, delay_s: float, ttl_s: int, key: str) -> None:
        """Put a message; under its key, so that a repeated call adds no second one, where the store can."""
        store, ref = self._at(queue)
        aside = self.options.claim_check
        message = NewMessage(checked(queue, body, aside), max(0, round(delay_s * 1000)), ttl_s)
        store.run(f"put {ref}", lambda opened, publishing: put_under_key(opened, publishing, ref, key, message, aside))

    def get(self, queue: str) -> tuple[StoredMessage, Callable[[bool], bool]] | None:
        """Receive one message, and how to settle it: deleted for True, returned for False."""
        store, ref = self._at(queue)
        try:
            answer = store.receive(ref, 1, self.options.visibility_timeout)
        except QueueNotFound:
            return None
        if not answer.messages:
            return None
        (message,) = answer.messages
        if (blobs := self.options.claim_check) is None or not is_claim(message.body):
            return message, lambda done: store.delete(ref, message) if done else store.release(ref, message)

        async def fetch(*_: object) -> bytes:
            async with ClaimCheck(blobs) as check:
                return await check.fetch(message.body)

        async def drop(*_: object) -> None:
            async with ClaimCheck(blobs) as check:
                await check.drop(message.body)

        def settle(done: bool) -> bool:
            settled = store.delete(ref, message) if done else store.release(ref, message)
            if done and settled:
                store.run(f"remove a blob of {ref}", drop)
            return settled

        return msgspec.structs.replace(message, body=store.run(f"fetch from {ref}", fetch)), settle

    def feed(
        self, queues: Iterable[str], prefetch: int, arrived: Callable[[Delivery], None], *, acknowledged: bool
    ) -> list[Feed]:
        """Receive the messages of some queues from now on, up to ``prefetch`` at a time (0: 256)."""
        feeds = []
        for transient in (False, True):
            refs = {self._at(queue)[1]: queue for queue in queues if self._is_transient(queue) is transient}
            if refs:
                store = self._own if transient else self._tasks
                options = FeedOptions(
                    name="celery",
                    bridge=None if store is self._own else self._bridge,
                    prefetch=prefetch or PREFETCH,
                    visibility_timeout=TRANSIENT_LEASE_S if transient else self.options.visibility_timeout,
                    max_attempts=0 if transient else self.options.max_attempts,
                    acknowledged=acknowledged,
                    claim_check=self.options.claim_check,
                )
                accepts = partial(_accepts_transient if transient else _accepts, self.options.claim_check)
                feeds.append(Feed(store, refs, accepts, arrived, options))
        # Again for each feed: what was registered last comes first, and a feed deletes at the end what was acknowledged
        # last, and returns what waits, before its store is closed.
        atexit.unregister(self.close)
        atexit.register(self.close)
        self._feeds.update(feeds)
        return feeds

    def close(self) -> None:
        """End all feeds."""
        atexit.unregister(self.close)
        for feed in [*self._feeds]:
            feed.end()
        self._feeds.clear()

    def _at(self, queue: str) -> tuple[BlockingStore, str]:
        store = self._own if self._is_transient(queue) else self._tasks
        return store, reference(self.options.account, queue_name(queue))

    def _is_transient(self, queue: str) -> bool:
        known = self._transient.get(queue)
        if known is None:
            # Another process declared it, or nobody: a reply goes where its queue is.
            ref = reference(self.options.account, queue_name(queue))
            known = self._tasks is not self._own and self._is_marked(ref)
            if known:
                self._transient[queue] = True
        return known

    def _is_marked(self, ref: str) -> bool:
        async def marked(opened: QueueStore, _: object) -> bool:
            assert isinstance(opened, HttpStore)
            return await opened.listing(ref, limit=1) == [(ref, TRANSIENT)]

        return self._own.run(f"look for {ref}", marked)

    # -- bindings ---------------------------------------------------------------------------------------------------

    def bind(self, exchange: str, routing_key: str, pattern: str | None, queue: str) -> None:
        """Bind a queue to an exchange, for all processes."""
        transient = self._is_transient(queue)
        seen = int(time.time()) if transient else 0
        binding = Binding(
            exchange=exchange,
            routing_key=routing_key,
            pattern=pattern,
            queue=queue,
            transient=transient,
            seen=seen,
            ttl_s=self.ttl_s.get(queue, 0),
        )
        name = self._names.of(binding)
        self._keep(name, binding)
        self._tables.pop(exchange, None)
        if transient:
            self._mine[name] = binding
            if self._renewing_in != os.getpid():
                self._renewing_in = os.getpid()
                self._own.run("renew bindings", self._start_renewing)
            if not self._cleaned:
                self._cleaned = True
                self._remove_those_of_the_dead()

    def unbind(self, bindings: Iterable[Binding]) -> None:
        """Remove bindings."""
        for binding in [*bindings]:
            name = self._names.of(binding)
            self._mine.pop(name, None)
            self._tables.pop(binding.exchange, None)
            self._remove(name)

    def table(self, exchange: str, *, fresh: bool = False) -> list[Binding]:
        """Return the bindings of an exchange, which may be five seconds old unless ``fresh``."""
        now = time.monotonic()
        until, table = self._tables.get(exchange, (0.0, []))
        if fresh or now >= until:
            table = self._read(exchange)
            self._tables[exchange] = now + KEPT_S, table
        return table

    def _read(self, exchange: str | None) -> list[Binding]:
        prefix = self._names.prefix(exchange)

        async def read(opened: QueueStore, _: object) -> list[tuple[str, dict[str, str]]]:
            assert isinstance(opened, HttpStore)
            return await opened.listing(prefix)

        try:
            rows = self._own.run("read bindings", read)
        except Unsupported as error:
            raise Unsupported(
                f"exchanges, remote control and events need a bridge that keeps queues: {error}"
            ) from None
        found = []
        for _, metadata in rows:
            with contextlib.suppress(msgspec.MsgspecError):
                found.append(msgspec.json.decode(metadata.get("binding", ""), type=Binding))
        self.ttl_s.update((each.queue, each.ttl_s) for each in found if each.ttl_s)
        return found

    def _remove(self, name: str) -> None:
        self._own.run(f"delete {name}", lambda opened, _: opened.delete(name))

    def _keep(self, name: str, binding: Binding) -> None:
        metadata = {"binding": msgspec.json.encode(binding).decode()}
        self._own.run(f"bind {binding.queue}", lambda opened, _: opened.create(name, metadata))

    async def _start_renewing(self, opened: QueueStore, _: object) -> None:
        # Cancelled when the store is closed.
        self._renewing = asyncio.create_task(self._renew(opened), name="celery-bindings")

    async def _renew(self, opened: QueueStore) -> None:
        while True:
            await asyncio.sleep(SEEN_S)
            for name, binding in [*self._mine.items()]:
                kept = msgspec.structs.replace(binding, seen=int(time.time()))
                try:
                    await opened.create(name, {"binding": msgspec.json.encode(kept).decode()})
                except StoreError as error:
                    log.warning("%s: its binding is not renewed before an hour has passed: %s", binding.queue, error)

    def _remove_those_of_the_dead(self) -> None:
        before = time.time() - GONE_S
        for queue in {each.queue for each in self._read(None) if each.transient and each.seen < before}:
            if not self._is_attended(queue):  # the clocks of two machines may differ
                self._transient[queue] = True
                self.delete(queue)

    def _is_attended(self, queue: str) -> bool:
        ref = reference(self.options.account, queue_name(queue))

        async def attended(opened: QueueStore, _: object) -> bool:
            assert isinstance(opened, HttpStore)
            return await opened.sessions(ref) > 0

        return self._own.run(f"look for listeners of {ref}", attended)


async def _purge(ref: str, opened: QueueStore, _: object) -> int:
    """Remove some messages that no worker has, or all if no worker has any, and return how many."""
    counts = await opened.counts(ref)
    if counts is not None and counts.leased == 0 and opened.capabilities.exact_depth:
        await opened.clear(ref)
        return counts.visible + counts.invisible
    if received := (await opened.receive(ref, BATCH_MAX)).messages:
        settling = await opened.settle(ref, Settlement([Claim(each.id, each.pop_receipt) for each in received]))
        return sum([each.ok for each in settling.delete])
    if not isinstance(opened, HttpStore):
        return 0
    with contextlib.suppress(Unsupported):
        delayed = (await opened.browse(ref, "later")).messages
        return sum([bool(await opened.discard(ref, each.id)) for each in delayed])
    return 0


def _accepts(claim_check: str | None, opened: QueueStore, publishing: PublishingQueue | None) -> Accept:
    async def accept(queue: str, message: Message) -> dict[str, Any] | None:
        try:
            payload = payload_of(message.body)
        except ValueError as error:
            raise Undecodable(f"not a Celery message: {error}") from None
        if await waits_on(opened, publishing, message, seconds_left(payload), claim_check):
            return None
        # Of this delivery: a message that comes again is another one to Celery.
        payload["properties"]["delivery_tag"] = uuid.uuid4().hex
        payload["properties"]["delivery_info"]["redelivered"] = message.attempt > 1
        return payload

    return accept


def _accepts_transient(claim_check: str | None, opened: QueueStore, publishing: PublishingQueue | None) -> Accept:
    accept = _accepts(claim_check, opened, publishing)

    async def accept_or_drop(queue: str, message: Message) -> Any:
        try:
            return await accept(queue, message)
        except Undecodable as error:
            log.warning("%s: a message is dropped: %s", queue, error)

    return accept_or_drop


_brokers: dict[tuple[Any, ...], Broker] = {}
_lock = threading.Lock()


def broker_of(bridge: Sequence[str], api_key: str | None, options: Mapping[str, Any]) -> Broker:
    """Return the process's broker for an address and options. Raises `ConfigurationError` for wrong ones."""
    ours = TransportOptions.__struct_fields__
    for name in options:
        if name not in ours and (near := difflib.get_close_matches(name, ours, 1, 0.8)):
            raise ConfigurationError(f"broker_transport_options: there is no {name}; did you mean {near[0]}?")
    known = {name: options[name] for name in ours if options.get(name) is not None}
    chosen = msgspec.convert(known, TransportOptions)
    try:
        reference(chosen.account, "celery")
    except BadInput as error:
        raise ConfigurationError(
            f"broker URL: what follows the address is the account, the first half of the queues' names: {error}"
        ) from None
    place = (tuple(bridge), api_key, chosen)
    with _lock:
        if place not in _brokers:
            _brokers[place] = Broker(bridge, api_key, chosen)
        return _brokers[place]
