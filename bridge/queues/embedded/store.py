"""The embedded store: `EmbeddedStore` turns coroutines into calls of the engine; `MemoryStore` runs them in memory.

`queuebell.bridge.queues.embedded.sqlite.SqliteStore` runs them on a file.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import logging
import platform
import re
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from queuebell.bridge.contract.errors import BadInput, Closed, WrongThread
from queuebell.bridge.queues import limits
from queuebell.bridge.queues.base import (
    PUT_WINDOW_S,
    Capabilities,
    Claim,
    MessageState,
    NewMessage,
    PutReceipt,
    Received,
    digest_of,
)
from queuebell.bridge.queues.embedded.committer import Call, Commit, Committer
from queuebell.bridge.queues.embedded.engine import Engine
from queuebell.bridge.queues.embedded.file import open_memory
from queuebell.bridge.queues.embedded.state import Backlog, Grant, StoreObserver
from queuebell.bridge.queues.served import Browsed, Discarded, Looked, ReadRoom, ServedStore, Stamped

P = ParamSpec("P")
T = TypeVar("T")

_place = re.compile(r"(\d{1,18})\.(\d{1,18})", re.ASCII).fullmatch


def random_receipt() -> int:
    """Return 63 random bits, so that receipts cannot be guessed."""
    return int.from_bytes(secrets.token_bytes(8)) >> 1


class EmbeddedStore(ServedStore):
    """A queue store in the bridge's process, which also reports its state after each commit (rules O1 to O7).

    Reports come in commit order, so that the bridge needs neither triggers nor sweeps for these queues. The store is
    opened by `open`, or by the first call. A cancelled call is still carried out, but messages that it receives return
    to the queue, uncounted.
    """

    capabilities: Capabilities = Capabilities(
        put_once=True, uncounted_release=True, oldest_age=True, counts_leased=True, headers=True
    )
    boot: str
    """32 hex digits, for `Received.boot`."""

    def __init__(self, address: str) -> None:
        self._address = f"{platform.node()}\n{address}"
        self._name = address
        self._closed = False
        self._thread = 0
        """The thread that opened the store; all calls belong to its event loop."""

    def __str__(self) -> str:
        return self._name

    # -- for the subclass ------------------------------------------------------------------------------------------

    def _engine(self) -> Engine | None:
        """Return the engine, None while the store is not open."""
        raise NotImplementedError

    def _submit(self, call: Call) -> None:
        """Queue a call for the engine, in order."""
        raise NotImplementedError

    def _observers(self) -> Sequence[StoreObserver]:
        raise NotImplementedError

    async def open(self) -> None:
        """Open the store; repeated calls are no-ops.

        Raises `StoreOwned`, `StoreDamaged`, or `ConfigurationError` for a file of a newer version.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Finish calls in progress and release all resources."""
        raise NotImplementedError

    def observe(self, observer: StoreObserver) -> None:
        """Report every commit to ``observer`` from now on."""
        raise NotImplementedError

    def failure(self) -> str | None:
        """Return None while the file works, else a line with the cause."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    # -- the promise -----------------------------------------------------------------------------------------------

    def fingerprint(self, queue: str) -> str:
        """Return hex digits that identify this queue of this store on this machine (B11)."""
        return digest_of(self._address, queue)

    def engine(self, queue: str) -> str | None:
        """Return None: the queues are embedded."""
        return None

    async def _do(
        self, operation: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]], *args: P.args, **options: P.kwargs
    ) -> T:
        """Have the engine carry out its operation of the same name; it takes options in their order."""
        engine = self._engine() or await self._opened()
        return await self._ask(getattr(engine, operation.__name__), (*args, *options.values()))

    async def _put(self, queue: str, messages: Sequence[NewMessage], create: bool) -> list[PutReceipt]:
        if not create:
            return (await self._put_existing(queue, messages)).answer
        engine, grant = await self._put_asked(queue, messages)
        return await self._ask(engine.put, (queue, messages, grant), queue, grant)

    async def _put_existing(self, queue: str, messages: Sequence[NewMessage]) -> Stamped[list[PutReceipt]]:
        engine, grant = await self._put_asked(queue, messages)
        return await self._ask(engine.put_existing, (queue, messages, grant), queue, grant)

    async def _put_once(self, queue: str, key: str, message: NewMessage, create: bool) -> PutReceipt | None:
        engine, grant = await self._put_asked(queue, [message])
        digest = hashlib.sha256(message.body).digest()
        return await self._ask(engine.put_once, (queue, key, digest, message, grant, create), queue, grant)

    async def _receive(
        self, queue: str, limit: int, visibility_s: float, source: str | None, room: ReadRoom | None
    ) -> Stamped[Received]:
        """Receive messages; return them to the queue if the caller was cancelled."""

        def take_back(answer: Stamped[Received]) -> None:
            self.reclaim(queue, [Claim(message.id, message.pop_receipt) for message in answer.answer.messages])

        engine = self._engine() or await self._opened()
        given = (queue, limit, limits.lease_ms(visibility_s), source, room)
        asked = self._ask(engine.receive_stamped, given, abandoned=take_back)
        try:
            return await asked
        except asyncio.CancelledError:
            if not asked.cancelled() and asked.exception() is None:  # answered in the turn of the cancellation
                take_back(asked.result())
            raise

    @property
    def remembered(self) -> int:
        """The number of remembered keys of `put_once`, as of about the last commit."""
        engine = self._engine()
        return 0 if engine is None else engine.state.keys.count

    async def browse(
        self,
        queue: str,
        limit: int = 32,
        *,
        after: str = "",
        newest: bool = False,
        state: MessageState = "waiting",
    ) -> Browsed:
        """Return up to 32 messages of one state from any position by one short request."""
        limits.check_peek(queue, limit)
        place = None
        if after:
            if (found := _place(after)) is None:
                raise BadInput("bad_parameter", "after must come from an earlier answer")
            place = (int(found[1]), int(found[2]))
        engine = self._engine() or await self._opened()
        if state != "waiting":
            return await self._ask(engine.browse_invisible, (queue, limit, place, newest, state == "running"))
        return await self._ask(engine.browse, (queue, limit, place, newest))

    async def look(self, queue: str, id_or_key: str) -> Looked | None:
        """Return the message with this id, or that was put under this key; None where there is none."""
        limits.check_peek(queue, 1)
        engine = self._engine() or await self._opened()
        return await self._ask(engine.look, (queue, id_or_key))

    async def discard(self, queue: str, name: str, *, by_id: bool = False) -> Discarded:
        """Delete the message with this id, or that was put under this key."""
        limits.check_peek(queue, 1)
        engine = self._engine() or await self._opened()
        return await self._ask(engine.discard, (queue, name, by_id))

    # -- for the bridge --------------------------------------------------------------------------------------------

    def refresh(self, queue: str) -> None:
        """Update this queue to the current time and report its state (O3); no-op while the store is not open."""
        engine = self._engine()
        if engine is not None and not self._closed:
            self._submit(Call(engine.refresh, (queue,), None))

    def reclaim(self, queue: str, claims: Sequence[Claim], *, uncount: bool = True) -> None:
        """Return delivered messages that no worker accepted (O7); no-op while the store is not open.

        Messages that still have exactly these receipts become visible immediately, their receipts invalid, and with
        ``uncount`` their dequeue counts restored.
        """
        engine = self._engine()
        if engine is not None and not self._closed and claims:
            self._submit(Call(engine.reclaim, (queue, list(claims), uncount), None))

    def backlogs(self) -> list[Backlog]:
        """Return the state of each queue that existed at the start, with ``rose`` set where messages are visible."""
        raise NotImplementedError

    def number(self, queue: str) -> int | None:
        """Return a number that identifies the queue, None if it does not exist; may include an uncommitted create.

        A recreated queue has another number. Restarts and clears do not change it. Raises `Closed` while the store is
        not open.
        """
        self._refuse_closed()
        engine = self._engine()
        if engine is None:
            raise Closed("the store is not open")
        # The writer may change this dict at the same time; one lookup sees it before or after.
        found = engine.state.queues.get(queue)
        return None if found is None else found.made

    # -- parts -----------------------------------------------------------------------------------------------------

    async def _put_asked(self, queue: str, messages: Sequence[NewMessage]) -> tuple[Engine, Grant | None]:
        """Return the engine, and a grant if an observer wants messages of this put delivered."""
        engine = self._engine() or await self._opened()
        self._refuse_closed()
        grant: Grant | None = None
        observers = self._observers()
        if observers:
            visible = sum(1 for message in messages if not message.visible_after_ms)
            for observer in observers if visible else ():
                grant = observer.grant(queue, visible)
                if grant is not None:
                    break
        return engine, grant

    async def _opened(self) -> Engine:
        self._refuse_closed()
        await self.open()
        engine = self._engine()
        if engine is None:
            raise Closed("the store is closed")
        return engine

    def _refuse_closed(self) -> None:
        if self._closed:
            raise Closed("the store is closed")

    def _ask(
        self,
        operation: Callable[..., T],
        args: tuple[object, ...],
        queue: str = "",
        grant: Grant | None = None,
        abandoned: Callable[[Any], None] | None = None,
    ) -> asyncio.Future[T]:
        self._refuse_closed()
        if threading.get_ident() != self._thread:
            raise WrongThread("store")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(Call(operation, args, future, queue, grant, abandoned))
        return future


