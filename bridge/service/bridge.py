"""The bridge as a running service: it brings what happens to the rules and does what they say.

It decides nothing. It owns the rules' timer, the sessions' outlets and when a stalled one is tried again, the own
store, and the order of stopping:

1. no new triggers and no new sessions (`draining`);
2. every session is told `drain`, and then ended with 1012 (service restart);
3. the store finishes what was handed to it, and is closed.

One of several leaves before that (`Bridge.leave`), which takes some seconds and spares the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import threading
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from bridge.contract.backoff import Draw
from bridge.contract.cluster import ClusterMessage
from bridge.contract.errors import BadInput, Closed, WrongThread
from bridge.contract.event import CloudQueueWorkDetected, check_event
from bridge.core.admission import BYTES_MAX, WAIT_MS, Admission
from bridge.core.cluster.coordinator import Coordinator
from bridge.core.cluster.handover import ENDS_S
from bridge.core.commands import Announce, AnnounceInTurn, Broadcast, Command, End, Flush, Reclaim, Refresh, Send
from bridge.core.settings import Periods
from bridge.core.wake_scheduler import WakeScheduler
from bridge.observe.facts import Fact, MemberRefused, Observer
from bridge.observe.metrics import Metrics
from bridge.observe.slices import sliced
from bridge.observe.swallowed import swallow, swallowing
from bridge.queues.base import PUT_WINDOW_S, QueueStore
from bridge.queues.embedded.own_store import EmbeddedStore
from bridge.queues.served import ServedStore
from bridge.service.callbacks import Callbacks
from bridge.service.channels.base import Outlet
from bridge.service.clocks import Suspends, paired, system_clocks
from bridge.service.embedded_feed import EmbeddedFeed, open_embedded_store, put_right
from bridge.service.put_gate import PutGate
from bridge.service.runner import Runner
from bridge.service.sessions import CHANNEL, BridgeSession, Flushes, LiveSessions
from bridge.service.shared_store import SharedStore
from bridge.service.state import content, status
from bridge.service.state import status as standing
from bridge.service.state.answers import Cluster, ListenerState, QueueState, Readiness
from bridge.service.state.content import everything

if TYPE_CHECKING:
    from bridge.service.channels.local import LocalChannel


class Bridge:
    """A bridge with a queue service, in this process.

    ``data`` is a directory for the queue service's file, or None to keep everything in memory. With a ``store`` of an
    engine (PostgreSQL, Redis) the service works on that, as any number of bridges may at once. Use it as
    ``async with Bridge(...) as b`` and hand it to `Publisher`, `Listener` and `WebServer`. All methods belong to the
    event loop it was started on, and raise `WrongThread` elsewhere. ``boot``, ``draw`` and ``store`` are chance and
    ground as arguments: with them given, on a simulated loop, two runs do the same. ``boottime`` is a clock that
    goes on while the machine sleeps and the loop's own stands still; by default the system's pair of clocks is asked,
    where it has one (B15).

    Starting raises `StoreOwned` if another process has the file, `StoreDamaged` if the file is not one of ours.
    """

    def __init__(
        self,
        data: str | os.PathLike[str] | None = None,
        *,
        settings: BridgeSettings | None = None,
        boot: str | None = None,
        draw: Draw = random.random,
        store: QueueStore | None = None,
        boottime: Callable[[], float] | None = None,
    ) -> None:
        self.settings = settings = settings or BridgeSettings()
        self.boot = boot or uuid.uuid4().hex
        self.metrics = Metrics()
        self.draining = False
        self._draw = draw
        given = (
            open_embedded_store(data, self.boot, settings.synchronous, settings.put_window_s)
            if store is None
            else store
        )
        self.store: ServedStore = (
            given
            if isinstance(given, EmbeddedStore)
            else SharedStore(given, self._put_elsewhere, self._deleted_elsewhere)
        )
        self.hub = Callbacks()
        self.hub.observers.append(self.metrics)
        self.gate = PutGate(
            Admission(settings.put_waiting_bytes, settings.put_wait_ms / 1000),
            self._so_far,
            self.emit,
        )
        """What every put over HTTP passes."""
        self.webhooks: Callable[[], list[ListenerState]] = list
        """What tells of webhooks, whose queues are attended."""
        self._checks: standing.Checks = {}
        self.scheduler = WakeScheduler(
            self.boot, settings.periods, draw, None if self.own is not None else self.store.fingerprint
        )
        if isinstance(self.store, SharedStore):
            self.scheduler.engine_kind = self.store.kind
        watch(
            self.metrics, self.scheduler, self.store, self._so_far, lambda: standing.told_by_webhooks(self.webhooks())
        )
        self.coordinator: Coordinator | None = None
        """How this bridge takes turns with others; None where it is the only one."""
        self.member: Membership | None = None
        """This bridge's part in the cluster of those turns."""
        self.suspends = Suspends(self, system_clocks() if boottime is None else paired(self.now, boottime))
        self._sessions = LiveSessions(self, self.hub)
        self.flushes = Flushes(self, self._sessions.live)
        self._commands: deque[Command] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._driving = False
        self.stopped = False
        self._closing: asyncio.Task[None] | None = None

    @property
    def own(self) -> EmbeddedStore | None:
        """The bridge's own store; None where its queues are those of an engine."""
        return self.store if isinstance(self.store, EmbeddedStore) else None

    @property
    def keeps_queues(self) -> bool:
        """Whether there are queues behind its own API: not in a cluster without a store."""
        return not isinstance(self.store, SharedStore) or self.store.keeps

    @property
    def named_boot(self) -> str | None:
        """What answers of the queue service name: the boot, None where the queues are those of an engine (O0)."""
        return None if self.own is None else self.boot

    # -- life --------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Bridge:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Open the store and learn what waits there."""
        if self.stopped:
            raise Closed("this bridge was stopped; make a new one")
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.notice_suspend()
        await self.store.open()
        if self.own is not None:
            ear = EmbeddedFeed(self)
            self.own.observe(ear)
            ear.committed(self.own.levels(), [])

    async def stop(self) -> None:
        """Stop in the written order; what was acknowledged is safe.

        May be called twice: whoever calls returns when the file is closed, and a caller that is cancelled leaves the
        others and the file to their end.
        """
        if self._closing is None:
            self.end_sessions()
            self.stopped = True
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self.flushes.stop()
            self._closing = asyncio.create_task(self.store.close(), name="close the queue service")
        await asyncio.shield(self._closing)

    async def leave(self) -> None:
        """End every session as `end_sessions` does; one of several bridges spares the others, 10 s at most (C7).

        They are told first, then its sessions go one after the other and find another bridge: with a `bye`, or they are
        ended a moment later. What is owed and due when the last has gone is told to the others, and this returns when
        the broker has it.
        """
        if self.member is None or self.draining:
            self.end_sessions()
            return
        begun = self.now()
        self._take_no_more()
        await self._sessions.depart(begun, self.member.coordinator.others(begun), self._draw)
        await self.member.hand_over_queues(begun + ENDS_S)

    def drain(self) -> None:
        """Take no more triggers and sessions, and tell the sessions there are; may be called twice."""
        if self.draining:
            return
        self._take_no_more()
        self._sessions.drain()

    def end_sessions(self) -> None:
        """Drain, and end every session with 1012; a web server stops at once after this, and waits for them before."""
        self.drain()
        self._sessions.send_all_away()
        if self.member is not None:
            # C7: last, for the end of the sessions made timers (B8), which nobody else knows of.
            self.member.hand_over_without_waiting()

    def _take_no_more(self) -> None:
        self.draining = True
        if self.member is not None:
            # C7: first of all, so that the others act on what they hold.
            self.member.coordinator.leave(self.now())
            self.drive()

    def observe(self, observer: Observer) -> None:
        """Have every fact told to ``observer`` from now on."""
        self.hub.observers.append(observer)

    def local_channel(self) -> LocalChannel:
        """Return a channel for listeners in this process."""
        from bridge.service.channels.local import LocalChannel

        return LocalChannel(self)

    # -- triggers ----------------------------------------------------------------------------------------------------

    def trigger(
        self,
        events: Sequence[CloudQueueWorkDetected],
        *,
        bus: str,
        redelivered: bool = False,
        counts: Sequence[int] | None = None,
    ) -> int:
        """Mark the queues of these events, all or none, and return how many were accepted.

        ``counts`` says for each how many equal ones it stands for; its ``payload_size`` is that of all of them.
        When it returns, the marks are made (B1); the wakes leave in the same turn of the loop. Raises `BadInput` with
        the code ``draining``, ``bad_trigger`` or ``bad_queue_reference``.
        """
        self._must_take(bus)
        return self._mark(events, bus, redelivered, counts)

    def _mark(
        self,
        events: Sequence[CloudQueueWorkDetected],
        bus: str,
        redelivered: bool = False,
        counts: Sequence[int] | None = None,
    ) -> int:
        now = self.now()
        for event in events:
            check_event(event)
        shared = False
        if self.member is not None:
            events, shared = self.member.line.named(events, bus), self.member.line.shares
        for event, count in zip(events, counts or itertools.repeat(1), strict=False):
            self.scheduler.trigger(now, event, bus, redelivered=redelivered, count=count, shared=shared)
        self.drive(later=True)
        self.hub.forward(events, bus)
        return len(events)

    # -- other bridges -----------------------------------------------------------------------------------------------

    def take_turns(self, line: ClusterLink, **about: str | None) -> Membership:
        """Be one of a cluster, whose others are heard on ``line``; before the start. ``about``: see `Coordinator`."""
        self.coordinator = turns = self.scheduler.join(**about)
        if isinstance(served := self.store, SharedStore):
            turns.identity = lambda: served.identity
            # C8: what either was told may be old; an engine can be emptied, or replaced behind its address.
            self.observe(lambda fact: served.ask_again() if isinstance(fact, MemberRefused) else None)
        watch_cluster(self.metrics, turns, self._so_far)
        self.member = Membership(self, turns, line)
        return self.member

    def beside(self, engine: QueueStore) -> SharedStore:
        """Return the queues that workers keep in ``engine`` beside this bridge's own; whoever asked closes them."""
        return SharedStore(engine, self._put_elsewhere, lambda _: None, is_watched=False)

    def _put_elsewhere(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        # Also while it is stopping: such a put was let in before.
        if not self.stopped:
            self._mark(events, "store")

    def _deleted_elsewhere(self, queue: str) -> None:
        # Listeners that are there look on: it may be made again.
        with contextlib.suppress(BadInput):
            self.forget(queue)

    def forward(self, hear: Callable[[Sequence[CloudQueueWorkDetected], str], None]) -> Callable[[], None]:
        """Have triggers told to ``hear``, with the bus they came by, after their mark (B16); return what ends that.

        ``hear`` must not block and must not call back.
        """
        forwards = self.hub.forwards
        forwards.append(hear)
        return lambda: forwards.remove(hear) if hear in forwards else None

    def _must_take(self, bus: str = "") -> None:
        # C7: until its last session has gone it may be the only one that can wake somebody for what all hear.
        goes_on = self.member is not None and self.member.line.hears(bus) and bool(self._sessions.live)
        if self.draining and not goes_on:
            raise BadInput("draining", "the bridge is stopping; try again in a moment")
        if self._loop is None:
            raise Closed("the bridge was not started")

    def gap(self) -> int:
        """Triggers may have been missed on a bus: look once at each queue elsewhere; return how many."""
        marked = self.scheduler.gap(self.now())
        self.drive()
        return marked

    def forget(self, queue: str) -> None:
        """Forget a queue elsewhere that is gone, and what was announced there; the first listener to come will look.

        Raises `BadInput`: ``queue_not_found`` where it was never heard of, ``conflict`` where it stands in the queue
        service or somebody listens.
        """
        if not self.scheduler.forget(queue):
            why = "it stands in the queue service, or somebody listens to it: delete it, or end its listeners"
            raise BadInput("conflict", why)
        self.drive()

    def notice_suspend(self) -> float:
        """Compare the clocks; after a suspend every queue elsewhere is looked at once (B15). Return its seconds, or 0.

        Done before each frame, each timer and each new session, so that nothing is answered from before the suspend.
        """
        return self.suspends.notice()

    # -- plain subscribers -------------------------------------------------------------------------------------------

    def subscribe(self, hear: Callable[[Announce], None]) -> Callable[[], None]:
        """Have every wake for plain subscribers told to ``hear`` (B12); return what ends that.

        ``hear`` is called in the tick of the mark, must not block and must not call back.
        """
        subscribers = self.hub.subscribers
        subscribers.append(hear)
        self.scheduler.reminders.announcing(self.now(), True)
        self.arm()

        def end() -> None:
            if hear in subscribers:
                subscribers.remove(hear)
            self.scheduler.reminders.announcing(self.now(), bool(subscribers))

        return end

    def newest(self, queue: str) -> tuple[int, bool]:
        """Return a queue's newest generation, 0 if it was never heard of, and whether work waits there."""
        return self.scheduler.ledger.newest(queue)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def connect(self, outlet: Outlet) -> BridgeSession:
        """Begin a session on ``outlet``; it has 5 s to say hello. Raises `BadInput` (``draining``)."""
        self._must_take()
        self.notice_suspend()
        return self._sessions.open(outlet)

    def unreadable(self, session: BridgeSession | None, error: BadInput) -> None:
        """Note a worker's frame that cannot be read: it is rejected, and shown."""
        self.scheduler.unreadable(self.now(), None if session is None else session.number, error.code, str(error))
        self.drive()

    # -- doing what the rules say ------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the time that the rules go by; raises `WrongThread` before anything is changed."""
        assert self._loop is not None
        if threading.get_ident() != self._thread:
            raise WrongThread("bridge")
        return self._loop.time()

    def _so_far(self) -> float:
        """Return that time for what only tells of it, 0 before the start."""
        return 0.0 if self._loop is None else self._loop.time()

    def drive(self, *, later: bool = False) -> None:
        """Perform commands until there are none; ``later`` lets wakes of this turn of the loop merge first.

        Each on its own: an exception costs its command, a cancellation leaves the others to the next turn.
        """
        if self._driving:
            # Called from within a command: the loop below takes what was added.
            return
        self._driving = True
        commands, sessions = self._commands, self._sessions.live
        try:
            while True:
                if not commands:
                    commands.extend(self.scheduler.commands())
                    if not commands:
                        break
                command = commands.popleft()
                try:
                    # The answers to heartbeats first: of ten thousand idle sessions there is nothing else.
                    if isinstance(command, Send):
                        session = sessions.get(command.session)
                        if session is not None:
                            session.outlet.send(command.frame)
                    elif isinstance(command, Flush):
                        (self.flushes.later if later else self.flushes.now)(command.session)
                    else:
                        self._perform(command)
                except Exception as error:  # noqa: BLE001 - it costs this command only
                    swallow(CHANNEL if isinstance(command, Send | Flush | End) else "a command of the rules", error)
        except BaseException:
            asyncio.get_running_loop().call_soon(self.drive)
            raise
        finally:
            self._driving = False
        try:
            for fact in self.scheduler.facts():
                self.emit(fact)
        finally:
            self.arm()

    def _perform(self, command: Command) -> None:
        if isinstance(command, End):
            self._sessions.close(command.session, command.code, command.reason)
        elif isinstance(command, Announce):
            self.hub.announce(command)
        elif isinstance(command, AnnounceInTurn):
            self.hub.tell_in_turn(command)
        elif isinstance(command, Broadcast):
            if self.member is not None:
                with swallowing(LINE):
                    self.member.line.say(command.word)
        elif isinstance(command, Refresh | Reclaim) and self.own is not None:
            put_right(self, self.own, command)

    def arm(self) -> None:
        """Have the timer stand at the deadline of the rules."""
        deadline = self.scheduler.deadline()
        if deadline == self._timer_at or self.stopped:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = deadline
        if deadline is not None:
            assert self._loop is not None
            self._timer = self._loop.call_at(deadline, self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        # Frames that were read in this turn of the loop go before timers (B4): they are fed in the next turn, ahead of
        # a callback that is queued now.
        assert self._loop is not None
        self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._timer_at = None
        if self.stopped:
            return
        self.notice_suspend()
        with swallowing("a timer of the rules"):
            self.scheduler.tick(self.now())
        self.drive()

    # -- state -------------------------------------------------------------------------------------------------------

    def describe(self, queue: str, sees: Callable[[str], bool] = everything) -> QueueState | None:
        """Return how one queue stands, or None for one that was never put to, triggered or subscribed.

        What was buried is told to a reader who ``sees`` the poison queue.
        """
        return standing.describe(self.scheduler, queue, self.now(), sees)

    def cluster(self) -> Cluster:
        """Return the cluster as this bridge sees it."""
        return standing.cluster(self.scheduler, self.coordinator, self.now())

    def listeners(self) -> list[ListenerState]:
        """Return the sessions that said hello, oldest first."""
        return standing.listeners(self.scheduler, self.now())

    def readiness(self) -> Readiness:
        """Return whether everything configured works, and each check by name."""
        return standing.readiness(
            self.store.failure(),
            self.draining,
            self._checks,
            self.gate.refusing(),
            standing.crowded(self.scheduler),
            keeps=self.keeps_queues,
        )

    def add_check(self, name: str, check: Callable[[], tuple[bool, str]], *, required: bool = True) -> None:
        """Have ``check`` asked, under ``name``, whenever readiness is: whether it works, and how it stands."""
        self._checks[name] = (check, required)

    def emit(self, fact: Fact) -> None:
        """Tell all observers of a fact, of the rules or from without."""
        self.hub.emit(fact)


class BridgeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a bridge works; the numbers of the protocol are in `Periods`."""

    periods: Periods = Periods()
    synchronous: str = "FULL"
    """SQLite's synchronous mode: FULL survives power loss, NORMAL may lose the last commits. Defaults to FULL."""
    put_window_s: float = PUT_WINDOW_S
    """How long the key of a put is remembered at least."""
    put_waiting_bytes: int = BYTES_MAX
    """What puts that wait to be committed may take, in bytes."""
    put_wait_ms: int = WAIT_MS
    """How long a put over HTTP may be expected to wait before it is refused instead."""


Clock = Callable[[], float]


def watch(
    metrics: Metrics, scheduler: WakeScheduler, store: ServedStore, now: Clock, told_by_webhooks: Callable[[], set[str]]
) -> None:
    """Register the gauges of every bridge."""
    if isinstance(store, EmbeddedStore):
        metrics.watch("queuebell_put_keys", "Keys of puts that are remembered", lambda: float(store.remembered))
    metrics.watch(
        "queuebell_receives_failing",
        "Listeners' queues whose receives fail",
        lambda: float(status.failing(scheduler)),
    )
    metrics.watch(
        "queuebell_queues_unknown",
        "Queue names with work announced that were forgotten for want of room, since the start",
        lambda: float(scheduler.ledger.unknown),
    )
    metrics.watch(
        "queuebell_store_up",
        "1 while the store of the bridge's own queues works",
        lambda: float(store.failure() is None),
    )
    metrics.watch_workers(lambda: status.scaled(scheduler))
    metrics.watch_jobs(lambda: status.in_flight(scheduler))
    metrics.watch_queues(lambda: status.queues(scheduler, now(), told_by_webhooks()))
    metrics.watch_counts(lambda: content.held(scheduler, now()))


def watch_cluster(metrics: Metrics, turns: Coordinator, now: Clock) -> None:
    """Register the gauges of a bridge that is one of a cluster."""
    metrics.watch(
        "queuebell_cluster_members",
        "Bridges of the cluster that are heard, this one among them",
        lambda: float(1 + len(turns.members.peers)),
    )
    metrics.watch(
        "queuebell_cluster_alone",
        "1 while this bridge acts as if there were no other",
        lambda: float(turns.members.alone(turns.at(now()))),
    )
    metrics.watch(
        "queuebell_cluster_refused",
        "Bridges that are heard on the cluster's subjects and are none of its members",
        lambda: float(len(turns.members.refused)),
    )
    metrics.watch(
        "queuebell_cluster_deferred",
        "Queues that wait for another bridge's look",
        lambda: float(len(turns.deferred)),
    )


log = logging.getLogger("queuebell.bridge")

LINE: Final = "the line to the other bridges"


class ClusterLink(Protocol):
    """Where the other bridges of a cluster are heard (`bridge.triggers.cluster.ClusterLine`)."""

    @property
    def shares(self) -> bool:
        """Whether what is marked here is marked by the others too."""
        ...

    def say(self, word: ClusterMessage) -> None:
        """Say one word, now or never."""
        ...

    def named(self, events: Sequence[CloudQueueWorkDetected], bus: str) -> Sequence[CloudQueueWorkDetected]:
        """Give a name to each trigger that has none and is told to the others."""
        ...

    def hears(self, bus: str) -> bool:
        """Whether all hear what comes by this bus, each by itself."""
        ...

    def tell(self, events: Sequence[CloudQueueWorkDetected]) -> int:
        """Tell the others of these triggers, and return how many of them are on their way: the first ones."""
        ...

    async def hand_over_queues(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Tell the others what this bridge leaves behind, and wait until the broker has it, however long."""
        ...


class Membership:
    """Brings the words of the others to the rules, and hands over what this bridge has pending when it leaves."""

    def __init__(self, bridge: Runner, turns: Coordinator, line: ClusterLink) -> None:
        self._bridge = bridge
        self.coordinator = turns
        self.line = line
        self._bequeathed = False

    def connected(self, connected: bool) -> None:
        """Take turns while the others can be heard, and act alone while they cannot (C1)."""
        if not self._bridge.stopped:
            begin_or_end = self.coordinator.begin if connected else self.coordinator.end
            begin_or_end(self._bridge.now())
            self._bridge.drive()

    def hear(self, word: ClusterMessage) -> None:
        """Take a word of another bridge, decoded and checked."""
        if not self._bridge.stopped:
            self._bridge.notice_suspend()
            self.coordinator.hear(self._bridge.now(), word)
            self._bridge.drive()

    async def hand_over_queues(self, until: float) -> None:
        """Send the others what is pending and due here; return when the broker has it, or at ``until`` (C7)."""
        handover: list[CloudQueueWorkDetected] = []
        try:
            async with asyncio.timeout_at(until):
                for some in sliced(self._bridge.scheduler.ledger.by_queue.values()):
                    handover += self.coordinator.handover(self._bridge.now(), some)
                    await asyncio.sleep(0)
                await self.line.hand_over_queues(handover)
        except TimeoutError:
            log.warning(
                "the other bridges could not be told what is owed and due here; they look at every queue when they miss"
                " this one, and their sweeps find the rest",
                extra={"left": len(handover)},
            )
        else:
            self.coordinator.handed_over(self._bridge.now())
            self._bridge.drive()
        self._bequeathed = True

    def hand_over_without_waiting(self) -> None:
        """Do so where nobody waits for the broker; nothing where it was done before."""
        if not self._bequeathed:
            self._bequeathed = True
            # The broker may not have it, so the others still check every queue (C5).
            with swallowing(LINE):
                self.line.tell(self.line.named(self.coordinator.handover(self._bridge.now()), ""))
