"""What streams of KEDA's are told, on a running bridge in virtual time, and what it costs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Mapping
from typing import Any, Self, cast

import msgspec
import pytest

from queuebell.bridge.contract.errors import StoreUnavailable
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.wire import Bye, EmptyReceive, Hello, ListenerHeartbeat, QueueBeat, Started, Subscription
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.keda.counts import FRESH_S, KedaCounts
from queuebell.bridge.keda.demand import count_key, demand, known_state
from queuebell.bridge.keda.scaled_object import Target
from queuebell.bridge.keda.streams import KedaStreams, Stream
from queuebell.bridge.queues.base import Claim, Counts, NewMessage, QueueStore, Settlement
from queuebell.bridge.service.bridge import Bridge, BridgeSettings
from queuebell.bridge.service.channels.brokered import BrokeredSessions
from queuebell.bridge.service.sessions import BridgeSession
from queuebell.bridge.service.shared_store import NoStore
from queuebell.bridge.triggers.attachment import Attachment
from queuebell.bridge.triggers.cluster import BrokerClusterLink
from tests.listeners.rig import Store
from tests.support.ear import Ear
from tests.support.memory_broker import MemoryServer
from tests.support.sim_loop import pass_time, simulated

QUEUE = "billing/orders"
TARGET = Target(QUEUE)
PROMPT_S = 0.1
REPEAT_S = 30.0


class Counted(Store):
    """A store that says how often it was counted, and may fail."""

    counted = 0
    fails = False

    async def counts(self, queue: str) -> Counts | None:
        self.counted += 1
        if self.fails:
            raise StoreUnavailable("nobody answers")
        return await super().counts(queue)


class Shared:
    """A store in memory that other bridges reach as well, as an engine: it is nobody's own."""

    def __init__(self) -> None:
        self.inner = Store()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class Worker:
    """A session that goes on saying what it said last, as listeners do."""

    def __init__(self, session: BridgeSession) -> None:
        self.session = session
        self._beat = ListenerHeartbeat(0)
        self._task = asyncio.create_task(self._run(), name="heartbeats of a worker")

    async def _run(self) -> None:
        while True:
            self.session.feed(self._beat)
            await pass_time(3.0)

    def holds(self, count: int, lease_ms: int = 600_000) -> None:
        """Say that of its four slots so many are taken."""
        self._beat = ListenerHeartbeat(0, {QUEUE: QueueBeat(free=4 - count)}, {QUEUE: [lease_ms] * count})
        self.session.feed(self._beat)

    async def leave(self) -> None:
        """Say bye."""
        self.session.feed(Bye())
        await self.end()

    async def end(self) -> None:
        """Be gone without a word; may be called twice."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self.session.ended("killed")


class Told:
    """A stream and all that it was told, with the times."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.said: list[tuple[float, bool]] = []
        self._task = asyncio.create_task(self._hear(), name="hear a stream")

    async def _hear(self) -> None:
        while (active := await self.stream.next()) is not None:
            self.said.append((asyncio.get_running_loop().time(), active))

    @property
    def now(self) -> bool | None:
        return self.said[-1][1] if self.said else None

    async def end(self) -> None:
        self.stream.end()
        await self._task


