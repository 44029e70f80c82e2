"""Compose the bridge's rules: take timestamped input and return what to do about it.

Feed it (`trigger`, `frame`, `on_commit`, `handed`, `lost`, `tick`), then perform `commands()` in order, emit `facts()`,
and call it again at `deadline()`. It reads no clock and draws no random numbers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Final

import msgspec

from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.bounds import SLACK_S, SPREAD_S, STORE_CALL_S
from queuebell.bridge.contract.cluster import Name
from queuebell.bridge.contract.errors import BadInput
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.sources import UNANNOUNCED
from queuebell.bridge.contract.wire import (
    SCALER,
    BridgeHeartbeat,
    Bye,
    EmptyReceive,
    ErrorFrame,
    Hello,
    LastEmptyReceive,
    ListenerHeartbeat,
    More,
    Report,
    Room,
    Started,
    Subscription,
    UpFrame,
    Wake,
    Welcome,
    WelcomedQueue,
)
from queuebell.bridge.core.agenda import TURN_MAX, Agenda
from queuebell.bridge.core.cluster.coordinator import Coordinator
from queuebell.bridge.core.commands import Command
from queuebell.bridge.core.dispatch import COORDINATOR_TIMERS, Dispatch, Reminders, Timer
from queuebell.bridge.core.embedded_queues import EmbeddedQueues
from queuebell.bridge.core.listener_counts import (
    JobCounts,
    ReceiveCounts,
    WorkerCounts,
    seen,
)
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.core.round import HERE, Round
from queuebell.bridge.core.sessions import (
    HELLO_S,
    InFlight,
    Rejections,
    Session,
    SessionQueue,
    SessionTimeouts,
    session_queue,
)
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.core.timers import Timers
from queuebell.bridge.observe.facts import (
    Covered,
    DuplicateDropped,
    Fact,
    SessionClosed,
    SessionOpened,
    SessionRefused,
    Suspended,
    Triggered,
)

POLICY = 1008
NO_HELLO = 4408
GONE = 1001
PLACES_MAX: Final = 64

AUDIT: Final[Timer] = ("audit", 0)


class WakeScheduler:
    """Run the bridge's rules for one boot.

    ``engine`` returns the fingerprint of each queue if the bridge's own service uses an external store. Then no queue
    is embedded, whatever a listener reports (B11, O0).
    """

    def __init__(self, boot: str, periods: Periods, draw: Draw, engine: Callable[[str], str] | None = None) -> None:
        self.boot = boot
        self._engine = engine
        self.engine_kind = ""
        """Kind of that store (`queuebell.bridge.contract.missing_counts`)."""
        self.periods = periods
        self.dispatch = Dispatch(boot, periods, draw)
        self.coordinator: Coordinator | None = None
        """Coordinates with other bridges; None without a cluster."""
        self.embedded = EmbeddedQueues(self.dispatch)
        self.timers = Timers(self.dispatch, self.embedded)
        self.reminders = Reminders(self.dispatch)
        self.pending = self.dispatch.pending
        self.sessions = self.dispatch.sessions
        self.agenda = self.dispatch.agenda
        self.silence = SessionTimeouts(self.sessions)
        self.rejections = Rejections()
        self._duplicates = Duplicates()
        self._receives = ReceiveCounts()
        self._tallies = WorkerCounts()
        self._jobs = JobCounts()
        self._places: dict[str, str] = {}
        self._next_session = 0

    @property
    def on_engine(self) -> bool:
        """Return whether the bridge's queues are in a shared store, which other bridges may serve at the same time."""
        return self._engine is not None

    def join(self, **about: str | None) -> Coordinator:
        """Join a cluster; call this first. ``about`` is passed to `Coordinator`."""
        coordinator = self.dispatch.coordinator = self.coordinator = Coordinator(self.dispatch, self.timers, **about)
        return coordinator

    # -- output --------------------------------------------------------------------------------------------------------

    def commands(self) -> list[Command]:
        """Take the pending commands, in order."""
        taken = self.dispatch.commands
        self.dispatch.commands = []
        return taken

    def facts(self) -> list[Fact]:
        """Take the pending facts."""
        taken = self.dispatch.facts
        self.dispatch.facts = []
        return taken

    def deadline(self) -> float | None:
        """Return when to call `tick` next."""
        if self.coordinator is not None and self.coordinator.urgent:
            return 0.0
        first, death = self.agenda.next(), self.silence.deadline()
        return first if death is None else death if first is None else min(first, death)

    # -- triggers ----------------------------------------------------------------------------------------------------

    def trigger(
        self,
        now: float,
        event: CloudQueueWorkDetected,
        bus: str,
        *,
        redelivered: bool = False,
        count: int = 1,
        shared: bool = False,
    ) -> None:
        """Merge a trigger into its queue's pending work (B1, B2, B13); ``count`` if one trigger stands for several.

        ``shared``: the other bridges of the cluster receive it too (C2).
        """
        queue = event.queue
        work = self.pending.get_or_add(queue, now)
        not_before = event.not_before_ms
        name = (event.source, event.id) if event.source and event.id else None
        if self._duplicates.is_copy(now, name, queue, not_before, bus, redelivered):
            self.dispatch.emit(DuplicateDropped(queue, bus))
            return
        first = self._duplicates.remember(now, name, queue, not_before, bus)
        work.count_triggers(now, bus, count)
        self.dispatch.emit(Triggered(queue, bus, event.payload_size, count))
        if work.sessions.any_own and not work.sessions.any_foreign:
            # O1: the store itself reports what is visible; a hint adds nothing and must not cost a receive.
            return
        if not_before and self.pending.find(queue) is None:
            # No room for a due time: the next session checks the queue, and the sweep finds the rest.
            return
        if not_before:
            self.timers.arm_due(work, now, not_before / 1000, "due", event.payload_size, shared=shared)
            return
        if not first:
            name = None
        elif name is not None and self.dispatch.coordinator.already_settled(now, name, queue):
            # C4: a peer's receive, begun after its own wake request for this same publish, came back empty.
            return
        size = event.payload_size
        self.dispatch.request_wake(work, now, "trigger", size, event, foreign=True, name=name, shared=shared)

    def gap(self, now: float) -> int:
        """Check queues after triggers may have been missed; return how many queues are checked."""
        return self.timers.gap(now)

    # -- rounds ------------------------------------------------------------------------------------------------------

    def add_round(self, fingerprint: Callable[[str], str], *, scope: str, here: bool = False) -> Round:
        """Return the round of one store (B17), ``here`` of the one behind this bridge's queue service."""
        made = Round(fingerprint, self.periods.sweep_s, scope=scope, here=here)
        self.timers.rounds.append(made)
        return made

    def round_due(self, now: float, made: Round) -> float:
        """Return when this bridge asks next; an answer that a peer tells of postpones it (C11)."""
        return made.due_at(self.dispatch.coordinator.round_delay_s(made, now))

    def round_begins(self, now: float, made: Round) -> None:
        """Record that this bridge asks now."""
        made.asked_at, made.asked_dated = now, self.dispatch.coordinator.dated(now)

    def round_answered(self, now: float, made: Round, found: Collection[str], place: str | None) -> None:
        """Handle the answer to the newest question: which queues of ``place`` have visible messages."""
        if made.read(found, place):
            made.told = self.dispatch.coordinator.on_round(made, now)

    def round_found(self, now: float, made: Round, queues: Iterable[str], began: float) -> None:
        """Check queues in which a round found messages; a round's queues may come in several parts."""
        for queue in queues:
            work = self.pending.find(queue)
            # A queue of that name may be in another store for its listeners.
            if work is not None and work.round is made:
                self.timers.round_found(work, now, began)

    def forget(self, queue: str) -> bool:
        """Forget a queue at an operator's request (B14); return False if it exists or has a listener.

        Raise `BadInput` (``queue_not_found``) if the queue is unknown.
        """
        work = self.pending.find(queue)
        if work is None:
            raise BadInput("queue_not_found", "this bridge does not know that queue")
        return self.dispatch.drop(work)

    def suspended(self, now: float, gap_s: float) -> int:
        """Handle a suspend of ``gap_s`` in which the clock stopped (B15); return how many queues are checked."""
        self.silence.suspended(now, gap_s)
        self.dispatch.coordinator.suspended()
        checked = self.timers.suspended(now, gap_s)
        self.dispatch.emit(Suspended(gap_s, checked))
        return checked

    # -- sessions ----------------------------------------------------------------------------------------------------

    def open(self, now: float, kind: str) -> int:
        """Open a session; it has 5 s to send its hello."""
        self._next_session += 1
        number = self._next_session
        self.sessions.open(Session(id=number, kind=kind, opened_at=now, last_heard=now))
        self.agenda.set(("hello", number), now + HELLO_S)
        return number

    def frame(self, now: float, number: int, frame: UpFrame) -> None:
        """Handle a decoded and validated frame. Any frame proves that the listener is alive."""
        session = self.sessions.get(number)
        if session is None:
            return
        session.last_heard = now
        if self._engine is not None:
            frame = as_external(frame, self._engine)
        if isinstance(frame, Hello):
            self._hello(now, session, frame)
        elif session.instance is None:
            self._refuse(now, session, "bad_parameter", "the first frame of a session must be a hello")
        elif isinstance(frame, ListenerHeartbeat):
            self._heartbeat(now, session, frame)
        elif isinstance(frame, Bye):
            self._bye(now, session, frame)
        else:
            self._report(now, session, frame)

    def lost(self, now: float, number: int, reason: str) -> None:
        """Close a session whose transport is gone (B8)."""
        session = self.sessions.get(number)
        if session is not None:
            self._close(now, session, reason)

    def unreadable(self, now: float, number: int | None, code: str, why: str) -> None:
        """Record that a session, if there is one yet, ends because of an unreadable frame."""
        session = None if number is None else self.sessions.get(number)
        listener, queues = ("", ()) if session is None else (session.listener, tuple(session.queues))
        self.rejections.add(now, queues, listener, code, why)
        self.dispatch.emit(SessionRefused(listener, code, why))

    def _refuse(self, now: float, session: Session, code: str, message: str, hello: Hello | None = None) -> None:
        instance, listener, queues = session.instance or "", session.listener, tuple(session.queues)
        if hello is not None:
            instance, listener, queues = hello.instance, hello.listener, tuple(each.queue for each in hello.queues)
        self.rejections.add(now, queues, listener, code, message, instance=instance)
        self.dispatch.emit(SessionRefused(listener, code, message))
        self.dispatch.send(session.id, ErrorFrame(code, message))
        self.dispatch.end(session.id, POLICY, code)
        self._close(now, session, code)

    def _hello(self, now: float, session: Session, frame: Hello) -> None:
        holder = self.sessions.by_instance(frame.instance)
        excluding = {session.id} if holder is None else {session.id, holder.id}
        for sub in frame.queues:
            work = self.pending.find(sub.queue)
            if work is not None and work.sessions.any_other_store(sub.store, excluding):
                # B11: a staging worker must not settle production's work.
                why = f"another worker of {sub.queue} uses a different store"
                self._refuse(now, session, "store_mismatch", why, frame)
                return
        if holder is not None and holder is not session:
            self.dispatch.end(holder.id, GONE, "replaced")
            self._close(now, holder, "replaced")
        first = session.instance is None
        self.agenda.clear(("hello", session.id))
        self.sessions.name(session, frame.instance, frame.listener)
        self.rejections.accepted(frame.instance)
        if AUDIT not in self.agenda:
            # O4: not earlier, or the audit could end while this session is the only one and has not sent its hello yet.
            self.agenda.set(AUDIT, now + self.sessions.heartbeat_s)
        session.accepts = "messages" in frame.accept
        session.scaler = frame.kind == SCALER
        session.drains = frame.drains
        wanted = dict.fromkeys(sub.queue for sub in frame.queues)  # the order of the hello, which a set would lose
        for queue in [queue for queue in session.queues if queue not in wanted]:
            self._leave(now, session, queue)
        states: list[WelcomedQueue] = []
        coordinator = self.dispatch.coordinator
        for sub in frame.queues:
            work = self.pending.open(sub.queue, now)
            work.store = frame.store or work.store
            self.timers.on_hello(work, now, sub.store)
            unknown = work.found_empty_at is None and not work.dirty and not work.any_due
            unknown |= coordinator.on_hello(work, now, sub.store) and not work.dirty
            old = session.queues.get(sub.queue)
            entry = session_queue(session.id, sub, accepts=session.accepts, scaler=session.scaler)
            # B8: only its first heartbeat reports the leases it holds from a previous bridge.
            entry.may_hold_leases = True
            if old is not None:
                # A later hello of the same session keeps what it was sent and what it reported.
                entry.slot, entry.woken_gen, entry.may_hold_leases = old.slot, old.woken_gen, old.may_hold_leases
                entry.leases, entry.carried, entry.failing_since = old.leases, old.carried, old.failing_since
                entry.hung, entry.starved = old.hung, old.starved
                entry.granted, entry.reported_gen, entry.woken_at = old.granted, old.reported_gen, old.woken_at
                entry.receive_due, entry.began = old.receive_due, old.began
                entry.starting, entry.processes = old.starting, old.processes
                entry.in_flight = old.in_flight
                if entry.carried:
                    # O7: the hello may have been sent before these messages arrived.
                    entry.report(entry.free, None)
            session.queues[sub.queue] = entry
            work.sessions.add(entry)
            if unknown and not self.embedded.is_embedded(work):
                # B10: a hello requests no wake, except that an unknown queue starts with pending work.
                self.pending.request_wake(work, now, "resync", 1, foreign=True)
                coordinator.on_wake_request(work, now, None, shared=False, fresh=True)
            elif self.embedded.is_embedded(work) and work.visible and not work.dirty:
                self.pending.request_wake(work, now, "resync", work.visible, foreign=False)
            self.timers.arm_sweep(work, now)
            coordinator.on_generation_sent(work, now, work.gen)
            states.append(queue_state(work, self.timers, self.periods, now))
        self.dispatch.send(
            session.id,
            Welcome(
                boot=self.boot,
                heartbeat_ms=round(self.sessions.heartbeat_s * 1000),
                sweep_ms=round(self.periods.sweep_s * 1000),
                sessions=len(self.sessions),
                queues=states,
            ),
        )
        self.sessions.interval_sent(session)
        self.silence.expect(session)
        if first:
            self.dispatch.emit(SessionOpened(session.id, session.listener, session.kind, len(wanted)))
        for queue in wanted:
            self.dispatch.wake_sessions(self.pending.by_queue[queue], now)

    def _heartbeat(self, now: float, session: Session, frame: ListenerHeartbeat) -> None:
        # Idle sessions, perhaps ten thousand, send nothing else: rare fields are checked last.
        leases = frame.leases
        for queue, beat in frame.queues.items():
            entry = session.queues.get(queue)
            if entry is None:
                continue
            work = self.pending.by_queue[queue]
            ends = leases.get(queue)
            if ends or entry.leases:
                entry.leases = [now + end / 1000 for end in ends or ()]
            if entry.unresponsive:
                # A session that sends heartbeats is running. It need not know of the wake: the frame may be lost.
                self.dispatch.progress(work, entry, now)
            if beat.receiving_ms is not None:
                self.dispatch.receiving(work, entry, now, now - beat.receiving_ms / 1000)
            if beat.free is not None:
                if entry.receive_due and now - entry.woken_at >= self.sessions.dead_after_s:
                    entry.began = True  # that wake, or its `started`, was lost and is no longer in flight
                self.dispatch.room(work, entry, now, beat.free, beat.gen)
                if (
                    entry.may_hold_leases
                    and beat.free >= entry.capacity
                    and beat.receiving_ms is None
                    and not entry.leases
                ):
                    # B8: the generation alone does not prove that the wake arrived: a welcome or an earlier wake may
                    # carry the same one, and this heartbeat may have crossed it. After D nothing is in flight.
                    received = (beat.gen or 0) >= entry.woken_gen and now - entry.woken_at >= self.sessions.dead_after_s
                    entry.may_hold_leases = not received
                if entry.stuck and beat.free and beat.receiving_ms is None:
                    # B5: it is idle again and its empty receive was lost; nothing else would ever lift its bar.
                    self.dispatch.progress(work, entry, now)
                full = beat.free == 0 and beat.receiving_ms is None and work.owner == session.id
                if full and (beat.gen or 0) >= entry.woken_gen:
                    # S2: a repeated state makes up for the lost `more`.
                    self.dispatch.more(work, entry, now, None, entry.starting)
            entry.hung, entry.starved = beat.hung, beat.starved
            if beat.failing_ms is not None:
                entry.failing_since = now - beat.failing_ms / 1000
            elif entry.failing_since is not None:
                entry.failing_since = None
            if beat.processes is not None and entry.scaler:
                entry.processes, entry.starting = beat.processes, beat.processes.starting
                work.sessions.refresh(entry)
                if beat.processes.tally and session.instance is not None:
                    for fact in self._tallies.record(session.instance, queue, beat.processes.tally):
                        self.dispatch.emit(fact)
            if beat.receives and session.instance is not None:
                totals = beat.receives
                if beat.unannounced:
                    totals = {**totals, UNANNOUNCED: (beat.unannounced, 0)}
                announced = work.was_announced(now, 2 * self.sessions.heartbeat_s)
                known = work.unannounced
                for fact in self._receives.record(session.instance, work, totals, announced=announced):
                    self.dispatch.emit(fact)
                if work.unannounced > known:
                    work.unannounced_at = now
            if beat.jobs is not None and session.instance is not None:
                entry.in_flight = seen(entry.in_flight, beat.jobs)
                for fact in self._jobs.record(session.instance, work, beat.jobs):
                    self.dispatch.emit(fact)
            if beat.depth is not None:
                work.count_depth(beat.depth, now)
            if beat.buried is not None:
                work.count_buried(beat.buried, now)
            if beat.covered is not None and work.dirty and beat.covered >= work.gen:
                # S2: a repeated state makes up for the lost empty receive.
                self.dispatch.coordinator.on_empty_receive(work, now, beat.covered, 0.0, None)
                self._settle(work, entry, now, beat.covered)
        if frame.running or session.running:
            session.running = {
                queue: InFlight(running.id, running.attempt, now - running.ms / 1000)
                for queue, running in frame.running.items()
                if queue in session.queues
            }
        if session.unsent:
            # Safety net: even if the last `Flush` was lost, wakes wait one heartbeat at most.
            self.dispatch.flush(session)
        self.sessions.interval_sent(session)
        self.dispatch.send(
            session.id,
            BridgeHeartbeat(
                boot=self.boot,
                echo=frame.stamp,
                since_ms=0,
                sessions=len(self.sessions),
                queues={
                    queue: last_empty_receive(self.pending.by_queue[queue], self.timers, now, entry, self.agenda)
                    for queue, entry in session.queues.items()
                },
            ),
        )

    def _report(self, now: float, session: Session, frame: Report) -> None:
        entry = session.queues.get(frame.queue)
        if entry is None:
            # The session unsubscribed while the frame was in flight, or never subscribed: ignore it.
            return
        work = self.pending.by_queue[frame.queue]
        if isinstance(frame, Started):
            if frame.boot == self.boot:
                entry.may_hold_leases = True
                entry.began = entry.receive_due and (entry.began or frame.gen >= entry.woken_gen)
                if not self.embedded.confirm_carried(session.id, frame.queue, frame.gen, now):
                    self.dispatch.started(work, entry, now, frame.gen)
                else:
                    self.dispatch.progress(work, entry, now)
        elif isinstance(frame, More):
            entry.may_hold_leases = True
            self.dispatch.more(work, entry, now, frame.depth, frame.starting if entry.scaler else 0)
            unannounced = frame.depth != 0 if frame.unannounced is None else frame.unannounced
            if not entry.own and unannounced:
                # L6, L7: a lease without a holder ended, or a release was acknowledged, and no slot is free to check
                # with. An empty receive in flight began before that, and no trigger reports it. A `more` for a wake
                # that found no slot is not such news: its generation is still pending. Requesting another wake would
                # loop forever between receives that overlap (I2).
                self.dispatch.request_wake(work, now, "more", 0 if work.dirty else frame.depth or 1, foreign=True)
        elif isinstance(frame, Room):
            if frame.free:
                entry.starting = 0  # a scaler has room again once all workers it asked for have connected (Z3)
            self.dispatch.progress(work, entry, now)
            self.dispatch.room(work, entry, now, frame.free, frame.gen)
        else:
            if frame.own:
                work.sessions.make_embedded(entry)
            self._cover(now, work, entry, frame)

    def _cover(self, now: float, work: PendingWork, entry: SessionQueue, frame: EmptyReceive) -> None:
        if frame.boot != self.boot:
            # I3: generations of two boots are never compared.
            return
        if work.sessions.any_other_store(frame.store, (entry.session,)):
            session = self.sessions.get(entry.session)
            if session is not None:
                why = "this empty receive is from a different store than the other workers'"
                self._refuse(now, session, "store_mismatch", why)
            return
        self.dispatch.progress(work, entry, now)
        work.last_empty_external = not entry.own
        work.place = None if frame.place is None else self._one_text(frame.place)
        begun = now - frame.age_ms / 1000
        work.found_empty_at = begun if work.found_empty_at is None else max(work.found_empty_at, begun)
        self.timers.arm_sweep(work, now)
        if frame.next_visible_in_ms is not None and not self.embedded.is_embedded(work):
            self.timers.arm_due(work, now, frame.next_visible_in_ms / 1000, "due", 1)
        visible_s = None if frame.next_visible_in_ms is None else frame.next_visible_in_ms / 1000
        self.dispatch.coordinator.on_empty_receive(work, now, frame.gen, frame.after_ms / 1000, visible_s)
        self._settle(work, entry, now, frame.gen)

    def _one_text(self, place: str) -> str:
        """Return the text that all queues of a place share; listeners invent as many as they like."""
        if len(self._places) >= PLACES_MAX:
            self._places.clear()
        return self._places.setdefault(place, place)

    def _settle(self, work: PendingWork, entry: SessionQueue, now: float, gen: int) -> None:
        """Settle the work that an empty receive begun after ``gen`` proves done; never leases or timers (B7)."""
        if not work.dirty:
            self.dispatch.emit(Covered(work.queue, settled=False))
            return
        if self.pending.newest_gen >= gen >= work.gen:
            if self.embedded.is_embedded(work) and work.visible:
                # O1: the empty receive only shows that this session is idle; the store has work. Wake another one and
                # leave this one to the audit, or an honest mistake could loop between the two.
                work.foreign = False
                self.dispatch.release_owner(work, entry.session)
                self.dispatch.wake_sessions(work, now, excluding=(entry.session,))
                self.dispatch.emit(Covered(work.queue, settled=False))
            else:
                self.dispatch.settle(work)
                self.dispatch.emit(Covered(work.queue, settled=True))
            return
        self.dispatch.emit(Covered(work.queue, settled=False))
        if work.owner == entry.session:
            if not work.unacked:
                # It checked before it knew: send the wake again. An unanswered wake is still in flight.
                self.dispatch.write(work, entry)
                self.dispatch.expect_start(work, now)
        else:
            self.dispatch.wake_sessions(work, now)

    def _bye(self, now: float, session: Session, frame: Bye) -> None:
        for queue, ends in frame.leases.items():
            entry = session.queues.get(queue)
            if entry is not None:
                entry.leases = [now + end / 1000 for end in ends]
        for entry in session.queues.values():
            # A bye lists all leases that the listener leaves: nothing else of it can reappear.
            entry.may_hold_leases = False
        self.dispatch.send(session.id, Bye())
        self.dispatch.end(session.id, 1000, "bye")
        self._close(now, session, "bye")

    def _close(self, now: float, session: Session, reason: str) -> None:
        """Close a session: pass its work on to others and set timers for its leases (B8)."""
        self.sessions.remove(session)
        self.agenda.clear(("hello", session.id))
        self.silence.forget(session.id)
        # In one call: per queue, each call would scan all batches again.
        self.embedded.session_lost(session.id)
        for queue in list(session.queues):
            self._leave(now, session, queue)
        if session.instance is not None:
            for counts in (self._receives, self._tallies, self._jobs):
                # After a bye an instance never comes back (L12).
                (counts.levels.ended if reason == "bye" else counts.levels.lost)(session.instance)
            self.dispatch.emit(SessionClosed(session.id, session.listener, reason))

    def _leave(self, now: float, session: Session, queue: str) -> None:
        entry = session.queues.pop(queue)
        session.unsent.pop(queue, None)
        work = self.pending.by_queue[queue]
        # Read before the entry is removed: without it, the queue may no longer be an embedded one.
        by_level = self.embedded.is_embedded(work)
        work.sessions.remove(session.id)
        self.embedded.session_lost(session.id, queue)
        if not by_level:
            for end in entry.leases:
                self.timers.arm_due(work, now, max(0.0, end - now), "lease", 1)
            if entry.may_hold_leases:
                self.timers.arm_due(work, now, entry.visibility_s, "lease", 1)
        self.dispatch.release_owner(work, session.id)
        self.dispatch.wake_sessions(work, now)
        if not work.sessions:
            self.agenda.clear(("sweep", queue))
            self.pending.release(work)

    # -- sending -----------------------------------------------------------------------------------------------------

    def take(self, now: float, number: int) -> list[Wake]:
        """Take a session's unsent wakes to send them now; from here on they no longer merge."""
        return self.dispatch.take(now, number)

    # -- timers ------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Run due timers, at most `TURN_MAX` and the earliest first; `deadline` requests the rest immediately."""
        for kind, key in self.agenda.pop_due(now, TURN_MAX):
            if kind in COORDINATOR_TIMERS:
                self.dispatch.coordinator.tick(now, kind, self.pending.find(key) if isinstance(key, str) else None)
            elif isinstance(key, int):
                self._tick_session(now, kind, key)
            else:
                work = self.pending.find(key)
                if work is not None:
                    self._tick_queue(now, kind, work)
        for session in self.silence.dead(now):
            self.dispatch.end(session.id, GONE, "silent")
            self._close(now, session, "silent")
        self.dispatch.coordinator.report_changes(now)

    def _tick_session(self, now: float, kind: str, number: int) -> None:
        if kind == "audit":
            self.embedded.audit(now)
            if len(self.sessions):
                self.agenda.set(AUDIT, now + self.sessions.heartbeat_s)
            return
        if kind == "again":
            self.reminders.tick(now)
            return
        session = self.sessions.get(number)
        if session is None:
            return
        if kind == "hello":
            self.dispatch.end(number, NO_HELLO, "no hello within 5 s")
            self._close(now, session, "no hello")
        elif kind == "batch":
            self.embedded.batches_due(number, now)

    def _tick_queue(self, now: float, kind: str, work: PendingWork) -> None:
        if kind == "start":
            self.dispatch.start_missed(work, now)
        elif kind == "progress":
            self.dispatch.progress_missed(work, now)
        elif kind == "reread":
            self.embedded.reread_due(work.queue)
        elif kind == "due":
            self.timers.due(work, now)
        elif kind == "sweep":
            self.timers.sweep(work, now)


