"""Track the sessions of one boot: their names, their queues and whether they are alive."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from itertools import chain, islice
from typing import Final

import msgspec

from queuebell.bridge.contract.trace_context import Traces
from queuebell.bridge.contract.wire import CarriedMessage, Processes, Reason, Starved, Subscription
from queuebell.bridge.core.agenda import Agenda

HELLO_S = 5.0
DEAD_AFTER_BEATS = 3
SECONDS_PER_SESSION = 0.0025


class InFlight(msgspec.Struct, frozen=True):
    """Hold the longest-running message of a session's queue, as of its newest heartbeat."""

    id: str
    attempt: int
    since: float


class Session(msgspec.Struct, eq=False):
    """Hold one listener's session, which has no name until its hello."""

    id: int
    kind: str
    opened_at: float
    last_heard: float
    instance: str | None = None
    listener: str = ""
    accepts: bool = False
    scaler: bool = False
    """The session starts workers instead of handling messages (Z5)."""
    drains: bool = False
    """It stops when it is asked to."""
    beat_s: float = 0.0
    """The heartbeat interval last sent to it; it is not late just because the fleet shrank since."""
    queues: dict[str, SessionQueue] = {}
    unsent: dict[str, None] = {}
    """Queues whose slot holds a wake."""
    flushing: bool = False
    """True if a `Flush` was requested since its wakes were last taken."""
    running: dict[str, InFlight] = {}
    """By queue, for handlers that have run for some seconds. Display only."""


class Sessions:
    """Hold all sessions, by number and by instance."""

    def __init__(self, heartbeat_s: float) -> None:
        self._by_id: dict[int, Session] = {}
        self._by_instance: dict[str, Session] = {}
        self._shortest = heartbeat_s
        self.heartbeat_s = heartbeat_s
        """H: grows with the number of sessions, so that heartbeats never become the load. Read with every frame."""

    def __len__(self) -> int:
        return len(self._by_instance)

    @property
    def dead_after_s(self) -> float:
        """Return D: a session silent for this long is dead, and frames sent to it have arrived or never will."""
        return DEAD_AFTER_BEATS * self.heartbeat_s

    def interval_sent(self, session: Session) -> None:
        """Note that a session is sent the current heartbeat interval."""
        session.beat_s = self.heartbeat_s

    def alive_until(self, session: Session) -> float:
        """Return until when (D) a session counts as alive if it sends nothing more."""
        return session.last_heard + DEAD_AFTER_BEATS * max(session.beat_s, self.heartbeat_s)

    def get(self, session: int) -> Session | None:
        """Return a session by number."""
        return self._by_id.get(session)

    def named(self) -> list[Session]:
        """Return the sessions that sent a hello."""
        return list(self._by_instance.values())

    def open(self, session: Session) -> None:
        """Add a session that has not sent a hello yet."""
        self._by_id[session.id] = session

    def by_instance(self, instance: str) -> Session | None:
        """Return an instance's session."""
        return self._by_instance.get(instance)

    def name(self, session: Session, instance: str, listener: str) -> None:
        """Name a session as its hello requests."""
        if session.instance is not None:
            self._by_instance.pop(session.instance, None)
        session.instance = instance
        session.listener = listener
        self._by_instance[instance] = session
        self._update_heartbeat()

    def remove(self, session: Session) -> None:
        """Forget a session."""
        self._by_id.pop(session.id, None)
        if session.instance is not None and self._by_instance.get(session.instance) is session:
            del self._by_instance[session.instance]
            self._update_heartbeat()

    def _update_heartbeat(self) -> None:
        self.heartbeat_s = max(self._shortest, SECONDS_PER_SESSION * len(self._by_instance))


GRACE_BEATS = 1.5
"""A session's grace after a suspend, in heartbeats: one, and half of one for a machine that just resumed."""