class World:
    """A bridge, what watches it for KEDA, and workers that speak frames."""

    def __init__(self, bridge: Bridge, stores: Mapping[str, QueueStore]) -> None:
        self.bridge = bridge
        counted: dict[str | None, QueueStore] = {None: bridge.store}
        counted.update(stores)
        self.counts = KedaCounts(counted, bridge.now, lambda queue: self.watching.queues_changed((queue,)))
        self.watching = KedaStreams(bridge, self.counts)
        self._told: list[Told | Worker] = []
        self._instances = iter(range(1, 1000))

    @classmethod
    @contextlib.asynccontextmanager
    async def made(cls, store: QueueStore | None = None, **stores: QueueStore) -> AsyncIterator[Self]:
        """Run one; ``stores`` are those a ScaledObject may name."""
        settings = BridgeSettings(periods=Periods(sweep_s=0.0))
        # Its own queues go by the loop's time as well.
        async with Bridge(settings=settings, store=store or Store()) as bridge:
            world = cls(bridge, stores)
            try:
                yield world
            finally:
                await world.close()

    async def close(self) -> None:
        self.watching.close()
        for each in self._told:
            await each.end()
        await self.counts.stop()

    async def watch(self, target: Target = TARGET) -> Told:
        """Open a stream, and let it be told how it stands."""
        told = Told(self.watching.open(target))
        self._told.append(told)
        await pass_time(PROMPT_S)
        return told

    def work(self, target: Target = TARGET) -> int | None:
        """What a poll would be answered now, with the newest count."""
        key = count_key(self.bridge, target)
        count = None if key is None else self.counts.newest(key)
        return demand(known_state(self.bridge, target, count), target.per_process, target.start_s)

    def worker(self, *, own: bool = False, kind: str = "listener") -> Worker:
        """Say hello."""
        session = self.bridge.connect(Ear())
        instance = f"{next(self._instances):032x}"
        session.feed(Hello(instance, "worker", [Subscription(QUEUE, 4, own=own, store="5" * 8)], kind=kind))
        worker = Worker(session)
        self._told.append(worker)
        return worker

    def trigger(self, size: int = 1, **more: int) -> None:
        self.bridge.trigger([CloudQueueWorkDetected("billing", "orders", size, **more)], bus="http")

    def cover(self, worker: Worker) -> None:
        """Say that a receive begun now came back empty."""
        session = worker.session
        work = self.bridge.scheduler.pending.by_queue[QUEUE]
        session.feed(Started(QUEUE, self.bridge.boot, work.gen))
        session.feed(EmptyReceive(QUEUE, self.bridge.boot, work.gen, 0, store="5" * 8))


@simulated
async def test_an_own_queue_from_the_put_to_the_last_delete() -> None:
    """How it stands at once, a put within a tenth of a second, held by a worker, and done; no count for any of it."""
    async with World.made() as world:
        told = await world.watch()
        assert (told.now, world.work()) == (False, 0)
        worker = world.worker(own=True)
        await world.bridge.store.put(QUEUE, [NewMessage(b"x")] * 3)
        await pass_time(PROMPT_S)
        assert (told.now, world.work()) == (True, 3)
        received = await world.bridge.store.receive(QUEUE, 3, 600.0)
        worker.holds(3)
        await pass_time(PROMPT_S)
        assert (told.now, world.work()) == (True, 3)
        await world.bridge.store.settle(
            QUEUE, Settlement(delete=tuple(Claim(m.id, m.pop_receipt) for m in received.messages))
        )
        worker.holds(0)
        await pass_time(PROMPT_S)
        assert (told.now, world.work()) == (False, 0)
        assert world.counts.made == 0


@simulated
async def test_a_thousand_streams_of_an_idle_own_queue_cost_no_count_and_one_timer() -> None:
    """What repeats is said every 30 s to each, by one look for all."""
    async with World.made() as world:
        await world.bridge.store.create(QUEUE)
        streams = [Told(world.watching.open(TARGET)) for _ in range(1000)]
        loop = asyncio.get_running_loop()
        await pass_time(1.0)
        scheduled = len([each for each in loop._scheduled if not each.cancelled()])  # type: ignore[attr-defined]
        assert scheduled <= 3, "the watch's timer, this test's, and one of the bridge's own"
        await pass_time(3600.0)
        assert {len(told.said) for told in streams} == {121}
        assert world.counts.made == 0
        for told in streams:
            await told.end()
        assert world.watching.streams() == []
        del streams, told
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, Stream)]


@simulated
async def test_a_delayed_message_is_work_some_seconds_before_it_is_due() -> None:
    """A pod needs these to start; until then nobody is started for it, and a metric of 0 says so."""
    async with World.made() as world:
        told, early = await world.watch(), await world.watch(Target(QUEUE, start_s=60))
        start = asyncio.get_running_loop().time()
        await world.bridge.store.put(QUEUE, [NewMessage(b"x", visible_after_ms=120_000)])
        await pass_time(PROMPT_S)
        assert (told.now, early.now, world.work()) == (False, False, 0)
        await pass_time(200.0)
        (first,) = [at for at, active in told.said if active][:1]
        (before,) = [at for at, active in early.said if active][:1]
        assert 110.0 <= first - start <= 110.0 + PROMPT_S
        assert 60.0 <= before - start <= 60.0 + PROMPT_S
        assert world.work() == 1


