"""The bridge's own store, without where it is kept: from a caller's coroutine to a call for the engine."""

from __future__ import annotations

import asyncio
import hashlib
import platform
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from bridge.contract.errors import BadInput, Closed, QueueNotFound, WrongThread
from bridge.contract.names import parse_reference
from bridge.queues import limits
from bridge.queues.base import (
    AsyncConnection,
    Body,
    Capabilities,
    Claim,
    Counts,
    Depth,
    NewMessage,
    PutReceipt,
    Received,
    Settled,
    Settlement,
    Settling,
    StoredMessage,
    digest_of,
    new_messages,
    refuse_connection,
)
from bridge.queues.embedded import existing_only
from bridge.queues.embedded.calls import Call, Commit
from bridge.queues.embedded.engine import Engine
from bridge.queues.embedded.once import put_once
from bridge.queues.embedded.terms import Browsed, Grant, Level, ReadRoom, Stamped, StoreObserver
from bridge.queues.missing import missing_from
from bridge.queues.served import ServedStore

T = TypeVar("T")

_place = re.compile(r"(\d{1,18})\.(\d{1,18})", re.ASCII).fullmatch


class OwnStore(ServedStore):
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

    async def put(
        self, queue: str, bodies: Sequence[Body], *, connection: AsyncConnection | None = None, create: bool = True
    ) -> list[PutReceipt]:
        """Put 1 to 32 messages, all or none; they are on the disk when this returns."""
        refuse_connection(connection)
        messages = new_messages(bodies)
        if not create:
            try:
                return (await self.put_existing(queue, messages)).answer
            except QueueNotFound:
                raise await missing_from(self, queue) from None
        engine, grant = await self._put_asked(queue, messages)
        return await self._ask(engine.put, (queue, messages, grant), queue, grant)

    async def put_once_plainly(self, queue: str, key: str, body: Body, create: bool) -> PutReceipt | None:
        """Put likewise; `QueueNotFound` costs no look for names that are near."""
        limits.check_key(key)
        (message,) = messages = new_messages([body])
        engine, grant = await self._put_asked(queue, messages)
        digest = hashlib.sha256(message.body).digest()
        return await self._ask(put_once, (engine, queue, key, digest, message, grant, create), queue, grant)

    @property
    def remembered(self) -> int:
        """How many keys of `put_once` are remembered; a little behind."""
        engine = self._engine()
        return 0 if engine is None else engine.state.keys.count

    async def receive(
        self,
        queue: str,
        limit: int = 1,
        visibility_s: float = 30.0,
        *,
        source: str | None = None,
        room: ReadRoom | None = None,
    ) -> Received:
        """Take up to ``limit`` visible messages, longest visible first; costs no disk access where there is none.

        Raises `NoRoom` where ``room`` has none for their bodies.
        """
        lease = limits.check_receive(queue, limit, visibility_s, source)
        engine = self._engine() or await self._opened()
        return await self._taken(engine.receive, (queue, limit, lease, source, room), queue)

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        """Delete, release and extend, up to 32 items in each list; a release gives a new receipt too."""
        limits.check_settlement(queue, settlement)
        engine = self._engine() or await self._opened()
        return await self._ask(engine.settle, (queue, settlement))

    async def peek(self, queue: str, limit: int = 32, *, room: ReadRoom | None = None) -> list[StoredMessage]:
        """Look at up to 32 visible messages. Raises `NoRoom` likewise."""
        limits.check_peek(queue, limit)
        engine = self._engine() or await self._opened()
        return await self._ask(engine.peek, (queue, limit, room))

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

    async def depth(self, queue: str) -> Depth | None:
        """Count; None for a queue that does not exist."""
        parse_reference(queue)
        engine = self._engine() or await self._opened()
        return await self._ask(engine.depth, (queue,))

    async def counts(self, queue: str) -> Counts | None:
        """Tell all, of counts in memory and the first entry of the queue's index."""
        parse_reference(queue)
        engine = self._engine() or await self._opened()
        return await self._ask(engine.counts, (queue,))

    async def exists(self, queue: str) -> bool:
        """Look at the names in memory."""
        parse_reference(queue)
        engine = self._engine() or await self._opened()
        return await self._ask(engine.exists, (queue,))

    async def oldest_ms(self, queue: str) -> int | None:
        """Look at the first entry of the queue's index; no statement runs where nothing is visible."""
        parse_reference(queue)
        engine = self._engine() or await self._opened()
        return await self._ask(engine.oldest_ms, (queue,))

    async def clear(self, queue: str) -> None:
        """Remove every message."""
        parse_reference(queue)
        engine = self._engine() or await self._opened()
        await self._ask(engine.clear, (queue,))

    async def pause(self, queue: str, paused: bool = True) -> None:
        """Give nothing out from now on, or give out again, which wakes whoever waits for what is visible."""
        parse_reference(queue)
        engine = self._engine() or await self._opened()
        await self._ask(engine.pause, (queue, bool(paused)))

    async def paused(self, queue: str) -> bool:
        """Look at the queue in memory."""
        parse_reference(queue)
        engine = self._engine() or await self._opened()
        return await self._ask(engine.paused, (queue,))

    async def create(self, queue: str, metadata: dict[str, str] | None = None) -> bool:
        """Make a queue and say whether it is new; metadata (8 KiB at most) replaces what stands."""
        parse_reference(queue)
        limits.check_metadata(metadata)
        engine = self._engine() or await self._opened()
        return await self._ask(engine.create, (queue, metadata))

    async def metadata(self, queue: str) -> dict[str, str]:
        """Return the metadata of a queue; raises `QueueNotFound`."""
        parse_reference(queue)
        engine = self._engine() or await self._opened()
        return await self._ask(engine.metadata, (queue,))

    async def delete(self, queue: str) -> None:
        """Remove a queue and its messages."""
        parse_reference(queue)
        engine = self._engine() or await self._opened()
        await self._ask(engine.delete, (queue,))

    async def queues(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
        """List up to ``limit`` (1 to 10,000) references in ascending order."""
        limits.check_list(prefix, after, limit)
        engine = self._engine() or await self._opened()
        return await self._ask(engine.names, (prefix, after, limit))

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

    # -- for a server that makes no queue unasked: an unknown one raises `QueueNotFound` --------------------------

    async def put_existing(self, queue: str, messages: Sequence[NewMessage]) -> Stamped[list[PutReceipt]]:
        """Put 1 to 32 messages on a queue that exists, all or none; they are on the disk when this returns."""
        engine, grant = await self._put_asked(queue, messages)
        return await self._ask(existing_only.put_existing, (engine, queue, messages, grant), queue, grant)

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
        lease = limits.check_receive(queue, limit, visibility_s, source)
        engine = self._engine() or await self._opened()
        asked = (engine, queue, limit, lease, source, room)
        return await self._taken(existing_only.receive_stamped, asked, queue)

    async def update(
        self, queue: str, claim: Claim, visibility_s: float, body: bytes | None = None
    ) -> Stamped[Settled]:
        """Have a message visible ``visibility_s`` (0 to 604800) from now, perhaps with another body."""
        limits.check_update(queue, visibility_s, body)
        engine = self._engine() or await self._opened()
        return await self._ask(existing_only.update, (engine, queue, claim, visibility_s, body))

    async def create_alike(self, queue: str, metadata: dict[str, str]) -> bool | None:
        """Make a queue: True; False where it stands with the same metadata, None where it stands with other."""
        return await self._ask_with_metadata(existing_only.create_alike, queue, metadata)

    async def replace_metadata(self, queue: str, metadata: dict[str, str]) -> None:
        """Set the metadata (8 KiB at most) of a queue that exists."""
        await self._ask_with_metadata(existing_only.replace_metadata, queue, metadata)

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

    async def remove(self, queue: str) -> None:
        """Remove a queue that exists, and its messages."""
        parse_reference(queue)
        engine = self._engine() or await self._opened()
        await self._ask(existing_only.remove, (engine, queue))

    async def standing(self, queue: str) -> tuple[dict[str, str], Depth]:
        """Return metadata and depth of a queue that exists."""
        parse_reference(queue)
        engine = self._engine() or await self._opened()
        return await self._ask(existing_only.standing, (engine, queue))

    async def listing(self, prefix: str = "", after: str = "", limit: int = 1000) -> list[tuple[str, dict[str, str]]]:
        """List up to ``limit`` (1 to 10,000) references with their metadata."""
        limits.check_list(prefix, after, limit)
        engine = self._engine() or await self._opened()
        return await self._ask(engine.listing, (prefix, after, limit))

    # -- parts -----------------------------------------------------------------------------------------------------

    async def _put_asked(self, queue: str, messages: Sequence[NewMessage]) -> tuple[Engine, Grant | None]:
        """Check a put and ask the observers whether it may hand messages over."""
        limits.check_put(queue, messages)
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

    async def _ask_with_metadata(self, operation: Callable[..., T], queue: str, metadata: dict[str, str]) -> T:
        parse_reference(queue)
        limits.check_metadata(metadata)
        engine = self._engine() or await self._opened()
        return await self._ask(operation, (engine, queue, metadata))

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

    async def _taken(self, operation: Callable[..., T], args: tuple[object, ...], queue: str) -> T:
        """Ask for messages, and give back what comes when nobody waits for it any more."""

        def take_back(answer: Any) -> None:
            received = answer if isinstance(answer, Received) else answer.answer
            self.reclaim(queue, [Claim(message.id, message.pop_receipt) for message in received.messages])

        asked = self._ask(operation, args, unheard=take_back)
        try:
            return await asked
        except asyncio.CancelledError:
            if not asked.cancelled() and asked.exception() is None:  # answered in the turn of the cancellation
                take_back(asked.result())
            raise


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
