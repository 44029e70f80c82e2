"""Dead letters over HTTP: shown, replayed or discarded, one run at a time for each queue.

``GET /v1/queues/ACCOUNT/QUEUE/buried`` returns 32 at a time; ``POST .../replay`` and ``POST .../discard`` begin a run,
which the queue's view shows. A run continues after its client has gone.
"""

from __future__ import annotations

import asyncio
import datetime
import logging
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from queuebell.bridge.access.grants import Verb
from queuebell.bridge.contract.burial import Burial, facts, glimpse
from queuebell.bridge.contract.errors import QueuebellError, QueueNotFound, StoreError
from queuebell.bridge.contract.names import POISON_SUFFIX
from queuebell.bridge.http.api.routes import Routes, only_query_of
from queuebell.bridge.http.api.triggers import refuse_while_draining
from queuebell.bridge.http.server.answer import Answer, Refusal
from queuebell.bridge.http.server.authorizer import Authorizer
from queuebell.bridge.http.server.body import decode_json, read_body, require_json
from queuebell.bridge.producer.replay import ReplayOptions, ReplayRun
from queuebell.bridge.queues.base import BATCH_MAX, Depth, StoredMessage
from queuebell.bridge.queues.served import Browsed, ServedStore
from queuebell.bridge.service.state.check import ask_their_store
from queuebell.bridge.service.state.overview import Run

if TYPE_CHECKING:
    from aiohttp.web import BaseRequest

    from queuebell.bridge.access.access_watch import Permit
    from queuebell.bridge.service.bridge import Bridge

SCANNED_MAX: Final = 100_000
"""Messages that one run checks: those that were not chosen are leased until its end."""
SEARCHED_MAX: Final = 512
"""Messages that one request with a reason checks, 32 at a time."""
SHOWN: Final = 4096
"""Characters of a body that are shown."""
_REQUEST_BYTES: Final = 64 * 1024
_RUNS_MAX: Final = 1000
T = TypeVar("T")

log = logging.getLogger("queuebell.web")