@simulated
@pytest.mark.parametrize("where", ["own", "engine"])
async def test_what_workers_without_a_session_hold_is_work(where: str) -> None:
    """Over HTTP, or killed: nobody knows which, so that no autoscaler ends a busy pod; what is delayed needs none."""
    engine = Counted()
    async with World.made(**({} if where == "own" else {"east": engine})) as world:
        target = TARGET if where == "own" else Target(QUEUE, store="east")
        store = world.bridge.store if where == "own" else engine
        told = await world.watch(target)
        for messages in ([NewMessage(b"x")] * 32, [NewMessage(b"x")] * 8, [NewMessage(b"y", 3_600_000)] * 5):
            await store.put(QUEUE, messages)
        assert len((await store.receive(QUEUE, 32, 600.0)).messages) == 32
        await pass_time(FRESH_S + PROMPT_S)
        if where != "own":
            await world.counts.fresh((QUEUE, "east"))
            await pass_time(PROMPT_S)
        assert world.work(target) == 40 and told.now is True


@simulated
async def test_a_paused_queue_starts_nobody_and_ends_nobody_who_is_busy() -> None:
    """Its messages count as invisible; whoever holds one goes on."""
    async with World.made() as world:
        told = await world.watch()
        worker = world.worker(own=True)
        await world.bridge.store.put(QUEUE, [NewMessage(b"x")] * 9)
        await world.bridge.store.pause(QUEUE)
        await pass_time(PROMPT_S)
        assert (told.now, world.work()) == (False, 0)
        worker.holds(1)
        await pass_time(PROMPT_S)
        assert told.now is True
        await worker.end()
        await pass_time(PROMPT_S)
        assert told.now is False
        await world.bridge.store.pause(QUEUE, False)
        await pass_time(PROMPT_S)
        assert (told.now, world.work()) == (True, 9)


@simulated
async def test_a_scaler_of_ours_is_no_busy_worker() -> None:
    """It holds no messages, whatever slots it says are taken."""
    async with World.made() as world:
        told = await world.watch()
        world.worker(own=True, kind="scaler").holds(4)
        await pass_time(PROMPT_S)
        assert (told.now, world.work()) == (False, 0)
        world.worker(own=True).session.feed(ListenerHeartbeat(1, {QUEUE: QueueBeat(free=0)}))
        await pass_time(PROMPT_S)
        assert (told.now, world.work()) == (True, 1), "a worker without a free slot is"


@simulated
async def test_a_queue_elsewhere_without_a_name_goes_by_what_workers_say() -> None:
    """Announced until an empty receive answers, busy while somebody holds, and due when a lost worker's lease ends."""
    async with World.made() as world:
        told = await world.watch()
        assert (told.now, world.work()) == (False, 0)
        world.trigger(5)
        await pass_time(PROMPT_S)
        assert (told.now, world.work()) == (True, 1)
        worker = world.worker()
        world.cover(worker)
        await pass_time(PROMPT_S)
        assert told.now is False
        worker.holds(1, 40_000)
        await pass_time(PROMPT_S)
        assert told.now is True
        await worker.end()
        await pass_time(PROMPT_S)
        assert told.now is False
        await pass_time(32.0)
        assert told.now is True
        world.trigger(not_before_ms=600_000)
        world.cover(world.worker())
        assert world.counts.made == 0


@pytest.mark.parametrize("announced", [True, False])
@simulated
async def test_a_named_store_is_counted_once_for_all(announced: bool) -> None:
    """A put with a trigger is told at once; one that nobody announced by the next count, one for all in 30 s."""
    elsewhere = Counted()
    async with World.made(east=elsewhere) as world:
        target = Target(QUEUE, "east")
        told = [await world.watch(target) for _ in range(50)]
        assert {each.now for each in told} == {False}
        assert elsewhere.counted == 1
        await elsewhere.fill(*[b"x"] * 30)
        if announced:
            world.trigger(30)
        await pass_time(PROMPT_S)
        assert {each.now for each in told} == {announced}
        await pass_time(2 * REPEAT_S)
        assert {each.now for each in told} == {True}
        assert world.work(target) == 30
        before = elsewhere.counted
        await pass_time(3600.0)
        assert elsewhere.counted - before <= 3600.0 / REPEAT_S + 1


