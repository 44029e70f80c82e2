"""The same queue in memory: shared by name within the process, gone with its last user."""

from __future__ import annotations

import asyncio
import functools
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence

from bridge.contract.errors import Closed
from bridge.queues.base import PUT_WINDOW_S
from bridge.queues.embedded.calls import Call, Commit, Committer
from bridge.queues.embedded.engine import Engine
from bridge.queues.embedded.file import open_memory
from bridge.queues.embedded.own_store import EmbeddedStore, deliver
from bridge.queues.embedded.sqlite import random_receipt
from bridge.queues.embedded.terms import Level, StoreObserver

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
