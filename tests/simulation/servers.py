"""The bridge's process, watched, the store's and the broker's: how each starts, what outlives a crash, how it stops."""

from __future__ import annotations

import asyncio
import functools
import math
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from queuebell.bridge.contract.cluster import ClusterMessage, Covered, Name
from queuebell.bridge.contract.errors import Closed
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.wire import EmptyReceive, ListenerHeartbeat, UpFrame, Wake
from queuebell.bridge.core.cluster.coordinator import Coordinator
from queuebell.bridge.core.commands import Command
from queuebell.bridge.core.pending_work import PendingWork
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.core.wake_scheduler import WakeScheduler
from queuebell.bridge.observe.facts import (
    ActedLate,
    AuditFound,
    DuplicateDropped,
    Fact,
    HandedBack,
    OwnerStuck,
    RoundMade,
    SessionClosed,
    SettledByPeer,
    StartMissed,
)
from queuebell.bridge.queues.base import (
    Depth,
    NewMessage,
    PutReceipt,
    QueueStore,
    Received,
    Settlement,
    Settling,
    VisibleQueues,
)
from queuebell.bridge.queues.embedded import store as embedded
from queuebell.bridge.queues.embedded.committer import Commit
from queuebell.bridge.queues.embedded.engine import Engine
from queuebell.bridge.queues.embedded.file import open_memory
from queuebell.bridge.queues.limits import lease_ms
from queuebell.bridge.service.bridge import Bridge, BridgeSettings
from queuebell.bridge.service.channels.brokered import BrokeredSessions
from queuebell.bridge.triggers.attachment import Attachment
from queuebell.bridge.triggers.cluster import BrokerClusterLink
from queuebell.bridge.triggers.rounds import Rounds
from tests.simulation.access import WatchedFile, WatchedSessions, open_access
from tests.simulation.faults import Exceptions
from tests.simulation.process import Process
from tests.simulation.store_calls import AskedStore, DoorServer, EngineStore, StoreServer
from tests.simulation.wire import BrokerServer, SimulatedBroker, WireServer
from tests.simulation.worker import capabilities_of
from tests.simulation.world import EPOCH

if TYPE_CHECKING:
    import sqlite3

    from tests.simulation.process import Host
    from tests.simulation.world import World

_BORN = (0, False)
"""How a queue stands that was only heard of."""


def watched(world: World, host: Host) -> type[WakeScheduler]:
    class Watched(world.scheduler):  # type: ignore[name-defined,misc]
        _told: dict[str, tuple[int, bool]]

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
            queue, facts = event.queue, len(self.dispatch.facts)
            work = self.pending.find(queue)
            before = 0 if work is None else work.gen
            super().trigger(now, event, bus, redelivered=redelivered, count=count, shared=shared)
            work = self.pending.find(queue)
            assert work is not None
            # Own queues are marked by their store, and what is due later by its time: both are merged all the same.
            merged = (
                bool(event.not_before_ms)
                or work.own
                or event.id in self.__dict__.pop("_born_forgiven", ())
                or any(isinstance(fact, DuplicateDropped) for fact in self.dispatch.facts[facts:])
            )
            world.emit("triggered", queue, before, work.gen, merged)

        def frame(self, now: float, number: int, frame: UpFrame) -> None:
            if isinstance(frame, EmptyReceive):
                if self.coordinator is None or frame.boot == self.boot:
                    world.emit("cover_heard", frame.queue, frame.boot, frame.gen)
            elif isinstance(frame, ListenerHeartbeat):
                for queue, beat in frame.queues.items():
                    if beat.covered:
                        world.emit("cover_heard", queue, self.boot, beat.covered)
            if world.desk is not None:
                world.desk.used(number)
            super().frame(now, number, frame)

        def take(self, now: float, number: int) -> list[Wake]:
            session = self.sessions.get(number)
            places = [] if session is None else list(session.queues.values())
            for place in places:
                if place.slot is not None and place.slot.messages is not None:
                    world.holds("carried", len(place.slot.messages), place.capacity)
            wakes: list[Wake] = super().take(now, number)
            world.holds("wakes", len(wakes), len(places))
            if wakes and world.desk is not None:
                world.desk.used(number)
            return wakes

        def commands(self) -> list[Command]:
            told: dict[str, tuple[int, bool]] = self.__dict__.setdefault("_told", {})
            for queue, work in self.pending.by_queue.items():
                stands = (work.gen, work.dirty)
                if told.get(queue, _BORN) != stands:
                    told[queue] = stands
                    paid = any(isinstance(fact, SettledByPeer) and fact.queue == queue for fact in self.dispatch.facts)
                    world.emit("marked", queue, self.boot, work.gen, work.dirty, paid)
            commands: list[Command] = super().commands()
            return commands

        def join(self, **about: str | None) -> Coordinator:
            turns: Coordinator = super().join(**about)
            _watch_turns(world, host, self.boot, turns, self)
            return turns

    return Watched