@simulated
async def test_a_store_that_cannot_be_counted_ends_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """What was said stands, an announcement is told all the same, and polls are told that nothing is known."""
    elsewhere = Counted()
    async with World.made(east=elsewhere) as world:
        target = Target(QUEUE, "east")
        await elsewhere.fill(b"x")
        told = await world.watch(target)
        assert told.now is True
        elsewhere.fails = True
        await pass_time(4 * REPEAT_S)
        assert {active for _, active in told.said} == {True}
        assert world.work(target) is None
        world.trigger()
        await pass_time(PROMPT_S)
        assert world.work(target) == 1
        elsewhere.fails = False
        await elsewhere.clear(QUEUE)
        world.cover(world.worker())
        await pass_time(2 * REPEAT_S)
        assert (told.now, world.work(target)) == (False, 0)
        wanted = [f"cannot count {QUEUE} for KEDA; its pods stay as they are"]
        assert [each.getMessage() for each in caplog.records if each.name == "queuebell.keda"] == wanted
        elsewhere.fails = True
        await pass_time(2 * REPEAT_S)
        assert [each.getMessage() for each in caplog.records if each.name == "queuebell.keda"] == wanted * 2


@simulated
async def test_what_lapsed_counts_as_leased_where_only_a_receive_tells() -> None:
    """JetStream: a message whose lease has ended is work, although nobody is there who could hold it."""

    class Lapsing(Counted):
        capabilities = msgspec.structs.replace(
            Store.capabilities, exact_depth=False, zero_depth=True, counts_leased=False
        )

    lapsing = Lapsing()
    async with World.made(east=lapsing) as world:
        await lapsing.fill(b"x")
        await lapsing.receive(QUEUE, 1, 600.0)
        assert (await world.watch(Target(QUEUE, "east"))).now is True


@simulated
async def test_a_queue_of_the_bridge_whose_workers_read_elsewhere() -> None:
    """Its own messages are nobody's work there; what is announced is, as soon as somebody reads elsewhere."""
    async with World.made() as world:
        await world.bridge.store.create(QUEUE)
        told = await world.watch()
        world.trigger()
        await pass_time(PROMPT_S)
        assert told.now is False, "the bridge knows that nothing is in it"
        worker = world.worker()
        world.trigger()
        await pass_time(PROMPT_S)
        assert told.now is True
        world.cover(worker)
        await pass_time(PROMPT_S)
        assert told.now is False
        await world.bridge.store.put(QUEUE, [NewMessage(b"x")])
        world.cover(worker)
        await pass_time(PROMPT_S)
        assert (told.now, world.work()) == (False, 0)


@simulated
async def test_a_name_that_may_have_been_forgotten_counts_as_work() -> None:
    """Of more names than are kept: whoever starts for one receives once, and it is known then."""
    periods = Periods(sweep_s=0.0, queues_max=2)
    async with Bridge(settings=BridgeSettings(periods=periods), store=Store()) as bridge:
        world = World(bridge, {})
        assert world.work() == 0
        bridge.trigger([CloudQueueWorkDetected("a", f"q{number}") for number in range(5)], bus="http")
        assert world.work() == 1


@pytest.mark.parametrize("counted", [True, False])
@simulated
async def test_a_gap_starts_a_pod_only_where_nobody_can_count(counted: bool) -> None:
    """Triggers may have been missed: a count makes sure, and where there is none somebody has to receive."""
    elsewhere = Counted()
    async with World.made(east=elsewhere) as world:
        target = Target(QUEUE, "east" if counted else None)
        # Known before, so that it is looked at first, and the others spread over some seconds.
        world.bridge.trigger([CloudQueueWorkDetected("a", "first")], bus="http")
        told = await world.watch(target)
        worker = world.worker()
        world.cover(worker)
        await worker.leave()
        await pass_time(2 * REPEAT_S)
        assert told.now is False
        world.trigger(not_before_ms=600_000)
        assert world.bridge.gap() == 2
        await pass_time(2 * REPEAT_S)
        assert any(active for _, active in told.said) is not counted
        await elsewhere.fill(b"x")
        world.bridge.gap()
        await pass_time(2 * REPEAT_S)
        assert (told.now, world.work(target)) == (True, 1)


@simulated
async def test_a_queue_that_changes_all_the_time_is_not_told_all_the_time() -> None:
    """A thousand puts and deletes in a second are twenty looks, and what it comes to is told."""
    async with World.made() as world:
        told = await world.watch()
        before = len(told.said)
        for _ in range(1000):
            (put,) = await world.bridge.store.put(QUEUE, [NewMessage(b"x")])
            await pass_time(0.0005)
            await world.bridge.store.settle(QUEUE, Settlement(delete=(Claim(put.id, put.pop_receipt),)))
            await pass_time(0.0005)
        await pass_time(PROMPT_S)
        assert len(told.said) - before <= 25
        assert told.now is False


