"""The promise of a queue store: put, receive, settle, and nothing that decides.

An adapter is small and dumb: it translates one call into one request of its store and maps the errors. Retry,
batching, back-off, lease renewal and metrics live once above it. What a store cannot do it says in its
`Capabilities`, and raises `Unsupported` when asked all the same.

Every method may raise `StoreUnavailable` (try again), `UnknownOutcome` (the request may have been carried out: a
receive is then a lease of an unknown holder, L6), `StoreFull`, `Closed`, and `BadInput` for arguments out of range.
Cancelling a call leaves its outcome unknown.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from collections.abc import Awaitable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast, runtime_checkable

import msgspec

from bridge.contract.errors import BadInput, StoreUnavailable, Unsupported
from bridge.contract.headers import checked_headers
from bridge.contract.wire import Counts as Counts  # noqa: PLC0414 - they are names of this promise
from bridge.contract.wire import Depth as Depth  # noqa: PLC0414

BATCH_MAX = 32
BODY_BYTES_MAX = 64 * 1024
VISIBILITY_S_MAX = 604_800
DELAY_MS_MAX = 604_800_000
TTL_S_MAX = 10 * 365 * 86_400
NEVER = -1
PUT_WINDOW_S = 600.0
"""How long the key of a put is remembered at least, unless it is set."""
NOT_DONE: Final = "storage_unavailable"
"""The code of an item whose request failed beside others: nothing was done, try again (as for `StoreUnavailable`)."""
MAYBE_DONE: Final = "unknown_outcome"
"""The code of an item whose request got no answer beside others: it may have been carried out (`UnknownOutcome`)."""

# No slash, no percent sign, and no dot first: what can stand in a URL as it is, and no client takes for a way.
_key = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~:@=+-]{0,127}", re.ASCII).fullmatch


class Capabilities(msgspec.Struct, frozen=True):
    """What a store can say and do; what is claimed here the conformance suite asks."""

    complete_receive: bool = True
    """An empty receive proves that nothing is due now, and a batch shorter than asked that nothing is left (L8).

    A store that samples (SQS) may say so only if it polls long enough for a true answer; ``receive_s`` is that time.
    """
    exact_depth: bool = True
    """Depth counts visible and invisible messages exactly; otherwise approximately or not at all.

    A rough depth never clears a debt: beside an empty answer it only has somebody look again, after 15, 30 and 60 s.
    """
    zero_depth: bool = False
    """Where the depth is not exact: 0 visible and 0 invisible prove together that nothing is there."""
    next_visible: bool = True
    """A receive tells when the next invisible message becomes visible."""
    delayed_put: bool = True
    update_body: bool = True
    peek: bool = True
    time_to_live: bool = True
    metadata: bool = True
    pause: bool = True
    batch_max: int = BATCH_MAX
    """The most messages that one receive brings; see `call_max`."""
    body_bytes_max: int = BODY_BYTES_MAX
    resolution_ms: int = 1
    """Granularity of delays and leases; timers that wait for them round up by it (B2)."""
    receive_s: float = 0.0
    """How long a receive may wait in the store by design; a listener's time-out R is longer by it (L3)."""
    short_batch_ends: bool = True
    """Of a complete store: a batch shorter than asked proves that nothing is left, as an empty one does.

    Where it is false (SQS), only an empty answer proves anything.
    """
    ordered: bool = True
    """What has been visible longest comes first; otherwise roughly so."""
    fenced: bool = True
    """A receipt that is no longer the newest settles nothing, and each settlement tells the truth about its message.

    Otherwise a late holder may delete what another holds by now, and a delete of what is gone passes as done.
    """
    put_receipts: bool = True
    """The receipt of a put deletes its message while nobody has received it; otherwise it is empty."""
    atomic_put: bool = True
    """Several messages go in together or not at all.

    Otherwise those before a failure may stand: it is then an `UnknownOutcome`, as it is for one message.
    """
    delay_ms_max: int = DELAY_MS_MAX
    """The longest delay of a put; a longer one is `Unsupported`."""
    own_leases: bool = True
    """Each lease lasts the time that was asked for it.

    Otherwise (JetStream) all of a queue last as long as the longest that was ever asked for.
    """
    put_once: bool = False
    """It is a `PutOnceStore`; see `once`."""
    oldest_age: bool = False
    """It can tell how long a queue's oldest message has waited (`QueueStore.oldest_ms`), also beside its counts."""
    counts_leased: bool = False
    """`QueueStore.counts` tells the leased apart from the delayed, those given back for later among the latter."""
    joins_transaction: bool = False
    """A put can be part of a transaction of the caller's (``connection``); otherwise it is `Unsupported`."""
    uncounted_release: bool = False
    """A release can take back the count of the receive that it undoes, as if nobody had been handed the message.

    Otherwise the store alone counts, whatever became of a hand-out: its count is no more than an upper bound.
    """
    visibility_s_max: int = VISIBILITY_S_MAX
    """The longest lease and the longest delay of a release; longer ones are `Unsupported`."""
    headers: bool = False
    """Messages carry headers (`bridge.contract.headers`); otherwise a put with any is `Unsupported`."""

    @property
    def call_max(self) -> int:
        """The most messages that a put, a receive or a list of a settlement may name: 32, or ``batch_max`` if more."""
        return max(BATCH_MAX, self.batch_max)


