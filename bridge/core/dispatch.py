"""Dispatch pending work to sessions: owner, `started`, and retries when `started` is missing (B3 to B6).

The other rules share this state: pending work, sessions, timers, commands and facts.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.cluster import Name
from queuebell.bridge.contract.sources import WORK
from queuebell.bridge.contract.trace_context import Traced, several
from queuebell.bridge.contract.wire import DownFrame, Reason, Wake
from queuebell.bridge.core.agenda import Agenda
from queuebell.bridge.core.commands import Announce, Command, End, Flush, Send
from queuebell.bridge.core.pending_work import PendingQueues, PendingWork
from queuebell.bridge.core.round import Round
from queuebell.bridge.core.sessions import Session, SessionQueue, Sessions, WakeSlot
from queuebell.bridge.core.settings import Periods, Tuning
from queuebell.bridge.observe.facts import Fact, OwnerStuck, StartMissed, Woken

COORDINATOR_TIMERS: Final = frozenset({"member", "capacity", "turn", "covered", "subscribers", "reconsider"})
"""Kinds of timers that belong to the coordinator."""


class SingleNode:
    """Act immediately, without a cluster: most methods do nothing, and `Coordinator` overrides them."""

    def on_wake_request(self, work: PendingWork, now: float, name: Name | None, *, shared: bool, fresh: bool) -> None:
        """Record a wake request. ``shared``: peers have it too; ``fresh``: no work was pending before."""

    def on_generation_sent(self, work: PendingWork, now: float, gen: int) -> None:
        """Record that a session is sent a generation."""

    def on_empty_receive(
        self, work: PendingWork, now: float, gen: int, after_s: float, next_visible_s: float | None
    ) -> None:
        """Record an empty receive that began at least ``after_s`` after its session learned of ``gen``."""

    def sweep_delay_s(self, work: PendingWork, now: float) -> float:
        """Return how long this bridge waits after a sweep is due, so that bridges ahead of it sweep first (C5)."""
        return 0.0

    def on_settled(self, work: PendingWork) -> None:
        """Record that no work is pending any more."""

    def stop_waiting(self, work: PendingWork) -> None:
        """Stop waiting for the turn of this queue."""

    def on_hello(self, work: PendingWork, now: float, store: str | None) -> bool:
        """Record a hello for a queue; return whether work settled by a peer must be pending again."""
        return False

    def round_delay_s(self, made: Round, now: float) -> float:
        """Return how long this bridge waits after a round is due, so that bridges ahead of it ask first (C11)."""
        return 0.0

    def dated(self, now: float) -> float | None:
        """Return a time by the clock that runs while the machine sleeps, as far as it is known."""
        return None

    def on_round(self, made: Round, now: float) -> bool:
        """Record an answer to a question of this bridge's (B17); return whether the peers hear of it."""
        return False

    def suspended(self) -> None:
        """Record that the clock stopped (B15)."""

    def already_settled(self, now: float, name: Name, queue: str) -> bool:
        """Return whether a peer's empty receive covered this publish before its trigger arrived here (C4)."""
        return False

    def forget(self, queue: str) -> None:
        """Forget a queue."""

    def tick(self, now: float, kind: str, work: PendingWork | None) -> None:
        """Run a due timer of the coordinator's kinds."""

    def report_changes(self, now: float) -> None:
        """Report which sessions can be woken now."""

    def on_no_room(self, work: PendingWork, now: float) -> None:
        """Record pending work that no session here has room for (B6)."""


Timer = tuple[str, int | str]

# Two reports of the same receive can yield slightly different start times, because they travel at different speeds.
# Without this margin, each heartbeat would make a hanging receive look like a newer one.
RECEIVE_START_MARGIN_S = 1.0


