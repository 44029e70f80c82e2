"""The wake machine of one queue: what turns wakes into receives, and nothing else.

Theory of operation
-------------------
The machine is an eventcount (L1). ``epoch`` counts the reasons to check the queue; ``covered`` is the newest epoch that
an empty receive has settled. A check is *pending* while ``covered < epoch``. Each receive carries a snapshot (epoch,
boot, generation, beginning) taken before it is handed to the transport. A wake that arrives during the receive is newer
than the snapshot, so its check stays pending. Nothing is ever cleared: a flag cleared after the empty receive (V2) or a
wake dropped while busy (V6) cannot be written in these terms.

A receive reserves handler slots for as many messages as it may bring, so no message is received that cannot start
immediately. Handlers are not part of a drain (L2): the machine knows only how many slots are free.

After every event the facts decide the state, and one sentence holds: **if a check is pending, then a receive begun at
the current epoch is in flight, or no slot is free and `more` was sent, or a timer is set.** The timer may be the
bridge's: a queue that waits for its turn in a pool sends nothing, and the bridge wakes others after A (B4).

`listeners.wake.table` holds the states and where events may lead from them. The shell feeds events, performs the
commands returned, in order, and comes back at `deadline()`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec

import msgspec

from queuebell.bridge.contract.backoff import Backoff, Draw
from queuebell.listeners.wake.pool import Place
from queuebell.listeners.wake.receive_scaling import Scaling
from queuebell.listeners.wake.table import (
    HEARD_WHILE_STOPPING,
    LEADS_TO,
    Command,
    Event,
    ImpossibleEvent,
    Mode,
    NotifyEmpty,
    NotifyWork,
    SendEmptyReceive,
    SendMore,
    SendRoom,
    SendStarted,
    StartReceive,
    State,
)
from queuebell.listeners.wake.timers import CheckTimers, DeadMan, Periods, Recheck

P = ParamSpec("P")


class Controller:
    """The wake machine of one queue.

    ``capacity`` is handler slots (>= 1), ``batch`` the most messages of one receive. ``polls`` and
    ``retries`` are back-offs of this queue alone; ``place`` is its place in a pool, if it shares its slots. All
    times are seconds of one monotonic clock, given with each event; every event returns the commands to perform, in
    order. Raises `ImpossibleEvent` where the table is broken.
    """

    def __init__(
        self,
        capacity: int,
        batch: int,
        *,
        scaling: Scaling,
        polls: Backoff,
        retries: Backoff,
        draw: Draw,
        deadman: DeadMan | None = None,
        own: bool = False,
        place: Place | None = None,
    ) -> None:
        self.capacity = capacity
        self.place = place
        self.batch = batch
        self.own = own
        self.deadman = deadman
        self.blocked = False
        """The newest answer was limited by something else than emptiness: an own settlement may lift it (L8)."""
        self.state = State.IDLE
        self.mode = Mode.CONNECTING
        self.epoch = 0
        self.covered = 0
        self.boot: str | None = None
        self.gen = 0
        self._learned_at = 0.0
        """When it learned of `gen`."""
        self.covered_gen = 0
        self.free = capacity
        self.depth: int | None = None
        self.receives: dict[int, Receive] = {}
        self.timers = CheckTimers(polls, retries, draw)
        self.advertised_room = AdvertisedRoom(capacity)
        self._scaling = scaling
        self._draw = draw
        self._rid = 0
        self._reason = "poll"
        self._unannounced = 0
        """The newest epoch whose reason is none of the bridge's wakes: a return, a release, its own check."""
        self._announced = 0
        """The newest epoch reported to the bridge in this session."""
        self._started_pending = False
        self.waits_in_turn = False
        """A check is pending, nothing was said of the lack of a slot, and `next_in_turn` is why."""
        self._evidence = Evidence()
        self._recheck = Recheck()
        self._reported_empty = True
        self._stopping = False
        self._began_at: float | None = None
        self._beat_at: float | None = None
        self._out: list[Command] = []

    # Events ---------------------------------------------------------------------------------------------------------

    def wake(
        self,
        now: float,
        boot: str | None,
        gen: int,
        reason: str,
        size: int = 1,
        carried: int = 0,
        free: int | None = None,
    ) -> list[Command]:
        """Handle a wake of the bridge, or of this listener itself with ``boot`` None.

        ``carried`` messages came with it and were started or given back already; ``free`` is what is left (O7).
        """
        if self._stopping:
            return self._event(Event.WAKE, now, self._refuse_wake, boot)
        return self._event(Event.WAKE, now, self._on_wake, boot, gen, reason, size, carried, free)

    def received(
        self,
        now: float,
        rid: int,
        n: int,
        *,
        visible: int | None = None,
        next_visible: float | None = None,
        complete: bool = True,
        free: int | None = None,
        count: int | None = None,
        blocked: bool = False,
    ) -> list[Command]:
        """Handle the answer to a receive, which brought ``n`` messages.

        ``visible`` is the exact depth left, ``next_visible`` seconds until more becomes visible, ``complete`` whether
        this answer proves what it does not show (L8), ``free`` the slots left after its messages were started,
        ``count`` a rough number of messages, leased and delayed ones among them, where the store knows no better, and
        ``blocked`` whether something else than emptiness limited the answer.
        """
        if self._stopping:
            return self._event(Event.RECEIVED, now, self._discard_answer, rid)
        return self._event(
            Event.RECEIVED, now, self._on_received, rid, n, visible, next_visible, complete, free, count, blocked
        )

    def failed(self, now: float, rid: int, back_at: float | None = None) -> list[Command]:
        """Handle a failed receive; ``back_at`` is when messages that it may have leased come back (L6)."""
        return self._event(
            Event.FAILED, now, self._discard_failure if self._stopping else self._on_failed, rid, back_at
        )

    def room(self, now: float, free: int) -> list[Command]:
        """Update the number of free handler slots."""
        return self._event(Event.ROOM, now, self._on_room, free)

    def settled(self, now: float) -> list[Command]:
        """Handle an acknowledged delete or release of this listener: it may end a block (L8)."""
        return self._event(Event.SETTLED, now, self._on_settled)

    def came_back(self, now: float, at: float | None = None) -> list[Command]:
        """Handle a release that the store acknowledged: visible now, or from ``at`` on (L7)."""
        if at is not None:
            self.timers.add_return(at, "due")
        elif self.own and self.mode is Mode.PUSH:
            pass  # the embedded store reports it to the bridge
        elif self._stopping:
            return [SendMore(self.depth, unannounced=True)]
        else:
            return self.wake(now, None, 0, "more")
        return []

    def tick(self, now: float) -> list[Command]:
        """Handle what is due; harmless when it is too early."""
        return self._event(Event.TICK, now, self._on_tick)

    def welcomed(self, now: float, boot: str, gen: int) -> list[Command]:
        """Handle a welcome: wakes come again, polling ends (L9, B10)."""
        return self._event(Event.WELCOMED, now, self._on_welcomed, boot, gen)

    def lost(self, now: float) -> list[Command]:
        """Handle the loss of the bridge: poll, the first time after U(0, cap) (L9)."""
        return self._event(Event.LOST, now, self._on_lost)

    def stop(self, now: float) -> list[Command]:
        """Begin no more receives and hand the debt back (L12)."""
        return self._event(Event.STOP, now, self._on_stop)

    def pull_only(self, now: float) -> list[Command]:
        """Work without a bridge for good: receive now, then poll. Call it before any other event."""
        self.mode = Mode.PULL
        return self.wake(now, None, 0, "poll")

    # Actions --------------------------------------------------------------------------------------------------------

    def _event(
        self, event: Event, now: float, action: Callable[Concatenate[float, P], None], *given: P.args, **named: P.kwargs
    ) -> list[Command]:
        """Answer an event with its action, and see that it leads where the table allows."""
        leads_to = LEADS_TO[self.state].get(event)
        if leads_to is None:
            raise ImpossibleEvent(f"{event.value} while {self.state.value}")
        if self.place is not None:
            self.place.advance(now)
        if not self._stopping or event in HEARD_WHILE_STOPPING:
            action(now, *given, **named)
        before, self.state = self.state, self._current_state()
        out, self._out = self._out, []
        if self.state not in leads_to:
            raise ImpossibleEvent(f"{event.value} while {before.value} led to {self.state.value}")
        return out

    def _on_wake(
        self, now: float, boot: str | None, gen: int, reason: str, size: int, carried: int, free: int | None
    ) -> None:
        if boot is not None:
            self._learn(now, boot, gen)
            self._out.append(NotifyWork(reason))
            self._reported_empty = False
        if free is not None:
            self.free = free
        if carried and boot is not None:
            # Taken in the put's own commit: a receive that was answered by push (O7).
            self.advertised_room.carried(carried)
            self._began_at = now
            self._out.append(SendStarted(boot, self.gen))
            if size <= carried:
                self.depth = self.depth if self.pending else 0
                self._advance(now)
                return
        self._request_check(reason)
        if boot is None:
            self._unannounced = self.epoch
        self._started_pending = boot is not None
        self.depth = max(size, self.depth or 0)
        self._advance(now, woken=True)

    def _on_received(
        self,
        now: float,
        rid: int,
        n: int,
        visible: int | None,
        next_visible: float | None,
        complete: bool,
        free: int | None,
        count: int | None,
        blocked: bool,
    ) -> None:
        receive = self.receives.pop(rid)
        self.free = self.free - n if free is None else free
        self.blocked = blocked
        if self.place is not None:
            self.place.answered()
        if n or receive.epoch == self.epoch:
            # It answered, so a check that waits for the store goes on. The answer to an older check must not count: it
            # and the newest one, which set the pause, would start each other for ever.
            self.timers.retry = None
        if n:
            self.timers.reset_backoffs()
            if self._reported_empty:
                self._reported_empty = False
                self._out.append(NotifyWork(receive.source))
        self.depth = visible if visible is not None else (0 if n < receive.limit else self.depth)
        if self._evidence.proves_empty(receive, n, visible, complete, self.epoch, blocked):
            if next_visible is None and not n and count:
                next_visible = self._recheck.next_check(receive.source, receive.began_at)
            self._settle_checks(now, receive, next_visible)
        elif n and receive.epoch <= self.covered:
            # After a full batch there may be more, whatever an older answer proved (L5).
            self._request_check(receive.source)
            self._unannounced = self.epoch
            if blocked:
                self._pause(now)
        elif blocked:
            # Even while another is in flight: two that are blocked in turn would start each other for ever.
            if self.pending and receive.epoch == self.epoch:
                self._pause(now)
        elif not n and receive.epoch == self.epoch and not self._evidence.is_half_sure(self.epoch):
            # Empty, and yet the store counts messages: check again, but not in a hot loop.
            self._pause(now)
        if not self.pending and self.mode in (Mode.PULL, Mode.DEGRADED):
            self.timers.schedule_poll(now, next_visible, capped=self.mode is Mode.DEGRADED)
        self._advance(now)

    def _on_failed(self, now: float, rid: int, back_at: float | None) -> None:
        receive = self.receives.pop(rid)
        self.blocked = False  # a pause after an error is not for a settlement to end
        if self.place is not None:
            self.place.unanswered(now, now - receive.began_at)
        if back_at is not None:
            self.timers.add_possible_return(now, back_at)
        if not self.pending:
            self._request_check(receive.source)  # L11: after an exception always re-arm
        # Paused even while another is in flight: two that fail in turn would start each other for ever, without a
        # back-off and without a `more`, and the bridge would take them for progress (B5).
        self.timers.schedule_retry(now)
        if not self.checking:
            self._send_more(again=True)  # with every try, for a broker may have lost the one before (S2)
        self._advance(now)

    def _on_room(self, now: float, free: int) -> None:
        self.free = free
        self._advance(now)

    def _on_settled(self, now: float) -> None:
        if self.state in (State.IDLE, State.FULL):
            return  # there is no pause that it could end
        if self.blocked:
            self.blocked = False
            self.timers.retry = None
        self._advance(now)

    def _on_tick(self, now: float) -> None:
        timers = self.timers
        if timers.retry is not None and now >= timers.retry:
            timers.retry = None
        if timers.poll is not None and now >= timers.poll:
            self._request_check("poll")
        returned = timers.take_returns(now)
        # An own queue's store keeps these moments itself, exactly (O3); while its bridge is away we must.
        if self.own and self.mode is Mode.PUSH:
            returned = None
        if returned is not None:
            pause = timers.retry
            self._request_check(returned)
            # A store that fails is not asked more often for what its failures may have leased, or each of them would
            # bring the next (L11).
            timers.retry = pause if returned == "lease" else None
            self._unannounced = self.epoch
            self.depth = self.depth or 1
        if self._dead_man_fires(now):
            self._request_check("deadman")
            self._unannounced = self.epoch
        # Without a slot `more` is repeated: for all the bridge knows the queue is covered (L6).
        self._advance(now, woken=returned is not None)

    def _dead_man_fires(self, now: float) -> bool:
        """Return whether the dead-man's timer asks for a receive (L10)."""
        return self.mode is not Mode.PULL and self.deadman is not None and self.deadman.fires(now, self._draw)

    def _on_welcomed(self, now: float, boot: str, gen: int) -> None:
        self.mode = Mode.PUSH
        self.timers.poll = None
        self.timers.shorten_retry(now)
        self._started_pending = False
        self.advertised_room.greeted(self.capacity)
        self._announced = 0
        self._learn(now, boot, gen)
        if self.timers.retry is not None:
            self._send_more()
        self._advance(now)

    def _on_lost(self, now: float) -> None:
        self.mode = Mode.DEGRADED
        if not self.pending and not self.receives:
            self.timers.schedule_first_poll(now)
        self._advance(now)

    def _on_stop(self, now: float) -> None:
        self._stopping = True
        self.timers.cancel()
        self._send_more(again=True)

    def _refuse_wake(self, now: float, boot: str | None) -> None:
        if boot is not None:
            self._send_more(again=True)

    def _discard_answer(self, now: float, rid: int) -> None:
        del self.receives[rid]

    def _discard_failure(self, now: float, rid: int, back_at: float | None) -> None:
        del self.receives[rid]
        if back_at is not None:
            self.timers.add_return(back_at, "lease")  # for the `bye`: what it may have leased outlives this process

    # Rules ----------------------------------------------------------------------------------------------------------

    def _learn(self, now: float, boot: str, gen: int) -> None:
        if boot != self.boot:
            self.boot, self.gen, self.covered_gen = boot, gen, 0  # generations of two boots are never compared
            self._learned_at = now
        elif gen > self.gen:
            self.gen, self._learned_at = gen, now

    def _request_check(self, reason: str) -> None:
        """Request a check that only a receive begun from now on can settle."""
        self.epoch += 1
        self._reason = reason
        self.timers.cancel()

    def _settle_checks(self, now: float, receive: Receive, next_visible: float | None) -> None:
        settled = receive.epoch > self.covered
        self.covered = max(self.covered, receive.epoch)
        if receive.epoch == self.epoch and not self.receives:
            # Not by one of two that are in flight: where every other fails, each pair would reset the back-off.
            self.timers.reset_retries()
        if receive.boot == self.boot:
            self.covered_gen = max(self.covered_gen, receive.gen)
        self.on_empty_receive(receive.began_at)
        # L1: only while nothing happened since. An older cover would make the bridge ask again (B7).
        if not settled or receive.epoch != self.epoch:
            return
        if self.mode is Mode.PUSH and receive.boot is not None:
            self._out.append(
                SendEmptyReceive(receive.boot, receive.gen, now - receive.began_at, next_visible, receive.after_s)
            )
        if not self._reported_empty:
            self._reported_empty = True
            self._out.append(NotifyEmpty())

    def _advance(self, now: float, woken: bool = False) -> None:
        """Start the receives that are due and fit; report the rest to the bridge."""
        waited, self.waits_in_turn = self.waits_in_turn, False
        if self.covered < self.epoch and self.timers.retry is None:
            while self.available > 0 and self._wants_receive():
                self._start_receive(now)
            self.waits_in_turn = not self.checking and self._waits_for_turn()
            if not self.checking and not self.waits_in_turn:
                # L5: woken without room, or more may be there and no slot is left
                self._send_more(again=woken or waited)
        if self.full and self.advertised_room.free > 0:
            self._send_more()  # full with nothing pending: the bridge need not find out by waking us in vain
        if self.mode is Mode.PUSH and self.timers.retry is None:
            available = self.available
            if self.advertised_room.room(available, exact=self.own and not self.receives):
                self._out.append(SendRoom(available, self.gen))

    def _wants_receive(self) -> bool:
        return not self.checking or len(self.receives) < self._scaling.tasks(self.depth or 0)  # L2

    def _waits_for_turn(self) -> bool:
        """Whether to keep quiet until the receives of other queues answer, instead of passing the wake on (L5).

        Only with a wake of the bridge: should they not answer, it asks others by itself after A (B4).
        """
        announced = self._started_pending and self._unannounced <= max(self.covered, self._announced)
        return announced and self.mode is Mode.PUSH and self.next_in_turn

    def wants(self) -> int:
        """Return how many slots of its pool this queue would take at once, were they granted.

        One, where nothing is pending but `more` was sent: the bridge may hold a wake back until it gets `room` (L5).
        """
        if self._stopping or self.timers.retry is not None:
            return 0
        spare = self.free - self.reserved
        if spare <= 0:
            return 0
        if self.pending and self._wants_receive():
            receives = max(1, self._scaling.tasks(self.depth or 0) - len(self.receives))
            return min(spare, receives * self.batch)
        return int(self.mode is Mode.PUSH and self.advertised_room.barred)

    def _start_receive(self, now: float) -> None:
        limit = min(self.batch, self.available)
        self._rid += 1
        confirms = self._evidence.is_half_sure(self.epoch)
        self.receives[self._rid] = Receive(
            self.epoch, self.boot, self.gen, now, limit, self._reason, confirms, now - self._learned_at
        )
        self._began_at = now
        self.timers.poll = None
        if self._started_pending and self.mode is Mode.PUSH and self.boot is not None:
            self._started_pending = False
            self.advertised_room.started()
            self._out.append(SendStarted(self.boot, self.gen))  # L4: now, and not when the wake came (V8)
        self._out.append(StartReceive(self._rid, limit, self._reason))

    def _pause(self, now: float) -> None:
        self.timers.schedule_retry(now)
        # Again with every try: a broker may have lost the one before, and an owner whose receives all hang looks to
        # the bridge like one that makes progress (S2, B5).
        self._send_more(again=True)

    def _send_more(self, again: bool = False) -> None:
        if self.mode is Mode.PUSH and self.advertised_room.more(again):
            # Only once: the bridge requests a wake for it, under a generation that later checks share.
            unannounced = self._unannounced > max(self.covered, self._announced)
            self._announced = self.epoch
            self._out.append(SendMore(self.depth, unannounced))

    def _current_state(self) -> State:
        """Return the state that the facts amount to."""
        if self._stopping:
            return State.STOPPING if self.receives else State.STOPPED
        if self.receives:
            return State.DRAINING
        if self.covered < self.epoch:
            return State.FULL if self.timers.retry is None else State.COOLING
        # Without a bridge a poll is always scheduled: by the last empty answer, or by the loss of the bridge (L9).
        return State.COOLING if self.mode in (Mode.DEGRADED, Mode.PULL) else State.IDLE

    # Status ------------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether a check is pending."""
        return self.covered < self.epoch

    @property
    def reserved(self) -> int:
        """Handler slots reserved by receives in flight."""
        return sum(receive.limit for receive in self.receives.values()) if self.receives else 0

    @property
    def available(self) -> int:
        """Handler slots that are neither busy nor reserved by a receive in flight, and that a pool grants now."""
        reserved = self.reserved if self.receives else 0
        spare = self.free - reserved
        return spare if self.place is None else min(spare, self.place.grant(reserved))

    @property
    def full(self) -> bool:
        """Whether no slot is free, those that receives have reserved not counted as busy."""
        if self.free <= 0 or self.place is None:
            return self.free <= 0
        return self.available + self.reserved <= 0 and not self.next_in_turn

    @property
    def next_in_turn(self) -> bool:
        """Whether only receives of the pool's other queues, which are about to answer, keep this one from a slot."""
        return self.place is not None and self.free > self.reserved and self.place.in_turn(self.reserved)

    @property
    def checking(self) -> bool:
        """Whether a receive begun at the current epoch is in flight."""
        return bool(self.receives) and any(receive.epoch == self.epoch for receive in self.receives.values())

    def deadline(self) -> float | None:
        """Return when to call `tick` next; None while nothing but an event can change anything."""
        if self._stopping:
            return None
        first = self.timers.deadline()
        if self.mode is Mode.PULL or self.deadman is None:
            return first
        unasked = self.deadman.deadline
        return unasked if first is None or unasked < first else first

    def beat(self, now: float) -> tuple[int, int, float | None, int]:
        """Return levels for a heartbeat: gen learned, gen covered, age of the newest receive or None, free slots (S2).

        The receive is named while it is in flight, or if it began since the last heartbeat (B5).
        """
        began, last = self._began_at, self._beat_at
        self._beat_at = now
        age = now - began if began is not None and (self.receives or last is None or began >= last) else None
        # No room would read as `more` (B5), and slots that another queue's receive has reserved come back in a moment.
        room = max(int(self.next_in_turn), self.available)
        free = 0 if self._stopping or self.timers.retry is not None else room
        self.advertised_room.beaten(free)
        return self.gen, self.covered_gen, age, free

    def on_empty_receive(self, at: float) -> None:
        """Record that a receive of any worker, begun at ``at`` or later, found the queue empty (L10)."""
        self._recheck.on_empty_receive(at)
        if self.deadman is not None:
            self.deadman.on_empty_receive(at)

    def tune(self, now: float, periods: Periods, sessions: int, latency_s: float) -> None:
        """Apply the bridge's numbers and the size of its fleet."""
        self._recheck.sweep_s = periods.sweep_s
        if self.deadman is not None:
            self.deadman.tune(now, periods.sweep_s, sessions, latency_s, periods.slack_s, periods.spread_s)


