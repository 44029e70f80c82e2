"""The promise of a queue store: put, receive and settle, without any decisions.

A store translates one call into one request and maps the errors. Retry, batching, back-off, lease renewal and metrics
exist once, above it. `Capabilities` declares what a store supports; other calls raise `Unsupported`.

Every method may raise `StoreUnavailable` (try again), `UnknownOutcome` (the request may have been carried out: a
receive may then have leased messages, L6), `StoreFull`, `Closed`, and `BadInput` for arguments out of range.
Cancelling a call leaves its outcome unknown.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Awaitable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol, Self, cast, runtime_checkable

import msgspec

from queuebell.bridge.contract.errors import BadInput, StoreUnavailable, Unsupported
from queuebell.bridge.contract.headers import checked_headers
from queuebell.bridge.contract.wire import Counts as Counts  # noqa: PLC0414 - they are names of this promise
from queuebell.bridge.contract.wire import Depth as Depth  # noqa: PLC0414

BATCH_MAX = 32
BODY_BYTES_MAX = 64 * 1024
VISIBILITY_S_MAX = 604_800
DELAY_MS_MAX = 604_800_000
TTL_S_MAX = 10 * 365 * 86_400
NEVER = -1
PUT_WINDOW_S = 600.0
"""Default of the time for which a store remembers the key of a put, at least."""
NOT_DONE: Final = "storage_unavailable"
"""Code of an item whose request failed while others succeeded: not done, try again (as for `StoreUnavailable`)."""
MAYBE_DONE: Final = "unknown_outcome"
"""Code of an item whose request got no answer while others did: it may have been carried out (`UnknownOutcome`)."""

# No slash, no percent sign and no leading dot: valid in a URL as it is, and never a path of its own.
_key = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~:@=+-]{0,127}", re.ASCII).fullmatch


class Capabilities(msgspec.Struct, frozen=True):
    """What a store supports; the conformance suite tests each claim."""

    complete_receive: bool = True
    """An empty receive proves that nothing is due now, and a batch shorter than requested that nothing is left (L8).

    A store that samples (SQS) may claim this only if it waits long enough for a true answer; see ``receive_s``.
    """
    exact_depth: bool = True
    """The depth counts visible and invisible messages exactly; otherwise approximately or not at all.

    A rough depth never settles pending work: after an empty receive it only causes checks after 15, 30 and 60 s.
    """
    zero_depth: bool = False
    """Without an exact depth: 0 visible and 0 invisible together still prove that the queue is empty."""
    next_visible: bool = True
    """A receive returns when the next invisible message becomes visible."""
    delayed_put: bool = True
    update_body: bool = True
    peek: bool = True
    time_to_live: bool = True
    metadata: bool = True
    pause: bool = True
    batch_max: int = BATCH_MAX
    """The most messages that one receive returns; see `call_max`."""
    body_bytes_max: int = BODY_BYTES_MAX
    resolution_ms: int = 1
    """Granularity of delays and leases; timers that wait for them round up to it (B2)."""
    receive_s: float = 0.0
    """How long a receive may wait in the store by design; added to a listener's time-out R (L3)."""
    short_batch_ends: bool = True
    """With ``complete_receive``: a batch shorter than requested proves that nothing is left, as an empty one does.

    If false (SQS), only an empty answer proves anything.
    """
    ordered: bool = True
    """Messages visible longest come first; otherwise approximately."""
    fenced: bool = True
    """Only a message's newest receipt settles it, and each outcome is true.

    Otherwise a late worker may delete a message that another worker has leased since, and deleting a message that no
    longer exists returns success.
    """
    put_receipts: bool = True
    """The receipt of a put deletes its message until it is received; otherwise the receipt is empty."""
    atomic_put: bool = True
    """Several messages are put together or not at all.

    Otherwise those before a failure may remain, which raises `UnknownOutcome`.
    """
    delay_ms_max: int = DELAY_MS_MAX
    """The longest delay of a put."""
    own_leases: bool = True
    """Each lease lasts as long as requested.

    Otherwise (JetStream) all leases of a queue last as long as the longest ever requested.
    """
    put_once: bool = False
    """The store is a `PutOnceStore`; see `once`."""
    oldest_age: bool = False
    """It reports how long a queue's oldest message has waited (`QueueStore.oldest_ms`, `Counts`)."""
    counts_leased: bool = False
    """`QueueStore.counts` separates leased from delayed messages; those released with a delay are delayed."""
    joins_transaction: bool = False
    """A put can join the caller's transaction (``connection``)."""
    uncounted_release: bool = False
    """A release can undo the count of its receive, as if the message had not been received.

    Otherwise the store counts every receive, so its count is only an upper bound of the attempts.
    """
    visibility_s_max: int = VISIBILITY_S_MAX
    """The longest lease and the longest delay of a release."""
    headers: bool = False
    """Messages carry headers (`queuebell.bridge.contract.headers`)."""

    @property
    def call_max(self) -> int:
        """The most messages of a put, a receive or a list of a settlement: 32, or ``batch_max`` if more."""
        return max(BATCH_MAX, self.batch_max)


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message to put: ``visible_after_ms`` 0 to 604,800,000; ``ttl_s`` 1 upward, or -1 for never.

    A body given as text is encoded as UTF-8. ``headers`` are names and values, 8 KiB in all; names become lower case.
    Raises `BadInput` for invalid headers (`checked_headers`).
    """

    body: bytes
    visible_after_ms: int = 0
    ttl_s: int = NEVER
    headers: dict[str, str] = {}

    if TYPE_CHECKING:

        def __init__(
            self, body: str | bytes, visible_after_ms: int = 0, ttl_s: int = NEVER, headers: Mapping[str, str] = {}
        ) -> None: ...

    def __post_init__(self) -> None:
        body: object = self.body
        if isinstance(body, str):
            msgspec.structs.force_setattr(self, "body", body.encode())
        if self.headers != {}:
            msgspec.structs.force_setattr(self, "headers", checked_headers(self.headers))


Body = str | bytes | NewMessage
"""One message of a put; text is encoded as UTF-8."""


def new_messages(bodies: Sequence[Body], visible_after_ms: int = 0, ttl_s: int = NEVER) -> list[NewMessage]:
    """Return bodies as messages to put; raise `BadInput` for a single body instead of a list.

    ``visible_after_ms`` and ``ttl_s`` apply to bodies that are not a `NewMessage`.
    """
    if isinstance(bodies, str | bytes | NewMessage):
        raise BadInput("bad_parameter", "a put takes a list of bodies, not one body: put(queue, ['...'])")
    return [body if isinstance(body, NewMessage) else NewMessage(body, visible_after_ms, ttl_s) for body in bodies]


class PutReceipt(msgspec.Struct, frozen=True, gc=False):
    """The result of a put for each message, in the order given."""

    id: str
    pop_receipt: str
    visible_in_ms: int


MessageState = Literal["waiting", "later", "running"]
"""Where a message is: waiting to be received, hidden by a delay, or leased by a worker."""


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A received or peeked message; ``pop_receipt`` is empty for a peek.

    ``key`` is the key of `PutOnceStore.put_once`, None without one. ``headers`` have names in lower case; of messages
    from other producers, only headers valid in a `NewMessage` are kept.
    """

    id: str
    pop_receipt: str
    body: bytes
    dequeue_count: int
    inserted_at: datetime.datetime
    expires_at: datetime.datetime | None = None
    key: str | None = None
    headers: dict[str, str] = {}


