"""The messages of one queue that this listener holds: run handlers, renew leases, settle outcomes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import datetime
import functools
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol, cast

import msgspec

from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.bounds import STORE_CALL_S
from queuebell.bridge.contract.errors import ENDS_THE_PROCESS
from queuebell.bridge.observe import instruments
from queuebell.bridge.queues.base import BATCH_MAX, QueueStore, StoredMessage
from queuebell.listeners.handler import Message, PayloadBroke, Undecodable, message_of
from queuebell.listeners.work.claims import BodyLost, Claims
from queuebell.listeners.work.counts import JobCounts
from queuebell.listeners.work.dead_letters import DeadLettering, NoClaimCheck
from queuebell.listeners.work.invoke import HandlerTimeout, Invoker
from queuebell.listeners.work.lease import Act, Held, Renewals, Visibility
from queuebell.listeners.work.ledger import Once
from queuebell.listeners.work.retry import (
    DeadLetter,
    Delete,
    Failed,
    Failure,
    Outcome,
    ReplayTo,
    RetryLater,
    RetryPolicy,
    Succeeded,
    Verdict,
    WantsRetry,
    describe_retry,
    exhausted,
    failure_name,
    reason_of,
    verdict,
)
from queuebell.listeners.work.retry_until import NoLongerWanted
from queuebell.listeners.work.settlements import GONE, Item, Settlements

log = logging.getLogger("queuebell.listener")

DELETED: Final = {"handled": "done", "buried": "buried", "replayed": "replayed"}
"""By a message's fate, how its attempt ended."""
CANCELLED: Final = "cancelled"
"""The class, for OpenTelemetry, of a call that was cut off: its lease was lost, or the worker stops at once."""
HURRY_S: Final = 1.0
"""What receives in flight get to answer, and handlers to end, when the listener stops at once."""
SETTLE_LAST_S: Final = 3.0
"""What the last settlements get then: a busy store answers in that time, and what it does not hear costs an attempt."""
STILL_RUNNING: Final = "the call of an earlier attempt ran past handler_timeout and still runs in this worker"


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """A listener's options for the messages of one queue; ``poison`` None never dead-letters.

    ``listener`` is its name and ``now`` the wall clock, for the facts of a dead letter and for waiting times.
    ``handler`` is the handler's name in metrics.
    """

    concurrency: int
    visibility: float
    retry: RetryPolicy
    poison: str | None
    decode: Callable[[bytes], object] | None
    listener: str
    now: Callable[[], datetime.datetime]
    handler: str
    batch: int = BATCH_MAX
    """The most messages of one call of a batch handler; a wake may carry more."""
    claims: Claims | None = None
    once: Once | None = None
    end_when_stuck: bool = False


class HoldingEvents(Protocol):
    """The events of a `Holding`; it never calls them from within a call to it."""

    def room_changed(self) -> None:
        """Handlers ended; called once for all that end in one turn of the loop."""
        ...

    def came_back(self, after: float) -> None:
        """A message becomes visible in ``after`` seconds without having been put (L7)."""
        ...

    def acknowledged(self, *, gone: bool) -> None:
        """The store carried out a delete, so that a message is ``gone``, or a release."""
        ...

    def moved(self, queue: str, after_ms: int) -> None:
        """A message was dead-lettered or replayed to a queue, where it is visible in ``after_ms``."""
        ...

    def renewals_changed(self) -> None:
        """A renewal may be due earlier than before."""
        ...

    def hung(self, slots: int) -> None:
        """The number of slots held by overdue calls changed."""
        ...

    def can_be_received(self) -> bool:
        """Return whether a message that is released now will be received: by another worker, or by this one."""
        ...


