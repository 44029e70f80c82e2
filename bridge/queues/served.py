"""The promise of a store that a bridge serves through its endpoints (HTTP API, Azure endpoint).

Kept by the embedded store (`queuebell.bridge.queues.embedded.store`), and by a store that several bridges share
(`queuebell.bridge.service.shared_store`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Coroutine, Sequence
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    runtime_checkable,
)

from queuebell.bridge.contract.errors import QueueNotFound, StoreUnavailable
from queuebell.bridge.contract.names import POISON_SUFFIX, parse_reference
from queuebell.bridge.observe.swallowed import swallowing
from queuebell.bridge.queues import limits
from queuebell.bridge.queues.base import (
    AsyncConnection,
    Body,
    Claim,
    Counts,
    Depth,
    MessageState,
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
from queuebell.bridge.queues.checked import missing_from

P = ParamSpec("P")
T = TypeVar("T")

RECORDING: Final = "the record of a queue's events"


class Stamped(NamedTuple, Generic[T]):
    """An answer and the store's time: ``now_ms`` rounded down, ``up_ms`` rounded up (B2).

    Messages are inserted at ``now_ms``; delays, leases and times to live count from ``up_ms``.
    """

    answer: T
    now_ms: int
    up_ms: int


class Browsed(NamedTuple):
    """A page of messages, and where the next page begins; None after the last page."""

    messages: list[StoredMessage]
    following: str | None
    places: Sequence[str] = ()
    """Where a page would begin that follows each of them."""
    due_in_ms: Sequence[int | None] = ()
    """In how many ms each of them becomes visible, where that is still to come: a delay or a lease ends then."""


class Looked(NamedTuple):
    """One message, where it is, and in how many ms it becomes visible; None for one that waits."""

    message: StoredMessage
    state: MessageState
    due_in_ms: int | None


class Discarded(NamedTuple):
    """What a discard did: ``ambiguous`` is a name that is the id of one message and the put id of another."""

    outcome: Literal["deleted", "leased", "missing", "ambiguous"]
    id: str = ""


class NoRoom(StoreUnavailable):
    """Too little memory budget for the ``size`` bytes of bodies that a call would read; nothing was done."""

    def __init__(self, size: int) -> None:
        super().__init__("too many answers are in memory; nothing was done, try again")
        self.size = size


class ReadRoom(Protocol):
    """The memory budget of one call, which the store reserves, in any thread, before it reads bodies."""

    def take(self, size: int) -> bool:
        """Reserve so many bytes instead of those reserved before; if refused, the call has none."""
        ...

    def shrink(self, size: int) -> None:
        """Release all but so many bytes."""
        ...


@runtime_checkable
class Identified(Protocol):
    """A store that can identify itself."""

    async def identity(self) -> str | None:
        """Return hex digits that are the same for every address of this store; None if not permitted.

        A copy of the store may return the same digits as the original. Raises as other calls do.
        """
        ...


class Recorder(Protocol):
    """Records the events of watched queues; its calls are short, and an exception of one costs its events only."""

    @property
    def watched(self) -> Container[str]:
        """The queues; of others it gets nothing, but for a put on a poison queue."""
        ...

    def put(self, queue: str, messages: Sequence[NewMessage], receipts: Sequence[PutReceipt], key: str = "") -> None:
        """Record messages that were put, one of them under a key."""
        ...

    def received(self, queue: str, answer: Received, lease_s: float, source: str | None) -> None:
        """Record a receive."""
        ...

    def settled(self, queue: str, asked: Settlement, settling: Settling) -> None:
        """Record a settlement."""
        ...


class ServedStore(PutOnceStore, Protocol):
    """A queue store that a bridge serves, with at most 32 messages a call.

    Each operation checks its arguments here and is carried out by the subclass. Operations that the store does not
    support raise `Unsupported` and change nothing.
    """

    recorder: Recorder | None = None

    def engine(self, queue: str) -> str | None:
        """Return the queue's fingerprint (B11) in the shared store; None for an embedded queue."""
        ...

    async def open(self) -> None:
        """Open the store; repeated calls are no-ops. Raises `ConfigurationError` if it is unusable."""
        ...

    def failure(self) -> str | None:
        """Return None while the store works, as far as is known, else a line with the cause."""
        ...

    def reclaim(self, queue: str, claims: Sequence[Claim]) -> None:
        """Return received messages that could not be delivered to the queue; does not wait."""
        ...

    def number(self, queue: str) -> int | None:
        """Return a number that identifies the queue, None if it does not exist; a recreated queue has another."""
        ...

    async def browse(
        self,
        queue: str,
        limit: int = 32,
        *,
        after: str = "",
        newest: bool = False,
        state: MessageState = "waiting",
    ) -> Browsed:
        """Return up to 32 messages of one state; those that wait by how long they are visible, others by when they are.

        ``newest`` reverses the order, ``after`` is from an earlier page. A page may be short although another follows.
        Raises `Unsupported` if the store can only peek at the first messages.
        """
        ...

    async def look(self, queue: str, id_or_key: str) -> Looked | None:
        """Return the message with this id, or that was put under this key; None where there is none.

        Raises `Unsupported` if the store cannot find one message.
        """
        ...

    async def discard(self, queue: str, name: str, *, by_id: bool = False) -> Discarded:
        """Delete the message with this id, or that was put under this key, unless a worker has it.

        With ``by_id`` a key counts for nothing. Raises `Unsupported` if the store cannot find one message.
        """
        ...

    # -- for the subclass; arguments are checked ---------------------------------------------------------------------

    async def _do(
        self, operation: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs
    ) -> T:
        """Carry out the operation with this name."""
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
        """Put 1 to 32 messages; cannot join a transaction."""
        refuse_connection(connection)
        messages = new_messages(bodies)
        limits.check_put(queue, messages)
        try:
            receipts = await self._put(queue, messages, create)
        except QueueNotFound:
            raise await missing_from(self, queue) from None
        self._recorded(queue, messages, receipts)
        return receipts

    def _recorded(
        self, queue: str, messages: Sequence[NewMessage], receipts: Sequence[PutReceipt], key: str = ""
    ) -> None:
        recorder = self.recorder
        if recorder is not None and (queue in recorder.watched or queue.endswith(POISON_SUFFIX)):
            with swallowing(RECORDING):  # The messages are stored: an error would have them put twice.
                recorder.put(queue, messages, receipts, key)

    async def put_once(
        self, queue: str, key: str, body: Body, *, connection: AsyncConnection | None = None, create: bool = True
    ) -> PutReceipt | None:
        """Put a message under a key, as `PutOnceStore.put_once`; cannot join a transaction."""
        refuse_connection(connection)
        try:
            return await self.put_once_plainly(queue, key, body, create)
        except QueueNotFound:
            raise await missing_from(self, queue) from None

    async def put_once_plainly(self, queue: str, key: str, body: Body, create: bool) -> PutReceipt | None:
        """Put under a key; `QueueNotFound` suggests no names."""
        limits.check_key(key)
        messages = new_messages([body])
        limits.check_put(queue, messages)
        receipt = await self._put_once(queue, key, messages[0], create)
        if receipt is not None:
            self._recorded(queue, messages, [receipt], key)
        return receipt

    async def receive(
        self,
        queue: str,
        limit: int = 1,
        visibility_s: float = 30.0,
        *,
        source: str | None = None,
        room: ReadRoom | None = None,
    ) -> Received:
        """Receive messages. Raises `NoRoom`, and receives none, if ``room`` is too small for their bodies."""
        return (await self.receive_stamped(queue, limit, visibility_s, source=source, room=room)).answer

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        """Delete, release and extend, up to 32 items in each list."""
        limits.check_settlement(queue, settlement)
        settling = await self._do(ServedStore.settle, queue, settlement)
        if self.recorder is not None and queue in self.recorder.watched:
            with swallowing(RECORDING):
                self.recorder.settled(queue, settlement, settling)
        return settling

    async def peek(self, queue: str, limit: int = 32, *, room: ReadRoom | None = None) -> list[StoredMessage]:
        """Return up to 32 visible messages. Raises `NoRoom`."""
        limits.check_peek(queue, limit)
        return await self._do(ServedStore.peek, queue, limit, room=room)

    async def depth(self, queue: str) -> Depth | None:
        """Count the messages; None for a queue that does not exist."""
        parse_reference(queue)
        return await self._do(ServedStore.depth, queue)

    async def counts(self, queue: str) -> Counts | None:
        """Return all counts."""
        parse_reference(queue)
        return await self._do(ServedStore.counts, queue)

    async def exists(self, queue: str) -> bool:
        """Return whether the queue exists."""
        parse_reference(queue)
        return await self._do(ServedStore.exists, queue)

    async def oldest_ms(self, queue: str) -> int | None:
        """Return how long the oldest message has been visible. Raises `Unsupported` if unknown."""
        parse_reference(queue)
        return await self._do(ServedStore.oldest_ms, queue)

    async def clear(self, queue: str) -> None:
        """Remove every message."""
        parse_reference(queue)
        await self._do(ServedStore.clear, queue)

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Pause a queue, or resume it, which wakes listeners for visible messages."""
        parse_reference(queue)
        await self._do(ServedStore.pause, queue, bool(paused))

    async def paused(self, queue: str) -> bool:
        """Return whether the queue is paused. Raises `Unsupported` without pauses."""
        parse_reference(queue)
        return await self._do(ServedStore.paused, queue)

    async def create(self, queue: str, metadata: dict[str, str] | None = None) -> bool:
        """Create a queue; return whether it is new. Metadata (8 KiB at most) replaces the existing."""
        parse_reference(queue)
        limits.check_metadata(metadata)
        return await self._do(ServedStore.create, queue, metadata)

    async def delete(self, queue: str) -> None:
        """Delete a queue and its messages."""
        parse_reference(queue)
        await self._do(ServedStore.delete, queue)

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """List up to ``limit`` (1 to 10,000) references in ascending order."""
        limits.check_list(prefix, after, limit)
        return await self._do(ServedStore.queues, prefix, after, limit)

    # -- for the Azure endpoint: an unknown queue raises `QueueNotFound` ---------------------------------------------

    async def put_existing(self, queue: str, messages: Sequence[NewMessage]) -> Stamped[list[PutReceipt]]:
        """Put 1 to 32 messages on an existing queue, all or none."""
        limits.check_put(queue, messages)
        stamped = await self._put_existing(queue, messages)
        self._recorded(queue, messages, stamped.answer)
        return stamped

    async def receive_stamped(
        self,
        queue: str,
        limit: int = 1,
        visibility_s: float = 30.0,
        *,
        source: str | None = None,
        room: ReadRoom | None = None,
    ) -> Stamped[Received]:
        """Receive messages; return the time too."""
        limits.check_receive(queue, limit, visibility_s, source)
        stamped = await self._receive(queue, limit, visibility_s, source, room)
        if self.recorder is not None and queue in self.recorder.watched:
            with swallowing(RECORDING):
                self.recorder.received(queue, stamped.answer, visibility_s, source)
        return stamped

    async def update(
        self, queue: str, claim: Claim, visibility_s: float, body: bytes | None = None
    ) -> Stamped[Settled]:
        """Make a message visible ``visibility_s`` (0 to 604,800) from now, optionally with another body."""
        limits.check_update(queue, visibility_s, body)
        return await self._do(ServedStore.update, queue, claim, visibility_s, body)

    async def create_alike(self, queue: str, metadata: dict[str, str]) -> bool | None:
        """Create a queue and return True; False if it exists with the same metadata, None if with other metadata."""
        parse_reference(queue)
        limits.check_metadata(metadata)
        return await self._do(ServedStore.create_alike, queue, metadata)

    async def replace_metadata(self, queue: str, metadata: dict[str, str]) -> None:
        """Set the metadata (8 KiB at most) of an existing queue."""
        parse_reference(queue)
        limits.check_metadata(metadata)
        await self._do(ServedStore.replace_metadata, queue, metadata)

    async def remove(self, queue: str) -> None:
        """Delete an existing queue and its messages."""
        parse_reference(queue)
        await self._do(ServedStore.remove, queue)

    async def metadata_and_depth(self, queue: str) -> tuple[dict[str, str], Depth]:
        """Return metadata and depth of an existing queue."""
        parse_reference(queue)
        return await self._do(ServedStore.metadata_and_depth, queue)

    async def listing(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, dict[str, str]]]:
        """List up to ``limit`` (1 to 10,000) references with their metadata."""
        limits.check_list(prefix, after, limit)
        return await self._do(ServedStore.listing, prefix, after, limit)


@runtime_checkable
class CommitNames(Protocol):
    """A store that publishes a trigger for each put itself, named after its commit.

    A bridge's announcement of the same put has the same ``source``, and as ``id`` the queue, with ``+`` and the
    milliseconds of a delay (C4, B13).
    """

    async def put_named(
        self, queue: str, messages: Sequence[NewMessage], create: bool
    ) -> tuple[list[PutReceipt], str | None]:
        """Put checked messages; return the name of their commit too."""
        ...

    async def put_once_named(
        self, queue: str, key: str, message: NewMessage, create: bool
    ) -> tuple[PutReceipt | None, str | None]:
        """Put under a key; no name if it was put before."""
        ...


@runtime_checkable
class Described(Protocol):
    """A store that returns the metadata of queues, as the Azure endpoint needs."""

    async def metadata(self, queue: str) -> dict[str, str]:
        """Return a queue's metadata; raises `QueueNotFound`."""
        ...

    async def create_alike(self, queue: str, metadata: dict[str, str]) -> bool | None:
        """Create a queue and return True; False if it exists with the same metadata, None if with other metadata."""
        ...

    async def listing(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, dict[str, str]]]:
        """Return references with their metadata, in the order of `QueueStore.queues`."""
        ...