def deliver(commit: Commit, observers: Sequence[StoreObserver]) -> None:
    """Report a commit to the observers, then answer its callers (request the wake before acknowledging, B1)."""
    try:
        if commit.backlogs or commit.grant_results:
            for observer in observers:
                observer.committed(commit.backlogs, commit.grant_results)
    finally:
        # Committed calls are acknowledged even if an observer fails.
        for call in commit.calls:
            call.resolve()


_log = logging.getLogger("queuebell.store")


class Shared:
    """The engine and observers of one name, shared by the stores that use it."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.committer = Committer(engine, f"memory:{name}")
        # Stores in different threads may share a name.
        self.lock = threading.Lock()
        self.users = 0
        self.observers: list[tuple[MemoryStore, StoreObserver]] = []


_shared: dict[str, Shared] = {}
_shared_lock = threading.Lock()


class MemoryStore(EmbeddedStore):
    """The embedded store in memory: the same engine without a file or thread; its last user takes the messages along.

    Stores of one ``name`` share messages, observers and the first one's clock. All waiting calls run as one commit in
    the next turn of the caller's event loop, so that a simulated loop can run it: with ``clock``, ``wall``,
    ``receipts`` and ``boot`` given, runs are reproducible.
    """

    def __init__(
        self,
        name: str,
        *,
        boot: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        receipts: Callable[[], int] = random_receipt,
        put_window_s: float = PUT_WINDOW_S,
    ) -> None:
        super().__init__(f"memory:{name}")
        self.name = name
        self._boot_given = boot
        self.boot = boot or secrets.token_hex(16)
        self._clock = clock
        self._wall = wall
        self._receipts = receipts
        self._put_window_s = put_window_s
        self._share: Shared | None = None
        self._observer: StoreObserver | None = None
        self._waiting: list[Call] = []
        self._turn: asyncio.Handle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def open(self) -> None:
        """Join the other stores of this name, or create it."""
        self._refuse_closed()
        if self._share is not None:
            return
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        with _shared_lock:
            shared = _shared.get(self.name)
            if shared is None:
                engine = Engine(
                    open_memory(),
                    clock=self._clock,
                    wall=self._wall,
                    receipts=self._receipts,
                    boot=self.boot,
                    put_window_s=self._put_window_s,
                )
                shared = _shared[self.name] = Shared(self.name, engine)
            elif self._boot_given is not None:
                # The joining bridge defines the boot of these queues.
                shared.committer.engine.boot = self._boot_given
            else:
                self.boot = shared.committer.engine.boot
            shared.users += 1
        self._share = shared
        if self._observer is not None:
            shared.observers.append((self, self._observer))

    def observe(self, observer: StoreObserver) -> None:
        """Report every commit of every store of this name to ``observer``."""
        shared = self._share
        if shared is not None:
            shared.observers = [entry for entry in shared.observers if entry[0] is not self]
            shared.observers.append((self, observer))
        self._observer = observer

    def backlogs(self) -> list[Backlog]:
        """Return the current states of the queues."""
        shared = self._share
        if shared is None:
            return []
        with shared.lock:
            return shared.committer.engine.state.backlogs()

    def failure(self) -> str | None:
        """Return None while the store is open."""
        if self._share is None:
            return "the store is not open"
        return self._share.committer.failure

    async def close(self) -> None:
        """Carry out waiting calls and close; the last store to close discards the messages."""
        self._closed = True
        shared, self._share = self._share, None
        if shared is None:
            return
        if self._turn is not None:
            self._turn.cancel()
            self._run(shared)
        shared.observers = [entry for entry in shared.observers if entry[0] is not self]
        with _shared_lock:
            shared.users -= 1
            if not shared.users:
                _shared.pop(self.name, None)
                shared.committer.engine.state.connection.close()

    def _engine(self) -> Engine | None:
        return None if self._share is None else self._share.committer.engine

    def _observers(self) -> Sequence[StoreObserver]:
        shared = self._share
        if shared is None:
            return () if self._observer is None else (self._observer,)
        # Grants are requested in the observer's own thread only.
        return [observer for store, observer in shared.observers if store._loop is self._loop]

    def _submit(self, call: Call) -> None:
        self._waiting.append(call)
        if self._turn is None:
            if self._loop is None:
                raise Closed("the store is not open")
            self._turn = self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        shared = self._share
        if shared is not None:
            self._run(shared)

    def _run(self, shared: Shared) -> None:
        self._turn = None
        calls, self._waiting = self._waiting, []
        with shared.lock:
            if calls:
                shared.committer.run(calls, functools.partial(self._report, shared))
            engine = shared.committer.engine
            if engine.state.deleted_queue_ids:
                shared.committer.tidy()
            if engine.state.deleted_queue_ids and self._loop is not None and not self._closed:
                self._turn = self._loop.call_soon(self._next_turn)

    def _report(self, shared: Shared, commit: Commit) -> None:
        # In a later turn, outside the lock: an observer may call the store again, or fail.
        near = []
        for store, observer in shared.observers:
            if store._loop is self._loop:
                near.append(observer)
            elif store._loop is not None:
                try:
                    store._loop.call_soon_threadsafe(observer.committed, commit.backlogs, commit.grant_results)
                except RuntimeError:
                    # That loop is closed; the other observers still get the report.
                    _log.debug("%s: an event loop was closed before the store", self)
        if self._loop is not None:
            self._loop.call_soon(deliver, commit, near)
