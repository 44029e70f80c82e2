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
from bridge.core.pending_work import Debt, Ledger
from bridge.core.session_queue import Seat, Slot
from bridge.core.sessions import Session, Sessions
from bridge.core.settings import Periods, Tuning
from bridge.core.single_node import Alone
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
        self.ledger = Ledger(periods.queues_max, self.tuning, self._no_more_timers)
        self.sessions = Sessions(periods.heartbeat_s)
        self.agenda: Agenda[Timer] = Agenda()
        self.commands: list[Command] = []
        self.facts: list[Fact] = []
        self.turns: Alone = Alone()
        """Whose turn it is to look."""
        self.announcing = False
        """Whether there are plain subscribers at all; without them a mark costs nothing for them."""

    # -- what is to be done ------------------------------------------------------------------------------------------

    def tell(self, fact: Fact) -> None:
        """Add a fact."""
        self.facts.append(fact)

    def send(self, session: int, frame: DownFrame) -> None:
        """Add a frame to send."""
        self.commands.append(Send(session, frame))

    def end(self, session: int, code: int, reason: str) -> None:
        """Add a session to end."""
        self.commands.append(End(session, code, reason))

    # -- marks and owners --------------------------------------------------------------------------------------------

    def mark(
        self,
        debt: Debt,
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
        fresh = not debt.dirty
        self.ledger.mark(debt, now, reason, size, trace, foreign=foreign)
        self.turns.marked(debt, now, name, shared=shared, fresh=fresh)
        self.announce(debt, now, debt.gen, reason, size, debt.marked_at, trace, shared=shared)
        owner = None if debt.owner is None else debt.seats.get(debt.owner)
        if owner is None:
            self.hand_out(debt, now)
        else:
            # B3: a mark while owned writes the owner's slot again; only what is unsent there is merged.
            self.write(debt, owner)
            self.expect_start(debt, now)
            if self._calls_all(debt):
                for seat in debt.seats.workers_besides(owner.session):
                    self.write(debt, seat)

    def announce(
        self,
        debt: Debt,
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
        self._tell_scaler(debt, reason)
        if self.announcing and (reason in WORK or not debt.seats):
            told, traces = (None, None) if trace is None else (trace.traceparent, trace.traces)
            self._ring(debt, now, Announce(debt.queue, gen, reason, size, marked_at, told, shared, traces))

    def ring(self, debt: Debt, now: float, reason: Reason, size: int, since: float, *, shared: bool = False) -> None:
        """Let plain subscribers alone hear of work: whoever has a session was told, or need not be (B12, O1).

        The generation is new, for two wakes of one name would be one to whoever drops what came twice.
        """
        self._tell_scaler(debt, reason)
        if self.announcing:
            self._ring(debt, now, Announce(debt.queue, self.ledger.next_gen(), reason, size, since, None, shared))

    def _tell_scaler(self, debt: Debt, reason: Reason) -> None:
        """Have one that starts workers count anew: those may be too few by now, and who runs be busy (Z5)."""
        seat = debt.seats.barred_scaler() if reason in WORK else None
        if seat is not None:
            self.write(debt, seat)

    def _ring(self, debt: Debt, now: float, announced: Announce) -> None:
        debt.rung, debt.rung_at = announced.gen, now
        self.commands.append(announced)

    def hand_out(self, debt: Debt, now: float, besides: Container[int] = ()) -> bool:
        """Give an unowned debt to the least recently used session with room, and wake as many more as its size asks.

        Says whether somebody took it on just now.
        """
        if not debt.dirty or debt.owner is not None or debt.deferred:
            return False
        if self._calls_all(debt):
            chosen = debt.seats.pick_all(besides)
        else:
            chosen = [seat for seat in debt.seats.pick_for(self.size(debt)) if seat.session not in besides]
            if not chosen:
                chosen = debt.seats.pick(1, besides)
        if not chosen:
            # B6: with no room anywhere the debt waits, unowned, for the first `room`.
            self.turns.no_room(debt, now)
            return False
        self.ledger.disown(debt)
        debt.owner = chosen[0].session
        debt.asked = frozenset(seat.session for seat in chosen)
        for seat in chosen:
            self.write(debt, seat)
        self.expect_start(debt, now)
        return True

    def size(self, debt: Debt) -> int:
        """Return the hint of how many messages wait."""
        return max(1, debt.visible if not debt.foreign and debt.visible else debt.size)

    def write(self, debt: Debt, seat: Seat) -> None:
        """Write the newest wake into a session's slot; carried messages that are still unsent stay with it."""
        carried = seat.slot.messages if seat.slot is not None else None
        marked_at = debt.marked_at if seat.slot is None else min(debt.marked_at, seat.slot.marked_at)
        size = self.size(debt) + (len(carried) if carried else 0)
        weight = seat.slot.weight if seat.slot is not None else 0
        seat.slot = Slot(debt.gen, debt.reason, size, marked_at, debt.traceparent, carried, weight, debt.traces)
        self.fill(seat)

    def fill(self, seat: Seat) -> None:
        """Note that a seat's slot holds something to send."""
        debt = self.ledger.debts[seat.queue]
        debt.seats.used(seat)
        session = self.sessions.get(seat.session)
        if session is not None:
            session.unsent[seat.queue] = None
            if not session.flushing:
                self.flush(session)

    def flush(self, session: Session) -> None:
        """Have a session's unsent wakes taken."""
        session.flushing = True
        self.commands.append(Flush(session.id))

    @staticmethod
    def _calls_all(debt: Debt) -> bool:
        """Whether a wake reaches every session with room: only for work, or each sweep would cost N receives (I2)."""
        return debt.numbers.wake == "all" and debt.reason in WORK

    def take(self, now: float, number: int) -> list[Wake]:
        """Take a session's unsent wakes, to be sent now; from here on they no longer merge."""
        session = self.sessions.get(number)
        if session is None:
            return []
        session.flushing = False
        wakes: list[Wake] = []
        for queue in session.unsent:
            place = session.seats[queue]
            slot = place.slot
            if slot is None:
                continue
            place.slot = None
            place.woken_gen = slot.gen
            place.woken_at = now
            place.touched = True
            if place.own and slot.size > len(slot.messages or ()):
                place.looking, place.began = True, False
            debt = self.ledger.debts[queue]
            # Told once: a queue that is never at rest would have each wake name the same ones.
            debt.traces = None
            self.turns.shown(debt, now, slot.gen)
            debt.wakes = {**debt.wakes, slot.reason: debt.wakes.get(slot.reason, 0) + 1}
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
                    workers=debt.seats.workers_for(place) if place.scaler else None,
                    traces=several(slot.traces),
                )
            )
            self.tell(Woken(queue, number, slot.reason, waited, len(slot.messages or ())))
        session.unsent.clear()
        return wakes

    # -- started, and no started -------------------------------------------------------------------------------------

    def expect_start(self, debt: Debt, now: float) -> None:
        """Expect `started` for the debt's newest generation within A.

        The wait counts from the oldest wake that is unanswered. Were it counted from the newest, triggers that come
        faster than A would keep it from ever running out, and an owner that hangs would keep its debt (B4).
        """
        debt.unacked = (*debt.unacked[:1], (debt.gen, now))
        self.agenda.set(("start", debt.queue), debt.unacked[0][1] + debt.numbers.start_ack_s)

    def started(self, debt: Debt, seat: Seat, now: float, gen: int) -> None:
        """A session says that a receive begun after it learned of ``gen`` is on its way (B3, B5)."""
        self.progress(debt, seat, now)
        if not debt.dirty or gen > self.ledger.newest_gen:
            return
        if debt.owner != seat.session:
            # Somebody else who was asked was quicker. Only the newest generation makes it the owner: an older one
            # says nothing about what the present owner still has to answer.
            if debt.owner is not None and (gen < debt.gen or not debt.unacked):
                return
            self.ledger.disown(debt)
            debt.owner = seat.session
            debt.unacked = ((debt.gen, now),)
        debt.unacked = tuple((g, at) for g, at in debt.unacked if g > gen)
        debt.started_at = now
        if debt.unacked:
            self.agenda.set(("start", debt.queue), debt.unacked[0][1] + debt.numbers.start_ack_s)
        else:
            debt.rounds = 0
            debt.asked = frozenset((seat.session,))
            self.agenda.clear(("start", debt.queue))
        self._expect_progress(debt)

    def progress(self, debt: Debt, seat: Seat, now: float) -> None:
        """A session shows that it is at work on this queue; what barred it as stuck or deaf is over."""
        if seat.stuck or seat.deaf:
            seat.stuck = seat.deaf = False
            debt.seats.refresh(seat)
            self.hand_out(debt, now)

    def receiving(self, debt: Debt, seat: Seat, now: float, begun_at: float) -> None:
        """A heartbeat names a receive that began at ``begun_at`` (B5)."""
        if begun_at > max(seat.woken_at, seat.stuck_at) + JITTER_S:
            self.progress(debt, seat, now)
        if debt.owner == seat.session and debt.started_at is not None and begun_at > debt.started_at + JITTER_S:
            debt.started_at = begun_at
            self._expect_progress(debt)

    def _expect_progress(self, debt: Debt) -> None:
        if debt.started_at is not None:
            allowed = debt.numbers.store_call_s + self.sessions.heartbeat_s
            self.agenda.set(("progress", debt.queue), debt.started_at + allowed)

    def start_missed(self, debt: Debt, now: float) -> None:
        """No `started` within A: the owner hears the newest wake again, and 2, 4, 8 ... further sessions do (B4)."""
        if not debt.dirty or debt.owner is None or not debt.unacked:
            return
        owner = debt.seats.get(debt.owner)
        debt.rounds += 1
        further = debt.seats.pick(2 ** min(debt.rounds, 20), debt.asked)
        if owner is not None:
            self.write(debt, owner)
        for seat in further:
            self.write(debt, seat)
            debt.asked |= {seat.session}
        debt.unacked = ((debt.gen, now),)
        self.agenda.set(("start", debt.queue), now + debt.numbers.start_ack_s)
        self.tell(StartMissed(debt.queue, debt.rounds, len(further)))

    def progress_missed(self, debt: Debt, now: float) -> None:
        """The owner's receive neither ended nor was followed by another within R + H (B5)."""
        if not debt.dirty or debt.owner is None or debt.started_at is None:
            return
        stuck = debt.seats.get(debt.owner)
        self.ledger.disown(debt)
        if stuck is not None:
            stuck.stuck = True
            stuck.stuck_at = now
            debt.seats.refresh(stuck)
            self.tell(OwnerStuck(debt.queue, stuck.session))
        self.hand_out(debt, now)

    # -- room --------------------------------------------------------------------------------------------------------

    def more(self, debt: Debt, seat: Seat, now: float, depth: int | None, starting: int = 0) -> None:
        """A session stopped although there may be more: it is barred, and the next one is woken (B6, the cascade).

        ``starting`` is how many workers a scaler is starting for it.
        """
        seat.starting = starting
        if depth is not None and debt.dirty:
            debt.size = max(1, depth)
        seat.full = True
        seat.free = 0
        seat.stuck = seat.deaf = False
        debt.seats.refresh(seat)
        if debt.owner == seat.session:
            self.ledger.disown(debt)
        if debt.dirty and debt.owner is None:
            debt.reason = "more"
            self.hand_out(debt, now)

    def room(self, debt: Debt, seat: Seat, now: float, free: int, gen: int | None) -> None:
        """A session says how many handler slots are free."""
        was_full = seat.full
        seat.report(free, gen)
        if seat.full is not was_full:
            debt.seats.refresh(seat)
        if debt.dirty and seat.has_room:
            self.hand_out(debt, now)

    # -- the end of a queue ------------------------------------------------------------------------------------------

    def drop(self, debt: Debt) -> bool:
        """Forget a queue that is gone, with what is owed and due there; False, and nothing is done, where it is not.

        It stands in the queue service, or a session is there to look: then it is not gone. No wake is lost: to a queue
        that is not known, the first that comes is asked to look (B10).
        """
        if debt.exists or len(debt.seats):
            return False
        self.ledger.drop(debt.queue)
        return True

    def _no_more_timers(self, queue: str) -> None:
        for kind in ("due", "sweep", "start", "progress", "reread"):
            self.agenda.clear((kind, queue))
        self.turns.forget(queue)

    # -- covers ------------------------------------------------------------------------------------------------------

    def settle(self, debt: Debt) -> None:
        """Nothing is owed for this queue any more."""
        self.ledger.settle(debt)
        self.turns.settled(debt)
        self.agenda.clear(("start", debt.queue))
        self.agenda.clear(("progress", debt.queue))

    def release_owner(self, debt: Debt, session: int) -> None:
        """Take the debt back from a session."""
        debt.asked -= {session}
        if debt.owner == session:
            self.ledger.disown(debt)
            self.agenda.clear(("start", debt.queue))
            self.agenda.clear(("progress", debt.queue))


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
        for debt in self._d.ledger.debts.values():
            if now - max(debt.rung_at, self._since) >= period and self._known(debt):
                size = debt.visible or max(1, debt.size)
                since = debt.visible_since if debt.visible else debt.marked_at
                self._d.ring(debt, now, "resync", size, since, shared=True)
        self._d.agenda.set(TICK, now + period / LOOKS)

    @staticmethod
    def _known(debt: Debt) -> bool:
        """Whether somebody would say that the work is done.

        Of a queue elsewhere only sessions do: without any, reminders would never end.
        """
        return debt.visible > 0 or (debt.waits and len(debt.seats) > 0)