def queue_state(work: PendingWork, timers: Timers, periods: Periods, now: float) -> WelcomedQueue:
    """Return a queue's state for a welcome, with the numbers that differ from the defaults."""
    numbers = work.numbers
    return WelcomedQueue(
        work.queue,
        work.gen,
        not work.dirty,
        _covered_age_ms(work, timers, now),
        sweep_ms=_unless_default(numbers.sweep_s, periods.sweep_s),
        slack_ms=_unless_default(numbers.slack_s, SLACK_S),
        spread_ms=_unless_default(numbers.spread_s, SPREAD_S),
        store_call_ms=_unless_default(numbers.store_call_s, STORE_CALL_S),
    )


def last_empty_receive(
    work: PendingWork, timers: Timers, now: float, entry: SessionQueue, agenda: Agenda[tuple[str, int | str]]
) -> LastEmptyReceive:
    """Return a queue's state for a heartbeat; a scaler also gets the workers (Z5) and the next due time (Z2)."""
    age_ms = _covered_age_ms(work, timers, now)
    if not entry.scaler:
        return LastEmptyReceive(work.gen, age_ms)
    times = [at for kind in ("due", "reread") if (at := agenda.when((kind, work.queue))) is not None]
    due_ms = max(0, round((min(times) - now) * 1000)) if times else None
    return LastEmptyReceive(work.gen, age_ms, work.sessions.workers_for(entry), due_ms)


