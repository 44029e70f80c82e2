"""Apply the rules of embedded queues, which the bridge's own process stores (O0 to O7).

The bridge sees every put, lease and expiry in the writer's order. So *dirty* is not remembered but computed: visible
messages exist. These queues need no sweep.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence

import msgspec

from queuebell.bridge.contract.wire import CarriedMessage
from queuebell.bridge.core.commands import Reclaim, Refresh
from queuebell.bridge.core.dispatch import Dispatch
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.core.sessions import WakeSlot
from queuebell.bridge.observe.facts import AuditFound, HandedBack, HandlerStarted, QueueMoved, ReceivesTold, Triggered

CARRY_MAX = 32
CARRY_BYTES_MAX = 48 * 1024
AGAIN_S = 1.0


class CarriedBatch(msgspec.Struct, eq=False):
    """Hold messages that travel with one wake, until the session sends `started` for them."""

    session: int
    queue: str
    gen: int
    claims: tuple[tuple[str, str], ...]
    handed_at: float
    due_at: float
    alone: bool
    """No other message was visible: the listener need not begin a receive."""
    started: bool = False


class CarriedBatches:
    """Hold a session's carried batches of the last A.

    Each operation has a constant cost: a busy session has thousands of batches within A, and each brings a `started`.
    """

    __slots__ = ("_order", "_waiting", "by_gen")

    def __init__(self) -> None:
        self.by_gen: dict[int, CarriedBatch] = {}
        self._waiting: dict[str, deque[CarriedBatch]] = {}
        """By queue those without `started`, the oldest first; removed ones may remain among them."""
        self._order: list[tuple[float, int]] = []

    def add(self, batch: CarriedBatch) -> None:
        """Expect `started` for a batch."""
        self.by_gen[batch.gen] = batch
        self._waiting.setdefault(batch.queue, deque()).append(batch)
        heapq.heappush(self._order, (batch.due_at, batch.gen))

    def mark_started(self, queue: str, gen: int) -> list[CarriedBatch]:
        """Return the queue's batches up to ``gen`` that were not started before."""
        waiting = self._waiting.get(queue)
        taken: list[CarriedBatch] = []
        while waiting and waiting[0].gen <= gen:
            batch = waiting.popleft()
            if batch.gen in self.by_gen:
                batch.started = True
                taken.append(batch)
        if waiting is not None and not waiting:
            del self._waiting[queue]
        return taken

    def due(self, now: float) -> list[CarriedBatch]:
        """Remove and return the batches whose A ended by ``now``."""
        taken: list[CarriedBatch] = []
        while (at := self.next()) is not None and at <= now:
            batch = self.by_gen.pop(heapq.heappop(self._order)[1])
            waiting = self._waiting.get(batch.queue)
            if waiting and waiting[0] is batch:
                waiting.popleft()
            taken.append(batch)
        return taken

    def leave(self, queue: str | None) -> list[CarriedBatch]:
        """Remove and return the batches of ``queue``, or all."""
        taken = [batch for batch in self.by_gen.values() if queue is None or batch.queue == queue]
        for batch in taken:
            del self.by_gen[batch.gen]
        if queue is not None:
            self._waiting.pop(queue, None)
        return taken

    def next(self) -> float | None:
        """Return when the A of the first one ends."""
        while self._order and self._order[0][1] not in self.by_gen:
            heapq.heappop(self._order)
        return self._order[0][0] if self._order else None


