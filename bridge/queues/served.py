"""What the doors of a bridge (its HTTP API, the Azure endpoint) ask of the queues behind them: this, and nothing else.

Two keep it: the bridge's own store (`bridge.queues.embedded.store`), and an engine that several bridges share
(`bridge.service.shared_store`).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, runtime_checkable

from bridge.contract.errors import QueueNotFound, StoreUnavailable
from bridge.contract.names import parse_reference
from bridge.queues import limits
from bridge.queues.base import (
    AsyncConnection,
    Body,
    Claim,
    Counts,
    Depth,
    NewMessage,
    PutOnceStore,
    PutReceipt,
    Received,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
    new_messages,
    refuse_connection,
)
from bridge.queues.checked import missing_from

P = ParamSpec("P")
T = TypeVar("T")


class Stamped(NamedTuple, Generic[T]):
    """An answer and the store's time when it was made: ``now_ms`` rounded down, ``up_ms`` rounded up (B2).

    What was put is inserted at ``now_ms``; delays, leases and times to live count from ``up_ms``.
    """

    answer: T
    now_ms: int
    up_ms: int


class Browsed(NamedTuple):
    """Some messages, and the place that the following ones begin after; None where there are none."""

    messages: list[StoredMessage]
    following: str | None


class NoRoom(StoreUnavailable):
    """There is no room for the bodies that a call would read, ``size`` bytes; it did nothing."""

    def __init__(self, size: int) -> None:
        super().__init__("there is no room for what would be read; nothing was done, try again")
        self.size = size


class ReadRoom(Protocol):
    """Room for the bodies that one call reads; the store asks for it, in any thread, before it reads a body."""

    def take(self, size: int) -> bool:
        """Take so many bytes instead of what this call has; where there is no room it has none."""
        ...

    def keep(self, size: int) -> None:
        """Give back all but so many bytes."""
        ...


@runtime_checkable
class Identified(Protocol):
    """An engine that says who it is."""

    async def identity(self) -> str | None:
        """Return hex digits that another engine would not return, by whatever address it is reached; None if refused.

        A copy may return the same as what it was made of. Raises as other calls do.
        """
        ...


class ServedStore(PutOnceStore, Protocol):
    """A queue store as a bridge serves it to others, 32 messages a call at most.

    What it cannot do is `Unsupported`, and nothing was done then. The operations stand here once: each checks what it
    was given, and has the store carry it out.
    """

    def engine(self, queue: str) -> str | None:
        """Return the fingerprint (B11) of the engine that holds this queue; None where it is the bridge's own."""
        ...

    async def open(self) -> None:
        """Take the store into use; once is enough. Raises `ConfigurationError` for one that cannot be."""
        ...

    def failure(self) -> str | None:
        """Return None while the store works, as far as is known, else one line that says what is wrong."""
        ...

    def reclaim(self, queue: str, claims: Sequence[Claim]) -> None:
        """Give back what was received and could not be handed over; returns at once."""
        ...

    def made(self, queue: str) -> int | None:
        """Return a queue's own number, None where it does not exist; one that is made again has another."""
        ...

    async def browse(self, queue: str, limit: int = 32, *, after: str = "", newest: bool = False) -> Browsed:
        """Look at up to 32 visible messages: those that have been visible longest first, or with ``newest`` last.

        ``after`` is the place that an earlier answer told. Raises `Unsupported` where a store shows only the first.
        """
        ...

    # -- what a store gives for the rest: everything was checked before ----------------------------------------------

    async def _do(
        self, operation: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs
    ) -> T:
        """Carry out the operation of this name."""
        ...

    async def _put(self, queue: str, messages: Sequence[NewMessage], create: bool) -> list[PutReceipt]: ...

    async def _put_existing(self, queue: str, messages: Sequence[NewMessage]) -> Stamped[list[PutReceipt]]: ...

    async def _put_once(self, queue: str, key: str, message: NewMessage, create: bool) -> PutReceipt | None: ...

    async def _receive(
        self, queue: str, limit: int, visibility_s: float, source: str | None, room: ReadRoom | None
    ) -> Stamped[Received]: ...

    # -- the promise of every store ----------------------------------------------------------------------------------

    async def put(
        self, queue: str, bodies: Sequence[Body], *, connection: AsyncConnection | None = None, create: bool = True
    ) -> list[PutReceipt]:
        """Put 1 to 32 messages; no transaction of the caller's can be joined."""
        refuse_connection(connection)
        messages = new_messages(bodies)
        limits.check_put(queue, messages)
        try:
            return await self._put(queue, messages, create)
        except QueueNotFound:
            raise await missing_from(self, queue) from None

    async def put_once(
        self, queue: str, key: str, body: Body, *, connection: AsyncConnection | None = None, create: bool = True
    ) -> PutReceipt | None:
        """Put a message under a key unless this very one was before; no transaction of the caller's can be joined."""
        refuse_connection(connection)
        try:
            return await self.put_once_plainly(queue, key, body, create)
        except QueueNotFound:
            raise await missing_from(self, queue) from None

    async def put_once_plainly(self, queue: str, key: str, body: Body, create: bool) -> PutReceipt | None:
        """Put under a key; `QueueNotFound` costs no look for names that are near."""
        limits.check_key(key)
        messages = new_messages([body])
        limits.check_put(queue, messages)
        return await self._put_once(queue, key, messages[0], create)

    async def receive(
        self,
        queue: str,
        limit: int = 1,
        visibility_s: float = 30.0,
        *,
        source: str | None = None,
        room: ReadRoom | None = None,
    ) -> Received:
        """Take messages. Raises `NoRoom`, and takes nothing, where ``room`` has none for their bodies."""
        return (await self.receive_stamped(queue, limit, visibility_s, source=source, room=room)).answer

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        """Delete, release and extend, up to 32 items in each list."""
        limits.check_settlement(queue, settlement)
        return await self._do(ServedStore.settle, queue, settlement)

    async def peek(self, queue: str, limit: int = 32, *, room: ReadRoom | None = None) -> list[StoredMessage]:
        """Look at up to 32 visible messages. Raises `NoRoom` likewise."""
        limits.check_peek(queue, limit)
        return await self._do(ServedStore.peek, queue, limit, room=room)

    async def depth(self, queue: str) -> Depth | None:
        """Count; None for a queue that does not exist."""
        parse_reference(queue)
        return await self._do(ServedStore.depth, queue)

    async def counts(self, queue: str) -> Counts | None:
        """Tell all that is counted."""
        parse_reference(queue)
        return await self._do(ServedStore.counts, queue)

    async def exists(self, queue: str) -> bool:
        """Say whether there is such a queue."""
        parse_reference(queue)
        return await self._do(ServedStore.exists, queue)

    async def oldest_ms(self, queue: str) -> int | None:
        """Tell how long the oldest has been visible. Raises `Unsupported` where that is not known."""
        parse_reference(queue)
        return await self._do(ServedStore.oldest_ms, queue)

    async def clear(self, queue: str) -> None:
        """Remove every message."""
        parse_reference(queue)
        await self._do(ServedStore.clear, queue)

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Give nothing out from now on, or give out again, which wakes whoever waits for what is visible."""
        parse_reference(queue)
        await self._do(ServedStore.pause, queue, bool(paused))

    async def paused(self, queue: str) -> bool:
        """Say whether it is paused. Raises `Unsupported` where a queue cannot be."""
        parse_reference(queue)
        return await self._do(ServedStore.paused, queue)

    async def create(self, queue: str, metadata: dict[str, str] | None = None) -> bool:
        """Make a queue and say whether it is new; metadata (8 KiB at most) replaces what stands."""
        parse_reference(queue)
        limits.check_metadata(metadata)
        return await self._do(ServedStore.create, queue, metadata)

    async def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        parse_reference(queue)
        await self._do(ServedStore.delete, queue)

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """List up to ``limit`` (1 to 10,000) references in ascending order."""
        limits.check_list(prefix, after, limit)
        return await self._do(ServedStore.queues, prefix, after, limit)

    # -- for a server that makes no queue unasked, and tells times: an unknown queue raises `QueueNotFound` ---------

    async def put_existing(self, queue: str, messages: Sequence[NewMessage]) -> Stamped[list[PutReceipt]]:
        """Put 1 to 32 messages on a queue that exists, all or none."""
        limits.check_put(queue, messages)
        return await self._put_existing(queue, messages)

    async def receive_stamped(
        self,
        queue: str,
        limit: int = 1,
        visibility_s: float = 30.0,
        *,
        source: str | None = None,
        room: ReadRoom | None = None,
    ) -> Stamped[Received]:
        """Take messages, and say at what time."""
        limits.check_receive(queue, limit, visibility_s, source)
        return await self._receive(queue, limit, visibility_s, source, room)

    async def update(
        self, queue: str, claim: Claim, visibility_s: float, body: bytes | None = None
    ) -> Stamped[Settled]:
        """Have a message visible ``visibility_s`` (0 to 604800) from now, perhaps with another body."""
        limits.check_update(queue, visibility_s, body)
        return await self._do(ServedStore.update, queue, claim, visibility_s, body)

    async def create_alike(self, queue: str, metadata: dict[str, str]) -> bool | None:
        """Make a queue: True; False where it stands with the same metadata, None where it stands with other."""
        parse_reference(queue)
        limits.check_metadata(metadata)
        return await self._do(ServedStore.create_alike, queue, metadata)

    async def replace_metadata(self, queue: str, metadata: dict[str, str]) -> None:
        """Set the metadata (8 KiB at most) of a queue that exists."""
        parse_reference(queue)
        limits.check_metadata(metadata)
        await self._do(ServedStore.replace_metadata, queue, metadata)

    async def remove(self, queue: str) -> None:
        """Remove a queue that exists, and its messages."""
        parse_reference(queue)
        await self._do(ServedStore.remove, queue)

    async def metadata_and_depth(self, queue: str) -> tuple[dict[str, str], Depth]:
        """Return metadata and depth of a queue that exists."""
        parse_reference(queue)
        return await self._do(ServedStore.metadata_and_depth, queue)

    async def listing(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, dict[str, str]]]:
        """List up to ``limit`` (1 to 10,000) references with their metadata."""
        limits.check_list(prefix, after, limit)
        return await self._do(ServedStore.listing, prefix, after, limit)


@runtime_checkable
class Naming(Protocol):
    """What an engine has besides that says each put by its own voice, under a name: who puts says it under the same.

    The name is that of a commit: a bridge's announcement has it for ``source``, and for ``id`` the queue, followed by
    ``+`` and the milliseconds where it is delayed (C4, B13).
    """

    async def put_named(
        self, queue: str, messages: Sequence[NewMessage], create: bool
    ) -> tuple[list[PutReceipt], str | None]:
        """Put messages that were checked, and say what names their commit."""
        ...

    async def put_once_named(
        self, queue: str, key: str, message: NewMessage, create: bool
    ) -> tuple[PutReceipt | None, str | None]:
        """Put likewise under a key; no name where it was put before."""
        ...


@runtime_checkable
class Described(Protocol):
    """What an engine needs besides for the Azure endpoint: it tells what `create` was given."""

    async def metadata(self, queue: str) -> dict[str, str]:
        """Return a queue's metadata; raises `QueueNotFound`."""
        ...

    async def create_alike(self, queue: str, metadata: dict[str, str]) -> bool | None:
        """Make a queue: True; False where it stands with the same metadata, None where it stands with other."""
        ...

    async def listing(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, dict[str, str]]]:
        """List references with their metadata, as `QueueStore.queues` lists them."""
        ...