class AdvertisedRoom:
    """The bridge's count of our free slots, and whether a `more` bars us (B6).

    ``free`` is what `room`, a hello or a heartbeat reported, less what wakes have carried since (O7).
    """

    __slots__ = ("_more_stands", "_started_sent", "barred", "free")

    def __init__(self, capacity: int) -> None:
        self.free = capacity
        self.barred = False
        """`more` was sent and no room since: the bridge wakes others."""
        self._more_stands = False
        self._started_sent = False
        """`started` was sent and no count since: the bridge carries no messages to a worker that may be receiving."""

    def greeted(self, capacity: int) -> None:
        """Reset for a new session: its hello reported the capacity."""
        self.free = capacity
        self.barred = self._more_stands = self._started_sent = False

    def carried(self, count: int) -> None:
        """Record that a wake brought ``count`` messages, which the bridge counted itself."""
        self.free = max(0, self.free - count)

    def started(self) -> None:
        """Record a sent `started`, which may make this worker the owner again: the next `more` is news."""
        self._more_stands = False
        self._started_sent = True

    def beaten(self, free: int) -> None:
        """Record a heartbeat, which reports room like `room` and none like `more` (S2)."""
        self.free = free
        self.barred = free <= 0
        self._started_sent = False

    def more(self, again: bool) -> bool:
        """Return whether to send `more` now; ``again`` even if it was sent, because a wake crossed it."""
        if self._more_stands and not again:
            return False
        self.free = 0
        self.barred = self._more_stands = True
        return True

    def room(self, available: int, exact: bool) -> bool:
        """Return whether to send `room` now: while barred, and with ``exact`` whenever the bridge's count is wrong."""
        wrong = self.free != available or self._started_sent
        if available <= 0 or not (self.barred or (exact and wrong)):
            return False
        self.free = available
        self.barred = self._more_stands = self._started_sent = False
        return True