class EmbeddedQueues:
    """Apply the rules of embedded queues on top of Dispatch."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._d = dispatch
        self._carried: dict[int, CarriedBatches] = {}
        """By session."""
        self._visible: dict[str, PendingWork] = {}
        """Queues of the service with visible messages: the audit checks only these, not every name."""
        self.audit_found = 0
        """How often the audit repaired something; above zero shows a bug in the bridge (O4)."""

    def on_commit(
        self,
        now: float,
        queue: str,
        *,
        exists: bool,
        visible: int,
        invisible: int,
        rose: bool,
        put: int,
        receives: int,
        empty: int,
        next_visible_s: float | None,
        paused: bool = False,
        sources: Mapping[str, tuple[int, int]] | None = None,
        leased: int = 0,
        delayed: int = 0,
        oldest_s: float | None = None,
    ) -> None:
        """Record a queue's state after a commit, in the writer's order (O1)."""
        d = self._d
        work = d.pending.open(queue, now)
        if visible and not work.visible:
            work.visible_since = now
        deleted = work.exists and not exists
        added, carried, previous_gen = visible - work.visible, work.carried_announced, work.gen
        work.carried_announced = 0
        work.exists = exists
        work.paused = paused
        work.visible = visible
        if visible:
            self._visible[queue] = work
        else:
            self._visible.pop(queue, None)
        work.invisible, work.leased, work.delayed = invisible, leased, delayed
        work.oldest_at = None if oldest_s is None else now - oldest_s
        work.receives += receives
        work.empty += empty
        for source, (found, _) in (sources or {}).items():
            work.count_found(source, found)
        if put:
            work.count_triggers(now, "store", 1)
            d.emit(Triggered(queue, "store", put))
        d.emit(QueueMoved(queue, visible, invisible, put, receives, empty, dict(sources or {})))
        if next_visible_s is None:
            d.agenda.clear(("reread", queue))
        else:
            d.agenda.set(("reread", queue), now + next_visible_s)
        if self.is_embedded(work):
            if visible and (rose or not work.dirty):
                # Visible rose from zero: a session that went idle on the earlier empty answer needs a newer generation.
                d.request_wake(work, now, "trigger" if put else "due", visible, foreign=False)
            elif not visible and work.dirty and not work.foreign:
                d.settle(work)
        elif put and not paused:
            # All listeners here report another store: for them a put is an ordinary trigger.
            d.request_wake(work, now, "trigger", put, foreign=True)
        elif rose and visible:
            d.request_wake(work, now, "due", visible, foreign=True)
        if work.gen == previous_gen:
            self._notify(work, now, put - carried if visible or rose else 0, added)
        if deleted and not work.last_empty_external:
            d.drop(work)
        elif not exists:
            d.pending.forget(queue)
            d.pending.release(work)

    def _notify(self, work: PendingWork, now: float, put: int, came: int) -> None:
        """Announce each put and each returned message to subscribers, not only the rise from empty (O1)."""
        if put > 0:
            self._d.notify(work, now, "trigger", put, now)
        elif came > 0:
            self._d.notify(work, now, "due", came, now)

    def is_embedded(self, work: PendingWork) -> bool:
        """Return whether the store's own state decides what is pending (O0)."""
        return work.sessions.any_own or (work.exists and not work.sessions.any_foreign)

    # -- wakes that carry messages (O7) --------------------------------------------------------------------------------

    def grant(self, now: float, queue: str, count: int) -> tuple[int, int, float] | None:
        """Choose a session for a put's messages in its own commit; return it, the slots and the lease in seconds.

        Only if nothing else is waiting: receives work through a backlog in its order.
        """
        work = self._d.pending.find(queue)
        if work is None or work.dirty or work.visible or work.paused or not work.sessions.any_own:
            return None
        entry = work.sessions.pick_to_carry()
        if entry is None:
            return None
        limit = min(entry.spare, count, CARRY_MAX)
        # Reserved early: two puts in progress must never share a slot, and a `room` that arrives before their commits
        # includes neither.
        entry.granted += limit
        work.sessions.used(entry)
        return entry.session, limit, work.numbers.start_ack_s

    def handed(
        self,
        now: float,
        queue: str,
        session: int,
        granted: int,
        messages: list[CarriedMessage],
        visible: int,
        weights: Sequence[int] = (),
        *,
        late: bool = False,
    ) -> None:
        """Send messages leased to a session with its wake; release those that do not fit a frame.

        All are released if the session is gone, or if they are ``late``: too little of their lease is left. ``visible``
        is the count when they were taken, themselves included; ``weights`` are their bytes in a frame.
        """
        d = self._d
        work = d.pending.open(queue, now)
        entry = work.sessions.get(session)
        weight = entry.slot.weight if entry is not None and entry.slot is not None else 0
        # If it was woken to check since the grant, its receive takes the slots: release its messages.
        fit = 0 if entry is None or entry.receive_due or late else len(messages)
        for index, bytes_ in enumerate(weights[:fit]):
            weight += bytes_
            if weight > CARRY_BYTES_MAX:
                weight -= bytes_
                fit = index
                break
        left = messages[fit:]
        if left:
            unfit = tuple((message.id, message.pop_receipt) for message in left)
            d.commands.append(Reclaim(queue, unfit, uncount=True))
        messages = messages[:fit]
        if entry is None:
            return
        claims = tuple((message.id, message.pop_receipt) for message in messages)
        entry.granted = max(0, entry.granted - granted)
        entry.free = max(0, entry.free - len(messages))
        if not messages:
            return
        # Carried messages are not pending work. But their generation uses the same counter: a session that knows it
        # knows every wake request before it.
        gen = d.pending.next_gen()
        if not work.dirty:
            work.gen = gen
        entry.carry(gen, len(messages))
        size = max(visible, len(messages))
        requested_at = now
        previous = entry.slot
        if previous is not None:
            earlier = previous.messages or []
            size += previous.size
            messages = earlier + messages
            requested_at = min(previous.requested_at, now)
        entry.slot = WakeSlot(gen, "trigger", size, requested_at, None, messages, weight)
        due_at = now + work.numbers.start_ack_s
        batch = CarriedBatch(session, queue, gen, claims, now, due_at, alone=size == len(messages))
        self._carried.setdefault(session, CarriedBatches()).add(batch)
        d.agenda.set_earlier(("batch", session), due_at)
        d.queue_wake(entry)
        d.announce(work, now, gen, "trigger", len(claims), now, None)
        work.carried_announced += len(claims)

    def confirm_carried(self, session: int, queue: str, gen: int, now: float) -> bool:
        """Confirm a listener's carried messages up to ``gen``; return whether its `started` covers nothing else.

        If nothing else was visible, it begins no receive, so its `started` does not answer a wake.
        """
        batches = self._carried.get(session)
        if batches is None:
            return False
        fresh = batches.mark_started(queue, gen)
        for batch in fresh:
            self._d.emit(HandlerStarted(queue, now - batch.handed_at))
        work = self._d.pending.find(queue)
        if fresh and work is not None:
            # A receive answered by push; its messages were put in the commit that woke the session.
            work.count_found("trigger", 1)
            self._d.emit(ReceivesTold(queue, "trigger", 1, 0))
        exact = batches.by_gen.get(gen)
        return exact is not None and exact.queue == queue and exact.alone

    def batches_due(self, session: int, now: float) -> None:
        """Release batches not started within A; forget started ones, whose lease of A has ended or was extended."""
        batches = self._carried.get(session)
        if batches is None:
            return
        for batch in batches.due(now):
            if not batch.started:
                self._bar(batch)
                self._release(batch)
        when = batches.next()
        if when is None:
            del self._carried[session]
        else:
            self._d.agenda.set(("batch", session), when)

    def session_lost(self, session: int, queue: str | None = None) -> None:
        """Release the carried batches of a lost session immediately."""
        batches = self._carried.get(session)
        if batches is None:
            return
        for batch in batches.leave(queue):
            self._release(batch)
        if not batches.by_gen:
            del self._carried[session]
            self._d.agenda.clear(("batch", session))

    def _bar(self, batch: CarriedBatch) -> None:
        """Stop carrying messages to a connected session that does not respond: each one would lose A."""
        work = self._d.pending.find(batch.queue)
        entry = None if work is None else work.sessions.get(batch.session)
        if work is not None and entry is not None:
            entry.unresponsive = True
            work.sessions.refresh(entry)

    def _release(self, batch: CarriedBatch) -> None:
        self._d.commands.append(Reclaim(batch.queue, batch.claims, uncount=not batch.started))
        if not batch.started:
            self._d.emit(HandedBack(batch.queue, len(batch.claims)))

    # -- timers --------------------------------------------------------------------------------------------------------

    def reread_due(self, queue: str) -> None:
        """Ask the store about an invisible message that is due; never request a wake blindly (O3)."""
        self._d.commands.append(Refresh(queue))

    def reread_later(self, now: float, queue: str) -> None:
        """Ask the store again in a second, after it could not answer."""
        self._d.agenda.set(("reread", queue), now + AGAIN_S)

    def audit(self, now: float) -> None:
        """Find and repair, every H, visible work without an owner while a session has room; it shows a bug (O4)."""
        d = self._d
        for work in list(self._visible.values()):
            if not self.is_embedded(work) or work.owner is not None or not work.sessions.any_ready:
                continue
            self.audit_found += 1
            d.emit(AuditFound(work.queue, work.visible))
            if work.dirty:
                d.wake_sessions(work, now)
            else:
                d.request_wake(work, now, "due", work.visible, foreign=False)
