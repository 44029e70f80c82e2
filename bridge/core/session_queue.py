"""What one session is owed for one queue: a slot for the newest wake, and what is known of its room."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import chain, islice

import msgspec

from bridge.contract.trace_context import Traces
from bridge.contract.wire import CarriedMessage, Processes, Reason, Starved, Subscription


class WakeSlot(msgspec.Struct):
    """A wake that is not yet on its way: written again, it is merged; once taken, it is not (B3)."""

    gen: int
    reason: Reason
    size: int
    marked_at: float
    traceparent: str | None = None
    messages: list[CarriedMessage] | None = None
    weight: int = 0
    """Bytes that the messages take in a frame."""
    traces: Traces | None = None


class SessionQueue(msgspec.Struct, eq=False):
    """One session's place at one queue.

    ``free`` is the last level the listener reported, less the messages carried since: `reported_gen` tells up to
    which wake its own count went.
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
    """Promised to puts whose commits are under way: whoever counts slots takes them off, whatever was reported."""
    receive_due: bool = False
    """Was sent for a look: its receive takes slots that no report has taken off yet (O7)."""
    began: bool = False
    """Said `started` for that look: whatever it counts from now on has taken them off."""
    reported_gen: int = 0
    carried: list[tuple[int, int]] = []
    full: bool = False
    """Said `more`, or has no slot: barred until it says `room` (B6)."""
    stuck: bool = False
    """Said `started` and showed no progress since: barred until it does (B5)."""
    stuck_at: float = 0.0
    unresponsive: bool = False
    """Did not take up what was carried to it: barred until it shows that it hears again."""
    slot: WakeSlot | None = None
    woken_gen: int = 0
    woken_at: float = 0.0
    may_hold_leases: bool = False
    """Woken for this queue, or busy with it, since its last all-idle heartbeat (B8)."""
    leases: list[float] = []
    scaler: bool = False
    """It starts workers instead of handling messages (Z5)."""
    starting: int = 0
    """How many workers it is starting, as its newest `more` or heartbeat said."""
    processes: Processes | None = None
    """What a scaler said of its workers in its newest heartbeat. Only shown."""
    failing_since: float | None = None
    """When the first of its receives failed since one was last answered, as its newest heartbeat said. Only shown."""
    hung: int = 0
    """How many slots are held by handlers that ran out of time, as its newest heartbeat said. Only shown."""
    starved: Starved | None = None
    """Why it gets no slot of its pool, as its newest heartbeat said. Only shown."""
    in_flight: dict[str, int] | None = None
    """By handler, how many of its calls run, as its heartbeats said. Only shown."""

    @property
    def has_room(self) -> bool:
        """Whether a wake may be sent here."""
        return self.capacity > 0 and not (self.full or self.stuck or self.unresponsive)

    @property
    def spare(self) -> int:
        """The slots that may still be promised: free ones that no put on its way was promised (O7)."""
        return max(0, self.free - self.granted)

    def report(self, free: int, gen: int | None) -> None:
        """Take the listener's own count of free slots, which knows of wakes up to ``gen``.

        What was carried in later wakes is not in that count yet: it crossed the report on the way.
        """
        if gen is not None:
            self.reported_gen = max(self.reported_gen, gen)
        self.receive_due, self.began = self.receive_due and not self.began, False
        self.free = min(free, self.capacity)
        if self.carried:
            # A generation may be known from a welcome, and its wake still stand unsent in the slot.
            heard = min(self.reported_gen, self.woken_gen)
            self.carried = [(g, n) for g, n in self.carried if g > heard]
            self.free = max(0, self.free - sum(n for _, n in self.carried))
        self.full = free <= 0

    def carry(self, gen: int, count: int) -> None:
        """Note that a wake takes ``count`` messages along."""
        self.carried.append((gen, count))


def session_queue(session: int, sub: Subscription, *, accepts: bool, scaler: bool = False) -> SessionQueue:
    """Make the seat that a hello asks for."""
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


# Looking further would make every put cost more the more sessions do not take messages along.
CARRY_CANDIDATES = 16

# Most queues never have a session, and share what is empty: of 100,000 names each byte counts.
_NOBODY: dict[int, SessionQueue] = {}
_NO_STORES: dict[str, int] = {}


