"""Parts of a bridge in which one operation is counted beside a hundred or ten thousand of something.

Each world has ``fill_...``, which brings so many of a thing, and operations named as in the table. An operation leaves
the world as it was, so that it can be done several times.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import itertools
from collections.abc import AsyncIterator, Iterator

from queuebell.bridge.contract.burial import Burial, write_burial
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.producer.replay import ReplayOptions, ReplayRun
from queuebell.bridge.queues.base import Claim, NewMessage, Release, Settlement
from queuebell.bridge.queues.embedded.store import MemoryStore
from queuebell.bridge.service.announcing import Announcer
from queuebell.bridge.service.bridge import Bridge
from queuebell.listeners.session.session import shares
from tests.exploration.cluster.plan import Plan
from tests.exploration.cluster.world import World as Bridges
from tests.support.bells import QUEUE, Rig
from tests.support.growth import Work, counted

# Private: `_engine`: rows inserted before the count.

POISON = f"{QUEUE}-poison"
NOON = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
_names = itertools.count()


class Rules:
    """A bell, with an idle listener of `QUEUE` and its neighbour."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Rules]:
        """Begin."""
        self.rig = Rig()
        self.listener = self.rig.join(QUEUE, "billing/other")
        self._cover()
        yield self

    def _cover(self) -> None:
        for number in list(self.rig.frames):
            session = self.rig.scheduler.sessions.get(number)
            for queue in () if session is None else tuple(session.queues):
                work = self.rig.scheduler.pending.by_queue[queue]
                if work.dirty:
                    self.rig.started(number, work.gen, queue)
                    self.rig.cover(number, work.gen, queue)

    async def fill_queues(self, count: int) -> None:
        """Names with work that nobody listens to."""
        for number in range(count):
            self.rig.trigger(f"many/q{number}")

    async def fill_listeners(self, count: int) -> None:
        """Sessions at the same queue; of the same store."""
        for _ in range(count):
            self.rig.join(QUEUE, store="aa11")

    async def fill_sessions(self, count: int) -> None:
        """Sessions at other queues, which have covered them."""
        for number in range(count):
            queue = f"many/q{number}"
            session = self.rig.join(queue)
            self.rig.cover(session, self.rig.scheduler.pending.by_queue[queue].gen, queue)

    async def fill_leased(self, count: int) -> None:
        """Leases on the queue that end at times of their own."""
        for number in range(count):
            self.rig.scheduler.timers.arm_due(self.rig.work(), self.rig.now, 1000.0 + number, "lease", 1)

    async def fill_delayed(self, count: int) -> None:
        """Delays at other queues."""
        for number in range(count):
            self.rig.trigger(f"many/q{number}", not_before_ms=1_000_000 + number)

    async def trigger(self) -> Work:
        """Of a queue with a listener: it is woken."""
        with counted() as work:
            self.rig.trigger()
        await self._settle()
        return work

    async def wake_and_cover(self) -> Work:
        """The listener says that it began, and that it found nothing."""
        self.rig.trigger()
        pending = self.rig.work()
        owner = pending.owner or self.listener
        with counted() as work:
            self.rig.started(owner, pending.gen)
            self.rig.cover(owner, pending.gen)
        return work

    async def _settle(self) -> None:
        work = self.rig.work()
        self.rig.started(work.owner or self.listener, work.gen)
        self.rig.cover(work.owner or self.listener, work.gen)

    async def hello(self) -> Work:
        """Of one more listener of the queue."""
        with counted() as work:
            number = self.rig.join(QUEUE, store="aa11")
        self.rig.bye(number)
        return work

    async def fill_subscribed(self, count: int) -> None:
        """Queues of one listener, in as many sessions as it takes."""
        self.mine = [f"mine/q{number}" for number in range(count)]

    async def hello_by_queue(self) -> Work:
        """Of that listener, what each of its queues takes of all its hellos."""
        with counted() as work:
            numbers = [self.rig.join(*share) for share in shares(self.mine)]
        for number in numbers:
            self.rig.bye(number)
        work.steps //= len(self.mine)
        work.cpu_s /= len(self.mine)
        return work

    async def session_end(self) -> Work:
        """Of that one, whose connection breaks."""
        number = self.rig.join(QUEUE, store="aa11")
        self.rig.beat(number, free=32, gen=self.rig.work().gen)
        with counted() as work:
            self.rig.lose(number)
        return work

    async def heartbeat(self) -> Work:
        """Of the listener."""
        with counted() as work:
            self.rig.beat(self.listener, free=32, gen=self.rig.work().gen)
        return work