def _watch_turns(world: World, host: Host, boot: str, turns: Coordinator, scheduler: Any) -> None:
    """Hold what a peer's word forgives against the truth: when marks were made, and when receives began."""
    kernel = world.kernel
    hear, marked, early = turns.on_message, turns.on_wake_request, turns.already_settled
    made: dict[str, dict[Name | None, float]] = {}
    """By queue and name, None for marks that none can be told by: when the newest was made."""

    def told(queue: str, by: Literal["name", "time", "cover"], at: float) -> None:
        world.emit("forgiven", queue, boot, by, at, world.emptied.get(queue, -math.inf))

    def noted(work: PendingWork, now: float, name: Name | None, *, shared: bool, fresh: bool) -> None:
        of_queue = made.setdefault(work.queue, {})
        if name is not None:
            world.named_at.setdefault((boot, work.queue, name), kernel.now)
        marked(work, now, name, shared=shared, fresh=fresh)
        of_queue[name if name in _owed(turns, work.queue)[0] else None] = kernel.now

    def judged(now: float, word: ClusterMessage) -> None:
        if not isinstance(word, Covered) or word.boot == boot:
            hear(now, word)
            return
        queue = word.queue
        work = scheduler.pending.find(queue)
        before, bare = _owed(turns, queue)
        covered = None if work is None else work.found_empty_at
        hear(now, word)
        after, still = _owed(turns, queue)
        of_queue = made.setdefault(queue, {})
        for name in sorted(before - after):
            own = of_queue.pop(name, kernel.now)
            if name in word.ids:
                told(queue, "name", world.named_at.get((word.boot, queue, name), math.inf))
            else:
                told(queue, "time", own)
        if bare and not still:
            told(queue, "time", of_queue.pop(None, kernel.now))
        if work is not None and work.found_empty_at is not None and work.found_empty_at != covered:
            told(queue, "cover", host.true(work.found_empty_at))

    def born(now: float, name: Name, queue: str) -> bool:
        paid = early(now, name, queue)
        if paid:
            scheduler.__dict__["_born_forgiven"] = (name[1],)
            told(queue, "name", min(at for (_, *known), at in world.named_at.items() if known == [queue, name]))
        return paid

    # Put in the instance's place, for whoever plants a wrong turn brings a class of its own.
    turns.on_message, turns.on_wake_request, turns.already_settled = judged, noted, born  # type: ignore[method-assign]


def _owed(turns: Coordinator, queue: str) -> tuple[set[Name], bool]:
    """Return the names of the marks that stand, and whether there is one without."""
    kept = turns.queues.get(queue)
    return (set(), False) if kept is None else (set(kept.requests.named), kept.requests.unnamed is not None)


PREFIX = "queuebell"
PLACE = "the store elsewhere"
REACHED: dict[type[Fact], str] = {
    StartMissed: "wake unanswered",
    OwnerStuck: "owner stuck",
    HandedBack: "carried messages handed back",
    AuditFound: "audit found work",
    DuplicateDropped: "duplicate trigger",
    ActedLate: "acted for the one before",
}
ELSEWHERE = "with another bridge"
"""Why a bridge ends a session whose listener heard the welcome of another one first."""


class Disk:
    """The file of the own store: what was committed outlives every process."""

    def __init__(self) -> None:
        self.connection: sqlite3.Connection = open_memory()

    def recover(self) -> sqlite3.Connection:
        if self.connection.in_transaction:
            self.connection.execute("ROLLBACK")
        return self.connection

    def close(self) -> None:
        self.connection.close()


class DiskStore(embedded.MemoryStore):
    """The own store of one bridge's process, on the disk of its host."""

    def __init__(self, world: World, process: Process, disk: Disk, boot: str) -> None:
        self._world = world
        self._connection = disk.recover()
        super().__init__(
            process.name,
            boot=boot,
            clock=process.loop.time,
            wall=lambda: EPOCH + world.kernel.now,
            receipts=functools.partial(process.chance.getrandbits, 63),
        )

    async def open(self) -> None:
        self._refuse_closed()
        if self._share is not None:
            return
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        engine = Engine(self._connection, clock=self._clock, wall=self._wall, receipts=self._receipts, boot=self.boot)
        self._share = embedded.Shared(self.name, engine)
        if self._observer is not None:
            self._share.observers.append((self, self._observer))

    async def close(self) -> None:
        """Carry out what waits; the file stays."""
        self._closed = True
        shared, self._share = self._share, None
        if shared is not None and self._turn is not None:
            self._turn.cancel()
            self._run(shared)

    def _report(self, shared: embedded.Shared, commit: Commit) -> None:
        for backlog in commit.backlogs:
            self._world.level(backlog.queue, backlog.visible)
            if backlog.next_visible_in_ms is not None:
                self._world.level_rises(backlog.queue, backlog.next_visible_in_ms / 1000)
        super()._report(shared, commit)


