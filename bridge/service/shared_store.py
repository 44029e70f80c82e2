"""Serve the queues of a shared store (PostgreSQL, Redis), which several bridges may use, over the queue API.

The store acknowledges a put, then this bridge triggers the queue (P1). Other users of the store learn of it from the
store's notifications or a broker. The scheduler treats these queues as external: every wake request causes a receive,
and sweeps run.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar

import msgspec

from queuebell.bridge.contract.errors import (
    ConfigurationError,
    Overloaded,
    QueuebellError,
    QueueNotFound,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from queuebell.bridge.contract.event import NOT_BEFORE_MS_MAX, CloudQueueWorkDetected, rounded_up
from queuebell.bridge.contract.headers import bytes_of
from queuebell.bridge.contract.names import split_reference
from queuebell.bridge.contract.trace_context import Traces, carried, several
from queuebell.bridge.observe import tracing
from queuebell.bridge.observe.swallowed import swallow, unless_cancelled
from queuebell.bridge.queues.base import (
    BATCH_MAX,
    AsyncConnection,
    Body,
    Capabilities,
    Claim,
    Depth,
    Extend,
    MessageState,
    NewMessage,
    PutOnceStore,
    PutReceipt,
    QueueStore,
    Received,
    Release,
    RoundStore,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
    check_settled,
    digest_of,
    once,
)
from queuebell.bridge.queues.checked import CheckedStore
from queuebell.bridge.queues.served import (
    Browsed,
    CommitNames,
    Described,
    Discarded,
    Identified,
    Looked,
    NoRoom,
    ReadRoom,
    ServedStore,
    Stamped,
)

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("queuebell.bridge")

ENGINE: Final = "the store behind the queue API"
ENDS_S: Final = 10.0
"""Time for which closing waits for calls in progress."""
AGAIN_S: Final = 2.0
"""Interval of checks after a failure: a bridge that is not ready gets no requests that could show a recovery."""
SERVER_TIMEOUT_MS: Final = 60_000
"""Time in which a store may still carry out a put whose answer was lost (P2)."""
CHECKS_PER_PERIOD: Final = frozenset(
    ("peek", "depth", "counts", "exists", "oldest_ms", "paused", "queues", "listing", "metadata_and_depth")
)
"""Read-only operations: cancelling the caller cancels them."""
OF_DESCRIBED: Final = frozenset(("create_alike", "listing"))


class SharedStore(ServedStore):
    """Serves the queues of ``engine``, and closes it.

    ``on_put`` gets the triggers of every put that was acknowledged or may have been carried out, before the caller gets
    its answer. ``on_delete`` gets each deleted queue. Cancelling a caller does not cancel its call; messages received
    then are returned. If ``is_watched``, a failed store is checked until it answers. ``wall`` (seconds since 1970)
    dates the answers of the Azure endpoint.
    """

    def __init__(
        self,
        engine: QueueStore,
        on_put: Callable[[Sequence[CloudQueueWorkDetected]], object],
        on_delete: Callable[[str], object],
        wall: Callable[[], float] = time.time,
        *,
        is_watched: bool = True,
    ) -> None:
        self._engine = engine
        self._on_put = on_put
        self._on_delete = on_delete
        self._wall = wall
        self._is_watched = is_watched
        if isinstance(engine, CheckedStore):
            engine.suggests_names = False
        self._capabilities = msgspec.structs.replace(
            engine.capabilities, batch_max=min(BATCH_MAX, engine.capabilities.batch_max), joins_transaction=False
        )
        self._naming = engine if isinstance(engine, CommitNames) else None
        self._in_progress: set[asyncio.Task[Any]] = set()
        self._failing: str | None = "the store has not answered yet"
        self.identity: str | None = None
        """The store's identity, read at the start and after each failure; None if the store has none."""
        self._checking: asyncio.Task[None] | None = None
        self._closed = False

    def __str__(self) -> str:
        return str(self._engine)

    @property
    def round_store(self) -> RoundStore | None:
        """The store, if it can be asked about all of its queues at once (B17)."""
        return self._engine if isinstance(self._engine, RoundStore) else None

    @property
    def capabilities(self) -> Capabilities:
        """The store's capabilities, with at most 32 messages a call."""
        return self._capabilities

    @property
    def kind(self) -> str:
        """The kind of the store (`queuebell.bridge.contract.missing_counts`)."""
        return self._engine.kind if isinstance(self._engine, CheckedStore) else ""

    @property
    def keeps(self) -> bool:
        """Whether there is a store at all."""
        return not isinstance(self._engine, NoStore)

    def fingerprint(self, queue: str) -> str:
        """Return the store's fingerprint, the same at every bridge (B11)."""
        return self._engine.fingerprint(queue)

    def engine(self, queue: str) -> str | None:
        """Return the fingerprint: these queues are never embedded ones."""
        return self._engine.fingerprint(queue)

    def failure(self) -> str | None:
        """Return the error of the newest call; None if it succeeded."""
        return self._failing

    async def open(self) -> None:
        """Connect to the store; one that cannot be reached is retried later.

        Raises `ConfigurationError` for a permanent fault, also for tables that are missing or outdated.
        """
        check = getattr(self._engine, "check_client", None)
        if check is not None:
            check()
        try:
            await self._check()
        except StoreUnavailable as error:
            self._fails(error)
            log.warning("the store of the queues is not reachable yet; the bridge retries: %s", error)
        except QueuebellError:
            raise
        except Exception as error:  # noqa: BLE001 - drivers may raise anything
            self._fails_unexpectedly(error)
            self.ask_again()

    async def close(self) -> None:
        """Wait up to 10 s for calls in progress, then close the store; may be called twice."""
        self._closed = True
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait([self._checking])
        if self._in_progress:
            await asyncio.wait(self._in_progress, timeout=ENDS_S)
        await self._engine.close()
        if self._in_progress:
            await asyncio.wait(self._in_progress)

    # -- puts ------------------------------------------------------------------------------------------------------

    async def _put(self, queue: str, messages: Sequence[NewMessage], create: bool) -> list[PutReceipt]:
        engine, naming = self._engine, self._naming

        async def put() -> tuple[list[PutReceipt], str | None]:
            if naming is not None:
                return await naming.put_named(queue, messages, create)
            with tracing.for_another():
                return await engine.put(queue, messages, create=create), None

        return await self._finish(self._put_and_trigger(queue, messages, put()))

    async def _put_existing(self, queue: str, messages: Sequence[NewMessage]) -> Stamped[list[PutReceipt]]:
        return self._stamped(await self._put(queue, messages, False))

    async def _put_once(self, queue: str, key: str, message: NewMessage, create: bool) -> PutReceipt | None:
        naming, store = self._naming, once(self._engine)

        async def put() -> tuple[PutReceipt | None, str | None]:
            if naming is not None:
                return await naming.put_once_named(queue, key, message, create)
            with tracing.for_another():
                return await store.put_once(queue, key, message, create=create), None

        # Trigger also if it was put before: that process may have died before its trigger.
        return await self._finish(self._put_and_trigger(queue, [message], put()))

    async def _put_and_trigger(
        self, queue: str, messages: Sequence[NewMessage], put: Awaitable[tuple[T, str | None]]
    ) -> T:
        delays = [message.visible_after_ms for message in messages]
        traces = carried(message.headers for message in messages)
        try:
            answer, commit = await self._call(put)
        except BaseException as error:
            if _may_have_happened(error):
                # P2: the put may have happened, or may still happen within this time.
                self._trigger(queue, [*delays, *(delay + SERVER_TIMEOUT_MS for delay in delays)], None, traces)
            raise
        self._trigger(queue, delays, commit, traces)
        return answer

    def _trigger(
        self, queue: str, delays_ms: Iterable[int], commit: str | None = None, traces: Traces | None = None
    ) -> None:
        # The store may announce the same commit: one id for both makes it one wake request (B13).
        account, name = split_reference(queue)
        sizes: dict[int, int] = {}
        for delay in delays_ms:
            due = min(rounded_up(delay, self._capabilities.resolution_ms), NOT_BEFORE_MS_MAX)
            sizes[due] = sizes.get(due, 0) + 1
        self._on_put(
            [
                CloudQueueWorkDetected(
                    account,
                    name,
                    size,
                    not_before_ms=due,
                    source=commit,
                    id=None if commit is None else f"{queue}+{due}" if due else queue,
                    traceparent=None if traces is None else traces.parents[-1],
                    traces=several(traces),
                )
                for due, size in sorted(sizes.items())
            ]
        )

    # -- other operations ------------------------------------------------------------------------------------------

    async def _do(
        self, operation: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs
    ) -> T:
        """Run this class's method of that name, or else the store's; changes finish even if the caller is cancelled."""
        name = operation.__name__
        override = getattr(self, f"_{name}", None)
        work: Coroutine[Any, Any, T]
        if override is not None:
            work = override(*args, **options)
        else:
            target = self._described() if name in OF_DESCRIBED else self._engine
            work = self._call(getattr(target, name)(*args, **options))
        return await (work if name in CHECKS_PER_PERIOD else self._finish(work))

    async def _receive(
        self, queue: str, limit: int, visibility_s: float, source: str | None, room: ReadRoom | None
    ) -> Stamped[Received]:
        """Receive messages; if there is no ``room`` for them, return them and raise `NoRoom`."""
        taking = self._call(self._engine.receive(queue, limit, visibility_s, source=source))
        received = await self._finish(taking, lambda late: self.reclaim(queue, _claims(late)))
        size = _bytes_of(received.messages)
        if room is not None and size and not room.take(size):
            await self._finish(self._return_messages(queue, _claims(received)))
            raise NoRoom(size)
        return self._stamped(received)

    async def _peek(self, queue: str, limit: int, room: ReadRoom | None) -> list[StoredMessage]:
        found = await self._call(self._engine.peek(queue, limit))
        size = _bytes_of(found)
        if room is not None and size and not room.take(size):
            raise NoRoom(size)
        return found

    async def browse(
        self,
        queue: str,
        limit: int = 32,
        *,
        after: str = "",
        newest: bool = False,
        state: MessageState = "waiting",
    ) -> Browsed:
        """Return the first visible messages: shared stores have no cursor to continue from."""
        if after or newest or state != "waiting":
            raise Unsupported("this store can show only the first messages that wait in a queue")
        return Browsed(await self.peek(queue, limit), None)

    async def look(self, queue: str, id_or_key: str) -> Looked | None:
        """Find no message: shared stores have no such call."""
        raise Unsupported("this store cannot find one message")

    async def discard(self, queue: str, name: str, *, by_id: bool = False) -> Discarded:
        """Find no message, as `look`."""
        raise Unsupported("this store cannot find one message")

    async def _pause(self, queue: str, paused: bool) -> None:
        """Pause or resume the queue; resuming triggers it."""
        try:
            await self._call(self._engine.pause(queue, paused))
        except BaseException as error:
            if not paused and _may_have_happened(error):
                self._trigger(queue, [0, SERVER_TIMEOUT_MS])
            raise
        if not paused:
            self._trigger(queue, [0])

    async def _delete(self, queue: str) -> None:
        """Delete the queue and forget its pending work."""
        await self._call(self._engine.delete(queue))
        self._on_delete(queue)

    def reclaim(self, queue: str, claims: Sequence[Claim]) -> None:
        """Return messages whose receiver is gone; if that fails they reappear when their leases end."""
        if claims and not self._closed:
            _ = self._start(self._return_messages(queue, claims))

    async def _update(self, queue: str, claim: Claim, visibility_s: float, body: bytes | None) -> Stamped[Settled]:
        """Change a message's visibility; trigger the queue if it becomes visible now, as its client does not."""
        if visibility_s or body is not None:
            # Body and visibility change in one request, so that no reader sees half; 0 s become the shortest time.
            shortest = self._capabilities.resolution_ms / 1000
            extend = Extend(claim.id, claim.pop_receipt, visibility_s or shortest, body)
            (outcome,) = (await self._call(self._engine.settle(queue, Settlement(extend=(extend,))))).extend
        else:
            release = Release(claim.id, claim.pop_receipt)
            (outcome,) = (await self._call(self._engine.settle(queue, Settlement(release=(release,))))).release
        check_settled(queue, [outcome])
        if outcome.ok and not visibility_s:
            self._trigger(queue, [0 if body is None else 1])
        return self._stamped(outcome)

    async def _replace_metadata(self, queue: str, metadata: dict[str, str]) -> None:
        await self._require(queue)
        await self._call(self._engine.create(queue, metadata))

    async def _remove(self, queue: str) -> None:
        await self._require(queue)
        await self._delete(queue)

    async def _metadata_and_depth(self, queue: str) -> tuple[dict[str, str], Depth]:
        metadata = await self._call(self._described().metadata(queue))
        return metadata, await self._call(self._engine.depth(queue)) or Depth(0, 0)

    def number(self, queue: str) -> int | None:
        """Return None: a shared store does not number its queues."""
        return None

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _described(self) -> Described:
        if not isinstance(self._engine, Described):
            raise Unsupported("the store of these queues does not provide their metadata")
        return self._engine

    async def _require(self, queue: str) -> None:
        if not await self._call(self._engine.exists(queue)):
            raise QueueNotFound("there is no such queue")

    def _stamped(self, answer: T) -> Stamped[T]:
        now_ms = self._wall() * 1000
        return Stamped(answer, math.floor(now_ms), math.ceil(now_ms))

    async def _return_messages(self, queue: str, claims: Sequence[Claim]) -> None:
        uncounted = self._capabilities.uncounted_release
        releases = [Release(claim.id, claim.pop_receipt, uncounted=uncounted) for claim in claims]
        try:
            await self._call(self._engine.settle(queue, Settlement(release=releases)))
        except QueuebellError as error:
            # They reappear when their leases end.
            log.debug(
                "messages of an abandoned receive were not returned; they reappear when their leases end: %s",
                error,
                extra={"queue": queue},
            )
        except Exception as error:  # noqa: BLE001 - as above
            swallow(ENGINE, error)
        else:
            self._trigger(queue, [0] * len(claims))

    async def _call(self, call: Awaitable[T]) -> T:
        """Await a call of the store, and remember whether it succeeded."""
        try:
            answer = await unless_cancelled(call)
        except Overloaded:
            raise  # this bridge is overloaded, which says nothing about the store
        except StoreUnavailable as error:
            self._fails(error)
            raise
        except ConfigurationError as error:
            # The configuration was valid at the start, so to a client the store is unavailable.
            self._fails(error)
            raise StoreUnavailable(str(error)) from error
        self._failing = None
        return answer

    def _fails(self, error: QueuebellError) -> None:
        self._failing = str(error)
        self.ask_again()

    def _fails_unexpectedly(self, error: Exception) -> None:
        swallow(ENGINE, error)
        self._failing = f"the store raised {type(error).__name__}"

    def ask_again(self) -> None:
        """Start checking whether the store answers, and read its identity again."""
        if self._is_watched and self._checking is None and not self._closed:
            self._checking = asyncio.create_task(self._check_until_up(), name="ask the store again")

    async def _check_until_up(self) -> None:
        failing = True
        try:
            while failing:
                await asyncio.sleep(AGAIN_S)
                try:
                    # Also if a call succeeded meanwhile: another store may be at this address now.
                    await self._check()
                    failing = False
                except QueuebellError as error:
                    self._failing = str(error)
                except Exception as error:  # noqa: BLE001 - as above
                    self._fails_unexpectedly(error)
        finally:
            self._checking = None

    async def _check(self) -> None:
        await unless_cancelled(self._engine.queues(limit=1))
        if isinstance(self._engine, Identified):
            self.identity = await unless_cancelled(self._engine.identity())
        self._failing = None

    async def _finish(self, work: Coroutine[Any, Any, T], abandoned: Callable[[T], None] | None = None) -> T:
        """Return the result of ``work``; if the caller is cancelled, it finishes and ``abandoned`` gets the result."""
        task = self._start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if abandoned is not None and not task.cancelled():
                task.add_done_callback(lambda ended: None if _failed(ended) else abandoned(ended.result()))
            raise

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name="a call of the store")
        self._in_progress.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._in_progress.discard(task)
        _failed(task)  # retrieves the error, so that asyncio does not log it for a cancelled caller


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