class Store:
    """An embedded store with one queue; steps of SQLite count too."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Store]:
        """Begin."""
        self.times = 1000.0
        async with MemoryStore(
            f"growth-{next(_names)}", clock=lambda: self.times, wall=lambda: 1e9 + self.times
        ) as self.store:
            await self.store.put(QUEUE, [b"x"] * 8)
            yield self

    async def _put(self, count: int, **more: int) -> None:
        for _ in range(count // 32 + 1):
            await self.store.put(QUEUE, [NewMessage(b"x", **more)] * 32)

    async def fill_messages(self, count: int) -> None:
        """Visible ones of the same queue."""
        await self._put(count)

    async def fill_delayed(self, count: int) -> None:
        """Ones of the same queue that are due later."""
        await self._put(count, visible_after_ms=3_600_000)

    async def fill_expiring(self, count: int) -> None:
        """Ones of the same queue that expire later."""
        await self._put(count, ttl_s=3600)

    async def fill_leased(self, count: int) -> None:
        """Ones of the same queue that somebody holds."""
        await self._put(count)
        for _ in range(count // 32 + 1):
            await self.store.receive(QUEUE, 32, 3600)

    async def fill_dead_letters(self, count: int) -> None:
        """Ones of its poison queue."""
        body = write_burial(Burial(QUEUE, "17", NOON, NOON, "no", 5), b"order", 65_536)
        assert body is not None
        for _ in range(count // 32 + 1):
            await self.store.put(POISON, [NewMessage(body)] * 32)

    async def fill_unmatched(self, count: int) -> None:
        """Dead letters that a replay by reason does not choose."""
        self.unmatched = count
        await self.fill_dead_letters(count)

    async def fill_queues(self, count: int) -> None:
        """Others, with a message each."""
        for number in range(count):
            await self.store.put(f"many/q{number}", [b"x"])

    @contextlib.contextmanager
    def _counted(self) -> Iterator[Work]:
        engine = self.store._engine()
        assert engine is not None
        steps = [0]

        def step() -> None:
            steps[0] += 1

        engine.state.connection.set_progress_handler(step, 10)
        try:
            with counted() as work:
                yield work
        finally:
            engine.state.connection.set_progress_handler(None, 0)
        work.steps += 10 * steps[0]

    async def put(self) -> Work:
        """One message."""
        with self._counted() as work:
            await self.store.put(QUEUE, [b"x"])
        return work

    async def receive(self) -> Work:
        """One message, which is given back."""
        with self._counted() as work:
            (message,) = (await self.store.receive(QUEUE, 1, 60)).messages
        release = Release(message.id, message.pop_receipt, uncounted=True)
        await self.store.settle(QUEUE, Settlement(release=[release]))
        return work

    async def delete(self) -> Work:
        """One message that was received."""
        await self.store.put(QUEUE, [b"x"])
        (message,) = (await self.store.receive(QUEUE, 1, 60)).messages
        with self._counted() as work:
            await self.store.settle(QUEUE, Settlement(delete=[Claim(message.id, message.pop_receipt)]))
        return work

    async def replay(self) -> Work:
        """One message of the poison queue."""
        await self.fill_dead_letters(1)
        with self._counted() as work:
            run = ReplayRun(self.store, self.store, POISON, ReplayOptions(most=1), 1, clock=lambda: 0.0)
            assert (await run.run()).moved == 1
        return work

    async def pass_over_one(self) -> Work:
        """What each message of the poison queue takes of a replay that chooses none of them."""
        with self._counted() as work:
            run = ReplayRun(
                self.store, self.store, POISON, ReplayOptions(reason="never"), self.unmatched, clock=lambda: 0.0
            )
            assert (await run.run()).moved == 0
        work.steps //= self.unmatched
        work.cpu_s /= self.unmatched
        return work


class Plain:
    """A bridge with one plain subscriber of `QUEUE`."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Plain]:
        """Begin."""
        async with Bridge() as self.bridge:
            self.announcer = Announcer(self.bridge)
            self.writable = True
            self.announcer.subscribe([QUEUE], writable=lambda: True, send=lambda wake: None)
            try:
                yield self
            finally:
                self.writable = True
                self.announcer.close()

    async def fill_subscribers(self, count: int) -> None:
        """Of other queues."""
        for number in range(count):
            self.announcer.subscribe([f"many/q{number}"], writable=lambda: True, send=lambda wake: None)

    async def fill_queues(self, count: int) -> None:
        """Of which a subscriber that takes nothing has not heard yet."""
        self.writable = False
        self.announcer.subscribe(None, writable=lambda: self.writable, send=lambda wake: None)
        for number in range(count):
            self._trigger(f"q{number}", "many")
        await self._turns()

    def _trigger(self, name: str = "orders", account: str = "billing") -> None:
        self.bridge.trigger([CloudQueueWorkDetected(account, name, 1)], bus="local")

    async def _turns(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    async def publish(self) -> Work:
        """One trigger."""
        with counted() as work:
            self._trigger()
            await self._turns()
        return work


class Cluster:
    """Two bridges that take turns, each with a listener."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Cluster]:
        """Begin."""
        self.world = Bridges(Plan(messages=0))
        yield self

    async def fill_queues(self, count: int) -> None:
        """That both were told of, and nobody listens to."""
        for number in range(count):
            event = CloudQueueWorkDetected("many", f"q{number}", 1)
            for place in range(2):
                self.world.deliver(place, event)
        for link in self.world.links.values():
            link.clear()

    async def cluster_word(self) -> Work:
        """What one bridge tells the other of a trigger, from there to the end of the work."""
        with counted() as work:
            for place in range(2):
                self.world.deliver(place, CloudQueueWorkDetected("billing", "orders", 1))
            self.world.settle(1.0)
        return work
