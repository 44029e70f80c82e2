"""The dequeue tasks of one queue: the shell around its wake machine.

It performs what `Controller` decides (receives, frames) and feeds back what happened; `Holding` keeps the messages that
the receives bring. A receive never waits for a handler: a handler only takes a slot.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.bounds import STORE_CALL_S
from queuebell.bridge.contract.errors import HandlersStuck, QueuebellError, QueueNotFound, UnknownOutcome
from queuebell.bridge.contract.event import rounded_up
from queuebell.bridge.contract.jobs import Jobs
from queuebell.bridge.contract.sources import UNANNOUNCED
from queuebell.bridge.contract.trace_context import Traces, merged
from queuebell.bridge.contract.wire import (
    RUNNING_CHARS_MAX,
    EmptyReceive,
    LastEmptyReceive,
    QueueBeat,
    Running,
    Subscription,
    Wake,
)
from queuebell.bridge.observe import tracing
from queuebell.bridge.observe.swallowed import swallow, swallowing, unless_cancelled
from queuebell.bridge.observe.tracing import Cause
from queuebell.bridge.queues.base import Depth, QueueStore, Received, named
from queuebell.listeners.figures import QueueFigures
from queuebell.listeners.pool import Pool
from queuebell.listeners.wake.controller import Controller
from queuebell.listeners.wake.frames import beat_of, frame_of, subscription_of
from queuebell.listeners.wake.table import Command, Mode, NotifyEmpty, NotifyWork, SendEmptyReceive, StartReceive
from queuebell.listeners.wake.timers import Periods
from queuebell.listeners.work.counts import REPORT_BYTES, CountSchedule, JobCounts, ReceiveCounts, StoreCounts
from queuebell.listeners.work.events import ListenerEvents
from queuebell.listeners.work.failures import ReceiveFailures
from queuebell.listeners.work.holding import HURRY_S, Holding, Rules
from queuebell.listeners.work.invoke import Invoker
from queuebell.listeners.work.lease import Held, carried_message, lease_report, shortest_visibility, visible_again

log = logging.getLogger("queuebell.listener")


EVENTS: Final = "what a queue of a worker reports"


class Dequeue:
    """One queue of a listener, from a wake to a message held."""

    def __init__(
        self,
        queue: str,
        store: QueueStore,
        controller: Controller,
        invoker: Invoker,
        rules: Rules,
        events: ListenerEvents,
        draw: Draw,
        pool: Pool | None = None,
        failures: ReceiveFailures | None = None,
        store_name: str | None = None,
    ) -> None:
        self.queue = queue
        self._failures = failures or ReceiveFailures()
        self._store_name = store_name or type(store).__name__
        self.controller = controller
        self._pool = pool
        self._place = controller.place
        self.stopping = False
        self._store = store
        self._rules = rules
        self._events = events
        self._loop = asyncio.get_running_loop()
        self._counts: Counter[str] = Counter()
        self._receive_counts = ReceiveCounts()
        self._store_counts = StoreCounts(queue, store, CountSchedule(queue, rules.poison))
        self._jobs = JobCounts(rules.handler)
        self._sessions = 1
        self._store_call_s = STORE_CALL_S
        self._checked_s: float | None = None
        self._sent_store: str | None = None
        self._greeted = False
        self._holding = Holding(queue, store, invoker, rules, self, self._counts, self._jobs, draw)
        self._woken_by: Traces | None = None
        self._receive_begun = True
        """Whether a receive has begun since the trace contexts in ``_woken_by`` arrived."""
        self._next_reported: float | None = None
        """The next check that the bridge knows of, in this session."""
        self._hung = 0
        self._slots_gone = False
        """Whether calls that ran out of time hold every slot."""
        self._receives: set[asyncio.Task[None]] = set()
        self._read_at: str | None = None
        """Which tables the newest receive read (B17)."""
        self._timer: asyncio.TimerHandle | None = None

    # The session's port -------------------------------------------------------------------------------------------

    def subscription(self) -> Subscription:
        """Return this queue's part of a hello; capacity 0 once it stops (L12)."""
        self._sent_store, self._greeted = named(self._store, self.queue), True
        return subscription_of(
            self.controller,
            self.queue,
            0 if self.stopping else self._rules.concurrency,
            self._holding.visibility.seconds,
            store=self._sent_store,
            busy=bool(self._holding.busy),
        )

    def wake(self, frame: Wake) -> None:
        """Handle the bridge's wake, and the messages it carries (O7)."""
        now = self._loop.time()
        starting: list[Held] = []
        carried = len(frame.messages or ())
        # Wakes that come while a receive is under way are answered by the next one together.
        self._woken_by = merged(None if self._receive_begun else self._woken_by, frame)
        self._receive_begun = False
        self._holding.traceparent = frame.traceparent
        self._holding.traces = () if self._woken_by is None else self._woken_by.parents
        if frame.messages:
            # Read before any is held: a malformed one refuses the whole wake, and the bridge takes its messages back.
            stored = [(carried_message(one), now + one.visible_in_ms / 1000) for one in frame.messages]
            held = [self._holding.take_carried(message, ends, frame.reason) for message, ends in stored]
            room = 0 if self.stopping else max(0, self.controller.available)
            starting = held[:room]
            self._holding.take_slots(starting)
            self._holding.give_back(held[room:])
            try:
                self._events.took()
            except Exception as error:  # noqa: BLE001 - a failure of the scaler costs no message
                swallow(EVENTS, error)
            self._counts["carried"] += carried
            self._receive_counts.carried(frame.reason)
        free = self._count_free() if carried else None
        self._feed(self.controller.wake, frame.boot, frame.gen, frame.reason, frame.size, carried=carried, free=free)
        # Behind `started`: a WebSocket has passed it on before the first step of a handler, which may be the last.
        self._holding.start_handlers(starting)

    def welcomed(self, boot: str, gen: int) -> None:
        """Handle a new session."""
        self._next_reported = None
        self._receive_counts.greeted(boot)
        self._store_counts.rules.greeted()
        self._jobs.greeted(boot)
        self._holding.heard()
        self._feed(self.controller.welcomed, boot, gen)
        self._events.ready()

    def lost(self) -> None:
        """Handle the loss of the bridge (L9)."""
        self._next_reported = None
        self._check_visibility()
        self._feed(self.controller.lost)
        self._events.ready()

    def begin_pull_only(self) -> None:
        """Work without a bridge for good."""
        self._check_visibility()
        self._feed(self.controller.pull_only)
        self._events.ready()

    def on_empty_receive(self, at: float) -> None:
        """Record that the queue was covered at ``at`` (L10). The timer stays: it only comes too early."""
        self.controller.on_empty_receive(at)

    def apply_periods(self, periods: Periods, sessions: int, latency_s: float) -> None:
        """Apply the bridge's numbers for this queue, and the number of its sessions, to the timers."""
        self._sessions = sessions
        if periods.store_call_s != self._store_call_s:
            self._store_call_s = periods.store_call_s
            self._holding.set_store_call_timeout(periods.store_call_s)
        self._check_visibility()
        self.controller.tune(self._loop.time(), periods, sessions, latency_s)

    def _check_visibility(self) -> None:
        """Warn where V is too short for R: at the start, and whenever the bridge gives another R."""
        call_s = self._store_call_s
        if call_s == self._checked_s:
            return
        self._checked_s = call_s
        least = shortest_visibility(call_s, self._store.capabilities.receive_s)
        if self._rules.visibility < least:
            log.warning(
                "%s: a visibility_timeout of %g s is short for store calls that may take %g s: one that hangs may cost "
                "a lease, and its message is handled twice. Set visibility_timeout to %g or more, or store_call_s at "
                "the bridge to %g or less",
                self.queue,
                self._rules.visibility,
                call_s,
                least,
                self._rules.visibility / 2,
            )

    def beat(self, now: float) -> QueueBeat:
        """Return levels for a heartbeat."""
        beat = beat_of(self.controller, now, self._failures.since, self._hung)
        if self._place is not None:
            # The heartbeat may report no room; the pool calls when there is. It must not receive before the
            # heartbeat has left: the bridge would get `room` first, and then that there was none.
            self._place.wants = self.controller.wants()
        return beat

    def report_bytes(self) -> int:
        """Return how many bytes its unacknowledged report takes at most, 0 without one."""
        return REPORT_BYTES * self._owes_counts() + (self._jobs.report_bytes() if self._jobs.changed else 0)

    def report(self, stamp: int, beat: QueueBeat) -> QueueBeat:
        """Return ``beat`` with the outcomes of messages, (found, empty) by wake source, and what the store counted."""
        if self._jobs.changed:
            beat = msgspec.structs.replace(beat, jobs=self._jobs.report(stamp))
        if not self._owes_counts():
            return beat
        depth, buried = self._store_counts.rules.report(stamp, self._loop.time())
        levels = self._receive_counts.report(stamp)
        unannounced = levels.pop(UNANNOUNCED, (None, 0))[0]
        return msgspec.structs.replace(beat, receives=levels, depth=depth, buried=buried, unannounced=unannounced)

    def _owes_counts(self) -> bool:
        return self._receive_counts.changed or self._store_counts.rules.changed

    def echoed(self, stamp: int, last: LastEmptyReceive) -> None:
        """Record that the bridge has the heartbeat of this stamp."""
        self._receive_counts.echoed(stamp)
        self._jobs.echoed(stamp)
        self._store_counts.rules.echoed(stamp)

    def running(self, now: float) -> Running | None:
        """Return the message whose handler has run longest, None where none runs."""
        held = self._holding.longest()
        if held is None:
            return None
        ms = max(0, round(1000 * (now - held.began)))
        return Running(held.stored.id[:RUNNING_CHARS_MAX], ms, held.stored.dequeue_count)

    def receiving(self) -> bool:
        """Return whether a receive is in flight."""
        return bool(self.controller.receives)

    def leases(self, now: float, most: int) -> list[int]:
        """Return lease ends in ms from now, of messages held and of those that come back by themselves (L6, L7)."""
        return lease_report([*self._holding.lease_ends(), *self.controller.timers.returns()], now, most)

    # Events of the held messages ------------------------------------------------------------------------------------

    def room_changed(self) -> None:
        """Report the number of free slots to the machine."""
        self._feed(self.controller.room, self._count_free())

    def free(self) -> int:
        """Return the handler slots that this queue may use now, those reserved by receives in flight among them."""
        reserved, free = self.controller.reserved, self._holding.free()
        return free if self._place is None else min(free, reserved + self._place.grant(reserved))

    def _count_free(self) -> int:
        """Count the slots free for the machine, and those taken for its pool: in one moment, or they contradict."""
        if self._place is not None:
            self._place.runs(self._holding.busy)
        return self._holding.count_free()

    def came_back(self, after: float) -> None:
        """Announce a release after its acknowledgement, as the put it is; a delayed one when it is due (L7)."""
        self._feed(self.controller.came_back, self._visible_again(after) if after > 0 else None)

    def acknowledged(self, *, gone: bool) -> None:
        """Let the machine receive again if it waits for a limit that this may have lifted (L8)."""
        if gone:
            self._store_counts.rules.deleted()
        if self.controller.blocked:
            self._feed(self.controller.settled)

    def moved(self, queue: str, after_ms: int) -> None:
        """Trigger the queue that a message moved to, unless its store does."""
        if self.controller.mode is Mode.PUSH:
            self._store_counts.poison_changed(own=self.controller.own, call_s=self._store_call_s)
        if not self.controller.own:
            self._events.announce(queue, rounded_up(after_ms, self._store.capabilities.resolution_ms))

    def renewals_changed(self) -> None:
        """See to the timer."""
        self.arm()

    def can_be_received(self) -> bool:
        """Return whether a message that is released now will be received, by another worker or by this one.

        The bridge counts sessions of any queue. So this worker needs a free slot as well: it may be the only one here.
        """
        return self.stopping or (self.controller.mode is Mode.PUSH and self._sessions > 1 and self.free() > 0)

    def hung(self, slots: int) -> None:
        """Report that handlers ran out of time and keep their slots, loudly where no slot is left."""
        self._hung = slots
        if self._pool is None or self._place is None:
            self.slots_stuck()
        else:
            self._pool.set_hung(self._place, slots)

    def slots_stuck(self) -> None:
        """Report where no slot is left, or one is again, for calls that ran out of time; of a pool those of others."""
        place = self._place
        gone = self._hung >= self._rules.concurrency if place is None else place.stuck
        if gone and not self._slots_gone:
            own = f"every handler slot is held by a call of {self._rules.handler} that ran past handler_timeout and "
            starved = None if place is None else place.starved
            stuck = HandlersStuck(self.queue, own + "does not return" if starved is None else starved.describe())
            log.error("%s", stuck)
            if self._rules.end_when_stuck:
                self._events.failed(stuck)
        elif self._slots_gone and not gone:
            log.warning("%s: handler slots are free again: this worker handles its messages again", self.queue)
        self._slots_gone = gone

    # Commands -------------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Make sure that the one timer of this queue comes in time; it may come too early, never too late."""
        at, renewal = self.controller.deadline(), self._holding.renewals.deadline()
        if at is None or (renewal is not None and renewal < at):
            at = renewal
        if self._timer is not None:
            if at is not None and self._timer.when() <= at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self._loop.call_at(at, self._tick)

    def _tick(self) -> None:
        self._timer = None
        with swallowing("renewing leases"):
            self._holding.renew(self._loop.time())
        self._feed(self.controller.tick)

    def _feed(self, event: Callable[..., Sequence[Command]], *arguments: object, **named: object) -> None:
        """Feed the machine an event of this moment, and perform its commands."""
        try:
            self._perform(event(self._loop.time(), *arguments, **named))
            if self._pool is not None and self._place is not None:
                controller = self.controller
                self._pool.update(self._place, controller.reserved, controller.wants(), waits=controller.waits_in_turn)
        except Exception as error:
            log.exception("%s: internal error in the wake rules; this worker stops", self.queue)
            self._events.failed(error)

    def _perform(self, commands: Sequence[Command]) -> None:
        events, queue = self._events, self.queue
        for command in commands:
            # Each on its own: a frame that is lost is made up for (S2), a receive that never began would not be.
            try:
                match command:
                    case StartReceive(rid, limit, source):
                        task = self._loop.create_task(self._receive(rid, limit, source), name=f"dequeue[{queue}]#{rid}")
                        self._receives.add(task)
                        task.add_done_callback(self._receives.discard)
                    case NotifyEmpty():
                        events.emptied(queue)
                    case NotifyWork():
                        events.detected(queue)
                    case _:
                        frame = frame_of(command, queue, own=self.controller.own)
                        if isinstance(command, SendEmptyReceive):
                            self._note_next_visible(command.next_visible_s)
                        if isinstance(frame, EmptyReceive):
                            frame = msgspec.structs.replace(frame, place=self._read_at)
                        if frame is not None:
                            events.send(frame)
            except Exception as error:  # noqa: BLE001 - as above
                swallow(EVENTS, error)
        self.arm()

    async def _receive(self, rid: int, limit: int, source: str) -> None:
        began = self._loop.time()
        visibility = self._holding.visibility.seconds
        self._counts["receives"] += 1
        self._receive_begun = self._receive_begun or source == "trigger"
        try:
            on = tracing.on
            if on is None:
                answer = await self._ask(limit, visibility, source)
            else:
                with on.receive(self.queue, source, self._holding.traces, str(self._store)) as brought:
                    answer = await self._ask(limit, visibility, source)
                    brought([Cause(message.headers, message.id) for message in answer.messages])
        except asyncio.CancelledError:
            self._failed(rid, unknown=True)
            raise
        except (UnknownOutcome, TimeoutError) as error:
            self._warn_of_failure(error)
            self._failed(rid, unknown=True)
            return
        except QueuebellError as error:
            if self._failures.ends(error):
                self._events.failed(error)
            else:
                self._warn_of_failure(error)
            self._failed(rid, unknown=False)
            return
        except Exception:
            log.exception("%s: unexpected error while receiving", self.queue)
            self._failed(rid, unknown=True)
            return
        self._on_received(rid, answer, began, visibility, source)

    async def _ask(self, limit: int, visibility: float, source: str) -> Received:
        try:
            async with asyncio.timeout(self._store_call_s + self._store.capabilities.receive_s):
                return await unless_cancelled(self._store.receive(self.queue, limit, visibility, source=source))
        except QueueNotFound:
            # Workers may start before the first put. The boot still counts: without it the bridge would take the queue
            # for one in an external store, and sweep it.
            return Received([], boot=getattr(self._store, "boot", None))

    def _next_visible(self, answer: Received) -> float | None:
        """Return in how many seconds more becomes visible, where nothing else reports it.

        With a bridge that is the next delayed message. Heartbeats report the ends of the listener's own leases, and a
        settled lease takes its timer along (B8, L7). As long as more is invisible than it holds, another client may
        hold a lease that no session of this bridge reports. Then the next end counts too, unless a check is due
        before it, whose answer reports again.
        """
        due, ends = answer.next_delayed_in_ms, answer.next_visible_in_ms
        if self.controller.mode is not Mode.PUSH or isinstance(due, msgspec.UnsetType):
            due = ends
        elif ends is not None and not self.controller.own and self._others_lease(answer.depth):
            now = self._loop.time()
            if self._next_reported is None or not now < self._next_reported <= now + ends / 1000:
                due = ends
        return None if due is None else due / 1000

    def _note_next_visible(self, next_visible: float | None) -> None:
        """Remember the next time at which the bridge will request a check."""
        now = self._loop.time()
        left = [at for at in (self._next_reported,) if at is not None and at > now]
        self._next_reported = min([*left, *([] if next_visible is None else [now + next_visible])], default=None)

    def _others_lease(self, depth: Depth | None) -> bool:
        """Return whether more is invisible than this listener holds; where it is not known, yes."""
        return depth is None or depth.invisible > len(self._holding)

    def _failed(self, rid: int, *, unknown: bool) -> None:
        self._counts["failed"] += 1
        self._failures.begins(self._loop.time())
        # L6: what it may have leased comes back V after the store can last have carried it out.
        back_at = self._visible_again(self._holding.visibility.seconds) if unknown else None
        self._feed(self.controller.failed, rid, back_at)

    def _visible_again(self, after: float) -> float:
        return visible_again(self._loop.time(), after, self._store.capabilities.resolution_ms)

    def _on_received(self, rid: int, answer: Received, began: float, visibility: float, source: str) -> None:
        self._read_at = answer.place
        held = self._holding.take(answer.messages, began, visibility, source)
        self._counts["empty"] += not held
        self._holding.heard()
        with swallowing(EVENTS):
            if held:
                self._events.took()
            if answer.boot is not None:
                self._events.store_answered(self.queue, answer.boot)
            elif self._greeted and self._sent_store != named(self._store, self.queue):
                self._events.store_answered(self.queue, None)
        if self._failures.answered():
            log.warning("%s: receives from %s work again", self.queue, self._store_name)
        fresh = any(message.dequeue_count <= 1 for message in answer.messages)
        self._receive_counts.received(source, bool(held), known=self.controller.own, fresh=fresh)
        if held and self._receive_counts.suspicious(source, self._loop.time()):
            self._warn_of_unasked(source)
        if self.stopping:
            self._holding.give_back(held)
        else:
            self._holding.start(held)
        depth, capable = answer.depth, self._store.capabilities
        if self.controller.mode is Mode.PUSH:
            with swallowing("counting a store"):
                self._store_counts.on_received(
                    answer, source, own=self.controller.own, sessions=self._sessions, call_s=self._store_call_s
                )
        exact = capable.exact_depth
        # L1: the compare with the epoch happens in this very tick; nothing here awaits.
        self._feed(
            self.controller.received,
            rid,
            len(held),
            visible=depth.visible if exact and depth is not None else None,
            next_visible=self._next_visible(answer),
            complete=capable.complete_receive and (capable.short_batch_ends or not answer.messages),
            free=self._count_free(),
            count=None if exact or depth is None else depth.visible + depth.invisible,
            blocked=answer.blocked,
        )

    def _warn_of_failure(self, error: Exception) -> None:
        count, said = self._failures.failed(self._loop.time()), str(error) or "no answer in time"
        if count:
            log.warning(
                "%s: receives from %s fail (%d since the last report): %s. They are retried automatically",
                self.queue,
                self._store_name,
                count,
                said,
            )

    def _warn_of_unasked(self, source: str) -> None:
        log.warning(
            "%s: a message arrived without a trigger and waited for a timer (%s, %d such so far). "
            "Nothing is lost. Check that every producer publishes after its put, that the bridge receives from their "
            "bus (`queuebell status`), and that producer and listener use the same queue name",
            self.queue,
            source,
            self._receive_counts.unasked,
        )

    # The end --------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Begin no more receives, and pass pending checks on (L12)."""
        self.stopping = True
        self._feed(self.controller.stop)

    async def drain(self, grace: float) -> None:
        """Wait for the receives in flight, then ``grace`` seconds at most for the handlers."""
        if self._receives:
            await asyncio.wait(self._receives)
        await self._holding.drain(grace)

    async def abort(self) -> None:
        """Cancel receives and handlers; release what they held.

        A receive has a moment to answer: its messages can be released, those of a lost answer cost an attempt.
        """
        receives = sorted(self._receives, key=asyncio.Task.get_name)  # in an order that a seed repeats
        if receives:
            _, late = await asyncio.wait(receives, timeout=HURRY_S)
            for task in receives:
                if task in late:
                    task.cancel()
            await asyncio.wait(receives)
        await self._holding.abort()

    async def finish(self, hurry: asyncio.Event) -> None:
        """Bring the last settlements to the store, quickly once ``hurry`` is set, and release the timer."""
        try:
            await self._store_counts.close()
            await self._holding.finish(hurry)
        finally:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._pool is not None and self._place is not None:
                self._pool.leave(self._place)

    @property
    def held(self) -> int:
        """How many messages it holds."""
        return len(self._holding)

    def jobs(self) -> tuple[str, Jobs]:
        """Return the handler's name, and the outcomes of its messages since the start."""
        return self._jobs.handler, self._jobs.level()

    # Figures --------------------------------------------------------------------------------------------------------

    @property
    def settling(self) -> bool:
        """Whether a settlement waits or is on its way."""
        return not self._holding.idle

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` is one of this queue's handlers."""
        return self._holding.runs(task)

    def figures(self) -> QueueFigures:
        """Return the figures of this queue."""
        controller, holding, counts = self.controller, self._holding, self._counts
        return QueueFigures(
            state=controller.state.value,
            depth=controller.depth,
            active_receives=len(controller.receives),
            total_receives=counts["receives"],
            empty_receives=counts["empty"],
            failed_receives=counts["failed"],
            carried=counts["carried"],
            active_handlers=holding.running,
            hung_handlers=self._hung,
            free=self.free(),
            held=len(holding),
            epoch=controller.epoch,
            covered=controller.covered,
            gen=controller.gen,
            handled=counts["handled"],
            retried=counts["retried"],
            buried=counts["buried"],
            replayed=counts["replayed"],
            burials_bare=counts["burials_bare"],
            given_back=counts["given_back"],
            lost_leases=counts["lost"],
            too_short=holding.visibility.too_short,
            visibility_s=holding.visibility.seconds,
            wake_sources=dict(self._receive_counts.found),
            last_burial=holding.last_burial,
        )
