"""One queue of a scaler: the shell that counts, starts and ends workers as the rules in `ScaledQueue` say."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Final

import msgspec

from queuebell.bridge.contract.bounds import STORE_CALL_S
from queuebell.bridge.contract.errors import QueuebellError, QueueNotFound, UnknownOutcome
from queuebell.bridge.contract.wire import (
    UNSEEN,
    EmptyReceive,
    LastEmptyReceive,
    More,
    Processes,
    QueueBeat,
    StoreDepth,
    Subscription,
    UpFrame,
    Wake,
)
from queuebell.bridge.observe.swallowed import swallow, swallowing, unless_cancelled
from queuebell.bridge.queues.base import (
    Capabilities,
    Depth,
    QueueStore,
    Received,
    Release,
    RoundStore,
    Settlement,
    named,
)
from queuebell.listeners.figures import ScalerFigures
from queuebell.listeners.scaling.actuators.base import Actuator, NotSeen, StartFailed
from queuebell.listeners.scaling.scaled_queue import Audit, Count, Finish, Launch, Look, Proof, ScaledQueue, Step
from queuebell.listeners.wake.frames import beat_of, frame_of, subscription_of
from queuebell.listeners.wake.table import StartReceive
from queuebell.listeners.wake.timers import Periods
from queuebell.listeners.work.failures import RepeatedFailure
from queuebell.listeners.work.lease import lease_report, visible_again

log = logging.getLogger("queuebell.scaler")

REASON_CHARS: Final = 900
"""The most characters of a failure in a report, which may include lines of a worker's output."""
HEAD_CHARS: Final = 40
ACTUATOR: Final = "an actuator"
AGAIN_S: Final = 1.0
LOOK_S: Final = 30.0
"""The lease of a message that is received to see whether there is any; it is given back at once."""
CUT: Final = " [...] "


def proof_of(capable: Capabilities, *, trust: bool) -> Proof:
    """Return what a count proves (Z7); ``trust`` has rough ones believed."""
    if capable.exact_depth or trust:
        return Proof.VISIBLE
    return Proof.ALL if capable.zero_depth else Proof.NONE


def counts_of(capable: Capabilities, *, trust: bool) -> str:
    """Return how that is reported: `Processes.counts`."""
    if proof_of(capable, trust=False) is not Proof.NONE:
        return "exact"
    return "trusted" if trust else "rough"