class NewMessage(msgspec.Struct, frozen=True, gc=False):
    """A message to put: ``visible_after_ms`` 0 to 604,800,000; ``ttl_s`` 1 upward, or -1 for never.

    A body given as text is encoded as UTF-8. ``headers`` are names and values beside it, 8 KiB in all; names are kept
    in lower case. Raises `BadInput` for headers that no message can have (`checked_headers`).
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
"""What a put takes for one message; text is encoded as UTF-8."""


def new_messages(bodies: Sequence[Body], visible_after_ms: int = 0, ttl_s: int = NEVER) -> list[NewMessage]:
    """Return bodies as messages to put; raises `BadInput` for one body that stands where a list of them should.

    ``visible_after_ms`` and ``ttl_s`` hold for those that are no `NewMessage`.
    """
    if isinstance(bodies, str | bytes | NewMessage):
        raise BadInput("bad_parameter", "a put takes a list of bodies, not one of them: put(queue, ['...'])")
    return [body if isinstance(body, NewMessage) else NewMessage(body, visible_after_ms, ttl_s) for body in bodies]


class PutReceipt(msgspec.Struct, frozen=True, gc=False):
    """What a put returns for each message, in the order they were given."""

    id: str
    pop_receipt: str
    visible_in_ms: int


class StoredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as the store hands it out; ``pop_receipt`` is empty when it was only looked at.

    ``key`` is what it was put under by `PutOnceStore.put_once`, None for any other. ``headers`` are those it was put
    with, names in lower case; of what other producers than ours wrote, those that `NewMessage` takes as well.
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
    """The answer to a receive; the depth and the times are as of just after it took its messages."""

    messages: list[StoredMessage]
    depth: Depth | None = None
    next_visible_in_ms: int | None = None
    boot: str | None = None
    """The boot of the bridge whose own queue this is, where the store knows it."""
    blocked: bool = False
    """Something else than emptiness limited this answer: too many leased, rows locked, a group in flight (L8).

    It proves nothing then. A settlement of the same listener has it look again at once, or else a back-off.
    """
    depth_is_least: bool = False
    """``depth`` was counted up to a bound: there may be more."""
    next_delayed_in_ms: int | msgspec.UnsetType | None = msgspec.UNSET
    """When the next message that no lease holds becomes visible; unset where the store cannot tell, or did not look.

    Earlier is allowed, later is not. Whoever holds a lease tells of its end (B8, L6, L7), and a message that was
    settled meanwhile needs no look: beside ``depth`` a listener knows whether the leases are all its own.
    """
    counts: Counts | None = None
    """What else the very request told, as of just after it; None where it told no more than ``depth``."""


class Claim(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """One lease: this message under this receipt."""

    id: str
    pop_receipt: str


class Release(msgspec.Struct, frozen=True):
    """Give a message back, visible after ``after_ms``.

    With ``uncounted`` its dequeue count is what it was before this lease: nobody has worked on it. That is for a store
    with ``capabilities.uncounted_release``; on any other it raises `Unsupported`.
    """

    id: str
    pop_receipt: str
    after_ms: int = 0
    uncounted: bool = False


class Extend(msgspec.Struct, frozen=True):
    """Lengthen a lease to ``visibility_s`` from now, optionally with a new body; gives a new receipt."""

    id: str
    pop_receipt: str
    visibility_s: float
    body: bytes | None = None


class Settlement(msgspec.Struct, frozen=True):
    """What to do with messages held; at most ``capabilities.call_max`` items in each list."""

    delete: Sequence[Claim] = ()
    release: Sequence[Release] = ()
    extend: Sequence[Extend] = ()


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The outcome of one item; ``code`` is ``pop_receipt_mismatch`` or ``message_not_found`` where it was refused.

    A store that needs several requests may also answer `NOT_DONE` or `MAYBE_DONE`: the item is ``open`` then.
    """

    ok: bool
    pop_receipt: str | None = None
    code: str | None = None

    @property
    def open(self) -> bool:
        """Whether its request failed, so that it is to be tried again: neither done nor refused."""
        return self.code in (NOT_DONE, MAYBE_DONE)