class Chosen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which of the messages: all, those with one of ``ids``, or those in whose reason ``reason`` stands."""

    ids: Annotated[list[Annotated[str, Meta(min_length=1, max_length=200)]], Meta(max_length=1000)] = []
    reason: Annotated[str, Meta(max_length=1000)] = ""
    max: Annotated[int, Meta(ge=1, le=SCANNED_MAX)] = SCANNED_MAX


class Grave(msgspec.Struct, frozen=True, kw_only=True):
    """One dead letter; without ``burial`` nothing is known about its failure."""

    id: str
    age_ms: int
    dequeue_count: int
    burial: Burial | None
    body: str
    """As text, where it is; what cannot be read as text is shown by U+FFFD."""
    size: int
    headers: dict[str, str]


class Graves(msgspec.Struct, frozen=True):
    """Some of the dead letters."""

    messages: list[Grave]
    looked: int
    """At so many messages for it; more than there are here where only those with a reason were wanted."""
    next: str | None
    """What to pass as ``after`` for those that follow; None where none do, or where the store can show no more."""
    whole: bool = True
    """False where there may be more that this store cannot show here."""
    run: Run | None = None
    """The newest replay or discard of this queue since the bridge started, and whether it still runs."""


class Shown(msgspec.Struct, frozen=True):
    """Which messages to show: those with ``reason`` in theirs, from a place on, the oldest or the ``newest`` first.

    With ``id`` those that have it, or had it where they failed, as message or as put.
    """

    after: Annotated[str, Meta(max_length=40)] = ""
    reason: Annotated[str, Meta(max_length=1000)] = ""
    id: Annotated[str, Meta(max_length=200)] = ""
    newest: bool = False


class DeadLetterRoutes:
    """The routes, and the runs that they began."""

    def __init__(self, bridge: Bridge, authorizer: Authorizer, beside: Sequence[ServedStore] = ()) -> None:
        self._bridge = bridge
        self._authorizer = authorizer
        self._beside = beside
        self._running: dict[str, tuple[asyncio.Task[str], ReplayRun, bool]] = {}
        self._ended: dict[str, Run] = {}

    def add_to(self, routes: Routes) -> None:
        """Add the routes."""
        routes.add("GET", "/v1/queues/{queue}/buried", Verb.LOOK, self.show)
        routes.add("POST", "/v1/queues/{queue}/replay", Verb.TAKE, self.replay)
        routes.add("POST", "/v1/queues/{queue}/discard", Verb.TAKE, self.discard)

    async def stop(self) -> None:
        """End all runs: the current batch is finished, the other messages are released."""
        tasks = [task for task, _, _ in self._running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def run_of(self, queue: str) -> Run | None:
        """Return the state of the newest run of a queue, None without one."""
        running = self._running.get(queue)
        if running is None:
            return self._ended.get(queue)
        _, replaying, discards = running
        return _run(replaying, discards, running=True)

    async def show(self, request: BaseRequest, queue: str) -> Answer:
        """Show dead letters with their reasons.

        Visible messages of a poison queue with the facts about their failures, 32 at a time. With `reason` or `id` an
        answer may have fewer or none, and `next` continues. Positions exist only for embedded queues: of a queue in a
        shared store, the first messages are shown.
        """
        try:
            wanted = msgspec.convert(only_query_of(request, "after", "reason", "id", "newest"), Shown, strict=False)
        except msgspec.ValidationError:
            raise Refusal("bad_parameter", "after, reason, id or newest is out of range") from None
        now = datetime.datetime.now(datetime.UTC)
        found: list[Grave] = []
        after, looked = wanted.after, 0

        def browse(store: ServedStore) -> Awaitable[Browsed]:
            return store.browse(queue, BATCH_MAX, after=after, newest=wanted.newest)

        store, (messages, following, *_) = await self._first(queue, browse)
        while True:
            looked += len(messages)
            for message in messages:
                if (dead_letter := _dead_letter(message, now, wanted)) is not None:
                    found.append(dead_letter)
                await asyncio.sleep(0)  # parsing a long header takes part of a millisecond
            narrows = wanted.reason or wanted.id
            if following is None or len(found) >= BATCH_MAX or not narrows or looked >= SEARCHED_MAX:
                break
            after = following
            messages, following, *_ = await browse(store)
        whole = following is not None or store is self._bridge.own or looked < BATCH_MAX
        return Answer(200, msgspec.json.encode(Graves(found, looked, following, whole, self.run_of(queue))))

    async def replay(self, request: BaseRequest, queue: str) -> Answer:
        """Replay dead letters to the queues where they failed.

        Each is put before it is deleted here. It stays if its queue is unknown or `put` is not granted.
        """
        return await self._begin(request, queue, discards=False)

    async def discard(self, request: BaseRequest, queue: str) -> Answer:
        """Delete dead letters.

        They are deleted permanently.
        """
        return await self._begin(request, queue, discards=True)

    async def _begin(self, request: BaseRequest, queue: str, *, discards: bool) -> Answer:
        refuse_while_draining(self._bridge)
        chosen = Chosen()
        if request.body_exists:
            require_json(request)
            chosen = decode_json(await read_body(request, _REQUEST_BYTES), Chosen, "the body is not JSON")

        async def count(store: ServedStore) -> Depth:
            if (depth := await store.depth(queue)) is None:
                raise QueueNotFound(queue)
            return depth

        store, depth = await self._first(queue, count)
        if queue in self._running:
            raise Refusal(
                "conflict",
                "messages of this queue are already being replayed or discarded; GET .../buried shows how far it is",
            )

        def end(_: str) -> None:
            task.cancel()

        # A run may take minutes: it ends with its permission, like sessions and streams.
        permit = self._authorizer.permit(request, Verb.TAKE, end)
        if permit is not None:
            permit.queues = frozenset({queue})
        replaying = ReplayRun(
            store,
            store,
            queue,
            ReplayOptions(ids=frozenset(chosen.ids), reason=chosen.reason, most=chosen.max, discard=discards),
            min(SCANNED_MAX, depth.visible + depth.invisible),
            clock=monotonic,
            # A replay needs the current permission to put.
            may_put=lambda target: permit is None or permit.identity.principal.may(Verb.PUT, target),
        )
        task = asyncio.create_task(self._run(queue, replaying), name=f"dead letters[{queue}]")
        # Not in the task: it may be cancelled before its first step.
        task.add_done_callback(lambda ended: self._over(queue, ended, permit))
        self._running[queue] = (task, replaying, discards)
        return Answer(202, msgspec.json.encode(_run(replaying, discards, running=True)))

    async def _first(self, queue: str, ask: Callable[[ServedStore], Awaitable[T]]) -> tuple[ServedStore, T]:
        """Return the first store that has a queue, and its answer; an external store of the workers comes first.

        Raises `Refusal` if none has it, and says whether its messages are in a store that the bridge cannot read.
        """
        own, ledger = self._bridge.store, self._bridge.scheduler.pending
        by_queue = [work for work in map(ledger.find, (queue.removesuffix(POISON_SUFFIX), queue)) if work is not None]
        external = any(work.external for work in by_queue)
        fails = "which this bridge does not read"
        for store in sorted((own, *self._beside), key=lambda each: (each is own) == external):
            try:
                return store, await ask(store)
            except QueueNotFound:
                continue
            except StoreError as error:
                if store is own:
                    raise
                fails = f"which this bridge cannot read: {error}"
        if not external or not queue.endswith(POISON_SUFFIX):
            raise Refusal("queue_not_found", "there is no such queue")
        kind = next((f" ({work.store})" for work in by_queue if work.store), "")
        raise Refusal(
            "queue_not_found",
            f"the messages of {queue} are safe in the store of its workers{kind}, {fails}. {ask_their_store(queue)}",
        )

    async def _run(self, queue: str, replaying: ReplayRun) -> str:
        """Return the error in one line, empty for none."""
        try:
            await replaying.run()
        except QueuebellError as failed:
            return str(failed)
        except Exception:
            log.exception("%s: replaying or discarding dead letters failed; the remaining ones stay", queue)
            return "unexpected error; the bridge's log has the cause"
        return ""

    def _over(self, queue: str, task: asyncio.Task[str], permit: Permit | None) -> None:
        """Record how a run ended; the next one may begin."""
        if permit is not None:
            permit.close()
        _, replaying, discards = self._running.pop(queue)
        error = (
            "the bridge stopped, or the permission was revoked; the remaining messages stay"
            if task.cancelled()
            else task.result()
        )
        self._ended.pop(queue, None)
        while len(self._ended) >= _RUNS_MAX:
            self._ended.pop(next(iter(self._ended)))
        run = self._ended[queue] = _run(replaying, discards, running=False, error=error)
        ends = "".join(f"; {each}" for each in (run.why, error) if each)
        log.info("%s: %s %d, %d stay%s", queue, run.what, run.moved, run.stay, ends)


def _dead_letter(message: StoredMessage, now: datetime.datetime, wanted: Shown) -> Grave | None:
    """Return what is shown of a message, None if it is not wanted."""
    burial = facts(message.body)
    if wanted.reason and (burial is None or wanted.reason not in burial.reason):
        return None
    names = {message.id, *(() if burial is None else (burial.id, burial.key))}
    if wanted.id and wanted.id not in names:
        return None
    _, body, size = glimpse(message.body, 4 * SHOWN)
    since = message.inserted_at if burial is None else burial.buried_at
    return Grave(
        id=message.id,
        age_ms=max(0, round((now - since).total_seconds() * 1000)),
        dequeue_count=message.dequeue_count,
        burial=burial,
        body=body.decode("utf-8", "replace")[:SHOWN],
        size=size,
        headers=message.headers,
    )


def _run(replaying: ReplayRun, discards: bool, *, running: bool, error: str = "") -> Run:
    done = replaying.result
    return Run(
        what="discarded" if discards else "replayed",
        running=running,
        moved=done.moved,
        stay=done.stay,
        why=done.why,
        twice=done.twice,
        error=error,
    )
