"""Own queues: those of the queue service in the bridge's own process (O0 to O7).

Here the bridge sees every put, lease and expiry in the writer's order, so *dirty* is not remembered but computed:
visible messages exist. No sweep is needed and none is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from bridge.contract.wire import CarriedMessage
from bridge.core.commands import Reclaim, Reread
from bridge.core.dispatch import Dispatch
from bridge.core.ledger import Debt
from bridge.core.receives import count_found
from bridge.core.slots import Slot
from bridge.observe.facts import AuditFound, HandedBack, HandlerStarted, QueueMoved, ReceivesTold, Triggered

CARRY_MAX = 32
CARRY_BYTES_MAX = 48 * 1024


class Handful(msgspec.Struct, eq=False):
    """Messages that travel with one wake and that nobody has said `started` for yet."""

    session: int
    queue: str
    gen: int
    claims: tuple[tuple[str, str], ...]
    handed_at: float
    due_at: float
    alone: bool
    """Nothing else was visible: the listener need not begin a receive."""
    started: bool = False


class Own:
    """The rules of own queues, on the common ground of dispatch."""

    def __init__(self, dispatch: Dispatch) -> None:
        self._d = dispatch
        self._handfuls: dict[int, dict[int, Handful]] = {}
        """By session, then generation."""
        self.audit_found = 0
        """How often the audit had something to repair; above zero is a bug of ours (O4)."""

    def level(
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
    ) -> None:
        """Take note of how a queue stands after a commit, in the writer's order (O1)."""
        d = self._d
        # The store has its own limit on names; what it holds must never go unheard here.
        debt = d.ledger.open(queue, now, beyond=True)
        if visible and not debt.visible:
            debt.visible_since = now
        deleted = debt.exists and not exists
        debt.exists = exists
        debt.paused = paused
        debt.visible = visible
        debt.invisible = invisible
        debt.receives += receives
        debt.empty += empty
        for source, (found, _) in (sources or {}).items():
            count_found(debt, source, found)
        if put:
            debt.triggers += 1
            d.tell(Triggered(queue, "store", put))
        d.tell(QueueMoved(queue, visible, invisible, put, receives, empty, dict(sources or {})))
        if next_visible_s is None:
            d.agenda.clear(("reread", queue))
        else:
            d.agenda.set(("reread", queue), now + next_visible_s)
        if self.by_level(debt):
            if visible and (rose or not debt.dirty):
                # Rose from nothing: whoever went idle on the empty answer before must hear of a newer generation.
                d.mark(debt, now, "trigger" if put else "due", visible, foreign=False)
            elif not visible and debt.dirty and not debt.foreign:
                d.settle(debt)
        elif put and not paused:
            # Only listeners of another store are here, as far as they said: a put is a trigger like any other to them.
            d.mark(debt, now, "trigger", put, foreign=True)
        elif rose and visible:
            d.mark(debt, now, "due", visible, foreign=True)
        if deleted and not debt.read_elsewhere:
            d.drop(debt)
        elif not exists:
            d.ledger.forget(queue)

    def by_level(self, debt: Debt) -> bool:
        """Whether the store's own level decides what is owed here (O0)."""
        return debt.seats.any_own or (debt.exists and not debt.seats.any_foreign)

    # -- wakes that carry messages (O7) ------------------------------------------------------------------------------

    def grant(self, now: float, queue: str, count: int) -> tuple[int, int, float] | None:
        """Say who may be handed messages of a put in the put's own commit: (session, how many, lease in seconds).

        Only where nothing waits already: a backlog is worked through by receives, in its order.
        """
        debt = self._d.ledger.find(queue)
        if debt is None or debt.dirty or debt.visible or debt.paused or not debt.seats.any_own:
            return None
        seat = debt.seats.pick_to_carry()
        if seat is None:
            return None
        limit = min(seat.free, count, CARRY_MAX)
        # Taken off before it is certain: two puts on their way must never share one slot.
        seat.free -= limit
        debt.seats.used(seat)
        return seat.session, limit, debt.numbers.start_ack_s

    def handed(
        self,
        now: float,
        queue: str,
        session: int,
        granted: int,
        messages: list[CarriedMessage],
        visible: int,
        weights: Sequence[int] = (),
    ) -> None:
        """Send messages that were leased to a session with its wake; release them if it is gone, or they fit no frame.

        ``visible`` counts what was visible when they were taken, themselves included; ``weights`` are the bytes that
        each takes in a frame.
        """
        d = self._d
        debt = d.ledger.open(queue, now, beyond=True)
        seat = debt.seats.get(session)
        weight = seat.slot.weight if seat is not None and seat.slot is not None else 0
        fit = 0 if seat is None else len(messages)
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
        if seat is None:
            return
        claims = tuple((message.id, message.pop_receipt) for message in messages)
        seat.free = min(seat.capacity, seat.free + granted - len(messages))
        if not messages:
            return
        # Not the debt's generation: what was carried is not owed. But it comes from the same counter, so that whoever
        # learned of it has learned of every mark before it.
        gen = d.ledger.next_gen()
        if not debt.dirty:
            debt.gen = gen
        seat.carry(gen, len(messages))
        size = max(visible, len(messages))
        marked_at = now
        before = seat.slot
        if before is not None:
            held = before.messages or []
            size += before.size
            messages = held + messages
            marked_at = min(before.marked_at, now)
        seat.slot = Slot(gen, "trigger", size, marked_at, None, messages, weight)
        by_gen = self._handfuls.setdefault(session, {})
        due_at = now + debt.numbers.start_ack_s
        by_gen[gen] = Handful(session, queue, gen, claims, now, due_at, alone=size == len(messages))
        d.agenda.set_earlier(("handful", session), due_at)
        d.fill(seat)
        d.announce(debt, gen, "trigger", len(claims), now, None)

    def took_up(self, session: int, queue: str, gen: int, now: float) -> bool:
        """A listener took up what it was handed, up to ``gen``; say whether it said no more than that.

        Where nothing else was visible it does not begin a receive, so its `started` answers no debt.
        """
        held = self._handfuls.get(session)
        if held is None:
            return False
        fresh = False
        for handful in held.values():
            if handful.queue == queue and handful.gen <= gen and not handful.started:
                handful.started = fresh = True
                self._d.tell(HandlerStarted(queue, now - handful.handed_at))
        debt = self._d.ledger.find(queue)
        if fresh and debt is not None:
            # A receive that was answered by push; what it brought was put in the commit that woke.
            count_found(debt, "trigger", 1)
            self._d.tell(ReceivesTold(queue, "trigger", 1, 0))
        exact = held.get(gen)
        return exact is not None and exact.queue == queue and exact.alone

    def handfuls_due(self, session: int, now: float) -> None:
        """Release what was not taken up within A; forget what was, for its lease of A has ended or was extended."""
        held = self._handfuls.get(session, {})
        for gen, handful in list(held.items()):
            if handful.due_at > now:
                continue
            del held[gen]
            if not handful.started:
                self._bar(handful)
                self._release(handful)
        if held:
            self._d.agenda.set(("handful", session), min(handful.due_at for handful in held.values()))
        else:
            self._handfuls.pop(session, None)

    def session_lost(self, session: int, queue: str | None = None) -> None:
        """Release at once what a session was handed and has not extended yet."""
        held = self._handfuls.get(session)
        if held is None:
            return
        for gen, handful in list(held.items()):
            if queue is None or handful.queue == queue:
                del held[gen]
                self._release(handful)
        if not held:
            del self._handfuls[session]
            self._d.agenda.clear(("handful", session))

    def _bar(self, handful: Handful) -> None:
        """Carry no more to a session that is connected and does not hear: each message would lose A with it."""
        debt = self._d.ledger.find(handful.queue)
        seat = None if debt is None else debt.seats.get(handful.session)
        if debt is not None and seat is not None:
            seat.deaf = True
            debt.seats.refresh(seat)

    def _release(self, handful: Handful) -> None:
        self._d.commands.append(Reclaim(handful.queue, handful.claims, uncount=not handful.started))
        if not handful.started:
            self._d.tell(HandedBack(handful.queue, len(handful.claims)))

    # -- timers ------------------------------------------------------------------------------------------------------

    def reread_due(self, queue: str) -> None:
        """An invisible message is due: ask the store, never mark blindly (O3)."""
        self._d.commands.append(Reread(queue))

    def audit(self, now: float) -> None:
        """Every H: visible work that nobody is on although somebody has room is a bug, repaired and counted (O4)."""
        d = self._d
        for debt in d.ledger.debts.values():
            if not debt.visible or not self.by_level(debt) or debt.owner is not None or not debt.seats.any_ready:
                continue
            self.audit_found += 1
            d.tell(AuditFound(debt.queue, debt.visible))
            if debt.dirty:
                d.hand_out(debt, now)
            else:
                d.mark(debt, now, "due", debt.visible, foreign=False)
