"""Keep a session's entry for one queue: a slot for the newest wake, and what is known of its room."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain, islice

import msgspec

from bridge.contract.trace_context import Traces
from bridge.contract.wire import CarriedMessage, Processes, Reason, Starved, Subscription


class WakeSlot(msgspec.Struct):
    """Hold an unsent wake: a newer one is merged into it until it is taken (B3)."""

    gen: int
    reason: Reason
    size: int
    marked_at: float
    traceparent: str | None = None
    messages: list[CarriedMessage] | None = None
    weight: int = 0
    """Size of the messages in a frame, in bytes."""
    traces: Traces | None = None


class SessionQueue(msgspec.Struct, eq=False):
    """Hold one session's entry for one queue.

    ``free`` is the listener's last reported count minus the messages carried since then; `reported_gen` is the newest
    wake that this count includes.
    """

    session: int
    queue: str
    capacity: int
    visibility_s: float
    own: bool
    store: str | None
    accepts: bool
    free: int
    granted: int = 0
    """Slots reserved for puts whose commits are in progress; they are not available, whatever was reported."""
    receive_due: bool = False
    """Woken to check: its receive takes slots that no report has deducted yet (O7)."""
    began: bool = False
    """Sent `started` for that check: its next count has deducted them."""
    reported_gen: int = 0
    carried: list[tuple[int, int]] = []
    full: bool = False
    """Sent `more`, or has no slot: barred until it sends `room` (B6)."""
    stuck: bool = False
    """Sent `started` and made no progress since: barred until it does (B5)."""
    stuck_at: float = 0.0
    unresponsive: bool = False
    """Did not accept carried messages: barred until it responds again."""
    slot: WakeSlot | None = None
    woken_gen: int = 0
    woken_at: float = 0.0
    may_hold_leases: bool = False
    """Woken for this queue, or busy with it, since its last all-idle heartbeat (B8)."""
    leases: list[float] = []
    scaler: bool = False
    """The session starts workers instead of handling messages (Z5)."""
    starting: int = 0
    """How many workers it is starting, by its newest `more` or heartbeat."""
    processes: Processes | None = None
    """A scaler's workers by its newest heartbeat. Display only."""
    failing_since: float | None = None
    """When its receives began to fail without a success since, by its newest heartbeat. Display only."""
    hung: int = 0
    """How many slots are held by handlers that timed out, by its newest heartbeat. Display only."""
    starved: Starved | None = None
    """Why its pool grants it no slot, by its newest heartbeat. Display only."""
    in_flight: dict[str, int] | None = None
    """Running calls by handler, from its heartbeats. Display only."""

    @property
    def has_room(self) -> bool:
        """Return whether a wake may be sent to this session."""
        return self.capacity > 0 and not (self.full or self.stuck or self.unresponsive)

    @property
    def spare(self) -> int:
        """Return the free slots that are not reserved for a put in progress (O7)."""
        return max(0, self.free - self.granted)

    def report(self, free: int, gen: int | None) -> None:
        """Record the listener's own count of free slots, which includes wakes up to ``gen``.

        Messages carried by later wakes crossed the report in flight and are not in that count yet.
        """
        if gen is not None:
            self.reported_gen = max(self.reported_gen, gen)
        self.receive_due, self.began = self.receive_due and not self.began, False
        self.free = min(free, self.capacity)
        if self.carried:
            # A welcome may have reported the generation while its wake is still unsent in the slot.
            received_gen = min(self.reported_gen, self.woken_gen)
            self.carried = [(g, n) for g, n in self.carried if g > received_gen]
            self.free = max(0, self.free - sum(n for _, n in self.carried))
        self.full = free <= 0

    def carry(self, gen: int, count: int) -> None:
        """Note that a wake carries ``count`` messages."""
        self.carried.append((gen, count))


def session_queue(session: int, sub: Subscription, *, accepts: bool, scaler: bool = False) -> SessionQueue:
    """Create the entry that a hello asks for."""
    return SessionQueue(
        session=session,
        queue=sub.queue,
        capacity=sub.capacity,
        visibility_s=sub.visibility_ms / 1000,
        own=sub.own,
        store=sub.store,
        accepts=accepts,
        scaler=scaler,
        free=sub.capacity if sub.free is None else min(sub.free, sub.capacity),
    )


# A longer search would make each put dearer with every session that accepts no carried messages.
CARRY_CANDIDATES = 16

# Most queues never have a session and share these empty values: with 100,000 names each byte counts.
_NOBODY: dict[int, SessionQueue] = {}
_NO_STORES: dict[str, int] = {}