def _covered_age_ms(work: PendingWork, timers: Timers, now: float) -> int | None:
    if timers.is_embedded(work):
        # O5: 0 only if nothing is visible in this very tick.
        return 0 if not work.visible else max(1, round((now - work.visible_since) * 1000))
    empty_at = timers.found_empty_at(work)
    return None if empty_at is None else round((now - empty_at) * 1000)


def _unless_default(value_s: float, default_s: float) -> int | None:
    """Return milliseconds, or None if the listener assumes this value anyway."""
    return None if value_s == default_s else round(value_s * 1000)


def as_external(frame: UpFrame, engine: Callable[[str], str]) -> UpFrame:
    """Return a frame without `own` and without the offer to accept messages carried by a wake.

    A listener that sends `own` goes by the bridge's address or by an outdated answer. Trusting it would stop all
    sweeps, and every dead-man timer would be reset. The queue it means is the ``engine``'s, which has the same
    fingerprint through every bridge (B11).
    """
    if isinstance(frame, Hello):
        queues = [_subscription(sub, engine) for sub in frame.queues]
        return msgspec.structs.replace(frame, queues=queues, accept=[])
    if isinstance(frame, EmptyReceive):
        if frame.own:
            return msgspec.structs.replace(frame, own=False, store=engine(frame.queue), place=HERE)
        if frame.place == HERE:
            # Only this bridge says so, of its own store.
            return msgspec.structs.replace(frame, place=None)
    return frame