class SessionTimeouts:
    """Track when each session must show a sign of life.

    A frame does not move the deadline: the session's state is read when the deadline passes.
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._deaths: Agenda[int] = Agenda()
        self._resumed_at = -math.inf

    def expect(self, session: Session) -> None:
        """Watch a session: check it when it may be dead."""
        self._deaths.set(session.id, self._alive_until(session))

    def forget(self, session: int) -> None:
        """Stop watching a session."""
        self._deaths.clear(session)

    def deadline(self) -> float | None:
        """Return when to call `dead` next."""
        return self._deaths.next()

    def dead(self, now: float) -> list[Session]:
        """Return the sessions that are dead by now, the earliest deadline first."""
        first = self._deaths.next()
        if first is None or first > now:
            return []
        # Deadlines that pass soon are checked too, or ten thousand live sessions would wake the bridge more often than
        # their heartbeats do.
        found: list[Session] = []
        for number in self._deaths.pop_due(now + self._sessions.heartbeat_s / 10):
            session = self._sessions.get(number)
            if session is None:
                continue
            alive_until = self._alive_until(session)
            if now < alive_until:
                self._deaths.set(number, alive_until)
            else:
                found.append(session)
        return found

    def suspended(self, now: float, gap_s: float) -> None:
        """Handle a suspend of ``gap_s``: sessions were silent for that long too, and get a grace period.

        Their heartbeats may still be unread in the bridge's sockets. A session that was silent beyond D and sends
        nothing within the grace period is dead at its end, not D later.
        """
        self._resumed_at = now
        for session in self._sessions.named():
            session.last_heard -= gap_s
            session.opened_at -= gap_s
            self.expect(session)

    def _alive_until(self, session: Session) -> float:
        beat_s = max(session.beat_s, self._sessions.heartbeat_s)
        return max(self._sessions.alive_until(session), self._resumed_at + GRACE_BEATS * beat_s)


KEPT_MAX: Final = 256
"""Rejections kept; the least recently repeated one is evicted."""
RECENT_S: Final = 90.0
"""How long a rejection is shown. A rejected worker retries every 30 s at most, so one that still runs stays shown."""


class Rejection(msgspec.Struct):
    """Hold the rejections of one worker at one queue for one reason; times are of the rules' clock."""

    queue: str
    """"" if the bridge could not read which queues the worker requested."""
    listener: str
    code: str
    why: str
    first_at: float
    last_at: float
    instance: str
    """The worker that was rejected last."""
    count: int = 1

    def describe(self, now: float) -> str:
        """Return one line: the rejected worker, the reason and the count."""
        times = "once" if self.count == 1 else f"{self.count} times"
        return (
            f"the bridge rejected {self.listener or 'a worker'} {times}, last {max(0.0, now - self.last_at):.0f} s "
            f"ago: {self.why}"
        )


class Rejections:
    """Keep the newest rejections of one boot."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, str], Rejection] = OrderedDict()

    def add(self, now: float, queues: Iterable[str], listener: str, code: str, why: str, *, instance: str = "") -> None:
        """Record a worker's rejection at each of its queues, if they are known."""
        for queue in tuple(queues) or ("",):
            key = queue, listener, code
            known = self._kept.get(key)
            if known is None or now - known.last_at > RECENT_S:
                self._kept[key] = Rejection(queue, listener, code, why, now, now, instance)
            else:
                known.count, known.why, known.last_at, known.instance = known.count + 1, why, now, instance
            self._kept.move_to_end(key)
            if len(self._kept) > KEPT_MAX:
                self._kept.popitem(last=False)

    def accepted(self, instance: str) -> None:
        """Forget the rejections of a worker that the bridge has accepted."""
        for key in [key for key, each in self._kept.items() if each.instance == instance]:
            del self._kept[key]

    def recent(self, now: float) -> list[Rejection]:
        """Return the current rejections, sorted by queue; forget older ones."""
        while self._kept and now - next(iter(self._kept.values())).last_at > RECENT_S:
            self._kept.popitem(last=False)
        return sorted(self._kept.values(), key=lambda each: (each.queue, each.listener, each.code))

    def by_queue(self, now: float) -> dict[str, list[Rejection]]:
        """Return the current rejections by queue."""
        grouped: dict[str, list[Rejection]] = {}
        for each in self.recent(now):
            grouped.setdefault(each.queue, []).append(each)
        return grouped


class WakeSlot(msgspec.Struct):
    """Hold an unsent wake: a newer one is merged into it until it is taken (B3)."""

    gen: int
    reason: Reason
    size: int
    requested_at: float
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
    """It sent `started` for that check: its next count has deducted them."""
    reported_gen: int = 0
    carried: list[tuple[int, int]] = []
    """Generation and number of carried messages that its reports do not include yet."""
    full: bool = False
    """It sent `more` or has no slot: barred until it sends `room` (B6)."""
    stuck: bool = False
    """It sent `started` and has made no progress since: barred until it does (B5)."""
    stuck_at: float = 0.0
    unresponsive: bool = False
    """Did not accept carried messages: barred until it responds again."""
    slot: WakeSlot | None = None
    woken_gen: int = 0
    woken_at: float = 0.0
    may_hold_leases: bool = False
    """Woken for this queue, or busy with it, since its last all-idle heartbeat (B8)."""
    leases: list[float] = []
    """When the leases end that its newest heartbeat named."""
    scaler: bool = False
    """The session starts workers instead of handling messages (Z5)."""
    starting: int = 0
    """How many workers it is starting, by its newest `more` or heartbeat."""
    processes: Processes | None = None
    """A scaler's workers as of its newest heartbeat. Display only."""
    failing_since: float | None = None
    """When its receives began to fail without a success since, as of its newest heartbeat. Display only."""
    hung: int = 0
    """How many slots are held by handlers that timed out, as of its newest heartbeat. Display only."""
    starved: Starved | None = None
    """Why its pool grants it no slot, as of its newest heartbeat. Display only."""
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