class QueueSessions:
    """Hold the sessions subscribed to one queue; those with room are in the order of their last use."""

    __slots__ = ("_all", "_barred", "_foreign", "_own", "_queue", "_ready", "_scalers", "_stirred", "_stores", "store")

    def __init__(self, queue: str = "", stirred: set[str] | None = None) -> None:
        self._queue = queue
        self._stirred = stirred
        self.store: str | None = None
        """The store that these sessions report (B11)."""
        self._all = _NOBODY
        self._ready = _NOBODY
        self._scalers = _NOBODY
        """Scalers with room, which come after all workers."""
        self._barred = _NOBODY
        """Scalers without room."""
        self._own = 0
        self._foreign = 0
        self._stores = _NO_STORES
        """Number of entries by store."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[SessionQueue]:
        return iter(self._all.values())

    @property
    def any_own(self) -> bool:
        """Return whether a session reports that this queue is in the bridge's own queue service."""
        return self._own > 0

    @property
    def any_foreign(self) -> bool:
        """Return whether a session does not report that."""
        return self._foreign > 0

    @property
    def any_ready(self) -> bool:
        """Return whether any session has room."""
        return bool(self._ready or self._scalers)

    @property
    def any_worker_ready(self) -> bool:
        """Return whether any session has room and need not start a worker first."""
        return bool(self._ready)

    @property
    def any_starter(self) -> bool:
        """Return whether a scaler could start a worker, or is starting one."""
        return bool(self._scalers) or self.barred_scaler() is not None

    def workers_for(self, scaler: SessionQueue) -> int:
        """Return how many workers a scaler need not start: connected ones, and those that other scalers start (Z5)."""
        starting = sum(entry.starting for entry in self._all.values() if entry.scaler and entry is not scaler)
        return starting + sum(entry.capacity > 0 for entry in self._all.values() if not entry.scaler)

    def barred_scaler(self) -> SessionQueue | None:
        """Return one scaler that is starting workers and needs to know of more work; None if any has room (Z5)."""
        if not self._barred or self._scalers:
            return None
        return next((entry for entry in self._barred.values() if entry.starting and entry.capacity), None)

    def any_other_store(self, store: str | None, besides: Iterable[int]) -> bool:
        """Return whether a session outside ``besides`` reports a store and all that do report another one.

        A store that matches any session's is accepted (B11); without ``store`` the result is False. The cost grows with
        the number of stores, not sessions.
        """
        if store is None or not self._stores:
            return False
        known = dict(self._stores)
        for session in besides:
            entry = self._all.get(session)
            if entry is not None and entry.store is not None:
                known[entry.store] -= 1
        return not known.get(store) and any(known.values())

    def get(self, session: int) -> SessionQueue | None:
        """Return a session's entry."""
        return self._all.get(session)

    def add(self, entry: SessionQueue) -> None:
        """Add a session's entry."""
        self.remove(entry.session)
        if not self._all:
            self._all, self._ready, self._scalers, self._barred = {}, {}, {}, {}
            self._stores = {}
        self._all[entry.session] = entry
        self.store = entry.store or self.store
        if entry.store is not None:
            self._stores[entry.store] = self._stores.get(entry.store, 0) + 1
        if entry.own:
            self._own += 1
        else:
            self._foreign += 1
        self.refresh(entry)

    def remove(self, session: int) -> SessionQueue | None:
        """Remove and return a session's entry."""
        entry = self._all.pop(session, None)
        if entry is not None:
            self._order(entry).pop(session, None)
            self._barred.pop(session, None)
            if entry.own:
                self._own -= 1
            else:
                self._foreign -= 1
            if entry.store is not None:
                self._stores[entry.store] -= 1
                if not self._stores[entry.store]:
                    del self._stores[entry.store]
                    if entry.store == self.store:
                        self.store = next(iter(self._stores), None)
            if self._stirred is not None:
                self._stirred.add(self._queue)
        return entry

    def make_embedded(self, entry: SessionQueue) -> None:
        """Note that a session now reports this queue as `own`."""
        if not entry.own:
            entry.own = True
            self._own += 1
            self._foreign -= 1

    def refresh(self, entry: SessionQueue) -> None:
        """Note that an entry gained or lost room; its place in the order is kept."""
        order = self._order(entry)
        if entry.has_room:
            order.setdefault(entry.session, entry)
            self._barred.pop(entry.session, None)
        else:
            order.pop(entry.session, None)
            if entry.scaler:
                self._barred.setdefault(entry.session, entry)
        if self._stirred is not None:
            self._stirred.add(self._queue)

    def _order(self, entry: SessionQueue) -> dict[int, SessionQueue]:
        return self._scalers if entry.scaler else self._ready

    def used(self, entry: SessionQueue) -> None:
        """Move an entry to the end of the order."""
        order = self._order(entry)
        if order.pop(entry.session, None) is not None:
            order[entry.session] = entry

    def pick_all(self, besides: Container[int] = ()) -> list[SessionQueue]:
        """Return all workers with room, or else one scaler, except those in ``besides``."""
        return [entry for entry in self._ready.values() if entry.session not in besides] or self.pick(1, besides)

    def workers_besides(self, session: int) -> list[SessionQueue]:
        """Return all workers with room except the owner ``session``; no scaler is needed."""
        return [entry for entry in self._ready.values() if entry.session != session]

    def pick(self, count: int, besides: Container[int] = ()) -> list[SessionQueue]:
        """Return up to ``count`` entries with room, least recently used first, except those in ``besides``."""
        picked: list[SessionQueue] = []
        for entry in chain(self._ready.values(), self._scalers.values()):
            if len(picked) >= count:
                break
            if entry.session not in besides:
                picked.append(entry)
        return picked

    def pick_for(self, size: int) -> list[SessionQueue]:
        """Return entries with enough room together for ``size`` messages; at least one if any has room."""
        picked: list[SessionQueue] = []
        room = 0
        for entry in self._ready.values():
            picked.append(entry)
            # A free count of 0 without a `more` is only an estimate: the session may still accept one.
            room += max(1, entry.spare)
            if room >= size:
                break
        return picked or list(islice(self._scalers.values(), 1))

    def pick_to_carry(self) -> SessionQueue | None:
        """Return the least recently used entry that accepts carried messages and has a free slot (O7)."""
        for entry in islice(self._ready.values(), CARRY_CANDIDATES):
            if entry.accepts and entry.own and entry.spare > 0 and entry.slot is None and not entry.receive_due:
                return entry
        return None