class Dispatch:
    """Queue wakes for sessions and retry with other sessions until an empty receive settles the work."""

    def __init__(self, boot: str, periods: Periods, draw: Draw) -> None:
        self.boot = boot
        self.periods = periods
        self.draw = draw
        self.tuning = Tuning(periods)
        self.pending = PendingQueues(periods.queues_max, self.tuning, self._forget_queue)
        self.sessions = Sessions(periods.heartbeat_s)
        self.agenda: Agenda[Timer] = Agenda()
        self.commands: list[Command] = []
        self.facts: list[Fact] = []
        self.coordinator: SingleNode = SingleNode()
        """Decides which bridge of the cluster acts."""
        self.announcing = False
        """True if there are subscribers; otherwise a wake request costs nothing for them."""

    # -- output --------------------------------------------------------------------------------------------------------

    def emit(self, fact: Fact) -> None:
        """Add a fact."""
        self.facts.append(fact)

    def send(self, session: int, frame: DownFrame) -> None:
        """Add a frame to send."""
        self.commands.append(Send(session, frame))

    def end(self, session: int, code: int, reason: str) -> None:
        """Add a session to end."""
        self.commands.append(End(session, code, reason))

    # -- wake requests and owners --------------------------------------------------------------------------------------

    def request_wake(
        self,
        work: PendingWork,
        now: float,
        reason: Reason,
        size: int = 1,
        trace: Traced | None = None,
        *,
        foreign: bool,
        name: Name | None = None,
        shared: bool = False,
    ) -> None:
        """Record a wake request and wake sessions for it.

        ``name`` identifies the publish behind the request. ``shared``: other bridges receive it too (C2).
        """
        fresh = not work.dirty
        self.pending.request_wake(work, now, reason, size, trace, foreign=foreign)
        self.coordinator.on_wake_request(work, now, name, shared=shared, fresh=fresh)
        self.announce(work, now, work.gen, reason, size, work.requested_at, trace, shared=shared)
        owner = None if work.owner is None else work.sessions.get(work.owner)
        if owner is None:
            self.wake_sessions(work, now)
        else:
            # B3: while the queue has an owner, a wake request rewrites the owner's slot; only an unsent wake is merged.
            self.write(work, owner)
            self.expect_start(work, now)
            if self._wakes_all(work):
                for entry in work.sessions.workers_except(owner.session):
                    self.write(work, entry)

    def announce(
        self,
        work: PendingWork,
        now: float,
        gen: int,
        reason: Reason,
        size: int,
        requested_at: float,
        trace: Traced | None,
        *,
        shared: bool = False,
    ) -> None:
        """Announce work to subscribers, a check only if the queue has no session (B12); wake a scaler to recount."""
        self._wake_scaler(work, reason)
        if self.announcing and (reason in WORK or not work.sessions):
            traceparent, traces = (None, None) if trace is None else (trace.traceparent, trace.traces)
            self._notify(work, now, Announce(work.queue, gen, reason, size, requested_at, traceparent, shared, traces))

    def notify(
        self, work: PendingWork, now: float, reason: Reason, size: int, since: float, *, shared: bool = False
    ) -> None:
        """Announce work to subscribers and scalers: the sessions have been woken or need no wake (B12, O1).

        The generation is new, because subscribers drop a second wake with the same generation as a duplicate.
        """
        self._wake_scaler(work, reason)
        if self.announcing:
            self._notify(work, now, Announce(work.queue, self.pending.next_gen(), reason, size, since, None, shared))

    def _wake_scaler(self, work: PendingWork, reason: Reason) -> None:
        """Wake a scaler to recount: the workers it started may be too few by now, or all busy (Z5)."""
        entry = work.sessions.barred_scaler() if reason in WORK else None
        if entry is not None:
            self.write(work, entry)

    def _notify(self, work: PendingWork, now: float, announced: Announce) -> None:
        work.notified, work.notified_at = announced.gen, now
        self.commands.append(announced)

    def wake_sessions(self, work: PendingWork, now: float, excluding: Container[int] = ()) -> bool:
        """Assign work without an owner to the least recently used session with room; wake more if its size requires it.

        Return whether a session became the owner.
        """
        if not work.dirty or work.owner is not None or work.deferred:
            return False
        if self._wakes_all(work):
            chosen = work.sessions.pick_all(excluding)
        else:
            chosen = [entry for entry in work.sessions.pick_for(self.size(work)) if entry.session not in excluding]
            if not chosen:
                chosen = work.sessions.pick(1, excluding)
        if not chosen:
            # B6: if no session has room, the work stays pending without an owner until the first `room`.
            self.coordinator.on_no_room(work, now)
            return False
        self.pending.clear_owner(work)
        work.owner = chosen[0].session
        work.asked = frozenset(entry.session for entry in chosen)
        for entry in chosen:
            self.write(work, entry)
        self.expect_start(work, now)
        return True

    def size(self, work: PendingWork) -> int:
        """Return the estimated number of waiting messages."""
        return max(1, work.visible if not work.foreign and work.visible else work.size)

    def write(self, work: PendingWork, entry: SessionQueue) -> None:
        """Write the newest wake into a session's slot; keep carried messages that are still unsent."""
        carried = entry.slot.messages if entry.slot is not None else None
        requested_at = work.requested_at if entry.slot is None else min(work.requested_at, entry.slot.requested_at)
        size = self.size(work) + (len(carried) if carried else 0)
        weight = entry.slot.weight if entry.slot is not None else 0
        entry.slot = WakeSlot(work.gen, work.reason, size, requested_at, work.traceparent, carried, weight, work.traces)
        self.queue_wake(entry)

    def queue_wake(self, entry: SessionQueue) -> None:
        """Queue an entry's wake for sending, and move the entry to the end of the order."""
        work = self.pending.by_queue[entry.queue]
        work.sessions.used(entry)
        session = self.sessions.get(entry.session)
        if session is not None:
            session.unsent[entry.queue] = None
            if not session.flushing:
                self.flush(session)

    def flush(self, session: Session) -> None:
        """Request that the bridge takes a session's unsent wakes."""
        session.flushing = True
        self.commands.append(Flush(session.id))

    @staticmethod
    def _wakes_all(work: PendingWork) -> bool:
        """Return whether to wake every session with room: only for work, or each sweep would cost N receives (I2)."""
        return work.numbers.wake == "all" and work.reason in WORK

    def take(self, now: float, number: int) -> list[Wake]:
        """Take a session's unsent wakes to send them now; from here on they no longer merge."""
        session = self.sessions.get(number)
        if session is None:
            return []
        session.flushing = False
        wakes: list[Wake] = []
        for queue in session.unsent:
            entry = session.queues[queue]
            slot = entry.slot
            if slot is None:
                continue
            entry.slot = None
            entry.woken_gen = slot.gen
            entry.woken_at = now
            entry.may_hold_leases = True
            if entry.own and slot.size > len(slot.messages or ()):
                entry.receive_due, entry.began = True, False
            work = self.pending.by_queue[queue]
            # Report traces once: in a queue that never settles, each wake would repeat the same ones.
            work.traces = None
            self.coordinator.on_generation_sent(work, now, slot.gen)
            work.wakes = {**work.wakes, slot.reason: work.wakes.get(slot.reason, 0) + 1}
            waited = now - slot.requested_at
            wakes.append(
                Wake(
                    queue=queue,
                    boot=self.boot,
                    gen=slot.gen,
                    reason=slot.reason,
                    size=slot.size,
                    age_ms=round(waited * 1000),
                    traceparent=slot.traceparent,
                    messages=slot.messages,
                    workers=work.sessions.workers_for(entry) if entry.scaler else None,
                    traces=several(slot.traces),
                )
            )
            self.emit(Woken(queue, number, slot.reason, waited, len(slot.messages or ())))
        session.unsent.clear()
        return wakes

    # -- `started`, or none in time ------------------------------------------------------------------------------------

    def expect_start(self, work: PendingWork, now: float) -> None:
        """Expect `started` for the newest generation within A.

        The wait counts from the oldest unanswered wake. Counted from the newest, triggers that arrive faster than A
        would postpone it forever, and an owner that hangs would stay the owner (B4).
        """
        work.unacked = (*work.unacked[:1], (work.gen, now))
        self.agenda.set(("start", work.queue), work.unacked[0][1] + work.numbers.start_ack_s)

    def started(self, work: PendingWork, entry: SessionQueue, now: float, gen: int) -> None:
        """Handle `started`: the session began a receive after it learned of ``gen`` (B3, B5)."""
        self.progress(work, entry, now)
        if not work.dirty or gen > self.pending.newest_gen:
            return
        if work.owner != entry.session:
            # Another woken session was faster. Only the newest generation makes it the owner: an older one does not
            # show that the current owner's wakes are answered.
            if work.owner is not None and (gen < work.gen or not work.unacked):
                return
            self.pending.clear_owner(work)
            work.owner = entry.session
            work.unacked = ((work.gen, now),)
        work.unacked = tuple((g, at) for g, at in work.unacked if g > gen)
        work.started_at = now
        if work.unacked:
            self.agenda.set(("start", work.queue), work.unacked[0][1] + work.numbers.start_ack_s)
        else:
            work.rounds = 0
            work.asked = frozenset((entry.session,))
            self.agenda.clear(("start", work.queue))
        self._expect_progress(work)

    def progress(self, work: PendingWork, entry: SessionQueue, now: float) -> None:
        """Make a stuck or unresponsive session available again after progress."""
        if entry.stuck or entry.unresponsive:
            entry.stuck = entry.unresponsive = False
            work.sessions.refresh(entry)
            self.wake_sessions(work, now)

    def receiving(self, work: PendingWork, entry: SessionQueue, now: float, begun_at: float) -> None:
        """Note that a heartbeat reports a receive that began at ``begun_at`` (B5)."""
        if begun_at > max(entry.woken_at, entry.stuck_at) + RECEIVE_START_MARGIN_S:
            self.progress(work, entry, now)
        if (
            work.owner == entry.session
            and work.started_at is not None
            and begun_at > work.started_at + RECEIVE_START_MARGIN_S
        ):
            work.started_at = begun_at
            self._expect_progress(work)

    def _expect_progress(self, work: PendingWork) -> None:
        if work.started_at is not None:
            allowed = work.numbers.store_call_s + self.sessions.heartbeat_s
            self.agenda.set(("progress", work.queue), work.started_at + allowed)

    def start_missed(self, work: PendingWork, now: float) -> None:
        """Retry after no `started` within A: rewake the owner and wake 2, 4, 8 ... further sessions (B4)."""
        if not work.dirty or work.owner is None or not work.unacked:
            return
        owner = work.sessions.get(work.owner)
        work.rounds += 1
        further = work.sessions.pick(2 ** min(work.rounds, 20), work.asked)
        if owner is not None:
            self.write(work, owner)
        for entry in further:
            self.write(work, entry)
            work.asked |= {entry.session}
        work.unacked = ((work.gen, now),)
        self.agenda.set(("start", work.queue), now + work.numbers.start_ack_s)
        self.emit(StartMissed(work.queue, work.rounds, len(further)))

    def progress_missed(self, work: PendingWork, now: float) -> None:
        """Replace an owner whose receive neither ended nor was followed by another within R + H (B5)."""
        if not work.dirty or work.owner is None or work.started_at is None:
            return
        stuck = work.sessions.get(work.owner)
        self.pending.clear_owner(work)
        if stuck is not None:
            stuck.stuck = True
            stuck.stuck_at = now
            work.sessions.refresh(stuck)
            self.emit(OwnerStuck(work.queue, stuck.session))
        self.wake_sessions(work, now)

    # -- room --------------------------------------------------------------------------------------------------------

    def more(self, work: PendingWork, entry: SessionQueue, now: float, depth: int | None, starting: int = 0) -> None:
        """Bar a session that stopped although messages may remain, and wake the next one (B6).

        ``starting`` is the number of workers that a scaler is starting because of it.
        """
        entry.starting = starting
        if depth is not None and work.dirty:
            work.size = max(1, depth)
        entry.full = True
        entry.free = 0
        entry.stuck = entry.unresponsive = False
        work.sessions.refresh(entry)
        if work.owner == entry.session:
            self.pending.clear_owner(work)
        if work.dirty and work.owner is None:
            work.reason = "more"
            self.wake_sessions(work, now)

    def room(self, work: PendingWork, entry: SessionQueue, now: float, free: int, gen: int | None) -> None:
        """Record how many handler slots a session has free."""
        was_full = entry.full
        entry.report(free, gen)
        if entry.full is not was_full:
            work.sessions.refresh(entry)
        if work.dirty and entry.has_room:
            self.wake_sessions(work, now)

    # -- deleted queues ------------------------------------------------------------------------------------------------

    def drop(self, work: PendingWork) -> bool:
        """Forget a deleted queue with its pending work and due times, and return True.

        Return False and do nothing if the queue exists in the queue service or has a session. No wake is lost: the
        first session that subscribes to an unknown queue is woken to check it (B10).
        """
        if work.exists or len(work.sessions):
            return False
        self.pending.drop(work.queue)
        return True

    def _forget_queue(self, queue: str) -> None:
        for kind in ("due", "sweep", "start", "progress", "reread"):
            self.agenda.clear((kind, queue))
        self.coordinator.forget(queue)

    # -- empty receives ------------------------------------------------------------------------------------------------

    def settle(self, work: PendingWork) -> None:
        """Settle the queue's pending work."""
        self.pending.settle(work)
        self.coordinator.on_settled(work)
        self.agenda.clear(("start", work.queue))
        self.agenda.clear(("progress", work.queue))

    def release_owner(self, work: PendingWork, session: int) -> None:
        """Release the pending work from a session."""
        work.asked -= {session}
        if work.owner == session:
            self.pending.clear_owner(work)
            self.agenda.clear(("start", work.queue))
            self.agenda.clear(("progress", work.queue))


