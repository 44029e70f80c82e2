"""What every adapter of another system's store has in common: calls are checked before they travel."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec

from bridge.contract.errors import BadInput, Closed, QueuebellError, QueueNotFound, Unsupported
from bridge.contract.headers import checked_headers
from bridge.contract.names import parse_reference
from bridge.contract.trace_context import TRACEPARENT, is_traceparent
from bridge.observe import tracing
from bridge.observe.tracing import TRACESTATE, Cause
from bridge.queues import limits
from bridge.queues.base import (
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
    """Refuses what no store takes, and by its ``capabilities`` what this one cannot do; the requests are a subclass's.

    ``kind`` begins its errors.
    """

    kind: str
    capabilities: Capabilities = Capabilities()
    names_near = True
    """Whether a put on a queue that is missing, and is not to be made, is told which names are near."""
    _closed = False

    async def put(
        self, queue: str, bodies: Sequence[Body], *, connection: AsyncConnection | None = None, create: bool = True
    ) -> list[PutReceipt]:
        """Put messages, and make the queue where it is missing; part of the caller's transaction where that can be."""
        messages = new_messages(bodies)
        self._check_put(queue, messages, connection)

        async def put(messages: list[NewMessage]) -> list[PutReceipt]:
            if connection is None:
                return await self._put(queue, messages, create)
            return await self._put_on(connection, queue, messages, create)

        try:
            return await sent(self, queue, messages, put)
        except QueueNotFound:
            if create:
                raise
            raise await self._missing(queue) from None

    async def receive(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Received:
        """Take up to ``limit`` messages, leased for ``visibility_s`` rounded up to what the store can tell apart."""
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
            raise Unsupported(f"{self.kind}: the server counts every receive, and takes none back")
        for release in settlement.release:
            self._check_lease(release.after_ms / 1000)
        for extend in settlement.extend:
            self._check_lease(extend.visibility_s)
        return await self._settle(queue, settlement)

    async def peek(self, queue: str, limit: int = 32) -> list[StoredMessage]:
        """Look at messages without taking them, where the store can."""
        limits.check_peek(queue, limit)
        self._check_open()
        if not self.capabilities.peek:
            raise Unsupported(f"{self.kind}: messages cannot be looked at without taking them")
        return await self._peek(queue, limit)

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Give nothing out from now on, or give out again, where the store can."""
        parse_reference(queue)
        self._check_open()
        if not self.capabilities.pause:
            raise Unsupported(f"{self.kind}: a queue cannot be paused; stop its listeners instead")
        await self._pause(queue, paused)

    async def create(self, queue: str, metadata: dict[str, str] | None = None) -> bool:
        """Make a queue; say whether it is new."""
        limits.check_metadata(metadata)
        if metadata and not self.capabilities.metadata:
            raise Unsupported(f"{self.kind}: queues have no metadata here")
        return await self._create(queue, metadata)

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """List references in ascending order."""
        limits.check_list(prefix, after, limit)
        return await self._queues(prefix, after, limit)

    def _check_put(self, queue: str, messages: Sequence[NewMessage], connection: AsyncConnection | None) -> None:
        able = self.capabilities
        limits.check_put(queue, messages, able.call_max)
        if not able.joins_transaction:
            refuse_connection(connection)
        refuse_headers(messages, able)
        if not able.delayed_put and any(message.visible_after_ms for message in messages):
            raise Unsupported(f"{self.kind}: a message cannot be put for later; publish the trigger of a later put")
        if any(message.visible_after_ms > able.delay_ms_max for message in messages):
            raise Unsupported(f"{self.kind}: a message can be delayed by {able.delay_ms_max // 1000} s at most")
        if not able.time_to_live and any(message.ttl_s != NEVER for message in messages):
            raise Unsupported(f"{self.kind}: messages have no time to live of their own")

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    async def _missing(self, queue: str) -> QueueNotFound:
        """Return the error for a put on a queue that is missing, and is not to be made."""
        return await missing_from(self, queue) if self.names_near else QueueNotFound(f"there is no queue {queue}")

    def _check_lease(self, seconds: float) -> None:
        most = self.capabilities.visibility_s_max
        if seconds > most:
            raise Unsupported(f"{self.kind}: a lease, or the delay of a release, is {most} s at most")

    async def _put(self, queue: str, messages: Sequence[NewMessage], create: bool) -> list[PutReceipt]:
        """Raise `QueueNotFound` where the queue is missing, and is not to be made."""
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
    """A `CheckedStore` with puts under keys; the requests are a subclass's."""

    async def put_once(
        self, queue: str, key: str, body: Body, *, connection: AsyncConnection | None = None, create: bool = True
    ) -> PutReceipt | None:
        """Put a message under a key unless this very one was before."""
        limits.check_key(key)
        messages = new_messages([body])
        self._check_put(queue, messages, connection)

        async def put(messages: list[NewMessage]) -> PutReceipt | None:
            (message,) = messages
            return receipt(await self._put_once(queue, key, message, digest(message), create, connection))

        try:
            return await sent(self, queue, messages, put)
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
        """Return the receipt where it was put, else whether what was put before has this digest."""
        raise NotImplementedError


def digest(message: NewMessage) -> str:
    """Return what tells one body from another, as hex digits."""
    return hashlib.sha256(message.body).hexdigest()


def receipt(put: PutReceipt | bool) -> PutReceipt | None:
    """Return what `put_once` does; raises `BadInput` (``message_conflict``) where another body was put before."""
    if put is False:
        raise BadInput("message_conflict", CONFLICT)
    return None if put is True else put


LISTED_MAX = 1000
NAMED_MAX = 3
ALIKE = 0.8
"""How much of two names must be the same: one letter in five may differ."""


def near(queue: str, names: Iterable[str]) -> list[str]:
    """Return up to three names that ``queue`` may have been meant to be, the nearest first."""
    return difflib.get_close_matches(queue, names, NAMED_MAX, ALIKE)


def missing(queue: str, names: Iterable[str]) -> QueueNotFound:
    """Return the error for a put with ``create=False`` on a queue that is not there."""
    found = near(queue, names)
    meant = f" Did you mean {' or '.join(found)}?" if found else ""
    return QueueNotFound(
        f"there is no queue {queue}, and nothing was put.{meant} Make it (queuebell queue create), or let the put make "
        "it: leave out create=False, or --existing on the command line"
    )


async def missing_from(store: QueueStore, queue: str) -> QueueNotFound:
    """Return that error with the near ones of up to 1000 names of the same account, or of all where it has none."""
    names: list[str] = []
    try:
        names = await store.queues(queue.partition("/")[0] + "/", limit=LISTED_MAX)
        names = names or await store.queues(limit=LISTED_MAX)
    except QueuebellError:
        pass  # they are a courtesy: what matters is that nothing was put
    return missing(queue, names)


T = TypeVar("T")


async def sent(
    store: QueueStore, queue: str, messages: list[NewMessage], put: Callable[[list[NewMessage]], Awaitable[T]]
) -> T:
    """Carry out ``put`` of ``messages`` to ``store``, within the span of a send where spans are asked for."""
    if tracing.on is None:
        return await put(messages)
    with sending(queue, messages, str(store), carries=store.capabilities.headers) as (carrying, told):
        try:
            receipts = await put(carrying)
        except Unsupported:
            # An engine behind a bridge that carries none, which only its first answer tells: nothing was put.
            receipts = await put(messages)
        told(receipts)
        return receipts


@contextlib.contextmanager
def sending(
    queue: str, messages: list[NewMessage], store: str = "", *, carries: bool
) -> Iterator[tuple[list[NewMessage], Callable[[object], None]]]:
    """Make the span of a send current; give the messages to put, and what is told their receipts.

    One that is part of another put is no span of its own.
    """
    on = tracing.on
    if on is None or on.within_send:
        yield messages, lambda receipts: None
        return
    own = [Cause(message.headers) for message in messages if is_traceparent(message.headers.get(TRACEPARENT))]
    with on.send(queue, own, len(messages), store) as span:

        def told(receipts: object) -> None:
            one = receipts[0] if isinstance(receipts, list) and len(receipts) == 1 else receipts
            if isinstance(one, PutReceipt):
                tracing.note(span, "messaging.message.id", one.id)

        context = on.carried()
        yield [_with(message, context) for message in messages] if carries else messages, told


def _with(message: NewMessage, context: dict[str, str]) -> NewMessage:
    if is_traceparent(message.headers.get(TRACEPARENT)):
        return message
    kept = {name: value for name, value in message.headers.items() if name not in (TRACEPARENT, TRACESTATE)}
    try:
        return msgspec.structs.replace(message, headers=checked_headers({**kept, **context}))
    except BadInput:
        # As large as headers may be: the message goes as it was given, without a context.
        return message