# A longer search would make each put more expensive with every session that accepts no carried messages.
CARRY_CANDIDATES = 16

# Most queues never have a session and share these empty values: with 100,000 names each byte counts.
_NO_SESSIONS: dict[int, SessionQueue] = {}
_NO_STORES: dict[str, int] = {}


class QueueSessions:
    """Hold the sessions subscribed to one queue; those with room are in the order of their last queued wake."""

    __slots__ = (
        "_all",
        "_changed",
        "_foreign",
        "_full_scalers",
        "_own",
        "_queue",
        "_ready",
        "_scalers",
        "_stores",
        "store",
    )

    def __init__(self, queue: str = "", changed: set[str] | None = None) -> None:
        self._queue = queue
        self._changed = changed
        self.store: str | None = None
        """The store that these sessions report (B11)."""
        self._all = _NO_SESSIONS
        self._ready = _NO_SESSIONS
        self._scalers = _NO_SESSIONS
        """Scalers with room, which come after all workers."""
        self._full_scalers = _NO_SESSIONS
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
        """Return whether a session reports the queue in an external store."""
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
        if not self._full_scalers or self._scalers:
            return None
        return next((entry for entry in self._full_scalers.values() if entry.starting and entry.capacity), None)

    def any_other_store(self, store: str | None, excluding: Iterable[int]) -> bool:
        """Return whether a session outside ``excluding`` reports a store and all that do report another one.

        A store that matches any session's is accepted (B11); without ``store`` the result is False. The cost grows with
        the number of stores, not sessions.
        """
        if store is None or not self._stores:
            return False
        known = dict(self._stores)
        for session in excluding:
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
            self._all, self._ready, self._scalers, self._full_scalers = {}, {}, {}, {}
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
            self._full_scalers.pop(session, None)
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
            if self._changed is not None:
                self._changed.add(self._queue)
        return entry

    def make_embedded(self, entry: SessionQueue) -> None:
        """Note that a session now reports this queue as `own`."""
        if not entry.own:
            entry.own = True
            self._own += 1
            self._foreign -= 1

    def refresh(self, entry: SessionQueue) -> None:
        """Note that an entry may have gained or lost room; one that regains it goes to the end of the order."""
        order = self._order(entry)
        if entry.has_room:
            order.setdefault(entry.session, entry)
            self._full_scalers.pop(entry.session, None)
        else:
            order.pop(entry.session, None)
            if entry.scaler:
                self._full_scalers.setdefault(entry.session, entry)
        if self._changed is not None:
            self._changed.add(self._queue)

    def _order(self, entry: SessionQueue) -> dict[int, SessionQueue]:
        return self._scalers if entry.scaler else self._ready

    def used(self, entry: SessionQueue) -> None:
        """Move an entry to the end of the order."""
        order = self._order(entry)
        if order.pop(entry.session, None) is not None:
            order[entry.session] = entry

    def pick_all(self, excluding: Container[int] = ()) -> list[SessionQueue]:
        """Return all workers with room, or else one scaler, except those in ``excluding``."""
        return [entry for entry in self._ready.values() if entry.session not in excluding] or self.pick(1, excluding)

    def workers_except(self, session: int) -> list[SessionQueue]:
        """Return all workers with room except the owner ``session``; no scaler is needed."""
        return [entry for entry in self._ready.values() if entry.session != session]

    def pick(self, count: int, excluding: Container[int] = ()) -> list[SessionQueue]:
        """Return up to ``count`` entries with room, least recently used first, except those in ``excluding``."""
        picked: list[SessionQueue] = []
        for entry in chain(self._ready.values(), self._scalers.values()):
            if len(picked) >= count:
                break
            if entry.session not in excluding:
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