TICK: Timer = ("again", 0)
CHECKS_PER_PERIOD = 4
"""Backlogs are checked this often per period, so a reminder is late by at most a quarter of it."""


class Reminders:
    """Announce remaining work again, ``again_s`` after the queue's last announcement."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._d = dispatch
        self._since = float("-inf")
        """When the first subscriber connected. Each one gets the current state when it connects."""

    def announcing(self, now: float, present: bool) -> None:
        """Start reminders when there are subscribers, and stop them when there are none."""
        self._d.announcing = present
        if not present:
            self._d.agenda.clear(TICK)
        elif TICK not in self._d.agenda:
            self._since = now
            self._d.agenda.set(TICK, now + self._d.periods.again_s / CHECKS_PER_PERIOD)

    def tick(self, now: float) -> None:
        """Announce again what is due, and set the next tick."""
        period = self._d.periods.again_s
        for work in self._d.pending.by_queue.values():
            if now - max(work.notified_at, self._since) >= period and self._can_be_settled(work):
                size = work.visible or max(1, work.size)
                since = work.visible_since if work.visible else work.requested_at
                self._d.notify(work, now, "resync", size, since, shared=True)
        self._d.agenda.set(TICK, now + period / CHECKS_PER_PERIOD)

    @staticmethod
    def _can_be_settled(work: PendingWork) -> bool:
        """Return whether anything would report that the work is done.

        For a queue in an external store only sessions do: without any, reminders would never end.
        """
        return work.visible > 0 or (work.waits and len(work.sessions) > 0)
