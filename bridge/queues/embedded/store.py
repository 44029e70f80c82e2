"""The bridge's own store, without where it is kept: from a caller's coroutine to a call for the engine."""

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

from bridge.contract.errors import BadInput, Closed, WrongThread
from bridge.queues import limits
from bridge.queues.base import (
    PUT_WINDOW_S,
    Capabilities,
    Claim,
    NewMessage,
    PutReceipt,
    Received,
    digest_of,
)
from bridge.queues.embedded.committer import Call, Commit, Committer
from bridge.queues.embedded.engine import Engine
from bridge.queues.embedded.file import open_memory
from bridge.queues.embedded.state import Grant, Level, StoreObserver
from bridge.queues.served import Browsed, ReadRoom, ServedStore, Stamped

P = ParamSpec("P")
T = TypeVar("T")

_place = re.compile(r"(\d{1,18})\.(\d{1,18})", re.ASCII).fullmatch


def random_receipt() -> int:
    """Return 63 random bits: a receipt must not be guessed."""
    return int.from_bytes(secrets.token_bytes(8)) >> 1


class EmbeddedStore(ServedStore):
    """A queue store in the bridge's own process, beyond the promise of every store (rules O1 to O7).

    It tells an observer how each queue stands after each commit, in the order of its one writer, so that the bridge
    needs neither triggers nor sweeps for these queues. It is opened by `open`, or by the first call. A caller that is
    cancelled leaves its call under way: it still runs, but what a receive brings then is taken back, uncounted.
    """

    capabilities: Capabilities = Capabilities(
        put_once=True, uncounted_release=True, oldest_age=True, counts_leased=True, headers=True
    )
    boot: str
    """32 hex digits; goes into `Received.boot`."""

    def __init__(self, address: str) -> None:
        self._address = f"{platform.node()}\n{address}"
        self._name = address
        self._closed = False
        self._thread = 0
        """The one it was opened in, whose event loop all calls belong to."""

    def __str__(self) -> str:
        return self._name

    # -- what a subclass gives -------------------------------------------------------------------------------------

    def _engine(self) -> Engine | None:
        """Return the engine, None while it is not open."""
        raise NotImplementedError

    def _submit(self, call: Call) -> None:
        """Hand a call to the engine's thread or turn, in order."""
        raise NotImplementedError

    def _observers(self) -> Sequence[StoreObserver]:
        raise NotImplementedError

    async def open(self) -> None:
        """Take the store into use; once is enough.

        Raises `StoreOwned`, `StoreDamaged`, or `ConfigurationError` for a file that a newer version wrote.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Finish what is under way and let go of everything."""
        raise NotImplementedError

    def observe(self, observer: StoreObserver) -> None:
        """Let ``observer`` hear of every commit from now on."""
        raise NotImplementedError

    def failure(self) -> str | None:
        """Return None while the file works, else one line that says what is wrong."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    # -- the promise -----------------------------------------------------------------------------------------------

    def fingerprint(self, queue: str) -> str:
        """Return hex digits that name this queue of this store on this machine (B11)."""
        return digest_of(self._address, queue)

    def engine(self, queue: str) -> str | None:
        """Return None: this is the bridge's own."""
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
        """Ask for messages, and give back what comes when nobody waits for it any more."""

        def take_back(answer: Stamped[Received]) -> None:
            self.reclaim(queue, [Claim(message.id, message.pop_receipt) for message in answer.answer.messages])

        engine = self._engine() or await self._opened()
        given = (queue, limit, limits.lease_ms(visibility_s), source, room)
        asked = self._ask(engine.receive_stamped, given, unheard=take_back)
        try:
            return await asked
        except asyncio.CancelledError:
            if not asked.cancelled() and asked.exception() is None:  # answered in the turn of the cancellation
                take_back(asked.result())
            raise

    @property
    def remembered(self) -> int:
        """How many keys of `put_once` are remembered; a little behind."""
        engine = self._engine()
        return 0 if engine is None else engine.state.keys.count

    async def browse(self, queue: str, limit: int = 32, *, after: str = "", newest: bool = False) -> Browsed:
        """Look at up to 32 visible messages from a place on; one short request, wherever that is."""
        limits.check_peek(queue, limit)
        place = None
        if after:
            if (found := _place(after)) is None:
                raise BadInput("bad_parameter", "after is what an earlier answer gave to go on from")
            place = (int(found[1]), int(found[2]))
        engine = self._engine() or await self._opened()
        return await self._ask(engine.browse, (queue, limit, place, newest))

    # -- what the bridge asks --------------------------------------------------------------------------------------

    def reread(self, queue: str) -> None:
        """Let time pass for this queue and tell its level (O3); nothing happens on a store that is not open."""
        engine = self._engine()
        if engine is not None and not self._closed:
            self._submit(Call(engine.reread, (queue,), None))

    def reclaim(self, queue: str, claims: Sequence[Claim], *, uncount: bool = True) -> None:
        """Take back what was handed over and not taken up (O7); nothing happens on a store that is not open.

        What is still under exactly these receipts becomes visible at once, its receipt void, and with ``uncount`` its
        dequeue count restored.
        """
        engine = self._engine()
        if engine is not None and not self._closed and claims:
            self._submit(Call(engine.reclaim, (queue, list(claims), uncount), None))

    def levels(self) -> list[Level]:
        """Return one level for each queue that existed at start; ``rose`` where something is visible."""
        raise NotImplementedError

    def made(self, queue: str) -> int | None:
        """Return a queue's own number, None where it does not exist; a little ahead of what is committed.

        A queue that is made again has another. It survives restarts, and a clear does not change it. Raises `Closed`
        where the store is not open.
        """
        self._refuse_closed()
        engine = self._engine()
        if engine is None:
            raise Closed("the store is not open")
        # One look into a dict, which the writer may be changing: before its change, or after it.
        found = engine.state.queues.get(queue)
        return None if found is None else found.made

    # -- parts -----------------------------------------------------------------------------------------------------

    async def _put_asked(self, queue: str, messages: Sequence[NewMessage]) -> tuple[Engine, Grant | None]:
        """Ask the observers whether a put may hand messages over."""
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
        unheard: Callable[[Any], None] | None = None,
    ) -> asyncio.Future[T]:
        self._refuse_closed()
        if threading.get_ident() != self._thread:
            raise WrongThread("store")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._submit(Call(operation, args, future, queue, grant, unheard))
        return future