class Receive(msgspec.Struct, frozen=True):
    """One receive in flight, with the snapshot taken before it went to the transport (L1)."""

    epoch: int
    boot: str | None
    gen: int
    began_at: float
    limit: int
    source: str
    confirms: bool
    """Whether it began after an empty answer of the same epoch, which an incomplete store needs."""
    after_s: float = 0.0
    """How long its listener knew of ``gen`` when it began."""


class Evidence:
    """Judges answers; remembers the first of the two empty ones that an incomplete store needs."""

    __slots__ = ("_empty_epoch",)

    def __init__(self) -> None:
        self._empty_epoch: int | None = None

    def is_half_sure(self, epoch: int) -> bool:
        """Return whether one empty answer of this epoch came from a store that needs two."""
        return self._empty_epoch == epoch

    def proves_empty(
        self, receive: Receive, n: int, visible: int | None, complete: bool, epoch: int, blocked: bool = False
    ) -> bool:
        """Return whether ``n`` messages, with ``visible`` left if the store reports it, prove that no more was due.

        On a complete store that is a depth of 0 or a batch shorter than asked; on another, two empty answers in a row
        at the same, still current ``epoch``. A store that reports messages left is believed. An answer that
        something other than emptiness limited (``blocked``) proves nothing.
        """
        if blocked:
            return False
        if complete:
            return visible == 0 or (n < receive.limit and not visible)
        if n or visible:
            return False
        if receive.confirms:
            return True
        if receive.epoch == epoch:
            self._empty_epoch = epoch
        return False