class Holding:
    """Every message from its receipt until it is settled or its lease is lost.

    A message takes a slot while its handler runs, and not longer: settling goes on behind it.
    """

    def __init__(
        self,
        queue: str,
        store: QueueStore,
        invoker: Invoker,
        rules: Rules,
        events: HoldingEvents,
        counts: Counter[str],
        jobs: JobCounts,
        draw: Draw,
    ) -> None:
        self.visibility = Visibility(rules.visibility)
        self.running = 0
        self.traceparent: str | None = None
        """The trace context of the newest wake, where it carried one."""
        self.traces: tuple[str, ...] = ()
        """Those of all triggers that it stood for."""
        self._queue = queue
        self._invoker = invoker
        self._store = store
        self._rules = rules
        self._events = events
        self._counts = counts
        self._jobs = jobs
        self._draw = draw
        self._loop = asyncio.get_running_loop()
        self.renewals = Renewals()
        self._settlements = Settlements(queue, store, settled=self._settled, clock=self._loop.time, draw=draw)
        self._dead_letters = DeadLettering(
            queue,
            store,
            poison=rules.poison,
            claims=rules.claims,
            listener=rules.listener,
            announce=events.moved,
            counts=counts,
            now=rules.now,
            draw=draw,
        )
        self._held: dict[int, Held] = {}
        self._numbers = 0
        self._attempts_max = rules.retry.attempts_max
        self._overdue = OverdueCalls(
            changed=self._overdue_changed,
            over=self._pause_over,
            ended=lambda held, left: self._settle(held, Act.RELEASE, left),
        )
        self._room_due = False
        self._backlog_counts = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._store_call_s = STORE_CALL_S

    def set_store_call_timeout(self, store_call_s: float) -> None:
        """Set how long each store call may take from now on (R), in seconds."""
        self._store_call_s = self._settlements.store_call_s = self._dead_letters.store_call_s = store_call_s

    def heard(self) -> None:
        """Settle now what waits because the store did not answer."""
        self._settlements.heard()

    @property
    def last_burial(self) -> str | None:
        """The last dead-lettered message, and why; None before any."""
        return self._dead_letters.last

    def __len__(self) -> int:
        return len(self._held)

    def free(self) -> int:
        """Return the handler slots free; many unsettled messages count against them."""
        concurrency = self._rules.concurrency
        free = concurrency - self.running - len(self._overdue.calls)
        backlog = len(self._settlements.settling.waiting) - 4 * concurrency
        return max(0, free - backlog if backlog > 0 else free)

    def count_free(self) -> int:
        """Return the same for the wake controller; the end of a settlement reports room if unsettled ones count."""
        self._backlog_counts = len(self._settlements.settling.waiting) > 4 * self._rules.concurrency
        return self.free()

    @property
    def busy(self) -> int:
        """The handler slots taken, those of calls that go on included."""
        return self.running + len(self._overdue.calls)

    @property
    def idle(self) -> bool:
        """Whether no settlement waits or is on its way."""
        return self._settlements.idling

    def lease_ends(self) -> list[float]:
        """Return when the leases held end, each a lower bound."""
        return [held.lease_ends for held in self._held.values()]

    def longest(self) -> Held | None:
        """Return the message whose handler has run longest, None where none runs."""
        return next((held for held in self._held.values() if held.task is not None and not held.concluded), None)

    def runs(self, task: asyncio.Task[Any] | None) -> bool:
        """Return whether ``task`` is one of the handlers."""
        return task in self._tasks or self._invoker.runs(task)

    # Taking ---------------------------------------------------------------------------------------------------------

    def take(self, messages: list[StoredMessage], began: float, visibility: float, source: str) -> list[Held]:
        """Hold what a receive brought that was begun at ``began``: until then, the leases are a lower bound."""
        taken = [self._hold(stored, began + visibility, source) for stored in messages]
        for held in taken:
            self.renewals.leased(held.number, began, visibility)
        return taken

    def take_carried(self, message: StoredMessage, lease_ends: float, source: str) -> Held:
        """Hold a message that came with a wake; its first renewal, soon, accepts it (O7)."""
        held = self._hold(message, lease_ends, source)
        self.renewals.carried(held.number, self._loop.time())
        return held

    def start(self, taken: list[Held]) -> None:
        """Take slots and start handlers for messages held."""
        self.take_slots(taken)
        self.start_handlers(taken)

    def take_slots(self, taken: list[Held]) -> None:
        """Take slots for messages whose handlers start in this very tick."""
        self.running += len(taken)

    def start_handlers(self, taken: list[Held]) -> None:
        """Start handlers on messages that have their slots."""
        most, more = (self._rules.batch, "+") if self._invoker.batch else (1, "")
        for at in range(0, len(taken), most):
            part = taken[at : at + most]
            self._spawn(self._handle(part), f"handle[{self._queue}]#{part[0].number}{more}", part)

    def give_back(self, taken: list[Held]) -> None:
        """Release messages for other workers: no handler has ended on them, so it costs no attempt."""
        for held in taken:
            self.renewals.forget(held.number)
            held.given_back = True
            self._settlements.add(Act.RELEASE, held)

    def _hold(self, stored: StoredMessage, lease_ends: float, source: str) -> Held:
        self._numbers += 1
        held = self._held[self._numbers] = Held(self._numbers, stored, lease_ends, source, self._loop.time())
        if source == "trigger":
            held.set_traces(self.traceparent, self.traces)
        return held

    def _wanted(self, held: Held) -> Callable[[], bool]:
        """Return a function that returns whether a message is still held."""
        return lambda: held.number in self._held

    # Handlers -------------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, None], name: str, helds: list[Held]) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)  # `_handle` takes it out; a callback would cost each message another turn of the loop
        for held in helds:
            held.task, held.begun = task, False

    async def _handle(self, helds: list[Held], decided_before: Verdict | None = None) -> None:
        """Handle messages; of one that was decided before, which takes no slot, see to the end."""
        busy = 0 if decided_before else len(helds)
        for held in helds:
            held.begun = True
        try:
            if decided_before is not None:
                await self._carry_out(helds[0], decided_before)
                return
            ready = [pair for held in helds if (pair := await self._prepare(held)) is not None]
            while ready:
                once = self._rules.once
                messages = [message for _, message in ready]
                outcomes = await (self._invoke(messages) if once is None else self._outcomes(once, ready, messages))
                # All outcomes are decided before the first dead-lettering is awaited: a stop meanwhile undoes none.
                settles: list[tuple[Held, Verdict]] = []
                moves: list[tuple[Held, Verdict]] = []
                waits: list[tuple[Held, Message]] = []
                for pair, outcome in zip(ready, outcomes, strict=True):
                    if outcome is None:
                        # Its key is in use: released, it would come again and again meanwhile.
                        waits.append(pair)
                        continue
                    decided = self._decide(*pair, outcome)
                    (moves if isinstance(decided, DeadLetter | ReplayTo) else settles).append((pair[0], decided))
                for held, one in (*settles, *moves):
                    await self._carry_out(held, one)
                ready = [pair for pair in waits if pair[0].number in self._held]
                self.running -= busy - len(ready)
                busy = len(ready)
                if ready:
                    self._room_later()
        except asyncio.CancelledError:
            left = [held for held in helds if held.number in self._held and not held.concluded]
            for held in left:
                if held.moved:
                    self._settle(held, Act.DELETE)
            self.give_back([held for held in left if not held.moved])
            raise
        except ENDS_THE_PROCESS:
            raise
        except BaseException:
            log.exception(
                "%s: unexpected error after handling; the message comes again when its lease ends", self._queue
            )
            for held in helds:
                if not held.concluded and self._held.pop(held.number, None) is not None:
                    self._jobs.concluded("lost")
                    self.renewals.forget(held.number)
                    self._events.came_back(max(0.0, held.lease_ends - self._loop.time()))
        finally:
            self.running -= busy
            self._tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))
            self._room_later()

    async def _outcomes(
        self, once: Once, ready: list[tuple[Held, Message]], messages: list[Message]
    ) -> Sequence[Outcome | None]:
        """Handle messages under the ledger."""
        try:
            return await once.run(messages, self._invoke, lambda: any(held.number in self._held for held, _ in ready))
        except NoLongerWanted:
            return [Failed("its lease was lost")] * len(ready)

    def _decide(self, held: Held, message: Message, outcome: Outcome) -> Verdict:
        rules = self._rules
        held.handler_ended = True
        decided = verdict(outcome, message.attempt, rules.retry, rules.poison is not None, self._draw)
        if isinstance(outcome, Succeeded | ReplayTo):
            return decided
        if isinstance(outcome, WantsRetry):
            held.again = "retried"
        else:
            self._jobs.failed(failure_name(outcome) or "")
        self._dead_letters.failed(held, reason_of(outcome))
        return decided

    async def _invoke(self, messages: list[Message]) -> Sequence[Outcome]:
        began, now = self._loop.time(), self._rules.now()
        waits = [(now - message.inserted_at).total_seconds() for message in messages if message.attempt == 1]
        self._jobs.began(len(messages), waits)
        if instruments.on is not None:
            instruments.on.began(self._queue, len(messages))
        outcomes: Sequence[Outcome | None] = [None] * len(messages)
        lingers = functools.partial(self._overdue.add, messages=messages)
        try:
            if self._invoker.batch:
                outcomes = done = await self._invoker.many(messages, lingers)
            else:
                outcomes = done = [await self._invoker.one(messages[0], lingers)]
            return done
        finally:
            took = self._loop.time() - began
            self._jobs.ended(len(messages), took)
            if instruments.on is not None:
                for outcome in outcomes:
                    instruments.on.ended(self._queue, took, CANCELLED if outcome is None else failure_name(outcome))

    async def _prepare(self, held: Held) -> tuple[Held, Message] | None:
        """Make the message for the handler; None where it is dead-lettered or released without a call."""
        rules = self._rules
        attempt, can_bury = held.stored.dequeue_count, rules.poison is not None
        starts = self._store.capabilities.uncounted_release  # as far as is known of the store by now
        dead = exhausted(attempt, self._attempts_max, can_bury, starts=starts)
        outcome: Failed | DeadLetter
        failure: str | None = None
        if dead is not None:
            outcome = dead
        elif held.stored.id in self._overdue:
            await self._carry_out(held, self._fail_still_running(held))
            return None
        else:
            try:
                whole = await self._dead_letters.open(held, self._wanted(held))
                must_decode = can_bury  # the handler of a poison queue also gets what does not decode
                return held, message_of(
                    whole, self._queue, held.source, rules.decode, held.burial, held.traces, must_decode=must_decode
                )
            except NoLongerWanted:
                return None
            except (Undecodable, BodyLost) as hopeless:
                outcome = DeadLetter(hopeless.reason, hopeless.failure)
            except (NoClaimCheck, PayloadBroke) as failed:
                outcome, failure = Failed(str(failed)), type(failed).__name__
                if isinstance(failed, PayloadBroke):
                    follows = describe_retry(outcome, attempt, rules.retry, can_bury)
                    at = held.stored.id, self._queue, attempt
                    log.warning("message %s of %s, attempt %d: %s; %s", *at, failed, follows)
                self._dead_letters.failed(held, outcome.reason)
        self._jobs.failed(failure or failure_name(outcome) or "")
        decided = verdict(outcome, attempt, rules.retry, can_bury, self._draw)
        await self._carry_out(held, decided)
        return None

    async def _carry_out(self, held: Held, decided: Verdict) -> None:
        if held.number not in self._held:
            return  # the lease was lost: another worker settles the message now
        if isinstance(decided, Delete):
            self._settle(held, Act.DELETE)
            return
        settle: Verdict | None = decided
        if isinstance(decided, DeadLetter):
            held.fate = "buried"
            settle = Delete() if await self._dead_letters.bury(held, decided, self._wanted(held)) else None
        elif isinstance(decided, ReplayTo):
            held.fate = "replayed"
            settle = await self._dead_letters.replay(held, decided, self._wanted(held))
        if settle is None:
            return  # lost meanwhile
        if isinstance(settle, RetryLater):
            self._counts["retried"] += 1
            if held.stored.id in self._overdue:
                self._overdue.park(held, settle.after_s)
            else:
                self._settle(held, Act.RELEASE, settle.after_s)
        else:
            self._settle(held, Act.DELETE)

    def _settle(self, held: Held, act: Act, after_s: float = 0.0) -> None:
        held.concluded = True
        self.renewals.forget(held.number)
        self._settlements.add(act, held, after_s)

    # Calls that run on ----------------------------------------------------------------------------------------------

    def _overdue_changed(self) -> None:
        self._events.hung(len(self._overdue.calls))
        self._room_later()

    def _pause_over(self, held: Held) -> None:
        """Let other workers try a message whose call still runs here; count an attempt where none could take it.

        A worker without a free slot receives nothing: released by the last one, the message would never end.
        """
        if held.number not in self._held:
            return
        if self._events.can_be_received():
            self._settle(held, Act.RELEASE)
            return
        held.stored = msgspec.structs.replace(held.stored, dequeue_count=held.stored.dequeue_count + 1)
        self._spawn(
            self._handle([held], self._fail_still_running(held)), f"still-running[{self._queue}]#{held.number}", [held]
        )

    def _fail_still_running(self, held: Held) -> Verdict:
        """Fail an attempt without a call of the handler: a second one would only take a second slot."""
        rules, attempt = self._rules, held.stored.dequeue_count
        failed = Failed(STILL_RUNNING, Failure.TRANSIENT, error=HandlerTimeout.__name__)
        can_bury = rules.poison is not None
        held.handler_ended = True
        self._jobs.failed(failure_name(failed) or "")
        self._dead_letters.failed(held, failed.reason)
        follows = describe_retry(failed, attempt, rules.retry, can_bury)
        log.warning(
            "message %s of %s, attempt %d: %s; %s", held.stored.id, self._queue, attempt, STILL_RUNNING, follows
        )
        return verdict(failed, attempt, rules.retry, can_bury, self._draw)

    def _room_later(self) -> None:
        if not self._room_due:
            self._room_due = True
            self._loop.call_soon(self._report_room)

    def _report_room(self) -> None:
        self._room_due = False
        self._events.room_changed()

    # Leases and settlements -----------------------------------------------------------------------------------------

    def renew(self, now: float) -> None:
        """Ask for longer leases where half of their time has passed, as `renewals` says when."""
        for number in self.renewals.due(now):
            held = self._held.get(number)
            if held is not None and self._never_begins(held):
                self.give_back([held])
            elif held is not None:
                self._settlements.add(Act.EXTEND, held, self.visibility.seconds)

    def _settled(self, item: Item, code: str | None) -> None:
        held = item.held
        if code is not None:
            self._lease_lost(held, code)
        elif item.act is Act.EXTEND:
            if held.number in self._held and not held.concluded:
                self.renewals.leased(held.number, held.lease_ends - item.seconds, item.seconds)
                self._events.renewals_changed()
        else:
            self._held.pop(held.number, None)
            self._events.acknowledged(gone=item.act is Act.DELETE)
            if item.act is Act.DELETE:
                self._counts[held.fate] += 1
                self._jobs.concluded(DELETED[held.fate])
                self._dead_letters.history.forget(held.stored.id)
                if self._rules.claims is not None and held.doubted is None and not held.blob_moved:
                    self._rules.claims.drop(held.stored.body)  # in doubt another worker may have it
            else:
                self._counts["given_back"] += held.given_back
                self._jobs.concluded("given_back" if held.given_back else held.again)
                self._events.came_back(item.seconds)
        if self._backlog_counts:
            self._room_later()  # unsettled messages counted against the slots; maybe no handler is left

    def _lease_lost(self, held: Held, code: str) -> None:
        """Drop a message that another worker may have: no renewal, no delete, no handler any more."""
        if self._held.pop(held.number, None) is None:
            return
        self.renewals.forget(held.number)
        self._overdue.forget(held)
        self._counts["lost"] += 1
        self._jobs.lost()
        now = self._loop.time()
        if code == GONE and now < held.lease_ends:
            # Nobody else can have it: it was deleted, with the queue or by `queue clear`.
            log.info("%s: message %s was deleted while it was handled", self._queue, held.stored.id)
            self._cancel_handler(held)
            return
        self.visibility.proved_short(now)
        log.warning(
            "%s: the lease of message %s is lost (%s), another worker may handle it again; new leases last %g s",
            self._queue,
            held.stored.id,
            code,
            self.visibility.seconds,
        )
        self._cancel_handler(held)
        self._events.came_back(0.0)

    def _cancel_handler(self, held: Held) -> None:
        # Not of a batch: its call is about other messages, too.
        if held.task is not None and not held.task.done() and not self._invoker.batch:
            held.task.cancel()
        self._never_begins(held)

    def _never_begins(self, held: Held) -> bool:
        """Free the slot of a message whose task was cancelled before its first step; return whether it was."""
        task = held.task
        if task is None or held.begun or not (task.done() or task.cancelling()):
            return False
        held.begun = True  # its slot is free
        self.running -= not held.handler_ended  # a task of `_pause_over` takes none
        self._tasks.discard(task)
        self._room_later()
        return True

    # The end --------------------------------------------------------------------------------------------------------

    async def drain(self, grace: float) -> None:
        """Wait ``grace`` seconds at most for the handlers, those that took longer than they may too."""
        until = self._loop.time() + grace
        while (left := until - self._loop.time()) > 0:
            waited = {each for each in self._tasks | self._overdue.calls if not each.done()}
            if not waited:
                break
            await asyncio.wait(waited, timeout=left)

    async def abort(self) -> None:
        """Cancel the handlers; one that swallows its cancellation is left behind after a second, a late one at once.

        All that they held is released: immediately, or after its lease where the handler goes on.
        """
        tasks = sorted(self._tasks, key=asyncio.Task.get_name)  # in an order that a seed repeats
        self._overdue.close()
        for task in tasks:
            task.cancel()
        if tasks:
            ended, left = await asyncio.wait(tasks, timeout=HURRY_S)
            self._tasks -= ended
            open_ = [held for held in self._held.values() if not (held.concluded or held.given_back)]
            self.give_back([held for held in open_ if held.task in ended])  # cancelled before their first step
            left -= self._moving()
            self._release_after_lease([held for held in open_ if held.task in left])
            for task in left:
                log.error(
                    "%s: a handler ignores its cancellation and is abandoned; another worker may handle its message "
                    "meanwhile (%s)",
                    self._queue,
                    task.get_name(),
                )
        if self._overdue.calls:
            log.error(
                "%s: %s is still running: %d calls are abandoned. Their messages may be handled a "
                "second time meanwhile",
                self._queue,
                self._invoker.name,
                len(self._overdue.calls),
            )

    def _moving(self) -> set[asyncio.Task[None]]:
        """Return the tasks whose message is being put on another queue: the answer ends them, see `finish`."""
        return {held.task for held in self._held.values() if held.moving and held.task is not None}

    def _release_after_lease(self, helds: list[Held]) -> None:
        """Release, uncounted, the messages of handlers that do not end: visible no sooner than their leases end."""
        now = self._loop.time()
        for held in helds if self._store.capabilities.uncounted_release else ():
            self.renewals.forget(held.number)
            held.given_back = True
            self._settlements.add(Act.RELEASE, held, max(0.0, held.lease_ends - now))

    async def finish(self, hurry: asyncio.Event) -> None:
        """Settle what is under way: for as long as one call may take, 3 s once ``hurry`` is set."""
        settling = asyncio.create_task(self._settle_last(), name=f"settle-last[{self._queue}]")
        hurried = asyncio.create_task(hurry.wait(), name="hurry")
        try:
            await asyncio.wait([settling, hurried], timeout=self._store_call_s, return_when=asyncio.FIRST_COMPLETED)
            if not settling.done() and hurried.done():
                # A store that answers needs no more; one that is away must not hold up a second signal.
                await asyncio.wait([settling], timeout=SETTLE_LAST_S)
            if not settling.done() and self._held:
                log.error(
                    "%s: %d messages could not be settled in time; they come again when their leases end",
                    self._queue,
                    len(self._held),
                )
        finally:
            settling.cancel()
            hurried.cancel()
            moving = self._moving()
            for task in moving:
                task.cancel()
            await asyncio.wait([settling, hurried, *moving])
            await self._settlements.abandon()
            for _ in self._held:
                self._jobs.concluded("lost")

    async def _settle_last(self) -> None:
        while moving := self._moving():
            await asyncio.wait(moving)
        await self._settlements.idle()