class Settling(msgspec.Struct, frozen=True):
    """The outcomes of a settlement, list by list in the order given."""

    delete: list[Settled]
    release: list[Settled]
    extend: list[Settled]


class AsyncConnection(Protocol):
    """A connection of the caller's to a database, or a session on one, whose calls are awaited."""

    def execute(self, *args: Any, **kwargs: Any) -> Awaitable[Any]:
        """Carry out one statement; what the arguments are is the driver's."""
        ...


class QueueStore(Protocol):
    """A place where messages wait. All methods take a queue reference that was checked before.

    A listener asks for more where a store has it. Its ``str()`` is its address without secrets, for the log.
    ``check_client()`` raises `ConfigurationError` where its client library is not installed. A bridge's own queues have
    its ``boot``, once that is known (O0), and ``bridge_url``, where it is.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        ...

    def fingerprint(self, queue: str) -> str:
        """Return hex digits that name this very queue of this very store, without any secret (B11)."""
        ...

    async def put(
        self, queue: str, bodies: Sequence[Body], *, connection: AsyncConnection | None = None, create: bool = True
    ) -> list[PutReceipt]:
        """Put 1 to ``capabilities.call_max`` messages, and make the queue where it is missing.

        With ``create`` False nothing is put on a queue that does not exist: `QueueNotFound` says so, and names queues
        whose names are near.

        Each is text, bytes, or a `NewMessage` for one with a delay or a time to live (see `new_messages`). All or
        none go in where ``capabilities.atomic_put`` says so. With a ``connection`` to the store's database they are
        part of the transaction that is open on it: its commit has them there and wakes listeners, a rollback leaves
        nothing. A connection that cannot carry the put raises `BadInput` and changes nothing.
        """
        ...

    async def receive(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Received:
        """Take up to ``limit`` visible messages, longest visible first, each leased for ``visibility_s``.

        ``limit`` is 1 to ``capabilities.call_max``; more than ``capabilities.batch_max`` never come. Never blocks for
        work, but for ``capabilities.receive_s``. An unknown queue raises `QueueNotFound`. The adapter switches off
        every retry that its transport or SDK would do by itself (L6). ``source`` is why the caller looks
        (`bridge.contract.sources`), for a store that counts it; any other ignores it.
        """
        ...

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        """Delete, release and extend; every item has its own outcome. An unknown queue raises `QueueNotFound`.

        Where several requests are needed, one that fails takes no other along: its items are `Settled.open`. What all
        of them failed by is raised.
        """
        ...

    async def peek(self, queue: str, limit: int = 32) -> list[StoredMessage]:
        """Look at up to 32 visible messages without taking them. An unknown queue raises `QueueNotFound`."""
        ...

    async def depth(self, queue: str) -> Depth | None:
        """Count; None for a queue that does not exist."""
        ...

    async def counts(self, queue: str) -> Counts | None:
        """Tell all that the store can of what is in a queue, None for one that does not exist.

        One or two short requests, however long the queue is: where counting all is not that, up to a bound
        (``at_least``). Of the oldest it is no more than that something has waited so long, where ``at_least`` says so.
        """
        depth = await self.depth(queue)
        return None if depth is None else Counts(depth.visible, depth.invisible)

    async def exists(self, queue: str) -> bool:
        """Say whether there is such a queue; one short request, however long the queue is."""
        return await self.depth(queue) is not None

    async def oldest_ms(self, queue: str) -> int | None:
        """Return for how many milliseconds the message that has been visible longest has waited for a receive.

        None where nothing is visible, or there is no such queue. What is leased or delayed does not count until it is
        visible (again), nor does a paused queue. One short request, however long the queue is. Raises `Unsupported`
        without ``capabilities.oldest_age``.
        """
        raise Unsupported("this store cannot tell how long its oldest message has waited")

    async def clear(self, queue: str) -> None:
        """Remove every message. An unknown queue raises `QueueNotFound`."""
        ...

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Give nothing out from now on, or with ``paused`` False give out again; it survives restarts.

        A paused queue takes puts and settles, and can be looked at. All its messages count as invisible and a receive
        finds nothing; what is leased already can be finished. Doing it again changes nothing. An unknown queue raises
        `QueueNotFound`.
        """
        ...

    async def paused(self, queue: str) -> bool:
        """Say whether a queue is paused; False where there is none. Raises `Unsupported` where none can be."""
        raise Unsupported("queues of this store cannot be paused")

    async def create(self, queue: str, metadata: dict[str, str] | None = None) -> bool:
        """Make a queue; say whether it is new. Metadata given replaces what stands."""
        ...

    async def delete(self, queue: str) -> None:
        """Remove a queue and its messages; nothing happens where it does not exist."""
        ...

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """List references in ascending order, those greater than ``after`` that start with ``prefix``."""
        ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish what is under way and let go of everything; may be called twice."""
        ...


class PutOnceStore(QueueStore, Protocol):
    """A queue store in which a put can be asked for again without being carried out again (`once` finds out)."""

    async def put_once(
        self, queue: str, key: str, body: Body, *, connection: AsyncConnection | None = None, create: bool = True
    ) -> PutReceipt | None:
        """Put a message under a key of the caller's (`is_key`), and make the queue where it is missing.

        ``connection`` and ``create`` are as for `put`: with a connection the key stands and falls with the caller's
        transaction, and another put of this key waits for its end.

        None where a message of the same body was put under this key before: nothing was put now, and its delay and its
        time to live do not matter. The key is remembered while that message exists and at least for the store's window
        (600 s unless it is set) after its put, also when the message was handled meanwhile; clearing or deleting the
        queue forgets it. Of several puts at the same time exactly one gets a receipt. After an `UnknownOutcome` it is
        safe to ask again. Another body under a known key raises `BadInput` (``message_conflict``).
        """
        ...


@runtime_checkable
class EachOnceStore(Protocol):
    """What a store has besides that puts many messages under keys in one request."""

    async def put_each_once(self, queue: str, messages: Sequence[tuple[str, NewMessage]]) -> int:
        """Put up to ``capabilities.call_max`` messages, each under its key, and return how many are new."""
        ...


def named(store: QueueStore, queue: str) -> str | None:
    """Return the fingerprint of a queue; None while bridges that may share an engine have told of none (B11)."""
    unnamed = getattr(store, "unnamed", None)
    return None if unnamed is not None and unnamed(queue) else store.fingerprint(queue)


def refuse_headers(messages: Sequence[NewMessage], able: Capabilities) -> None:
    """Raise `Unsupported` where a message has headers that this store could not carry; nothing is lost on the way."""
    if not able.headers and any(message.headers for message in messages):
        raise Unsupported(
            "messages of this store carry no headers; nothing was put: put without, and say it in the body, "
            "or use a store that carries them (docs/stores/README.md)"
        )


def refuse_connection(connection: object) -> None:
    """Raise `Unsupported` where a put to a store without `Capabilities.joins_transaction` names a connection."""
    if connection is not None:
        raise Unsupported(
            "only a store on PostgreSQL can put within a transaction of yours, on a connection to its own database; "
            "nothing was put: put to an outbox in that database (docs/outbox.md), or after your commit and without "
            "connection="
        )


def once(store: QueueStore) -> PutOnceStore:
    """Return the store itself, of a type that has `put_once`.

    As in ``await once(store).put_once(queue, key, body)``. It asks nobody. Raises `Unsupported` for a store that cannot
    put once.
    """
    if not store.capabilities.put_once:
        raise Unsupported(
            "this store cannot put a message once under a key: the queue service, PostgreSQL and Redis can"
        )
    return cast(PutOnceStore, store)


def check_settled(queue: str, outcomes: Sequence[Settled]) -> None:
    """Raise `StoreUnavailable` where items of a settlement are open, for a caller that does not try them again."""
    failed = [one.code for one in outcomes if one.open]
    if failed:
        raise StoreUnavailable(
            f"{queue}: {len(failed)} of {len(outcomes)} messages could not be settled: {failed[0]}. "
            "They may come again when their leases end"
        )


def digest_of(*parts: str) -> str:
    """Return 32 hex digits for what these parts name together; for `QueueStore.fingerprint`."""
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def is_key(text: object) -> bool:
    """Say whether a text can be a key: 1 to 128 of ``A-Z a-z 0-9 . _ ~ : @ = + -``, a letter or a digit first."""
    return isinstance(text, str) and _key(text) is not None