class QueueScaler:
    """One queue of a scaler: a `Port` of the session and the `ProcessEvents` of the actuator.

    ``send`` sends a frame. ``answered`` takes the boot that each count came from, None if the queue's fingerprint
    changed, ``broke`` a defect in the rules.
    """

    def __init__(
        self,
        queue: str,
        store: QueueStore,
        rules: ScaledQueue,
        actuator: Actuator,
        *,
        trust: bool,
        send: Callable[[UpFrame], None],
        answered: Callable[[str | None], None],
        broke: Callable[[Exception], None],
    ) -> None:
        self.queue = queue
        self.rules = rules
        self._store = store
        self._actuator = actuator
        self._send = send
        self._trust = trust
        self._answered = answered
        self._broke = broke
        self._loop = asyncio.get_running_loop()
        self._stopping = False
        self._store_call_s = STORE_CALL_S
        self._tasks: set[asyncio.Task[Any]] = set()
        self._looking: set[asyncio.Task[Any]] = set()
        """The others; each may hold a message."""
        self._timer: asyncio.TimerHandle | None = None
        self._began: dict[str, float] = {}
        self._early: list[Callable[[], None]] = []
        """Events of processes that are being started: the rules do not know them yet."""
        self._reasons: dict[str, str] = {}
        """Why a process was asked to end."""
        self._failing_since: float | None = None
        self._uncounted = RepeatedFailure()
        self._unreceived = RepeatedFailure()
        self._unseen = RepeatedFailure()
        self._boot: str | None = None
        self._reported_before: Counter[str] = Counter()
        """The tally before this boot, which an earlier one has received."""
        self._seen = 0
        """How many messages the newest count found."""
        self._counted: tuple[Depth, float] | None = None
        """What it found, and when."""
        self._why = ""
        """Why the newest count failed."""
        self._place: str | None = None
        """Which tables the newest empty count read (B17)."""
        self._sent_store: str | None = None
        self._greeted = False

    # The session's port -------------------------------------------------------------------------------------------

    def subscription(self) -> Subscription:
        """Return this queue's part of a hello: its capacity is the processes it may run, 0 once it stops (L12)."""
        capacity = 0 if self._stopping else self.rules.limits.maximum
        self._sent_store, self._greeted = named(self._store, self.queue), True
        return subscription_of(self.rules.controller, self.queue, capacity, LOOK_S, store=self._sent_store, busy=True)

    def wake(self, frame: Wake) -> None:
        """Handle the bridge's wake."""
        self._feed(self.rules.wake, frame.boot, frame.gen, frame.reason, frame.size, frame.workers)

    def welcomed(self, boot: str, gen: int) -> None:
        """Handle a new session."""
        if self._boot not in (None, boot):
            self._reported_before = self.rules.processes.tally.copy()
        self._boot = boot
        self._feed(self.rules.welcomed, boot, gen)

    def lost(self) -> None:
        """Handle the loss of the bridge (L9)."""
        self._feed(self.rules.lost)

    def on_empty_receive(self, at: float) -> None:
        """Record that the queue was covered at ``at`` (L10)."""
        self._feed(self.rules.on_empty_receive, at)

    def apply_periods(self, periods: Periods, sessions: int, latency_s: float) -> None:
        """Apply the bridge's numbers for this queue."""
        self._store_call_s = periods.store_call_s
        self.rules.controller.tune(self._loop.time(), periods, sessions, latency_s)

    def beat(self, now: float) -> QueueBeat:
        """Return levels for a heartbeat, and how the workers stand."""
        processes = self.rules.processes
        failure = self._failure()
        processes_report = Processes(
            wanted=self.rules.wanted,
            ready=processes.ready,
            starting=processes.coming,
            failure=None if failure is None else shortened(failure),
            running=len(processes),
            held=self.rules.held(now),
            pause_ms=round(1000 * max(0.0, (processes.retry_at or 0.0) - now)),
            counts=counts_of(self._store.capabilities, trust=self._trust),
            tally=dict(processes.tally - self._reported_before),
        )
        depth = None
        if self._counted is not None and not self.rules.controller.own:
            count, at = self._counted
            depth = StoreDepth(count.visible, count.invisible, round((now - at) * 1000))
        beat = beat_of(self.rules.controller, now, self._failing_since)
        return msgspec.structs.replace(beat, processes=processes_report, depth=depth)

    def report_bytes(self) -> int:
        """Return 0: there is nothing beside the levels."""
        return 0

    def report(self, stamp: int, beat: QueueBeat) -> QueueBeat:
        """Return ``beat``."""
        return beat

    def echoed(self, stamp: int, last: LastEmptyReceive) -> None:
        """Apply what the bridge knows of other workers and due messages."""
        due_s = None if last.due_ms is None else last.due_ms / 1000
        self._feed(self.rules.on_heartbeat, last.workers, due_s)

    def running(self, now: float) -> None:
        """Return None: no handler runs here."""

    def receiving(self) -> bool:
        """Return whether messages are being counted."""
        return bool(self.rules.controller.receives)

    def leases(self, now: float, most: int) -> list[int]:
        """Return when a message comes back that a `Look` may have leased, in ms from now (L6)."""
        return lease_report(self.rules.controller.timers.returns(), now, most)

    # Events of processes -------------------------------------------------------------------------------------------

    def found(self, ids: list[str]) -> None:
        """Record workers that run already."""
        if ids:
            plural = "1 worker runs" if len(ids) == 1 else f"{len(ids)} workers run"
            log.info("%s: %s already: %s: %s", self.queue, plural, ", ".join(ids), self._actuator)
            self._feed(self.rules.found, ids)

    def ready(self, number: str) -> None:
        """Record that a worker's listener has its session."""
        if self._knows(number, lambda: self.ready(number)):
            self._feed(self.rules.ready, number)

    def busy_changed(self, number: str, *, busy: bool) -> None:
        """Record that a worker holds messages, or none any more."""
        if self._knows(number, lambda: self.busy_changed(number, busy=busy)):
            self._feed(self.rules.busy_changed, number, busy=busy)

    def ended(self, number: str, code: int | None, why: str) -> None:
        """Record that a worker has ended."""
        if not self._knows(number, lambda: self.ended(number, code, why)):
            return
        asked, began = self._reasons.pop(number, None), self._began.pop(number, None)
        before, was_ready = self.rules.processes.retry_at, self.rules.processes.is_ready(number)
        self._feed(self.rules.ended, number, code, why)
        lived = "" if began is None else f" after {self._loop.time() - began:.1f} s"
        failed = self.rules.processes.retry_at is not None and not self._stopping
        if asked is not None and not (failed and not was_ready):
            how = why.partition(":")[0] if code == 0 else why  # what it said last matters where something went wrong
            log.info("%s: worker %s ended%s (%s): %s", self.queue, number, lived, asked, how)
            return
        if asked is not None:
            log.warning("%s: worker %s ended%s (%s): %s", self.queue, number, lived, asked, why)
            self._log_pause()
            return
        paused = self.rules.processes.retry_at != before
        hint = (
            "; it took no message"
            if was_ready and paused
            else "; a worker must stay in the foreground and run a Listener"
        )
        hint = "" if code or (was_ready and not paused) else hint
        log.warning("%s: worker %s ended by itself%s: %s%s", self.queue, number, lived, why, hint)
        if paused:
            self._log_pause()

    def _knows(self, number: str, again: Callable[[], None]) -> bool:
        known = number in self.rules.processes
        if not known and self.rules.processes.launching:
            self._early.append(again)
        return known

    # Life -----------------------------------------------------------------------------------------------------------

    def begin(self, *, pull_only: bool) -> None:
        """Begin, with the processes that run already and those that are always kept."""
        self.found(self._actuator.running())
        self._feed(self.rules.start)
        if self._actuator.running():
            self._spawn(self._look(), f"look[{self.queue}]")
        if pull_only:
            self._feed(self.rules.pull_only)

    def stop(self) -> None:
        """Start nothing more, pass pending checks on and end all processes (L12). Calling it twice changes nothing."""
        if not self._stopping:
            self._stopping = True
            self._feed(self.rules.stop)

    async def looked(self) -> None:
        """Wait until no message is held; the time-outs of the store's calls bound it."""
        if self._looking:
            await asyncio.wait(list(self._looking))

    async def finish(self) -> None:
        """Release counts and timer, once the actuator has closed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = [*self._tasks, *self._looking]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def feed(self, event: Callable[..., list[Step]], *given: Any) -> None:
        """Feed the rules another event of this moment, and perform their steps."""
        self._feed(event, *given)

    def _failure(self) -> str | None:
        unseen = self._actuator.unseen
        hidden = None if unseen is None else f"{UNSEEN}: {unseen}"
        return self.rules.counting_failed or hidden or self.rules.processes.failure

    def figures(self) -> ScalerFigures:
        """Return how this queue's workers stand."""
        processes = self.rules.processes
        return ScalerFigures(
            queue=self.queue,
            mode=self.rules.controller.mode.value,
            state=self.rules.controller.state.value,
            wanted=self.rules.wanted,
            ready=processes.ready,
            starting=processes.coming,
            running=len(processes),
            others=self.rules.others,
            failure=self._failure(),
            held=self.rules.held(self._loop.time()),
            tally=dict(processes.tally),
        )

    # Steps ----------------------------------------------------------------------------------------------------------

    def _feed(self, event: Callable[..., list[Step]], *given: Any, **named: Any) -> None:
        try:
            self._perform(event(self._loop.time(), *given, **named))
        except Exception as error:
            log.exception("%s: internal error in the scaling rules; this scaler stops", self.queue)
            self._broke(error)

    def _perform(self, steps: Iterable[Step]) -> None:
        for step in steps:
            # Each on its own: a frame that is lost is made up for (S2), a count that never began would not be.
            with swallowing("a step of a scaler"):
                self._do(step)
        self._arm()

    def _do(self, step: Step) -> None:
        match step:
            case StartReceive(rid):
                self._spawn(self._count(rid), f"count[{self.queue}]#{rid}")
            case Audit():
                self._spawn(self._audit(), f"audit[{self.queue}]")
            case Look(rid):
                self._spawn(self._look_inside(rid), f"receive[{self.queue}]#{rid}", self._looking)
            case Launch(count):
                self._spawn(self._launch(count), f"launch[{self.queue}]")
            case Finish(ids, reason):
                self._reasons.update(dict.fromkeys(ids, reason))
                self._spawn(self._finish(ids), f"finish[{self.queue}]")
            case _:
                frame = frame_of(step, self.queue, own=self.rules.controller.own)
                if isinstance(frame, More):
                    # Before any other scaler is asked: it takes these off (Z5).
                    frame = msgspec.structs.replace(frame, starting=self.rules.processes.coming)
                elif isinstance(frame, EmptyReceive):
                    frame = msgspec.structs.replace(frame, place=self._place)
                if frame is not None:
                    self._send(frame)

    async def _finish(self, ids: Sequence[str]) -> None:
        """End workers; retried if the actuator fails, or they would never count as gone."""
        left = list(ids)
        while left:
            try:
                await unless_cancelled(self._actuator.stop(left))
                return
            except Exception as error:  # noqa: BLE001 - an actuator may be the program's own
                swallow(ACTUATOR, error)
            await asyncio.sleep(AGAIN_S)
            left = [number for number in left if number in self.rules.processes]

    def _arm(self) -> None:
        now = self._loop.time()
        at = self.rules.deadline(now)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = self._loop.call_at(max(at, now), self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._feed(self.rules.tick)

    def _spawn(self, work: Coroutine[Any, Any, Any], name: str, tasks: set[asyncio.Task[Any]] | None = None) -> None:
        task = self._loop.create_task(work, name=name)
        tasks = self._tasks if tasks is None else tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _count(self, rid: int) -> None:
        count = await self._ask()
        if count is None:
            self._feed(self.rules.count_failed, rid, self._why)
        else:
            self._feed(self.rules.counted, rid, count)

    async def _look_inside(self, rid: int) -> None:
        capable = self._store.capabilities
        try:
            async with asyncio.timeout(self._store_call_s + capable.receive_s):
                answer = await unless_cancelled(self._store.receive(self.queue, 1, LOOK_S, source="sweep"))
        except QueueNotFound:
            answer = Received([])
        except Exception as error:  # noqa: BLE001 - also if this user may count and not receive: then a worker finds out
            why = str(error) or "no answer in time"
            failures = self._unreceived.failed(self._loop.time())
            if failures:
                log.warning(
                    "%s: a count of 0 proves nothing, and the scaler cannot receive (%d since the last report): %s. "
                    "Nothing is lost: a worker is started instead. It needs the right to receive, or trust_count",
                    self.queue,
                    failures,
                    why,
                )
            unknown = not isinstance(error, QueuebellError) or isinstance(error, UnknownOutcome)
            self._feed(self.rules.look_failed, rid, self._back_at() if unknown else None)
            return
        self._unreceived.works()
        back_at = None
        self._seen = len(answer.messages)
        for message in answer.messages:
            given_back = Release(message.id, message.pop_receipt, uncounted=capable.uncounted_release)
            try:
                async with asyncio.timeout(self._store_call_s):
                    settling = await unless_cancelled(self._store.settle(self.queue, Settlement(release=[given_back])))
                given, why = settling.release[0].ok, settling.release[0].code or ""
            except Exception as error:  # noqa: BLE001 - then it comes back when its lease ends
                given, why = False, str(error)
            if not given:
                back_at = self._back_at()
                log.warning(
                    "%s: a message that the scaler received cannot be given back; it can be received again in %g s: %s",
                    self.queue,
                    LOOK_S,
                    why,
                )
        self._feed(
            self.rules.looked,
            rid,
            found=bool(answer.messages),
            complete=capable.complete_receive,
            blocked=answer.blocked,
            back_at=back_at,
        )

    def _back_at(self) -> float:
        return visible_again(self._loop.time(), LOOK_S, self._store.capabilities.resolution_ms)

    async def _audit(self) -> None:
        count = await self._ask()
        # Which are busy is checked again just before any is ended.
        seen = count is not None and await self._look()
        self._feed(self.rules.audited, count if seen else None)

    async def _look(self) -> bool:
        try:
            await unless_cancelled(self._actuator.look())
        except NotSeen as unseen:
            if self._unseen.failed(self._loop.time()):
                log.warning(
                    "%s: cannot list the running workers: %s. No worker is stopped because of it; retrying",
                    self.queue,
                    unseen,
                )
            return False
        except Exception as error:  # noqa: BLE001 - an actuator may be the program's own
            swallow(ACTUATOR, error)
            return False
        return True

    async def _ask(self) -> Count | None:
        """Count the queue; None where the store cannot now; `_why` is the reason."""
        try:
            async with asyncio.timeout(self._store_call_s + self._store.capabilities.receive_s):
                depth = await unless_cancelled(self._store.depth(self.queue))
        except QueueNotFound:
            depth = None  # workers may be started before the first put
        except (QueuebellError, TimeoutError) as error:
            self._cannot_count(str(error) or "no answer in time")
            return None
        except Exception as error:
            log.exception("%s: unexpected error while counting", self.queue)
            self._cannot_count(str(error) or type(error).__name__)
            return None
        # Of queues behind a bridge it is known after the first answer.
        with swallowing("the answer of a count"):
            self.rules.proof = proof_of(self._store.capabilities, trust=self._trust)
            boot = getattr(self._store, "boot", None)
            if boot is not None or (self._greeted and self._sent_store != named(self._store, self.queue)):
                self._answered(boot)
        if isinstance(self._store, RoundStore) and (depth is None or not depth.visible):
            self._place = await self._read_place(self._store)
        self._failing_since = None
        if self._uncounted.works():
            log.warning("%s: the store can be counted again", self.queue)
        self._seen = 0 if depth is None else depth.visible
        self._counted = depth or Depth(0, 0), self._loop.time()
        return Count(0) if depth is None else Count(depth.visible, depth.invisible)

    async def _read_place(self, store: RoundStore) -> str | None:
        """Return which tables were counted; the bridge's rounds stand for later counts of the same (B17)."""
        try:
            async with asyncio.timeout(self._store_call_s):
                return await unless_cancelled(store.place())
        except Exception:  # noqa: BLE001 - a user of Redis may count and not ask for this: then it is counted each time
            return None

    def _cannot_count(self, why: str) -> None:
        self._why = why
        if self._failing_since is None:
            self._failing_since = self._loop.time()
        count = self._uncounted.failed(self._loop.time())
        if count:
            log.warning(
                "%s: the store cannot be counted (%d times since the last report): %s. No worker is ended for it, "
                "and one at least is started while there may be work; it is repeated by itself",
                self.queue,
                count,
                why,
            )

    async def _launch(self, count: int) -> None:
        plural = "1 worker starts" if count == 1 else f"{count} workers start"
        waiting = f"{self._seen} waiting, {self.rules.wanted} wanted"
        try:
            ids = await unless_cancelled(self._actuator.start(count))
        except StartFailed as failed:
            self._launched(failed.begun)
            self._feed(self.rules.refused, count - len(failed.begun), str(failed))
            which = f"{len(failed.begun)} of {count} workers were" if failed.begun else "no worker could be"
            log.error("%s: %s started: %s. Nothing is lost", self.queue, which, failed)
            self._log_pause()
            return
        except Exception as error:
            log.exception("%s: unexpected error in the actuator", self.queue)
            self._feed(self.rules.refused, count, str(error) or type(error).__name__)
            return
        log.info("%s: %s (%s): %s: %s", self.queue, plural, waiting, ", ".join(ids), self._actuator)
        self._launched(ids)

    def _launched(self, ids: list[str]) -> None:
        """Record those that run, and feed the events that came meanwhile."""
        self._began.update(dict.fromkeys(ids, self._loop.time()))
        self._feed(self.rules.began, ids)
        early, self._early = self._early, []
        for again in early:
            again()

    def _log_pause(self) -> None:
        retry_at = self.rules.processes.retry_at
        if retry_at is not None and not self._stopping:
            log.warning("%s: next worker start in %.1f s", self.queue, max(0.0, retry_at - self._loop.time()))


def shortened(text: str) -> str:
    """Return a failure without its middle where it is long: how it ended comes first, and what it said last, last."""
    left = REASON_CHARS - HEAD_CHARS - len(CUT)
    return text if len(text) <= REASON_CHARS else text[:HEAD_CHARS] + CUT + text[-left:]