class OverdueCalls:
    """The calls of one queue that ran out of time; each keeps its handler slot until it ends.

    A call is a thread, or a task that outlived its cancellation. A message is *parked* while its call runs on: it stays
    leased for the pause of its retry policy and takes no further slot. ``changed`` is called when a call is added or
    ends. ``over(held)`` is called when a pause has passed and the call still runs, ``ended(held, seconds)`` when it
    ended with so many seconds of the pause left.
    """

    def __init__(
        self, *, changed: Callable[[], None], over: Callable[[Held], None], ended: Callable[[Held, float], None]
    ) -> None:
        self.calls: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._changed = changed
        self._over = over
        self._ended = ended
        self._by_message: dict[str, asyncio.Future[None]] = {}
        self._parked: dict[int, tuple[Held, asyncio.TimerHandle]] = {}

    def __contains__(self, message: str) -> bool:
        return message in self._by_message

    def add(self, call: concurrent.futures.Future[Any] | asyncio.Task[Any], messages: Sequence[Message]) -> None:
        """Keep a slot taken until this call ends, and start no second one for these messages until then."""
        gone: asyncio.Future[None] = self._loop.create_future()
        self.calls.add(gone)
        self._by_message.update((message.id, gone) for message in messages)

        def ended(_: object) -> None:
            # The loop may be closed: handlers in threads outlive a loop whose listener has stopped.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._ended_late, gone)

        call.add_done_callback(ended)
        self._changed()

    def park(self, held: Held, seconds: float) -> None:
        """Keep a message leased for the pause of its retry policy."""
        timer = self._loop.call_later(seconds, self._passed, held)
        self._parked[held.number] = held, timer

    def forget(self, held: Held) -> None:
        """Drop a message whose lease was lost."""
        if held.number in self._parked:
            self._parked.pop(held.number)[1].cancel()

    def close(self) -> None:
        """Release all that is parked: the listener stops."""
        for held, _ in [*self._parked.values()]:
            self._release(held)

    def _passed(self, held: Held) -> None:
        del self._parked[held.number]
        self._over(held)

    def _ended_late(self, gone: asyncio.Future[None]) -> None:
        self.calls.discard(gone)
        if not gone.done():
            gone.set_result(None)
        self._by_message = {message: of for message, of in self._by_message.items() if of is not gone}
        for held, _ in [*self._parked.values()]:
            if held.stored.id not in self._by_message:
                self._release(held)
        self._changed()

    def _release(self, held: Held) -> None:
        _, timer = self._parked.pop(held.number)
        timer.cancel()
        self._ended(held, max(0.0, timer.when() - self._loop.time()))