class BridgeServer:
    def __init__(self, world: World, process: Process, disk: Disk) -> None:
        self.boot = f"{process.chance.getrandbits(128):032x}"
        self._world = world
        self._process = process
        plan = world.plan
        self._stop = asyncio.Event()
        periods = Periods(sweep_s=60.0 if plan.sweep else 0.0)
        rate = process.host.rate
        exceptions = self._exceptions = Exceptions(world, process)
        engine = EngineStore(world, process, world.store_host, capabilities_of(world)) if plan.doors else None
        if engine is not None:
            exceptions.spoil(engine, "put", "receive", "settle", "depth", "queues")

        def boottime() -> float:
            exceptions.may_raise("a clock")
            return world.kernel.now * rate

        self.bridge = Bridge(
            settings=BridgeSettings(periods=periods),
            boot=self.boot,
            draw=process.chance.random,
            store=cast("QueueStore", engine) if engine else DiskStore(world, process, disk, self.boot),
            boottime=boottime,
        )
        fingerprint = None if engine is None else self.bridge.store.fingerprint
        self.bridge.scheduler = watched(world, process.host)(self.boot, periods, process.chance.random, fingerprint)
        exceptions.spoil_bridge(self.bridge)
        self.bridge.observe(self._fact)
        self._line: BrokerClusterLink | None = None
        if plan.bridges > 1:
            store = None if engine is None else engine.fingerprint("")
            self._line = BrokerClusterLink(
                self.bridge, PREFIX, (plan.broker,), name=PREFIX, address=process.host.name, store=store
            )
            exceptions.spoil(self._line, "broadcast", "send_triggers")
        if world.desk is not None:
            world.desk.restarted()
        self._rounds: Rounds | None = None
        if plan.rounds:

            def connect() -> AskedStore:
                asked = AskedStore(world, process, world.store_host, capabilities_of(world))
                exceptions.spoil(asked, "visible_queues", "close")
                return asked

            self._rounds = Rounds(self.bridge, connect)
        self._attachment: Attachment | None = None
        self._sessions: BrokeredSessions
        self._store_server: StoreServer | None = None

    async def run(self) -> None:
        desk = self._world.desk
        if desk is None:
            await self._serve(None)
            return
        access = await open_access(self._world, self._process, desk, self._stop)
        if access is not None:
            async with access:
                await self._serve(access)

    async def _serve(self, access: WatchedFile | None) -> None:
        world, process, bridge, plan = self._world, self._process, self.bridge, self._world.plan
        world.emit("bridge", self.boot, True)
        await bridge.start()
        if self._rounds is not None:
            self._rounds.start()
        bridge.subscribe(self._exceptions.hear("a subscriber"))
        if plan.store == "own":
            for queue, work in bridge.scheduler.pending.by_queue.items():
                world.level(queue, work.visible)
        if plan.channel == "wire" or plan.bridges > 1:
            WireServer(world, process, bridge, access)
        if plan.channel == "broker" or plan.bridges > 1:
            if access is None:
                sessions = BrokeredSessions(bridge, PREFIX)
            else:
                sessions = WatchedSessions(bridge, PREFIX, access=access)
                sessions.desk = access.desk
            self._sessions = sessions
            self._attachment = Attachment(
                bridge,
                lambda: SimulatedBroker(world, process),
                plan.broker,
                plan.broker,
                prefix=PREFIX,
                sessions=sessions,
                announcer=None,
                brokers=(plan.broker,),
                republish=plan.bridges > 1,
                cluster=self._line,
                draw=process.chance.random,
            )
            await self._attachment.start()
        if plan.store == "own":
            self._store_server = StoreServer(world, process, bridge.store, self.boot, access)
            self._store_server.listen()
            world.emit("store", True)
        elif plan.doors:
            self._store_server = DoorServer(world, process, bridge)
            self._store_server.listen()
        await self._stop.wait()
        bridge.drain()
        if self._store_server is not None:
            self._store_server.draining = True
        await asyncio.sleep(0.01)
        bridge.end_sessions()
        if self._rounds is not None:
            await self._rounds.stop()
        if self._attachment is not None:
            await self._attachment.stop()
            await self._sessions.stop()
        if plan.store == "own" and self._store_server is not None:
            self._store_server.refuse()
        try:
            await bridge.stop()
        except Closed:
            pass

    def stop(self) -> None:
        self._stop.set()

    def owes(self) -> bool:
        return any(work.dirty for work in self.bridge.scheduler.pending.by_queue.values())

    def gone(self) -> None:
        world = self._world
        if world.plan.store == "own":
            world.emit("store", False)
        world.emit("bridge", self.boot, False)

    def _fact(self, fact: Fact) -> None:
        world = self._world
        if type(fact) in REACHED:
            world.reached(REACHED[type(fact)])
        if isinstance(fact, AuditFound):
            world.emit("audited", fact.queue, fact.visible)
        elif isinstance(fact, RoundMade):
            world.reached("round answered" if fact.answered else "round failed")
        elif isinstance(fact, SettledByPeer):
            world.reached(f"mark forgiven by {fact.by}")
        elif isinstance(fact, SessionClosed) and world.plan.bridges > 1 and fact.reason == ELSEWHERE:
            world.emit("session_moved", fact.listener)