def _may_have_happened(error: BaseException) -> bool:
    """Return whether a call with this error may have been carried out, as with any undocumented error."""
    return isinstance(error, UnknownOutcome) or not isinstance(error, QueuebellError)


def _claims(received: Received) -> list[Claim]:
    return [Claim(message.id, message.pop_receipt) for message in received.messages]


def _bytes_of(messages: Sequence[StoredMessage]) -> int:
    return sum(len(message.body) + bytes_of(message.headers) for message in messages)


WAY_OUT: Final = (
    "this bridge keeps no queues: it is in a cluster (--cluster) without a shared store. Nothing was done. Workers and "
    "producers use queues in external stores by their own address; for queues here start every bridge of the cluster "
    "with the same --store URL, or serve them from one bridge without --cluster"
)


class NoStore(PutOnceStore):
    """Has no queues, and raises `Unsupported` for every put, receive and change."""

    capabilities = Capabilities(put_once=True, oldest_age=True)

    def __str__(self) -> str:
        return "no store"

    def fingerprint(self, queue: str) -> str:
        """Return a fingerprint that no store has."""
        return digest_of("nowhere", queue)

    async def exists(self, queue: str) -> bool:
        """Return False."""
        return False

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """Return no queues."""
        return []

    async def close(self) -> None:
        """Do nothing."""

    async def put(
        self, queue: str, bodies: Sequence[Body], *, connection: AsyncConnection | None = None, create: bool = True
    ) -> list[PutReceipt]:
        """Refuse."""
        _refuse()

    async def put_once(
        self, queue: str, key: str, body: Body, *, connection: AsyncConnection | None = None, create: bool = True
    ) -> PutReceipt | None:
        """Refuse."""
        _refuse()

    async def receive(
        self, queue: str, limit: int = 1, visibility_s: float = 30.0, *, source: str | None = None
    ) -> Received:
        """Refuse."""
        _refuse()

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        """Refuse."""
        _refuse()

    async def peek(self, queue: str, limit: int = 32) -> list[StoredMessage]:
        """Refuse."""
        _refuse()

    async def depth(self, queue: str) -> NoReturn:
        """Refuse, so that the counts of listeners in external stores stay valid."""
        _refuse()

    async def counts(self, queue: str) -> NoReturn:
        """Refuse."""
        _refuse()

    async def oldest_ms(self, queue: str) -> NoReturn:
        """Refuse."""
        _refuse()

    async def clear(self, queue: str) -> None:
        """Refuse."""
        _refuse()

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Refuse."""
        _refuse()

    async def create(self, queue: str, metadata: dict[str, str] | None = None) -> bool:
        """Refuse."""
        _refuse()

    async def delete(self, queue: str) -> None:
        """Refuse."""
        _refuse()


def _refuse() -> NoReturn:
    raise Unsupported(WAY_OUT)
