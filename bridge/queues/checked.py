"""Common to all stores of other systems: calls are checked first, puts are traced, and similar names are suggested."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from queuebell.bridge.contract.errors import BadInput, Closed, QueuebellError, QueueNotFound, Unsupported
from queuebell.bridge.contract.headers import checked_headers
from queuebell.bridge.contract.names import parse_reference
from queuebell.bridge.contract.trace_context import TRACEPARENT, is_traceparent
from queuebell.bridge.observe import tracing
from queuebell.bridge.observe.tracing import TRACESTATE, Cause
from queuebell.bridge.queues import limits
from queuebell.bridge.queues.base import (
    NEVER,
    AsyncConnection,
    Body,
    Capabilities,
    NewMessage,
    PutOnceStore,
    PutReceipt,
    QueueStore,
    Received,
    Settlement,
    Settling,
    StoredMessage,
    new_messages,
    refuse_connection,
    refuse_headers,
)


class CheckedStore(QueueStore):
    """Checks calls against the limits of all stores and its ``capabilities``; a subclass makes the requests.

    Its errors begin with ``kind``.
    """

    kind: str
    capabilities: Capabilities = Capabilities()
    suggests_names = True
    """Whether a put with ``create=False`` on a missing queue suggests similar names."""
    _closed = False

    async def put(
        self, queue: str, bodies: Sequence[Body], *, connection: AsyncConnection | None = None, create: bool = True
    ) -> list[PutReceipt]:
        """Put messages; create the queue if missing; join the caller's transaction with a ``connection``."""
        messages = new_messages(bodies)
        self._check_put(queue, messages, connection)

        async def put(messages: list[NewMessage]) -> list[PutReceipt]:
            if connection is None:
                return await self._put(queue, messages, create)
            return await self._put_on(connection, queue, messages, create)

        try:
            return await put_traced(self, queue, messages, put)
        except QueueNotFound:
            if create:
                raise
            raise await self._missing(queue) from None

    async def receive(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Received:
        """Receive up to ``limit`` messages, leased for ``visibility_s`` rounded up to the store's resolution."""
        lease_ms = limits.check_receive(queue, limit, visibility_s, source, self.capabilities.call_max)
        self._check_lease(visibility_s)
        return await self._receive(queue, limit, lease_ms)

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        """Delete, release and extend; every item has its own outcome."""
        able = self.capabilities
        limits.check_settlement(queue, settlement, able.call_max)
        if not able.update_body and any(item.body is not None for item in settlement.extend):
            raise Unsupported(f"{self.kind}: the body of a message cannot be changed")
        if not able.uncounted_release and any(item.uncounted for item in settlement.release):
            raise Unsupported(f"{self.kind}: the server counts every receive, and a release cannot undo it")
        for release in settlement.release:
            self._check_lease(release.after_ms / 1000)
        for extend in settlement.extend:
            self._check_lease(extend.visibility_s)
        return await self._settle(queue, settlement)

    async def peek(self, queue: str, limit: int = 32) -> list[StoredMessage]:
        """Return messages without leasing them, if the store supports it."""
        limits.check_peek(queue, limit)
        self._check_open()
        if not self.capabilities.peek:
            raise Unsupported(f"{self.kind}: messages cannot be read without receiving them")
        return await self._peek(queue, limit)

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Pause or resume a queue, if the store supports it."""
        parse_reference(queue)
        self._check_open()
        if not self.capabilities.pause:
            raise Unsupported(f"{self.kind}: a queue cannot be paused; stop its listeners instead")
        await self._pause(queue, paused)

    async def create(self, queue: str, metadata: dict[str, str] | None = None) -> bool:
        """Create a queue; return whether it is new."""
        limits.check_metadata(metadata)
        if metadata and not self.capabilities.metadata:
            raise Unsupported(f"{self.kind}: its queues have no metadata")
        return await self._create(queue, metadata)

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """Return references in ascending order."""
        limits.check_list(prefix, after, limit)
        return await self._queues(prefix, after, limit)

    def _check_put(self, queue: str, messages: Sequence[NewMessage], connection: AsyncConnection | None) -> None:
        able = self.capabilities
        limits.check_put(queue, messages, able.call_max)
        if not able.joins_transaction:
            refuse_connection(connection)
        refuse_headers(messages, able)
        if not able.delayed_put and any(message.visible_after_ms for message in messages):
            raise Unsupported(
                f"{self.kind}: a message cannot be delayed; put it later, or publish a trigger with a delay"
            )
        if any(message.visible_after_ms > able.delay_ms_max for message in messages):
            raise Unsupported(f"{self.kind}: a message can be delayed by {able.delay_ms_max // 1000} s at most")
        if not able.time_to_live and any(message.ttl_s != NEVER for message in messages):
            raise Unsupported(f"{self.kind}: a message cannot have its own time to live")

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    async def _missing(self, queue: str) -> QueueNotFound:
        """Return the error for a put with ``create=False`` on a missing queue."""
        if not self.suggests_names:
            return QueueNotFound(f"there is no queue {queue}")
        return await missing_from(self, queue)

    def _check_lease(self, seconds: float) -> None:
        most = self.capabilities.visibility_s_max
        if seconds > most:
            raise Unsupported(f"{self.kind}: a lease, or the delay of a release, is {most} s at most")

    async def _put(self, queue: str, messages: Sequence[NewMessage], create: bool) -> list[PutReceipt]:
        """Raise `QueueNotFound` if the queue is missing and ``create`` is False."""
        raise NotImplementedError

    async def _put_on(
        self, connection: AsyncConnection, queue: str, messages: Sequence[NewMessage], create: bool
    ) -> list[PutReceipt]:
        raise NotImplementedError

    async def _receive(self, queue: str, limit: int, lease_ms: int) -> Received:
        raise NotImplementedError

    async def _settle(self, queue: str, settlement: Settlement) -> Settling:
        raise NotImplementedError

    async def _peek(self, queue: str, limit: int) -> list[StoredMessage]:
        raise NotImplementedError

    async def _pause(self, queue: str, paused: bool) -> None:
        raise NotImplementedError

    async def _create(self, queue: str, metadata: dict[str, str] | None) -> bool:
        raise NotImplementedError

    async def _queues(self, prefix: str, after: str, limit: int) -> list[str]:
        raise NotImplementedError


CONFLICT = "another body was put under this id; nothing was changed"


class CheckedOnceStore(CheckedStore, PutOnceStore):
    """A `CheckedStore` with puts under keys."""

    async def put_once(
        self, queue: str, key: str, body: Body, *, connection: AsyncConnection | None = None, create: bool = True
    ) -> PutReceipt | None:
        """Put a message under a key; return None if it was put before."""
        limits.check_key(key)
        messages = new_messages([body])
        self._check_put(queue, messages, connection)

        async def put(messages: list[NewMessage]) -> PutReceipt | None:
            (message,) = messages
            return receipt(await self._put_once(queue, key, message, digest(message), create, connection))

        try:
            return await put_traced(self, queue, messages, put)
        except QueueNotFound:
            if create:
                raise
            raise await self._missing(queue) from None

    async def _put_once(
        self,
        queue: str,
        key: str,
        message: NewMessage,
        digest: str,
        create: bool,
        connection: AsyncConnection | None,
    ) -> PutReceipt | bool:
        """Return the receipt of a new message, else whether the message put before has this digest."""
        raise NotImplementedError


def digest(message: NewMessage) -> str:
    """Return the digest of a body as hex digits."""
    return hashlib.sha256(message.body).hexdigest()


def receipt(put: PutReceipt | bool) -> PutReceipt | None:
    """Return the result of `put_once`; raise `BadInput` (``message_conflict``) if another body was put before."""
    if put is False:
        raise BadInput("message_conflict", CONFLICT)
    return None if put is True else put


LISTED_MAX = 1000
NAMED_MAX = 3
ALIKE = 0.8
"""Minimum similarity of two names: one letter in five may differ."""


def similar_names(queue: str, names: Iterable[str]) -> list[str]:
    """Return up to three similar names, the most similar first."""
    return difflib.get_close_matches(queue, names, NAMED_MAX, ALIKE)


def missing(queue: str, names: Iterable[str]) -> QueueNotFound:
    """Return the error for a put with ``create=False`` on a missing queue."""
    found = similar_names(queue, names)
    meant = f" Did you mean {' or '.join(found)}?" if found else ""
    return QueueNotFound(
        f"there is no queue {queue}; nothing was put.{meant} Create it with `queuebell queue create {queue}`, or put "
        "without `--existing` (in Python without create=False)"
    )


async def missing_from(store: QueueStore, queue: str) -> QueueNotFound:
    """Return that error with similar names among up to 1000 of the account, or of all if it has none."""
    names: list[str] = []
    try:
        names = await store.queues(queue.partition("/")[0] + "/", limit=LISTED_MAX)
        names = names or await store.queues(limit=LISTED_MAX)
    except QueuebellError:
        pass  # Suggestions are optional.
    return missing(queue, names)


T = TypeVar("T")


async def put_traced(
    store: QueueStore, queue: str, messages: list[NewMessage], put: Callable[[list[NewMessage]], Awaitable[T]]
) -> T:
    """Put ``messages`` to ``store`` by ``put``, within the span of a send if tracing is on."""
    if tracing.on is None:
        return await put(messages)
    with sending(queue, messages, str(store), carries=store.capabilities.headers) as (carrying, record):
        try:
            receipts = await put(carrying)
        except Unsupported:
            # Only the first answer of a bridge shows that its shared store has no headers; nothing was put.
            receipts = await put(messages)
        record(receipts)
        return receipts


@contextlib.contextmanager
def sending(
    queue: str, messages: list[NewMessage], store: str = "", *, carries: bool
) -> Iterator[tuple[list[NewMessage], Callable[[object], None]]]:
    """Start the span of a send; yield the messages with its context, and a function that records their receipts.

    A put that is part of another send has no span of its own.
    """
    on = tracing.on
    if on is None or on.within_send:
        yield messages, lambda receipts: None
        return
    own = [Cause(message.headers) for message in messages if is_traceparent(message.headers.get(TRACEPARENT))]
    with on.send(queue, own, len(messages), store) as span:

        def record(receipts: object) -> None:
            one = receipts[0] if isinstance(receipts, list) and len(receipts) == 1 else receipts
            if isinstance(one, PutReceipt):
                tracing.note(span, "messaging.message.id", one.id)

        context = on.carried()
        yield [_with(message, context) for message in messages] if carries else messages, record


def _with(message: NewMessage, context: dict[str, str]) -> NewMessage:
    if is_traceparent(message.headers.get(TRACEPARENT)):
        return message
    kept = {name: value for name, value in message.headers.items() if name not in (TRACEPARENT, TRACESTATE)}
    try:
        return msgspec.structs.replace(message, headers=checked_headers({**kept, **context}))
    except BadInput:
        # The headers leave no room for the context: put the message without it.
        return message


_not_xml = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]").search


def xml_text(body: bytes) -> str | None:
    """Return a body as text, None if it is not UTF-8 or contains characters that XML cannot represent."""
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return text if _not_xml(text) is None else None