class QueueSessions:
    """The sessions subscribed to one queue; those with room in the order of their last use."""

    __slots__ = ("_all", "_barred", "_foreign", "_own", "_queue", "_ready", "_scalers", "_stirred", "_stores", "store")

    def __init__(self, queue: str = "", stirred: set[str] | None = None) -> None:
        self._queue = queue
        self._stirred = stirred
        self.store: str | None = None
        """The store that the sessions here say they use (B11)."""
        self._all = _NOBODY
        self._ready = _NOBODY
        self._scalers = _NOBODY
        """Those with room as well, who come after all others."""
        self._barred = _NOBODY
        """Scalers without room."""
        self._own = 0
        self._foreign = 0
        self._stores = _NO_STORES
        """How many seats name each store."""

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[SessionQueue]:
        return iter(self._all.values())

    @property
    def any_own(self) -> bool:
        """Whether a session says that this queue is in the bridge's own queue service."""
        return self._own > 0

    @property
    def any_foreign(self) -> bool:
        """Whether a session does not say so."""
        return self._foreign > 0

    @property
    def any_ready(self) -> bool:
        """Whether any session has room."""
        return bool(self._ready or self._scalers)

    @property
    def any_worker_ready(self) -> bool:
        """Whether any session has room that need start nothing for it."""
        return bool(self._ready)

    @property
    def any_starter(self) -> bool:
        """Whether a scaler could start somebody, or is about to."""
        return bool(self._scalers) or self.barred_scaler() is not None

    def workers_for(self, scaler: SessionQueue) -> int:
        """Return how many workers a scaler need not start: those with sessions, and what other scalers start (Z5)."""
        starting = sum(entry.starting for entry in self._all.values() if entry.scaler and entry is not scaler)
        return starting + sum(entry.capacity > 0 for entry in self._all.values() if not entry.scaler)

    def barred_scaler(self) -> SessionQueue | None:
        """Return a scaler that starts workers and is to hear of more work: one, and only where none has room (Z5)."""
        if not self._barred or self._scalers:
            return None
        return next((entry for entry in self._barred.values() if entry.starting and entry.capacity), None)

    def any_other_store(self, store: str | None, besides: Iterable[int]) -> bool:
        """Whether a session names another store than this one, of those not in ``besides``; where it names none, no.

        One that agrees with all of them, or with any where they differ, is fine (B11). It costs the number of stores,
        and not that of sessions.
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
        """Return the seat of a session."""
        return self._all.get(session)

    def add(self, entry: SessionQueue) -> None:
        """Seat a session."""
        self.remove(entry.session)
        if not self._all:
            # Nobody is in the others either.
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
        """Take a session's seat away."""
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
        """Note that a seated session says `own` of this queue from now on."""
        if not entry.own:
            entry.own = True
            self._own += 1
            self._foreign -= 1

    def refresh(self, entry: SessionQueue) -> None:
        """Note that a seat gained or lost room; its place in the order is kept."""
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
        """Put a seat at the end of the order."""
        order = self._order(entry)
        if order.pop(entry.session, None) is not None:
            order[entry.session] = entry

    def pick_all(self, besides: Container[int] = ()) -> list[SessionQueue]:
        """Return all workers with room, or else one scaler, without those in ``besides``."""
        return [entry for entry in self._ready.values() if entry.session not in besides] or self.pick(1, besides)

    def workers_besides(self, session: int) -> list[SessionQueue]:
        """Return all workers with room but this one, who took the debt on: nobody need start one more."""
        return [entry for entry in self._ready.values() if entry.session != session]

    def pick(self, count: int, besides: Container[int] = ()) -> list[SessionQueue]:
        """Return up to ``count`` seats with room, least recently used first, without those in ``besides``."""
        picked: list[SessionQueue] = []
        for entry in chain(self._ready.values(), self._scalers.values()):
            if len(picked) >= count:
                break
            if entry.session not in besides:
                picked.append(entry)
        return picked

    def pick_for(self, size: int) -> list[SessionQueue]:
        """Return the seats whose room together is enough for ``size`` messages, one at least if any has room."""
        picked: list[SessionQueue] = []
        room = 0
        for entry in self._ready.values():
            picked.append(entry)
            # A free count of 0 without a `more` is a guess of ours: it still may take one.
            room += max(1, entry.spare)
            if room >= size:
                break
        return picked or list(islice(self._scalers.values(), 1))

    def pick_to_carry(self) -> SessionQueue | None:
        """Return the least recently used seat that takes messages along with its wake and has a free slot (O7)."""
        for entry in islice(self._ready.values(), CARRY_CANDIDATES):
            if entry.accepts and entry.own and entry.spare > 0 and entry.slot is None and not entry.receive_due:
                return entry
        return None