class StoreHost:
    """The store elsewhere, with the engine of the own one, but as vague as real stores are: what it holds outlives all.

    It may count what is leased as if it could be taken, keep the next due time to itself, and find nothing although
    there is something. That a call was carried out and its answer lost is the network's business, not the store's.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._capabilities = capabilities_of(world)
        self._draw = world.kernel.chance("store").random
        self._engine = Engine(
            open_memory(),
            clock=lambda: world.kernel.now,
            wall=lambda: 0.0,
            receipts=functools.partial(world.kernel.chance("receipts").getrandbits, 63),
            boot="",
        )
        self._armed: int | None = None
        """When time alone changes what is visible next, in milliseconds, and somebody will look."""

    def close(self) -> None:
        self._engine.state.connection.close()

    async def put(self, queue: str, messages: Sequence[NewMessage]) -> list[PutReceipt]:
        return self._carry_out(self._engine.put, queue, messages, None)

    async def receive(self, queue: str, limit: int, visibility_s: float) -> Received:
        return self._carry_out(self._receive, queue, limit, lease_ms(visibility_s))

    async def settle(self, queue: str, settlement: Settlement) -> Settling:
        return self._carry_out(self._engine.settle, queue, settlement)

    async def depth(self, queue: str) -> Depth | None:
        return self._carry_out(self._depth, queue)

    async def visible_queues(self, _: str) -> VisibleQueues:
        def found(_: str) -> list[str]:
            return [name for name, each in self._engine.state.queues.items() if each.tally.visible]

        return VisibleQueues(self._carry_out(found, ""), PLACE)

    async def place(self, _: str) -> str:
        return PLACE

    def _depth(self, queue: str) -> Depth | None:
        there, blind = self._engine.depth(queue), self._world.trouble["false_empty"]
        if there is None or (there.visible and blind > 0 and self._draw() < blind):
            return Depth(0, 0)
        return there if self._capabilities.exact_depth else Depth(there.visible + there.invisible, 0)

    def _receive(self, queue: str, limit: int, lease: int) -> Received:
        able, blind = self._capabilities, self._world.trouble["false_empty"]
        there = self._engine.state.current(queue)
        if there is not None and there.visible and blind > 0 and self._draw() < blind:
            # What a blind receive does not see it cannot count either.
            next_visible = self._engine.state.due_in(there.next_visible()) if able.next_visible else None
            return Received([], None, next_visible, place=PLACE)
        found = self._engine.receive(queue, limit, lease)
        depth = found.depth
        if depth is not None and not able.exact_depth:
            depth = Depth(depth.visible + depth.invisible, 0)
        next_visible = found.next_visible_in_ms if able.next_visible else None
        return Received(found.messages, depth, next_visible, place=PLACE)

    def _carry_out(self, operation: Callable[..., Any], *given: Any) -> Any:
        """Do one call as a commit of its own, report the changed backlogs, and check the time of the next change."""
        world, engine = self._world, self._engine
        engine.state.tick()
        try:
            return operation(*given)
        finally:
            engine.state.commit()
            for backlog in engine.state.take_backlogs():
                world.level(backlog.queue, backlog.visible)
            changes = [at for queue in engine.state.queues.values() if (at := queue.next_change()) is not None]
            due = min(changes, default=None)
            if due is not None and (self._armed is None or due < self._armed):
                self._armed = due
                world.kernel.at(due / 1000, self._due, due)

    def _due(self, due: int) -> None:
        if self._armed == due:
            self._armed = None
            self._carry_out(self._reread)

    def _reread(self) -> None:
        for queue in self._engine.state.queues:
            self._engine.refresh(queue)


async def serve_store(world: World, process: Process, store: StoreHost) -> None:
    StoreServer(world, process, store).listen()
    world.emit("store", True)
    await asyncio.get_running_loop().create_future()


async def serve_broker(world: World, process: Process) -> None:
    BrokerServer(world, process)
    await asyncio.get_running_loop().create_future()