def deliver(commit: Commit, observers: Sequence[StoreObserver]) -> None:
    """Tell the observers of a commit, then its callers (mark before acknowledgement, B1)."""
    try:
        if commit.levels or commit.handed:
            for observer in observers:
                observer.committed(commit.levels, commit.handed)
    finally:
        # Whatever an observer does: what is committed is acknowledged.
        for call in commit.calls:
            call.resolve()


_log = logging.getLogger("queuebell.store")


class Shared:
    """One name: the engine, who listens, and how many stores use it."""

    def __init__(self, name: str, engine: Engine) -> None:
        self.committer = Committer(engine, f"memory:{name}")
        # Stores on loops of different threads may share a name.
        self.lock = threading.Lock()
        self.users = 0
        self.observers: list[tuple[MemoryStore, StoreObserver]] = []


_shared: dict[str, Shared] = {}
_shared_lock = threading.Lock()


class MemoryStore(EmbeddedStore):
    """A queue store in memory (`EmbeddedStore`), the SQLite engine without a file, a thread or a lock on disk.

    Stores of one ``name`` share their messages, their observers and the first one's clock. Calls run in order in the
    next turn of the caller's event loop, all that wait as one commit, so that a simulated loop runs it too: with
    ``clock``, ``wall``, ``receipts`` and ``boot`` given, two runs do the same.
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
        """Join the other stores of this name, or make it; costs nothing."""
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
                # The bridge that joins says under which boot these queues are known.
                shared.committer.engine.boot = self._boot_given
            else:
                self.boot = shared.committer.engine.boot
            shared.users += 1
        self._share = shared
        if self._observer is not None:
            shared.observers.append((self, self._observer))

    def observe(self, observer: StoreObserver) -> None:
        """Let ``observer`` hear of every commit of every store of this name."""
        shared = self._share
        if shared is not None:
            shared.observers = [entry for entry in shared.observers if entry[0] is not self]
            shared.observers.append((self, observer))
        self._observer = observer

    def levels(self) -> list[Level]:
        """Return how the queues stand now."""
        shared = self._share
        if shared is None:
            return []
        with shared.lock:
            return shared.committer.engine.state.levels()

    def failure(self) -> str | None:
        """Return None while it is open."""
        if self._share is None:
            return "the store is not open"
        return self._share.committer.failure

    async def close(self) -> None:
        """Carry out what waits and leave; the last one to leave takes the messages along."""
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
        # A grant is asked on the observer's own thread only.
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
                shared.committer.run(calls, functools.partial(self._told, shared))
            engine = shared.committer.engine
            if engine.state.garbage:
                shared.committer.tidy()
            if engine.state.garbage and self._loop is not None and not self._closed:
                self._turn = self._loop.call_soon(self._next_turn)

    def _told(self, shared: Shared, commit: Commit) -> None:
        # Each in a turn of its own, outside the lock: an observer may call the store again, or fail.
        near = []
        for store, observer in shared.observers:
            if store._loop is self._loop:
                near.append(observer)
            elif store._loop is not None:
                try:
                    store._loop.call_soon_threadsafe(observer.committed, commit.levels, commit.handed)
                except RuntimeError:
                    # That loop is closed: nobody listens there any more, but all others are told.
                    _log.debug("%s: an event loop was closed before the store", self)
        if self._loop is not None:
            self._loop.call_soon(deliver, commit, near)
