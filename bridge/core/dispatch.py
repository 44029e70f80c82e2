"""How a debt finds a session that settles it: owner, `started`, and what happens when none comes (B3 to B6).

Shared ground of the rules: the ledger, the sessions, the agenda, and what is to be done and told.
"""

from __future__ import annotations

from collections.abc import Container

from bridge.contract.backoff import Draw
from bridge.contract.cluster import Name
from bridge.contract.sources import WORK
from bridge.contract.trace_context import Traced, several
from bridge.contract.wire import DownFrame, Reason, Wake
from bridge.core.agenda import Agenda
from bridge.core.commands import Announce, Command, End, Flush, Send
from bridge.core.pending_work import PendingQueues, PendingWork
from bridge.core.session_queue import SessionQueue, WakeSlot
from bridge.core.sessions import Session, Sessions
from bridge.core.settings import Periods, Tuning
from bridge.core.single_node import SingleNode
from bridge.observe.facts import Fact, OwnerStuck, StartMissed, Woken

Timer = tuple[str, int | str]

# The same receive reported twice seems to begin at two times, as its reports travel at different speeds. Without this
# margin a receive that hangs would be taken for a newer one with every heartbeat.
JITTER_S = 1.0


class Dispatch:
    """Marks debts, hands them to sessions, and hands them on until a cover comes."""

    def __init__(self, boot: str, periods: Periods, draw: Draw) -> None:
        self.boot = boot
        self.periods = periods
        self.draw = draw
        self.tuning = Tuning(periods)
        self.pending = PendingQueues(periods.queues_max, self.tuning, self._no_more_timers)
        self.sessions = Sessions(periods.heartbeat_s)
        self.agenda: Agenda[Timer] = Agenda()
        self.commands: list[Command] = []
        self.facts: list[Fact] = []
        self.coordinator: SingleNode = SingleNode()
        """Whose turn it is to look."""
        self.announcing = False
        """Whether there are plain subscribers at all; without them a mark costs nothing for them."""

    # -- what is to be done ------------------------------------------------------------------------------------------

    def emit(self, fact: Fact) -> None:
        """Add a fact."""
        self.facts.append(fact)

    def send(self, session: int, frame: DownFrame) -> None:
        """Add a frame to send."""
        self.commands.append(Send(session, frame))

    def end(self, session: int, code: int, reason: str) -> None:
        """Add a session to end."""
        self.commands.append(End(session, code, reason))

    # -- marks and owners --------------------------------------------------------------------------------------------

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
        """Raise a queue's debt and see that somebody hears of it.

        ``name`` is that of the publish that it is made for, ``shared`` whether other bridges have it too (C2).
        """
        fresh = not work.dirty
        self.pending.request_wake(work, now, reason, size, trace, foreign=foreign)
        self.coordinator.on_wake_request(work, now, name, shared=shared, fresh=fresh)
        self.announce(work, now, work.gen, reason, size, work.marked_at, trace, shared=shared)
        owner = None if work.owner is None else work.sessions.get(work.owner)
        if owner is None:
            self.wake_sessions(work, now)
        else:
            # B3: a mark while owned writes the owner's slot again; only what is unsent there is merged.
            self.write(work, owner)
            self.expect_start(work, now)
            if self._calls_all(work):
                for entry in work.sessions.workers_besides(owner.session):
                    self.write(work, entry)

    def announce(
        self,
        work: PendingWork,
        now: float,
        gen: int,
        reason: Reason,
        size: int,
        marked_at: float,
        trace: Traced | None,
        *,
        shared: bool = False,
    ) -> None:
        """Let plain subscribers hear of work; of looks that only cost something, where nobody else could look (B12)."""
        self._tell_scaler(work, reason)
        if self.announcing and (reason in WORK or not work.sessions):
            told, traces = (None, None) if trace is None else (trace.traceparent, trace.traces)
            self._ring(work, now, Announce(work.queue, gen, reason, size, marked_at, told, shared, traces))

    def ring(
        self, work: PendingWork, now: float, reason: Reason, size: int, since: float, *, shared: bool = False
    ) -> None:
        """Let plain subscribers alone hear of work: whoever has a session was told, or need not be (B12, O1).

        The generation is new, for two wakes of one name would be one to whoever drops what came twice.
        """
        self._tell_scaler(work, reason)
        if self.announcing:
            self._ring(work, now, Announce(work.queue, self.pending.next_gen(), reason, size, since, None, shared))

    def _tell_scaler(self, work: PendingWork, reason: Reason) -> None:
        """Have one that starts workers count anew: those may be too few by now, and who runs be busy (Z5)."""
        entry = work.sessions.barred_scaler() if reason in WORK else None
        if entry is not None:
            self.write(work, entry)

    def _ring(self, work: PendingWork, now: float, announced: Announce) -> None:
        work.rung, work.rung_at = announced.gen, now
        self.commands.append(announced)

    def wake_sessions(self, work: PendingWork, now: float, besides: Container[int] = ()) -> bool:
        """Give an unowned debt to the least recently used session with room, and wake as many more as its size asks.

        Says whether somebody took it on just now.
        """
        if not work.dirty or work.owner is not None or work.deferred:
            return False
        if self._calls_all(work):
            chosen = work.sessions.pick_all(besides)
        else:
            chosen = [entry for entry in work.sessions.pick_for(self.size(work)) if entry.session not in besides]
            if not chosen:
                chosen = work.sessions.pick(1, besides)
        if not chosen:
            # B6: with no room anywhere the debt waits, unowned, for the first `room`.
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
        """Return the hint of how many messages wait."""
        return max(1, work.visible if not work.foreign and work.visible else work.size)

    def write(self, work: PendingWork, entry: SessionQueue) -> None:
        """Write the newest wake into a session's slot; carried messages that are still unsent stay with it."""
        carried = entry.slot.messages if entry.slot is not None else None
        marked_at = work.marked_at if entry.slot is None else min(work.marked_at, entry.slot.marked_at)
        size = self.size(work) + (len(carried) if carried else 0)
        weight = entry.slot.weight if entry.slot is not None else 0
        entry.slot = WakeSlot(work.gen, work.reason, size, marked_at, work.traceparent, carried, weight, work.traces)
        self.fill(entry)

    def fill(self, entry: SessionQueue) -> None:
        """Note that a seat's slot holds something to send."""
        work = self.pending.by_queue[entry.queue]
        work.sessions.used(entry)
        session = self.sessions.get(entry.session)
        if session is not None:
            session.unsent[entry.queue] = None
            if not session.flushing:
                self.flush(session)

    def flush(self, session: Session) -> None:
        """Have a session's unsent wakes taken."""
        session.flushing = True
        self.commands.append(Flush(session.id))

    @staticmethod
    def _calls_all(work: PendingWork) -> bool:
        """Whether a wake reaches every session with room: only for work, or each sweep would cost N receives (I2)."""
        return work.numbers.wake == "all" and work.reason in WORK

    def take(self, now: float, number: int) -> list[Wake]:
        """Take a session's unsent wakes, to be sent now; from here on they no longer merge."""
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
            # Told once: a queue that is never at rest would have each wake name the same ones.
            work.traces = None
            self.coordinator.on_generation_sent(work, now, slot.gen)
            work.wakes = {**work.wakes, slot.reason: work.wakes.get(slot.reason, 0) + 1}
            waited = now - slot.marked_at
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

    # -- started, and no started -------------------------------------------------------------------------------------

    def expect_start(self, work: PendingWork, now: float) -> None:
        """Expect `started` for the debt's newest generation within A.

        The wait counts from the oldest wake that is unanswered. Were it counted from the newest, triggers that come
        faster than A would keep it from ever running out, and an owner that hangs would keep its debt (B4).
        """
        work.unacked = (*work.unacked[:1], (work.gen, now))
        self.agenda.set(("start", work.queue), work.unacked[0][1] + work.numbers.start_ack_s)

    def started(self, work: PendingWork, entry: SessionQueue, now: float, gen: int) -> None:
        """A session says that a receive begun after it learned of ``gen`` is on its way (B3, B5)."""
        self.progress(work, entry, now)
        if not work.dirty or gen > self.pending.newest_gen:
            return
        if work.owner != entry.session:
            # Somebody else who was asked was quicker. Only the newest generation makes it the owner: an older one
            # says nothing about what the present owner still has to answer.
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
        """A session shows that it is at work on this queue; what barred it as stuck or deaf is over."""
        if entry.stuck or entry.unresponsive:
            entry.stuck = entry.unresponsive = False
            work.sessions.refresh(entry)
            self.wake_sessions(work, now)

    def receiving(self, work: PendingWork, entry: SessionQueue, now: float, begun_at: float) -> None:
        """A heartbeat names a receive that began at ``begun_at`` (B5)."""
        if begun_at > max(entry.woken_at, entry.stuck_at) + JITTER_S:
            self.progress(work, entry, now)
        if work.owner == entry.session and work.started_at is not None and begun_at > work.started_at + JITTER_S:
            work.started_at = begun_at
            self._expect_progress(work)

    def _expect_progress(self, work: PendingWork) -> None:
        if work.started_at is not None:
            allowed = work.numbers.store_call_s + self.sessions.heartbeat_s
            self.agenda.set(("progress", work.queue), work.started_at + allowed)

    def start_missed(self, work: PendingWork, now: float) -> None:
        """No `started` within A: the owner hears the newest wake again, and 2, 4, 8 ... further sessions do (B4)."""
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
        """The owner's receive neither ended nor was followed by another within R + H (B5)."""
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
        """A session stopped although there may be more: it is barred, and the next one is woken (B6, the cascade).

        ``starting`` is how many workers a scaler is starting for it.
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
        """A session says how many handler slots are free."""
        was_full = entry.full
        entry.report(free, gen)
        if entry.full is not was_full:
            work.sessions.refresh(entry)
        if work.dirty and entry.has_room:
            self.wake_sessions(work, now)

    # -- the end of a queue ------------------------------------------------------------------------------------------

    def drop(self, work: PendingWork) -> bool:
        """Forget a queue that is gone, with what is owed and due there; False, and nothing is done, where it is not.

        It stands in the queue service, or a session is there to look: then it is not gone. No wake is lost: to a queue
        that is not known, the first that comes is asked to look (B10).
        """
        if work.exists or len(work.sessions):
            return False
        self.pending.drop(work.queue)
        return True

    def _no_more_timers(self, queue: str) -> None:
        for kind in ("due", "sweep", "start", "progress", "reread"):
            self.agenda.clear((kind, queue))
        self.coordinator.forget(queue)

    # -- covers ------------------------------------------------------------------------------------------------------

    def settle(self, work: PendingWork) -> None:
        """Nothing is owed for this queue any more."""
        self.pending.settle(work)
        self.coordinator.on_settled(work)
        self.agenda.clear(("start", work.queue))
        self.agenda.clear(("progress", work.queue))

    def release_owner(self, work: PendingWork, session: int) -> None:
        """Take the debt back from a session."""
        work.asked -= {session}
        if work.owner == session:
            self.pending.clear_owner(work)
            self.agenda.clear(("start", work.queue))
            self.agenda.clear(("progress", work.queue))


TICK: Timer = ("again", 0)
LOOKS = 4
"""How often within the period the levels are looked at: a reminder comes late by a fourth of it at most."""


class Reminders:
    """Tells of what waits, ``again_s`` after the last that was told of its queue; on the common ground of dispatch."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._d = dispatch
        self._since = float("-inf")
        """When plain subscribers came where there were none: each is caught up as it comes."""

    def announcing(self, now: float, present: bool) -> None:
        """There are plain subscribers from now on, or none any more; without them nothing is done."""
        self._d.announcing = present
        if not present:
            self._d.agenda.clear(TICK)
        elif TICK not in self._d.agenda:
            self._since = now
            self._d.agenda.set(TICK, now + self._d.periods.again_s / LOOKS)

    def tick(self, now: float) -> None:
        """Tell again of what is due, and come back."""
        period = self._d.periods.again_s
        for work in self._d.pending.by_queue.values():
            if now - max(work.rung_at, self._since) >= period and self._known(work):
                size = work.visible or max(1, work.size)
                since = work.visible_since if work.visible else work.marked_at
                self._d.ring(work, now, "resync", size, since, shared=True)
        self._d.agenda.set(TICK, now + period / LOOKS)

    @staticmethod
    def _known(work: PendingWork) -> bool:
        """Whether somebody would say that the work is done.

        Of a queue elsewhere only sessions do: without any, reminders would never end.
        """
        return work.visible > 0 or (work.waits and len(work.sessions) > 0)