@simulated
async def test_a_stream_that_is_not_read_holds_one_answer() -> None:
    """The newest; who ends it, ends it at once, also one that is opened after the end."""
    async with World.made() as world:
        stream = world.watching.open(TARGET)
        for number in range(10):
            await world.bridge.store.put(QUEUE, [NewMessage(b"x")])
            await pass_time(1.0)
            if number % 2:
                await world.bridge.store.clear(QUEUE)
                await pass_time(1.0)
        assert await stream.next() is False
        world.watching.close()
        assert await stream.next() is None
        assert await world.watching.open(TARGET).next() is None
        assert world.watching.streams() == []


@contextlib.asynccontextmanager
async def clustered(
    server: MemoryServer, number: int, store: QueueStore, *, slept_s: float = 0.0
) -> AsyncIterator[World]:
    """Run one bridge of a cluster on this broker."""
    loop = asyncio.get_running_loop()
    bridge = Bridge(
        boot=f"{number:032x}", settings=BridgeSettings(periods=Periods(sweep_s=0.0)), store=store,
        boottime=lambda: loop.time() + slept_s,
    )  # fmt: skip
    line = BrokerClusterLink(bridge, "queuebell", ["bus"], name="shop")
    async with bridge:
        bus = Attachment(
            bridge, server.broker, "bus", server.kind,
            prefix="queuebell", sessions=BrokeredSessions(bridge, "queuebell"), announcer=None, brokers=["bus"],
            republish=True, cluster=line,
        )  # fmt: skip
        world = World(bridge, {})
        await bus.start()
        while not bus.check()[0]:
            await asyncio.sleep(0.01)
        try:
            yield world
        finally:
            await world.close()
            await bus.stop()


@simulated
async def test_any_bridge_of_a_cluster_can_be_asked() -> None:
    """The one that a trigger came to, and the other; busy workers of the other keep their pods."""
    engine = cast("QueueStore", Shared())
    server = MemoryServer()
    async with clustered(server, 1, engine) as one, clustered(server, 2, engine) as two:
        await pass_time(5.0)
        told = [await one.watch(), await two.watch()]
        assert [each.now for each in told] == [False, False]
        await one.bridge.store.put(QUEUE, [NewMessage(b"x")])
        await pass_time(PROMPT_S)
        assert [each.now for each in told] == [True, True]
        worker = two.worker()
        await engine.receive(QUEUE, 1, 600.0)
        two.cover(worker)
        worker.holds(1)
        await pass_time(2 * REPEAT_S)
        assert [each.now for each in told] == [True, True]
        assert (one.work(), two.work()) == (1, 1)
        await engine.clear(QUEUE)
        worker.holds(0)
        await pass_time(2 * REPEAT_S)
        assert [each.now for each in told] == [False, False]


@simulated
async def test_a_bridge_that_cannot_know_says_so_rather_than_end_anybody() -> None:
    """In a cluster that keeps no queues, of a queue that nobody counts, with a worker at the other bridge."""
    server = MemoryServer()
    async with clustered(server, 1, NoStore()) as one, clustered(server, 2, NoStore()) as two:
        await pass_time(5.0)
        told = await one.watch()
        assert (told.now, one.work()) == (False, 0)
        worker = two.worker()
        two.cover(worker)
        await pass_time(2.0)
        assert one.work() is None
        assert two.work() == 0
        one.trigger()
        await pass_time(PROMPT_S)
        assert one.work() == 1
        two.cover(worker)
        await pass_time(2.0)
        assert one.work() is None
        await worker.end()
        await pass_time(2.0)
        assert one.work() == 0, "nobody is there to be busy"


@simulated
async def test_a_bridge_that_is_cut_off_knows_nothing_of_other_workers_after_a_suspend() -> None:
    """Its messages no longer return; how long ago the last one did counts by the clock that runs during sleep."""
    server = MemoryServer()
    async with clustered(server, 1, NoStore(), slept_s=3600.0) as one, clustered(server, 2, NoStore()):
        await pass_time(5.0)
        assert one.work() == 0
        assert one.bridge.member is not None
        one.bridge.member.on_message = lambda message: None  # type: ignore[method-assign]
        await pass_time(5.0)
        assert one.work() is None