def _subscription(sub: Subscription, engine: Callable[[str], str]) -> Subscription:
    return msgspec.structs.replace(sub, own=False, store=engine(sub.queue)) if sub.own else sub


REMEMBER_S = 300.0
REMEMBER_MAX = 100_000


class Duplicates:
    """Remember the publishes that requested a wake in this boot: for 5 minutes, at most 100,000.

    A copy is dropped only if it carries source and id, the first one had the same queue and due time, and this one came
    by another bus or as a broker's redelivery. The same id again on the same bus is a producer's retry after an unknown
    outcome. It requests a wake again (I7: a duplicate only adds a receive).
    """

    __slots__ = ("_limit", "_period", "_seen")

    def __init__(self, period_s: float = REMEMBER_S, limit: int = REMEMBER_MAX) -> None:
        self._seen: OrderedDict[Name, tuple[str, int, str, float]] = OrderedDict()
        self._period = period_s
        self._limit = limit

    def __len__(self) -> int:
        return len(self._seen)

    def is_copy(
        self,
        now: float,
        name: Name | None,
        queue: str,
        not_before_ms: int,
        bus: str,
        redelivered: bool,
    ) -> bool:
        """Return whether this trigger is a copy of one that already requested a wake."""
        if name is None:
            return False
        first = self._seen.get(name)
        if first is None or now - first[3] > self._period:
            return False
        return first[0] == queue and first[1] == not_before_ms and (first[2] != bus or redelivered)

    def remember(self, now: float, name: Name | None, queue: str, not_before_ms: int, bus: str) -> bool:
        """Remember a wake request, in the same tick; return whether its name is new."""
        if name is None:
            return False
        first = name not in self._seen
        if first:
            self._seen[name] = (queue, not_before_ms, bus, now)
        while self._seen and (len(self._seen) > self._limit or now - next(iter(self._seen.values()))[3] > self._period):
            self._seen.popitem(last=False)
        return first
