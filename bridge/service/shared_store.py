"""The queues of an engine that several bridges share (PostgreSQL, Redis), served as a bridge serves its own.

A put is acknowledged by the engine, then marked here (P1); who else works on the engine hears of it by the engine's own
voice or by a broker. For the rules these queues are *elsewhere*: somebody looks for every mark, and sweeps.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, TypeVar

import msgspec

from bridge.contract.errors import (
    ConfigurationError,
    Overloaded,
    QueuebellError,
    QueueNotFound,
    StoreUnavailable,
    UnknownOutcome,
    Unsupported,
)
from bridge.contract.event import NOT_BEFORE_MS_MAX, CloudQueueWorkDetected, rounded_up
from bridge.contract.headers import bytes_of
from bridge.contract.names import split_reference
from bridge.contract.trace_context import Traces, carried, several
from bridge.observe import tracing
from bridge.observe.swallowed import swallow, unless_cancelled
from bridge.queues.base import (
    BATCH_MAX,
    AsyncConnection,
    Body,
    Capabilities,
    Claim,
    Depth,
    Extend,
    NewMessage,
    PutOnceStore,
    PutReceipt,
    QueueStore,
    Received,
    Release,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
    check_settled,
    digest_of,
    once,
)
from bridge.queues.checked import CheckedStore
from bridge.queues.embedded.terms import Browsed, NoRoom, ReadRoom, Stamped
from bridge.queues.served import Described, Identified, Naming, ServedStore

P = ParamSpec("P")
T = TypeVar("T")

log = logging.getLogger("queuebell.bridge")

ENGINE: Final = "the store behind the queue API"
ENDS_S: Final = 10.0
"""So long a stop waits for calls that are under way."""
AGAIN_S: Final = 2.0
"""So often an engine that failed is asked whether it answers: a bridge that is not ready is sent nothing."""
SERVER_TIMEOUT_MS: Final = 60_000
"""So long an engine may still carry out a put whose answer was lost (P2)."""
LOOKS: Final = frozenset(("peek", "depth", "counts", "exists", "oldest_ms", "paused", "queues", "listing", "standing"))
"""Operations that change nothing: they end with their caller."""
OF_DESCRIBED: Final = frozenset(("create_alike", "listing"))


class SharedStore(ServedStore):
    """The queues of ``engine``; it is closed with this.

    ``ring`` is told of every put that was acknowledged or may have been carried out, before the caller is answered;
    ``forget`` of a queue that was deleted. A caller that is cancelled leaves its call under way, and what a receive
    brings then is given back. An engine that failed is asked until it answers, where it ``is_watched``. ``wall``
    (seconds since 1970) dates the answers of the Azure endpoint.
    """

    def __init__(
        self,
        engine: QueueStore,
        ring: Callable[[Sequence[CloudQueueWorkDetected]], object],
        forget: Callable[[str], object],
        wall: Callable[[], float] = time.time,
        *,
        is_watched: bool = True,
    ) -> None:
        self._engine = engine
        self._ring_bell = ring
        self._forget = forget
        self._wall = wall
        self._is_watched = is_watched
        if isinstance(engine, CheckedStore):
            engine.names_near = False
        self._capabilities = msgspec.structs.replace(
            engine.capabilities, batch_max=min(BATCH_MAX, engine.capabilities.batch_max), joins_transaction=False
        )
        self._naming = engine if isinstance(engine, Naming) else None
        self._under_way: set[asyncio.Task[Any]] = set()
        self._failing: str | None = "the store has not answered yet"
        self.identity: str | None = None
        """What the engine said it is, at the start or when it last answered again; None where it does not say."""
        self._asking: asyncio.Task[None] | None = None
        self._closed = False

    def __str__(self) -> str:
        return str(self._engine)

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do, 32 messages a call at most."""
        return self._capabilities

    @property
    def kind(self) -> str:
        """What kind of store the engine is (`bridge.contract.untold`)."""
        return self._engine.kind if isinstance(self._engine, CheckedStore) else ""

    @property
    def keeps(self) -> bool:
        """Whether there is an engine at all."""
        return not isinstance(self._engine, NoStore)

    def fingerprint(self, queue: str) -> str:
        """Return that of the engine, whichever bridge it is reached by (B11)."""
        return self._engine.fingerprint(queue)

    def engine(self, queue: str) -> str | None:
        """Return the fingerprint: these are never a bridge's own."""
        return self._engine.fingerprint(queue)

    def failure(self) -> str | None:
        """Return what the newest call failed by, None where it was answered."""
        return self._failing

    async def open(self) -> None:
        """Ask the engine for a name; one that cannot be reached now may be later.

        Raises `ConfigurationError` where it never will be as it is, also for tables that are missing or old.
        """
        check = getattr(self._engine, "check_client", None)
        if check is not None:
            check()
        try:
            await self._ask()
        except StoreUnavailable as error:
            self._fails(error)
            log.warning("the store of the queues cannot be reached yet: %s", error)
        except QueuebellError:
            raise
        except Exception as error:  # noqa: BLE001 - an engine may raise what its driver does
            self._breaks(error)
            self.ask_again()

    async def close(self) -> None:
        """Wait for what is under way, some seconds at most, and let go of the engine; may be called twice."""
        self._closed = True
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=ENDS_S)
        await self._engine.close()
        if self._under_way:
            await asyncio.wait(self._under_way)

    # -- puts, which ring ------------------------------------------------------------------------------------------

    async def _put(self, queue: str, messages: Sequence[NewMessage], create: bool) -> list[PutReceipt]:
        engine, naming = self._engine, self._naming

        async def put() -> tuple[list[PutReceipt], str | None]:
            if naming is not None:
                return await naming.put_named(queue, messages, create)
            with tracing.for_another():
                return await engine.put(queue, messages, create=create), None

        return await self._finish(self._told(queue, messages, put()))

    async def _put_existing(self, queue: str, messages: Sequence[NewMessage]) -> Stamped[list[PutReceipt]]:
        return self._stamped(await self._put(queue, messages, False))

    async def _put_once(self, queue: str, key: str, message: NewMessage, create: bool) -> PutReceipt | None:
        naming, store = self._naming, once(self._engine)

        async def put() -> tuple[PutReceipt | None, str | None]:
            if naming is not None:
                return await naming.put_once_named(queue, key, message, create)
            with tracing.for_another():
                return await store.put_once(queue, key, message, create=create), None

        # Also where it was put before: whoever did may have died before the mark.
        return await self._finish(self._told(queue, [message], put()))

    async def _told(self, queue: str, messages: Sequence[NewMessage], put: Awaitable[tuple[T, str | None]]) -> T:
        delays = [message.visible_after_ms for message in messages]
        traces = carried(message.headers for message in messages)
        try:
            answer, commit = await self._asked(put)
        except BaseException as error:
            if _leaves_open(error):
                # P2: it may be there, and it may come as long as the engine can still carry it out.
                self._ring(queue, [*delays, *(delay + SERVER_TIMEOUT_MS for delay in delays)], None, traces)
            raise
        self._ring(queue, delays, commit, traces)
        return answer

    def _ring(
        self, queue: str, delays_ms: Iterable[int], commit: str | None = None, traces: Traces | None = None
    ) -> None:
        # A commit that the engine says as well has one name for both: who hears it twice marks once (B13).
        account, name = split_reference(queue)
        sizes: dict[int, int] = {}
        for delay in delays_ms:
            due = min(rounded_up(delay, self._capabilities.resolution_ms), NOT_BEFORE_MS_MAX)
            sizes[due] = sizes.get(due, 0) + 1
        self._ring_bell(
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

    # -- the rest of the promise -----------------------------------------------------------------------------------

    async def _do(
        self, operation: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs
    ) -> T:
        """Ask the engine for the operation of this name, or do what stands here under it; changes are finished."""
        name = operation.__name__
        here = getattr(self, f"_{name}", None)
        work: Coroutine[Any, Any, T]
        if here is not None:
            work = here(*args, **options)
        else:
            asked = self._described() if name in OF_DESCRIBED else self._engine
            work = self._asked(getattr(asked, name)(*args, **options))
        return await (work if name in LOOKS else self._finish(work))

    async def _receive(
        self, queue: str, limit: int, visibility_s: float, source: str | None, room: ReadRoom | None
    ) -> Stamped[Received]:
        """Take messages; what there is no ``room`` for is given back before `NoRoom` is raised."""
        taking = self._asked(self._engine.receive(queue, limit, visibility_s, source=source))
        received = await self._finish(taking, lambda late: self.reclaim(queue, _claims(late)))
        size = _bytes_of(received.messages)
        if room is not None and size and not room.take(size):
            await self._finish(self._give_back(queue, _claims(received)))
            raise NoRoom(size)
        return self._stamped(received)

    async def _peek(self, queue: str, limit: int, room: ReadRoom | None) -> list[StoredMessage]:
        found = await self._asked(self._engine.peek(queue, limit))
        size = _bytes_of(found)
        if room is not None and size and not room.take(size):
            raise NoRoom(size)
        return found

    async def browse(self, queue: str, limit: int = 32, *, after: str = "", newest: bool = False) -> Browsed:
        """Look at the first visible messages: engines tell no places to go on from."""
        if after or newest:
            raise Unsupported("of a queue of this store only the first messages can be shown")
        return Browsed(await self.peek(queue, limit), None)

    async def _pause(self, queue: str, paused: bool) -> None:
        """Pause it at any bridge; going on is marked here."""
        try:
            await self._asked(self._engine.pause(queue, paused))
        except BaseException as error:
            if not paused and _leaves_open(error):
                self._ring(queue, [0, SERVER_TIMEOUT_MS])
            raise
        if not paused:
            self._ring(queue, [0])

    async def _delete(self, queue: str) -> None:
        """Delete, and forget what was announced there."""
        await self._asked(self._engine.delete(queue))
        self._forget(queue)

    def reclaim(self, queue: str, claims: Sequence[Claim]) -> None:
        """Give back what nobody waits for any more; where that fails it comes again when its lease ends."""
        if claims and not self._closed:
            _ = self._start(self._give_back(queue, claims))

    async def _update(self, queue: str, claim: Claim, visibility_s: float, body: bytes | None) -> Stamped[Settled]:
        """Move a message's visibility; one that is visible at once is marked, for its client tells no bridge."""
        if visibility_s or body is not None:
            # With a body one request, so that nobody sees half of it: 0 s are the shortest there are.
            shortest = self._capabilities.resolution_ms / 1000
            extend = Extend(claim.id, claim.pop_receipt, visibility_s or shortest, body)
            (outcome,) = (await self._asked(self._engine.settle(queue, Settlement(extend=(extend,))))).extend
        else:
            release = Release(claim.id, claim.pop_receipt)
            (outcome,) = (await self._asked(self._engine.settle(queue, Settlement(release=(release,))))).release
        check_settled(queue, [outcome])
        if outcome.ok and not visibility_s:
            self._ring(queue, [0 if body is None else 1])
        return self._stamped(outcome)

    async def _replace_metadata(self, queue: str, metadata: dict[str, str]) -> None:
        await self._require(queue)
        await self._asked(self._engine.create(queue, metadata))

    async def _remove(self, queue: str) -> None:
        await self._require(queue)
        await self._delete(queue)

    async def _standing(self, queue: str) -> tuple[dict[str, str], Depth]:
        metadata = await self._asked(self._described().metadata(queue))
        return metadata, await self._asked(self._engine.depth(queue)) or Depth(0, 0)

    def made(self, queue: str) -> int | None:
        """Return None: an engine tells no numbers of queues, and nothing is kept beside one."""
        return None

    # -- parts -------------------------------------------------------------------------------------------------------

    def _described(self) -> Described:
        if not isinstance(self._engine, Described):
            raise Unsupported("the store of these queues does not tell their metadata")
        return self._engine

    async def _require(self, queue: str) -> None:
        if not await self._asked(self._engine.exists(queue)):
            raise QueueNotFound("there is no such queue")

    def _stamped(self, answer: T) -> Stamped[T]:
        now_ms = self._wall() * 1000
        return Stamped(answer, math.floor(now_ms), math.ceil(now_ms))

    async def _give_back(self, queue: str, claims: Sequence[Claim]) -> None:
        uncounted = self._capabilities.uncounted_release
        releases = [Release(claim.id, claim.pop_receipt, uncounted=uncounted) for claim in claims]
        try:
            await self._asked(self._engine.settle(queue, Settlement(release=releases)))
        except QueuebellError as error:
            # They come again when their leases end.
            log.debug("messages that nobody waited for were not given back: %s", error, extra={"queue": queue})
        except Exception as error:  # noqa: BLE001 - as above
            swallow(ENGINE, error)
        else:
            self._ring(queue, [0] * len(claims))

    async def _asked(self, call: Awaitable[T]) -> T:
        """Return what the engine answers, and remember whether it did."""
        try:
            answer = await unless_cancelled(call)
        except Overloaded:
            raise  # this bridge has too much to do: nothing is known of the engine
        except StoreUnavailable as error:
            self._fails(error)
            raise
        except ConfigurationError as error:
            # It was right at the start: to a client that is a store which cannot do it now.
            self._fails(error)
            raise StoreUnavailable(str(error)) from error
        self._failing = None
        return answer

    def _fails(self, error: QueuebellError) -> None:
        self._failing = str(error)
        self.ask_again()

    def _breaks(self, error: Exception) -> None:
        swallow(ENGINE, error)
        self._failing = f"the store raised {type(error).__name__}"

    def ask_again(self) -> None:
        """Ask the engine soon whether it answers, and what it says it is."""
        if self._is_watched and self._asking is None and not self._closed:
            self._asking = asyncio.create_task(self._ask_again(), name="ask the store again")

    async def _ask_again(self) -> None:
        failing = True
        try:
            while failing:
                await asyncio.sleep(AGAIN_S)
                try:
                    # Also where a call was answered meanwhile: behind the address may be another engine now.
                    await self._ask()
                    failing = False
                except QueuebellError as error:
                    self._failing = str(error)
                except Exception as error:  # noqa: BLE001 - as above
                    self._breaks(error)
        finally:
            self._asking = None

    async def _ask(self) -> None:
        await unless_cancelled(self._engine.queues(limit=1))
        if isinstance(self._engine, Identified):
            self.identity = await unless_cancelled(self._engine.identity())
        self._failing = None

    async def _finish(self, work: Coroutine[Any, Any, T], unheard: Callable[[T], None] | None = None) -> T:
        """Return what ``work`` brings; it goes on when its caller is cancelled, and ``unheard`` gets the answer."""
        task = self._start(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if unheard is not None and not task.cancelled():
                task.add_done_callback(lambda ended: None if _failed(ended) else unheard(ended.result()))
            raise

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name="a call of the store")
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._under_way.discard(task)
        _failed(task)  # whoever waited has the error; of one whose caller is gone nobody else would take it


def _failed(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


def _leaves_open(error: BaseException) -> bool:
    """Say whether a call that ended so may have been carried out: also of what no engine promises to raise."""
    return isinstance(error, UnknownOutcome) or not isinstance(error, QueuebellError)


def _claims(received: Received) -> list[Claim]:
    return [Claim(message.id, message.pop_receipt) for message in received.messages]


def _bytes_of(messages: Sequence[StoredMessage]) -> int:
    return sum(len(message.body) + bytes_of(message.headers) for message in messages)


WAY_OUT: Final = (
    "this bridge keeps no queues: it takes turns with others (cluster) and has no store that all of them reach. Nothing"
    " was done. Workers and producers use queues elsewhere by their own address; for queues here start every bridge of"
    " the cluster with the same --store URL, or serve them from one bridge without --cluster"
)


class NoStore(PutOnceStore):
    """Refuses as `Unsupported` whatever would put, take or change; there is nothing to list or to find."""

    capabilities = Capabilities(put_once=True, oldest_age=True)

    def __str__(self) -> str:
        return "no store"

    def fingerprint(self, queue: str) -> str:
        """Return one that is no store's."""
        return digest_of("nowhere", queue)

    async def exists(self, queue: str) -> bool:
        """Say no."""
        return False

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """List none."""
        return []

    async def close(self) -> None:
        """Nothing is held."""

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
        """Refuse: what listeners counted elsewhere stands."""
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
