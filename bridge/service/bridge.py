"""Run the bridge as a service: feed events to the scheduler and carry out the commands it returns.

The service makes no decisions. It owns the scheduler's timer, the sessions' outlets, the retry of stalled sessions and
the embedded store. It stops in this order:

1. Reject new triggers and sessions (`draining`).
2. Send `drain` to every session, then end it with 1012 (service restart).
3. Finish the store's accepted work and close the store.

A cluster member first leaves the cluster (`Bridge.leave`), which takes some seconds and saves the others work. `serve`
stops KEDA, brokers, webhooks and web servers in between (`queuebell/command/serve.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import pathlib
import random
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from queuebell.bridge.access.put_gate import BYTES_MAX, WAIT_MS, Admission, PutGate
from queuebell.bridge.contract.backoff import Draw
from queuebell.bridge.contract.cluster import PAST_QUEUES_MAX, ClusterMessage, Past
from queuebell.bridge.contract.errors import BadInput, Closed, WrongThread
from queuebell.bridge.contract.event import CloudQueueWorkDetected, check_event
from queuebell.bridge.core.cluster.coordinator import Coordinator
from queuebell.bridge.core.cluster.handover import ENDS_S
from queuebell.bridge.core.commands import (
    Announce,
    AnnounceInTurn,
    Broadcast,
    Command,
    End,
    Flush,
    Reclaim,
    Refresh,
    Send,
)
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.observe.facts import Fact, MemberRefused, Observer
from queuebell.bridge.observe.history import CLOCKS_S, History
from queuebell.bridge.observe.metrics import Metrics
from queuebell.bridge.observe.slices import sliced
from queuebell.bridge.observe.swallowed import swallow, swallowing
from queuebell.bridge.queues.base import PUT_WINDOW_S, QueueStore
from queuebell.bridge.queues.embedded.store import EmbeddedStore
from queuebell.bridge.queues.served import ServedStore
from queuebell.bridge.service.channels.base import Outlet
from queuebell.bridge.service.clocks import Suspends, paired, system_clocks
from queuebell.bridge.service.embedded_feed import EmbeddedFeed, open_embedded_store, perform_on_store
from queuebell.bridge.service.history_file import HistoryFile
from queuebell.bridge.service.message_events import MessageEvents
from queuebell.bridge.service.sessions import CHANNEL, BridgeSession, Flushes, LiveSessions
from queuebell.bridge.service.shared_store import SharedStore
from queuebell.bridge.service.state import gauges, status
from queuebell.bridge.service.state.answers import Cluster, ListenerState, QueueState, Readiness
from queuebell.bridge.service.state.content import everything

if TYPE_CHECKING:
    from queuebell.bridge.service.channels.local import LocalChannel


class Bridge:
    """Run a bridge with a queue service in this process.

    ``data`` is the directory of the embedded store's file; None keeps everything in memory. A ``store`` (PostgreSQL,
    Redis) replaces the embedded one, and any number of bridges may share it. Use ``async with Bridge(...) as b`` and
    pass it to `Publisher`, `Listener` and `WebServer`. All methods belong to the event loop that started the bridge,
    and raise `WrongThread` on any other thread. With ``boot``, ``draw`` and ``store`` opened, runs on a simulated loop
    are deterministic. ``boottime`` is a clock that advances while the machine sleeps and the loop's clock is frozen;
    it defaults to the system's pair of clocks, if there is one (B15).

    Starting raises `StoreOwned` if another process holds the file, `StoreDamaged` if it is not a Queuebell file.
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
        opened = (
            open_embedded_store(data, self.boot, settings.synchronous, settings.put_window_s)
            if store is None
            else store
        )
        self.store: ServedStore = (
            opened
            if isinstance(opened, EmbeddedStore)
            else SharedStore(opened, self._on_external_put, self._on_external_delete)
        )
        self.callbacks = Callbacks()
        self.history = History(queues_of=self._queues_of)
        self.callbacks.observers += (self.metrics, self.history)
        where = None if data is None else self._history_path(pathlib.Path(data))
        self._history_file = None if where is None else HistoryFile(where, self.history)
        self.gate = PutGate(
            Admission(settings.put_waiting_bytes, settings.put_wait_ms / 1000),
            self._clock,
            self.emit,
        )
        """Admits or rejects every put over HTTP."""
        self.webhooks: Callable[[], list[ListenerState]] = list
        """Returns the webhooks' states; their queues count as attended."""
        self._checks: status.Checks = {}
        self.events = MessageEvents(self._name_of, self._watch_messages)
        self.store.recorder = self.events
        self.scheduler = WakeScheduler(
            self.boot, settings.periods, draw, None if self.own is not None else self.store.fingerprint
        )
        if isinstance(self.store, SharedStore):
            self.scheduler.engine_kind = self.store.kind
        gauges.watch(
            self.metrics,
            self.scheduler,
            self.store,
            self._clock,
            lambda: status.webhook_queues(self.webhooks()),
        )
        self.coordinator: Coordinator | None = None
        """Coordinates this bridge with the cluster; None without a cluster."""
        self.member: Membership | None = None
        """This bridge's membership in that cluster."""
        self.suspends = Suspends(self, system_clocks() if boottime is None else paired(self.now, boottime))
        self._sessions = LiveSessions(self, self.callbacks.session_heard)
        self.flushes = Flushes(self, self._sessions.live)
        self._commands: deque[Command] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._driving = False
        self.stopped = False
        self._closing: asyncio.Task[None] | None = None

    def _history_path(self, data: pathlib.Path) -> pathlib.Path | None:
        if self.own is not None:
            return data / "history.msgpack"
        # Nothing else of such a bridge needs a disk: its history is kept where there is a place for it.
        name = f"history-{self.store.fingerprint('queuebell/history')[:16]}.msgpack"
        return data / name if os.access(data, os.W_OK | os.X_OK) else None

    @property
    def own(self) -> EmbeddedStore | None:
        """The embedded store; None if the bridge serves a shared store."""
        return self.store if isinstance(self.store, EmbeddedStore) else None

    @property
    def keeps_queues(self) -> bool:
        """Whether the queue API serves queues; False in a cluster without a store."""
        return not isinstance(self.store, SharedStore) or self.store.keeps

    @property
    def named_boot(self) -> str | None:
        """The boot that queue service answers contain; None with a shared store (O0)."""
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
        """Open the store and load its backlog."""
        if self.stopped:
            raise Closed("this bridge was stopped; make a new one")
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.notice_suspend()
        if self._history_file is not None:
            await self._history_file.read()
        await self.store.open()
        if self.own is not None:
            feed = EmbeddedFeed(self)
            self.own.observe(feed)
            feed.committed(self.own.backlogs(), [])
        if self._history_file is not None:
            self._history_file.start()
        self.history.mark("bridge started")

    async def stop(self) -> None:
        """Stop in the order the module describes; acknowledged messages are safe.

        May be called twice: each call returns once the file is closed. Cancelling a caller does not stop the shutdown.
        """
        if self._closing is None:
            self.end_sessions()
            self.stopped = True
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self.flushes.stop()
            self._closing = asyncio.create_task(self._close(), name="close the queue service")
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            if self.member is not None:
                await self.member.stop()
            if self._history_file is not None:
                await self._history_file.stop()
        finally:
            await self.store.close()

    async def leave(self) -> None:
        """End every session as `end_sessions` does; a cluster member hands over gradually, within 10 s (C7).

        The bridge announces that it leaves. Its sessions then move to other bridges one by one: with a `bye`, or the
        bridge ends them a moment later. After the last, the bridge sends its due pending work to the other members
        and returns when the broker has it.
        """
        if self.member is None or self.draining:
            self.end_sessions()
            return
        started_at = self.now()
        self._stop_accepting()
        await self._sessions.depart(started_at, self.member.coordinator.others(started_at), self._draw)
        await self.member.hand_over_queues(started_at + ENDS_S)

    def drain(self) -> None:
        """Stop accepting triggers and sessions, and send `drain` to every session; may be called twice."""
        if self.draining:
            return
        self._stop_accepting()
        self._sessions.drain()

    def end_sessions(self) -> None:
        """Drain, and end every session with 1012. A web server waits for sessions until this has been called."""
        self.drain()
        self._sessions.end_all()
        if self.member is not None:
            # C7: last, because ending the sessions set timers (B8) that only this bridge knows.
            self.member.hand_over_without_waiting()

    def _stop_accepting(self) -> None:
        self.draining = True
        if self.member is not None:
            # C7: first, so that the other members act on the work they hold.
            self.member.coordinator.leave(self.now())
            self.drive()

    def observe(self, observer: Observer) -> None:
        """Send every fact to ``observer`` from now on."""
        self.callbacks.observers.append(observer)

    def local_channel(self) -> LocalChannel:
        """Return a channel for listeners in this process."""
        from queuebell.bridge.service.channels.local import LocalChannel

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
        """Record wake requests for these events, all or none, and return how many were accepted.

        ``counts`` has, for each event, the number of equal triggers it stands for; its ``payload_size`` covers all of
        them. On return the requests are recorded (B1); wakes leave in the same turn of the loop. Raises `BadInput`
        with the code ``draining``, ``bad_trigger`` or ``bad_queue_reference``.
        """
        self._check_accepting(bus)
        return self._request_wakes(events, bus, redelivered, counts)

    def _request_wakes(
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
            events, shared = self.member.link.with_ids(events, bus), self.member.link.shares
        for event, count in zip(events, counts or itertools.repeat(1), strict=False):
            self.scheduler.trigger(now, event, bus, redelivered=redelivered, count=count, shared=shared)
        self.drive(later=True)
        self.callbacks.forward(events, bus)
        return len(events)

    # -- other bridges -----------------------------------------------------------------------------------------------

    def join_cluster(self, link: ClusterLink, **about: str | None) -> Membership:
        """Join a cluster over ``link``, before the start. For ``about`` see `Coordinator`."""
        self.coordinator = coordinator = self.scheduler.join(**about)
        if isinstance(served := self.store, SharedStore):
            coordinator.identity = lambda: served.identity
            # C8: either identity may be stale: a store can be emptied or replaced at the same address.
            self.observe(lambda fact: served.ask_again() if isinstance(fact, MemberRefused) else None)
        gauges.watch_cluster(self.metrics, coordinator, self._clock)
        self.member = Membership(self, coordinator, link)
        return self.member

    def serve_alongside(self, engine: QueueStore) -> SharedStore:
        """Serve the queues of ``engine`` next to this bridge's own; the caller closes the result."""
        return SharedStore(engine, self._on_external_put, lambda _: None, is_watched=False)

    def _on_external_put(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        # Also while stopping: such a put was admitted earlier.
        if not self.stopped:
            self._request_wakes(events, "store")

    def _on_external_delete(self, queue: str) -> None:
        # A queue with listeners is kept: it may be created again.
        with contextlib.suppress(BadInput):
            self.forget(queue)

    def forward(self, callback: Callable[[Sequence[CloudQueueWorkDetected], str], None]) -> Callable[[], None]:
        """Pass accepted triggers and the name of their bus to ``callback`` (B16); return a function that ends this.

        ``callback`` must not block and must not call back.
        """
        forwards = self.callbacks.forwards
        forwards.append(callback)
        return lambda: forwards.remove(callback) if callback in forwards else None

    def _check_accepting(self, bus: str = "") -> None:
        # C7: until its last session ends, only this bridge may be able to wake a worker for a shared trigger.
        still_accepts = self.member is not None and self.member.link.reaches_all(bus) and bool(self._sessions.live)
        if self.draining and not still_accepts:
            raise BadInput("draining", "the bridge is stopping; try again in a moment")
        if self._loop is None:
            raise Closed("the bridge was not started")

    def gap(self) -> int:
        """Check each queue in an external store once, as a bus may have lost triggers; return their number."""
        count = self.scheduler.gap(self.now())
        self.drive()
        return count

    def forget(self, queue: str) -> None:
        """Forget a deleted queue of an external store and its pending work; its next new listener checks it.

        Raises `BadInput`: ``queue_not_found`` for an unknown queue, ``conflict`` if the queue service holds the queue
        or it has listeners.
        """
        if not self.scheduler.forget(queue):
            why = "the queue service holds it, or it has workers: delete it, or stop its workers"
            raise BadInput("conflict", why)
        self.drive()

    def notice_suspend(self) -> float:
        """Detect a suspend and return its seconds, or 0; every queue in an external store is then checked once (B15).

        Runs before each frame, timer and new session, so that no answer relies on state from before the suspend.
        """
        return self.suspends.notice()

    # -- plain subscribers -------------------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[Announce], None]) -> Callable[[], None]:
        """Pass every wake for plain subscribers to ``callback`` (B12); return a function that ends this.

        ``callback`` runs in the same turn as the wake request. It must not block and must not call back.
        """
        subscribers = self.callbacks.subscribers
        subscribers.append(callback)
        self.scheduler.reminders.announcing(self.now(), True)
        self.arm()

        def end() -> None:
            if callback in subscribers:
                subscribers.remove(callback)
            self.scheduler.reminders.announcing(self.now(), bool(subscribers))

        return end

    def newest(self, queue: str) -> tuple[int, bool]:
        """Return a queue's newest generation (0 for an unknown queue) and whether work waits there."""
        return self.scheduler.pending.newest(queue)

    # -- sessions ----------------------------------------------------------------------------------------------------

    def connect(self, outlet: Outlet) -> BridgeSession:
        """Begin a session on ``outlet``; its hello must arrive within 5 s. Raises `BadInput` (``draining``)."""
        self._check_accepting()
        self.notice_suspend()
        return self._sessions.open(outlet)

    def unreadable(self, session: BridgeSession | None, error: BadInput) -> None:
        """Reject a worker's malformed frame and record the rejection."""
        self.scheduler.unreadable(self.now(), None if session is None else session.number, error.code, str(error))
        self.drive()

    def drain_worker(self, instance: str) -> bool | None:
        """Ask a listener to stop: it receives nothing more, finishes what runs, and leaves.

        Returns True once it was asked, False for a scaler or a listener of an older version, which cannot be asked,
        None if no session of this instance is here.
        """
        self.now()  # the thread
        return self._sessions.drain_worker(instance)

    # -- performing commands -----------------------------------------------------------------------------------------

    def now(self) -> float:
        """Return the scheduler's time; raises `WrongThread` before anything is changed."""
        assert self._loop is not None
        if threading.get_ident() != self._thread:
            raise WrongThread("bridge")
        return self._loop.time()

    def _clock(self) -> float:
        """Return the scheduler's time for reports, 0 before the start."""
        return 0.0 if self._loop is None else self._loop.time()

    def drive(self, *, later: bool = False) -> None:
        """Perform the scheduler's commands until none are left; ``later`` first merges the wakes of this loop turn.

        An exception affects only its command; a cancellation postpones the rest to the next turn.
        """
        if self._driving:
            # Called from within a command: the outer call performs the new commands.
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
                    # Check for Send first: ten thousand idle sessions cause only heartbeat answers.
                    if isinstance(command, Send):
                        session = sessions.get(command.session)
                        if session is not None:
                            session.outlet.send(command.frame)
                    elif isinstance(command, Flush):
                        (self.flushes.later if later else self.flushes.now)(command.session)
                    else:
                        self._perform(command)
                except Exception as error:  # noqa: BLE001 - affects this command only
                    swallow(CHANNEL if isinstance(command, Send | Flush | End) else "a scheduler command", error)
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
            self.callbacks.announce(command)
        elif isinstance(command, AnnounceInTurn):
            self.callbacks.announce_in_turn(command)
        elif isinstance(command, Broadcast):
            if self.member is not None:
                with swallowing(CLUSTER_LINK):
                    self.member.link.broadcast(command.message)
        elif isinstance(command, Refresh | Reclaim) and self.own is not None:
            perform_on_store(self, self.own, command)

    def arm(self) -> None:
        """Set the timer to the scheduler's deadline."""
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
        # Frames read in this loop turn go before timers (B4): they are fed in the next turn, ahead of this callback.
        assert self._loop is not None
        self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        self._timer_at = None
        if self.stopped:
            return
        self.notice_suspend()
        with swallowing("a scheduler timer"):
            self.scheduler.tick(self.now())
        self.drive()

    def _name_of(self, session: int) -> str:
        found = self.scheduler.sessions.get(session)
        return f"session {session}" if found is None else found.listener

    def _queues_of(self, session: int) -> Iterable[str]:
        found = self.scheduler.sessions.get(session)
        return () if found is None else found.queues

    def _watch_messages(self, watching: bool) -> None:
        # Another list: this one may be in use.
        others = [each for each in self.callbacks.observers if each is not self.events]
        self.callbacks.observers = [*others, self.events] if watching else others

    # -- state -------------------------------------------------------------------------------------------------------

    def describe(self, queue: str, can_read: Callable[[str], bool] = everything) -> QueueState | None:
        """Return the state of one queue, or None if it was never put to, triggered or subscribed.

        The result contains dead letters only if ``can_read`` accepts the poison queue.
        """
        return status.describe(self.scheduler, queue, self.now(), can_read)

    def cluster(self) -> Cluster:
        """Return the cluster as this bridge sees it."""
        return status.cluster(self.scheduler, self.coordinator, self.now())

    def listeners(self) -> list[ListenerState]:
        """Return the sessions that sent a hello, oldest first."""
        return status.listeners(self.scheduler, self.now())

    def readiness(self) -> Readiness:
        """Return whether everything required works, and each check by name."""
        return status.readiness(
            self.store.failure(),
            self.draining,
            self._checks,
            self.gate.refusing(),
            status.crowded(self.scheduler),
            keeps=self.keeps_queues,
        )

    def add_check(self, name: str, check: Callable[[], tuple[bool, str]], *, required: bool = True) -> None:
        """Add ``check``, named ``name``, to readiness; it returns whether it passes, and a detail."""
        self._checks[name] = (check, required)

    def emit(self, fact: Fact) -> None:
        """Send a fact to all observers."""
        self.callbacks.emit(fact)


class BridgeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Configure a bridge; `Periods` has the protocol's times."""

    periods: Periods = Periods()
    synchronous: str = "FULL"
    """SQLite's synchronous mode: FULL survives power loss, NORMAL may lose the last commits. Defaults to FULL."""
    put_window_s: float = PUT_WINDOW_S
    """Minimum time for which the key of a put is remembered, in seconds."""
    put_waiting_bytes: int = BYTES_MAX
    """Maximum size of all puts that wait for their commit, in bytes."""
    put_wait_ms: int = WAIT_MS
    """Longest expected wait of a put over HTTP, in milliseconds; beyond it the put is rejected."""


class Callbacks:
    """Holds and calls the registered callbacks; none of them may block or call back.

    An exception costs that one call: it is counted and logged, and the other callbacks still run.
    """

    def __init__(self) -> None:
        self.observers: list[Observer] = []
        self.subscribers: list[Callable[[Announce], None]] = []
        self.forwards: list[Callable[[Sequence[CloudQueueWorkDetected], str], None]] = []
        self.session_watchers: list[Callable[[Iterable[str]], None]] = []
        self.turn_subscribers: dict[str, list[Callable[[AnnounceInTurn], None]]] = {}
        """By the subscriber's ``route``, which other bridges share."""

    def emit(self, fact: Fact) -> None:
        """Send a fact to all observers."""
        for observer in self.observers:
            try:
                observer(fact)
            except Exception as error:  # noqa: BLE001 - this observer loses this fact
                swallow("an observer of facts", error)

    def announce(self, announced: Announce) -> None:
        """Send a wake to the plain subscribers."""
        for callback in self.subscribers:
            with swallowing("a subscriber of wakes"):
                callback(announced)

    def announce_in_turn(self, decision: AnnounceInTurn) -> None:
        """Report whether a wake held for another bridge is sent here."""
        for callback in self.turn_subscribers.get(decision.route, ()):
            with swallowing("a subscriber of wakes"):
                callback(decision)

    def forward(self, events: Sequence[CloudQueueWorkDetected], bus: str) -> None:
        """Pass on accepted triggers."""
        for callback in self.forwards:
            with swallowing("a way to pass triggers on"):
                callback(events, bus)

    def session_heard(self, queues: Iterable[str]) -> None:
        """Report the queues of a session that sent a frame."""
        for callback in self.session_watchers:
            with swallowing("a watcher of sessions"):
                callback(queues)


log = logging.getLogger("queuebell.bridge")

TELL_S: Final = 5.0
CLUSTER_LINK: Final = "the link to the other bridges"


class ClusterLink(Protocol):
    """Connects to the other cluster members (`queuebell.bridge.triggers.cluster.BrokerClusterLink`)."""

    @property
    def shares(self) -> bool:
        """Whether the other members record the same wake requests."""
        ...

    def broadcast(self, message: ClusterMessage) -> None:
        """Send one message, best effort; it may be dropped."""
        ...

    def with_ids(self, events: Sequence[CloudQueueWorkDetected], bus: str) -> Sequence[CloudQueueWorkDetected]:
        """Give an id to each trigger that has none and is sent to the other members."""
        ...

    def reaches_all(self, bus: str) -> bool:
        """Return whether every member receives this bus's triggers directly."""
        ...

    def send_triggers(self, events: Sequence[CloudQueueWorkDetected]) -> int:
        """Send triggers to the other members; return how many, from the first on, were sent."""
        ...

    async def hand_over_queues(self, events: Sequence[CloudQueueWorkDetected]) -> None:
        """Send the handover to the other members and wait, without a time limit, until the broker has it."""
        ...


class Membership:
    """Passes cluster messages to the coordinator, and hands over pending work when this bridge leaves."""

    def __init__(self, bridge: Bridge, coordinator: Coordinator, link: ClusterLink) -> None:
        self._bridge = bridge
        self.coordinator = coordinator
        self.link = link
        self._handed_over = False
        self._telling: asyncio.Task[None] | None = None

    def connected(self, connected: bool) -> None:
        """Coordinate while the cluster link is up, and act alone while it is down (C1)."""
        if not self._bridge.stopped:
            begin_or_end = self.coordinator.begin if connected else self.coordinator.end
            begin_or_end(self._bridge.now())
            self._bridge.drive()
            if self._telling is None:
                self._telling = asyncio.create_task(self._tell_history(), name="history for the cluster")

    async def stop(self) -> None:
        """End the task that tells the others what happened here."""
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait([self._telling])

    def on_message(self, message: ClusterMessage) -> None:
        """Handle another bridge's message, already decoded and checked."""
        if isinstance(message, Past):
            if message.boot in self.coordinator.members.peers:
                self._bridge.history.add_past(message.step, message.queues)
        elif not self._bridge.stopped:
            self._bridge.notice_suspend()
            self.coordinator.on_message(self._bridge.now(), message)
            self._bridge.drive()

    async def _tell_history(self) -> None:
        away = 0
        while True:
            # What others hear later than that would be shown at a wrong time.
            away = 0 if self.link.shares else away + 1
            if away * TELL_S > CLOCKS_S:
                self._bridge.history.take()
            elif not away:
                self.tell_history()
            await asyncio.sleep(TELL_S)

    def tell_history(self) -> None:
        """Tell the others what happened here since the last time."""
        with swallowing(CLUSTER_LINK):
            step, queues = self._bridge.history.take()
            for part in sliced(queues.items(), PAST_QUEUES_MAX):
                self.link.broadcast(Past(boot=self._bridge.boot, step=step, queues=dict(part)))

    async def hand_over_queues(self, until: float) -> None:
        """Send due pending work to the other members; return when the broker has it, or at ``until`` (C7)."""
        handover: list[CloudQueueWorkDetected] = []
        try:
            async with asyncio.timeout_at(until):
                for batch in sliced(self._bridge.scheduler.pending.by_queue.values()):
                    handover += self.coordinator.handover(self._bridge.now(), batch)
                    await asyncio.sleep(0)
                await self.link.hand_over_queues(handover)
        except TimeoutError:
            log.warning(
                "the pending work could not be handed over to the other bridges; they check every queue once this "
                "bridge is gone, and their sweeps find the rest",
                extra={"left": len(handover)},
            )
        else:
            self.coordinator.handed_over(self._bridge.now())
            self._bridge.drive()
        self._handed_over = True
        self.tell_history()

    def hand_over_without_waiting(self) -> None:
        """Send the handover without waiting for the broker, unless it was sent before."""
        if not self._handed_over:
            self._handed_over = True
            # It may not arrive, so the other members still check every queue (C5).
            with swallowing(CLUSTER_LINK):
                self.link.send_triggers(self.link.with_ids(self.coordinator.handover(self._bridge.now()), ""))
