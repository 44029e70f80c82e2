"""The fan-out to plain subscribers: one slot per subscriber and queue (I5, B12)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace

from bridge.contract.trace_context import Traces
from bridge.contract.wire import Wake
from bridge.core.announced import Pending
from bridge.core.commands import Announce
from bridge.service.announcing import Announcer
from tests.support.steps import steps


class Source:
    """A bridge that announces what it is told to."""

    boot = "b" * 32

    def __init__(self) -> None:
        self.hearing: list[Callable[[Announce], None]] = []
        self.debts: dict[str, tuple[int, bool]] = {}

    def subscribe(self, hear: Callable[[Announce], None]) -> Callable[[], None]:
        self.hearing.append(hear)
        return lambda: self.hearing.remove(hear)

    def newest(self, queue: str) -> tuple[int, bool]:
        return self.debts.get(queue, (0, False))

    @property
    def bell(self) -> SimpleNamespace:
        debts = {queue: SimpleNamespace(queue=queue, waits=waits) for queue, (_, waits) in self.debts.items()}
        return SimpleNamespace(turns=None, ledger=SimpleNamespace(debts=debts))

    def announce(self, queue: str, gen: int, size: int = 1, trace: str | None = None) -> None:
        now = asyncio.get_running_loop().time()
        for hear in self.hearing:
            hear(Announce(queue, gen, "trigger", size, now, trace))


class Ear:
    """A subscriber with a door that can be shut."""

    def __init__(self) -> None:
        self.open = True
        self.heard: list[Wake] = []
        self.arrived = asyncio.Event()

    def writable(self) -> bool:
        return self.open

    def send(self, wake: Wake) -> None:
        self.heard.append(wake)
        self.arrived.set()

    async def next(self) -> None:
        async with asyncio.timeout(100):
            await self.arrived.wait()
        self.arrived.clear()


async def test_what_is_announced_in_one_turn_is_one_wake() -> None:
    """The newest generation with all the work that was hinted at; in the order of generations."""
    source, ear, deaf = Source(), Ear(), Ear()
    announcer = Announcer(source)
    announcer.subscribe(["a/x", "a/y"], writable=ear.writable, send=ear.send)
    announcer.subscribe(["a/z"], writable=deaf.writable, send=deaf.send)
    for gen, queue in enumerate(["a/x", "a/y", "a/x", "a/other"], 1):
        source.announce(queue, gen, gen, "t1" if gen == 1 else None)
    await ear.next()
    assert [(wake.queue, wake.gen, wake.size, wake.traceparent) for wake in ear.heard] == [
        ("a/y", 2, 2, None),
        ("a/x", 3, 4, "t1"),
    ]
    assert {wake.boot for wake in ear.heard} == {source.boot}
    assert deaf.heard == []
    announcer.close()


async def test_a_wake_tells_the_traces_of_all_that_became_one() -> None:
    """One by its traceparent alone."""
    source, ear = Source(), Ear()
    announcer = Announcer(source)
    announcer.subscribe(["a/x", "a/y"], writable=ear.writable, send=ear.send)
    first, second = (f"00-{n:032x}-{n:016x}-01" for n in (1, 2))
    for gen, (queue, trace) in enumerate([("a/x", first), ("a/x", second), ("a/y", first)], 1):
        source.announce(queue, gen, 1, trace)
    await ear.next()
    assert [wake.traces for wake in ear.heard] == [Traces((first, second)), None]
    announcer.close()


async def test_i5_a_shut_door_keeps_one_slot_per_queue_and_delays_nobody() -> None:
    """100,000 wakes for three queues: the other hears all along, the shut one then hears three."""
    source, shut, ear = Source(), Ear(), Ear()
    announcer = Announcer(source)
    shut.open = False
    slow = announcer.subscribe(["a/q0", "a/q1", "a/q2"], writable=shut.writable, send=shut.send)
    announcer.subscribe(None, writable=ear.writable, send=ear.send)
    for gen in range(100_000):
        source.announce(f"a/q{gen % 3}", gen)
        if gen % 1000 == 0:
            await ear.next()
    while ear.heard[-1].gen < 99_999:
        await ear.next()
    assert (len(slow.slots), shut.heard) == (3, [])
    shut.open = True
    while len(shut.heard) < 3:
        await shut.next()
    assert [wake.gen for wake in shut.heard] == [99_997, 99_998, 99_999]
    assert not slow.slots
    announcer.close()


async def test_catching_up_tells_of_what_is_newer_or_owed() -> None:
    """Clean queues with nothing new are not told again."""
    source, ear = Source(), Ear()
    source.debts = {"a/new": (9, False), "a/owed": (3, True), "a/old": (4, False)}
    announcer = Announcer(source)
    subscriber = announcer.subscribe(["a/new", "a/owed", "a/old", "a/unknown"], writable=ear.writable, send=ear.send)
    announcer.catch_up(subscriber, 5)
    assert [(wake.queue, wake.gen, wake.reason) for wake in ear.heard] == [
        ("a/owed", 3, "resync"),
        ("a/new", 9, "resync"),
    ]
    announcer.close()


async def test_who_hears_of_all_queues_catches_up_with_those_where_work_waits() -> None:
    """A bus that was away: its subscribers are told of work, not of everything that ever was."""
    source, ear = Source(), Ear()
    source.debts = {"a/new": (9, False), "a/owed": (3, True), "b/owed": (4, True)}
    announcer = Announcer(source)
    announcer.catch_up(announcer.subscribe(None, writable=ear.writable, send=ear.send), 0)
    assert [(wake.queue, wake.gen, wake.reason) for wake in ear.heard] == [
        ("a/owed", 3, "resync"),
        ("b/owed", 4, "resync"),
    ]
    announcer.close()


async def test_without_subscribers_a_mark_costs_nothing() -> None:
    """The bridge is asked for wakes with the first, and no more after the last; one may end from within a wake."""
    source, ear = Source(), Ear()
    announcer = Announcer(source)
    assert source.hearing == []
    other = announcer.subscribe(["a/x"], writable=ear.writable, send=lambda wake: last.end())
    last = announcer.subscribe(["a/x"], writable=ear.writable, send=ear.send)
    source.announce("a/x", 1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert ear.heard == []
    assert len(source.hearing) == 1
    other.end()
    other.end()
    assert source.hearing == []
    announcer.subscribe(None, writable=ear.writable, send=ear.send)
    announcer.close()
    assert source.hearing == []


async def spread(queues: int, size: int) -> float:
    """Return the steps that one announcement costs a subscriber who takes ``size`` wakes of so many, then no more."""
    source, ear = Source(), Ear()
    announcer = Announcer(source)  # type: ignore[arg-type]
    subscriber = announcer.subscribe(None, writable=lambda: len(ear.heard) < size, send=ear.send)
    subscriber.way = "shared"  # each is put into its slot, as where bridges take turns
    announcer._may_tell = lambda way, announced: True  # type: ignore[method-assign]
    for gen in range(queues):
        source.announce(f"a/q{gen}", gen + 1)
    announcer._put(subscriber, Announce("a/last", queues + 1, "trigger", 1, 0.0, None))
    counted = steps(announcer._spread) + steps(announcer._flush_due)
    assert [wake.gen for wake in ear.heard] == list(range(1, size + 1))
    announcer.close()
    return counted / queues


async def test_what_an_announcement_costs_does_not_grow_with_those_that_wait() -> None:
    """A subscriber takes one in ten, and the others stay in their slots."""
    few, many = await spread(100, 10), await spread(10_000, 1000)
    assert many <= 1.2 * few, (few, many)


async def test_a_pending_announcement_is_one_a_queue_however_often_it_is_merged() -> None:
    """In the order of generations; what a stalled subscriber keeps does not grow with what it misses."""
    pending = Pending()
    for gen in range(1, 1001):
        pending.add(Announce(f"a/q{gen % 3}", gen, "trigger", 1, 0.0, None))
    assert (len(pending), len(pending._order) < 50) == (3, True)
    taken = [pending.first() for _ in range(3)]
    assert [(each.queue, each.gen) for each in taken if each is not None] == [
        ("a/q2", 998),
        ("a/q0", 999),
        ("a/q1", 1000),
    ]
    assert pending.first() is None
    pending.add(Announce("a/q0", 1001, "trigger", 1, 0.0, None))
    pending.add(Announce("a/q1", 1000, "trigger", 1, 0.0, None))
    assert pending.pop("a/q1") is not None
    assert pending.pop("a/q1") is None
    assert [each.gen for each in (pending.first(), pending.first()) if each is not None] == [1001]