class Received(msgspec.Struct, frozen=True):
    """The answer to a receive; depth and times are as of just after it leased its messages."""

    messages: list[StoredMessage]
    depth: Depth | None = None
    next_visible_in_ms: int | None = None
    boot: str | None = None
    """The boot of the bridge whose embedded queue this is, if known."""
    blocked: bool = False
    """Something other than emptiness limited this answer: too many leases, locked rows, a group in flight (L8).

    It then proves nothing. The listener receives again after its next settlement, or after a back-off.
    """
    depth_is_least: bool = False
    """``depth`` was counted up to a limit: there may be more messages."""
    next_delayed_in_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    """When the next delayed message becomes visible, leased ones aside; unset if the store cannot or did not check.

    It may be too early, never too late. Leased messages need no timer here: each worker reports the ends of its leases
    (B8, L6, L7), and ``depth`` shows a listener whether all leases are its own.
    """
    counts: Counts | None = None
    """Further counts of the same request; None if it returned only ``depth``."""
    place: str | None = None
    """Which tables of which run of the server it read, as `RoundStore.visible_queues` says it; None if unknown."""


class Claim(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One lease: a message and its receipt."""

    id: str
    pop_receipt: str


class Release(msgspec.Struct, frozen=True):
    """Return a message to the queue, visible after ``after_ms``.

    With ``uncounted`` its dequeue count is as before this lease: no handler has run. Needs
    ``capabilities.uncounted_release``.
    """

    id: str
    pop_receipt: str
    after_ms: int = 0
    uncounted: bool = False


class Extend(msgspec.Struct, frozen=True):
    """Extend a lease to ``visibility_s`` from now, optionally with a new body; its outcome has a new receipt."""

    id: str
    pop_receipt: str
    visibility_s: float
    body: bytes | None = None


class Settlement(msgspec.Struct, frozen=True):
    """Leased messages to delete, release and extend; at most ``capabilities.call_max`` items in each list."""

    delete: Sequence[Claim] = ()
    release: Sequence[Release] = ()
    extend: Sequence[Extend] = ()


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one item; ``code`` is ``pop_receipt_mismatch`` or ``message_not_found`` if it was refused.

    A store that needs several requests may also return `NOT_DONE` or `MAYBE_DONE`: the item is then ``open``.
    """

    ok: bool
    pop_receipt: str | None = None
    code: str | None = None

    @property
    def open(self) -> bool:
        """Whether its request failed, so the item should be tried again: neither done nor refused."""
        return self.code in (NOT_DONE, MAYBE_DONE)


class Settling(msgspec.Struct, frozen=True):
    """The outcomes of a settlement, list by list in the order given."""

    delete: list[Settled]
    release: list[Settled]
    extend: list[Settled]


class AsyncConnection(Protocol):
    """The caller's asynchronous database connection, or a session on one."""

    def execute(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Execute one statement; the arguments depend on the driver."""
        ...


class QueueStore(Protocol):
    """A store of queues. All methods take a checked queue reference.

    ``str()`` returns its address without secrets, for the log. Optional: ``check_client()`` raises
    `ConfigurationError` if the client library is not installed; a bridge's embedded queues have its ``boot``, once it
    is known (O0), and its ``bridge_url``.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this store supports."""
        ...

    def fingerprint(self, queue: str) -> str:
        """Return hex digits that identify this queue of this store, without any secret (B11)."""
        ...

    async def put(
        self, queue: str, bodies: Sequence[Body], *, connection: AsyncConnection | None = None, create: bool = True
    ) -> list[PutReceipt]:
        """Put 1 to ``capabilities.call_max`` messages; create the queue if it is missing.

        With ``create`` False a missing queue raises `QueueNotFound`, which suggests similar names.

        Each message is text, bytes, or a `NewMessage` with a delay or a time to live. With
        ``capabilities.atomic_put`` all or none are put. With a ``connection`` to the store's database they join the
        transaction open on it: its commit makes them visible and wakes listeners, a rollback discards them. An
        unsuitable connection raises `BadInput` and changes nothing.
        """
        ...

    async def receive(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Received:
        """Receive up to ``limit`` visible messages, longest visible first, each leased for ``visibility_s``.

        ``limit`` is 1 to ``capabilities.call_max``; at most ``capabilities.batch_max`` messages are returned. Does not
        wait for messages longer than ``capabilities.receive_s``. An unknown queue raises `QueueNotFound`. A store
        disables every retry of its transport or SDK (L6). ``source`` is the reason for the receive
        (`queuebell.bridge.contract.sources`), for stores that count it.
        """
        ...

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        """Delete, release and extend; every item has its own outcome. An unknown queue raises `QueueNotFound`.

        If several requests are needed, the items of a failed one are `Settled.open`. If all fail alike, that error is
        raised.
        """
        ...

    async def peek(self, queue: str, limit: int = 32) -> list[StoredMessage]:
        """Return up to 32 visible messages without leasing them. An unknown queue raises `QueueNotFound`."""
        ...

    async def depth(self, queue: str) -> Depth | None:
        """Count the messages; return None for a queue that does not exist."""
        ...

    async def counts(self, queue: str) -> Counts | None:
        """Return all counts that the store can provide, None for a queue that does not exist.

        Takes one or two short requests, however long the queue is; counts up to a limit if needed (``at_least``, which
        applies to the age of the oldest message too).
        """
        depth = await self.depth(queue)
        return None if depth is None else Counts(depth.visible, depth.invisible)

    async def exists(self, queue: str) -> bool:
        """Return whether the queue exists; one short request, however long the queue is."""
        return await self.depth(queue) is not None

    async def oldest_ms(self, queue: str) -> int | None:
        """Return for how many milliseconds the message visible longest has waited.

        Returns None if no message is visible, the queue is paused, or it does not exist. One short request, however
        long the queue is. Raises `Unsupported` without ``capabilities.oldest_age``.
        """
        raise Unsupported("this store does not report how long its oldest message has waited")

    async def clear(self, queue: str) -> None:
        """Remove every message. An unknown queue raises `QueueNotFound`."""
        ...

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Pause a queue, or resume it with ``paused`` False; survives restarts.

        A paused queue accepts puts, settlements and peeks. All its messages count as invisible and receives return
        none; leased messages can be settled. Repeating it changes nothing. An unknown queue raises `QueueNotFound`.
        """
        ...

    async def paused(self, queue: str) -> bool:
        """Return whether a queue is paused; False if it does not exist. Raises `Unsupported` without pauses."""
        raise Unsupported("queues of this store cannot be paused")

    async def create(self, queue: str, metadata: dict[str, str] | None = None) -> bool:
        """Create a queue and return whether it is new. Metadata, if given, replaces the existing."""
        ...

    async def delete(self, queue: str) -> None:
        """Delete a queue and its messages; no-op if it does not exist."""
        ...

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """Return references in ascending order that are greater than ``after`` and start with ``prefix``."""
        ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish calls in progress and release all resources; may be called twice."""
        ...


class PutOnceStore(QueueStore, Protocol):
    """A queue store whose puts can be repeated without a second message (`once` checks a store)."""

    async def put_once(
        self, queue: str, key: str, body: Body, *, connection: AsyncConnection | None = None, create: bool = True
    ) -> PutReceipt | None:
        """Put a message under the caller's key (`is_key`); create the queue if it is missing.

        ``connection`` and ``create`` are as for `put`: with a connection the key is part of the caller's transaction,
        and another put of this key waits for its end.

        Returns None if a message with the same body was put under this key before, whatever its delay and time to live;
        then nothing is put. A key is remembered while its message exists, and at least for the store's window (default
        600 s) after its put, even if the message was handled; clearing or deleting the queue forgets it. Of concurrent
        puts exactly one returns a receipt. After an `UnknownOutcome` the put can safely be repeated. Another body under
        a known key raises `BadInput` (``message_conflict``).
        """
        ...


@runtime_checkable
class EachOnceStore(Protocol):
    """A store that can put many messages under keys in one request."""

    async def put_each_once(self, queue: str, messages: Sequence[tuple[str, NewMessage]]) -> int:
        """Put up to ``capabilities.call_max`` messages, each under its key; return how many are new."""
        ...


def named(store: QueueStore, queue: str) -> str | None:
    """Return the fingerprint of a queue; None until a bridge that may use a shared store has reported one (B11)."""
    unnamed = getattr(store, "unnamed", None)
    return None if unnamed is not None and unnamed(queue) else store.fingerprint(queue)


def refuse_headers(messages: Sequence[NewMessage], capabilities: Capabilities) -> None:
    """Raise `Unsupported` if a message has headers and the store does not support them."""
    if not capabilities.headers and any(message.headers for message in messages):
        raise Unsupported(
            "messages of this store carry no headers; nothing was put. Put the data into the body, or use a store with "
            "headers (docs/reference/stores/README.md)"
        )


def refuse_connection(connection: object) -> None:
    """Raise `Unsupported` for a put with a connection to a store without `Capabilities.joins_transaction`."""
    if connection is not None:
        raise Unsupported(
            "only a PostgreSQL store can put within your transaction, on a connection to its own database; nothing was "
            "put. Use an outbox (docs/how-to/outbox.md), or put after your commit and without connection="
        )


def once(store: QueueStore) -> PutOnceStore:
    """Return a store as a `PutOnceStore`.

    Use it as in ``await once(store).put_once(queue, key, body)``.

    Makes no request. Raises `Unsupported` for a store without `put_once`.
    """
    if not store.capabilities.put_once:
        raise Unsupported(
            "this store cannot put a message once under a key: the queue service, PostgreSQL and Redis can"
        )
    return cast(PutOnceStore, store)


def check_settled(queue: str, outcomes: Sequence[Settled]) -> None:
    """Raise `StoreUnavailable` if items of a settlement are open, for callers that do not retry them."""
    failed = [one.code for one in outcomes if one.open]
    if failed:
        raise StoreUnavailable(
            f"{queue}: {len(failed)} of {len(outcomes)} messages could not be settled: {failed[0]}. "
            "They may be delivered again when their leases end"
        )


VISIBLE_QUEUES_MAX: Final = 10_000
"""The most queues that the answer of a round may name."""


class VisibleQueues(NamedTuple):
    """The queues with visible messages, and the `Received.place` of receives that would find these."""

    queues: list[str]
    place: str | None = None


@runtime_checkable
class RoundStore(Protocol):
    """A store that can tell by one question which of its queues have messages (B17)."""

    @property
    def kind(self) -> str:
        """The kind of the store, for metrics."""
        ...

    @property
    def scope(self) -> str:
        """32 hex digits that are equal only for stores with the same address and the same queues (C11)."""
        ...

    def fingerprint(self, queue: str) -> str:
        """See `QueueStore.fingerprint`."""
        ...

    async def visible_queues(self) -> VisibleQueues | None:
        """Return the references of all queues that have a message which a receive could return now, and some others.

        A queue that is missing in the answer had none at some moment after the call; a paused one has none. Returns
        None if there are more than 10,000, or if another user may see other messages. The requests of one call do not
        depend on the number of quiet queues, or little (see each store).
        """
        ...

    async def place(self) -> str | None:
        """Return the `Received.place` that a receive would have now, for who only counts."""
        ...

    async def close(self) -> None:
        """See `QueueStore.close`."""
        ...


def digest_of(*parts: str) -> str:
    """Return 32 hex digits that identify these parts together, for `QueueStore.fingerprint`."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def is_key(text: object) -> bool:
    """Return whether a text is a valid key: 1 to 128 of ``A-Z a-z 0-9 . _ ~ : @ = + -``, a letter or digit first."""
    return isinstance(text, str) and _key(text) is not None
