"""What the own store tells reaches sessions with the numbers of the queue it is about."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from queuebell.bridge import Bridge, NewMessage, WrongThread
from queuebell.bridge.contract.event import CloudQueueWorkDetected
from queuebell.bridge.contract.wire import Hello, Subscription, Wake, Welcome
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.observe.facts import Fact, LoopLagged, Suspended
from queuebell.bridge.producer.buses.memory import MemoryBus
from queuebell.bridge.queues.embedded.state import Backlog, GrantResult
from queuebell.bridge.service.bridge import BridgeSettings
from queuebell.bridge.service.channels.brokered import BrokeredSessions
from queuebell.bridge.service.clocks import LoopWatch, paired, system_clocks
from queuebell.bridge.service.embedded_feed import EmbeddedFeed
from queuebell.bridge.triggers.attachment import Attachment
from queuebell.listeners import Message
from queuebell.listeners.session.channel import LocalChannel
from tests.listeners.rig import QUEUE, Store, listening
from tests.support.memory_broker import MemoryServer
from tests.support.sim_loop import pass_time, simulated


class Machine:
    """A clock that goes on while the machine sleeps, beside the loop's that does not."""

    def __init__(self) -> None:
        self.slept = 0.0

    def boottime(self) -> float:
        return asyncio.get_running_loop().time() + self.slept


def hear(bridge: Bridge) -> list[Fact]:
    facts: list[Fact] = []
    bridge.observe(facts.append)
    return facts


@simulated
async def test_a_loop_that_lags_is_counted_and_nothing_is_looked_at() -> None:
    """Ten seconds late with both clocks running: one figure, no mark."""
    machine = Machine()
    loop = asyncio.get_running_loop()
    async with Bridge(boottime=machine.boottime) as bridge:
        facts = hear(bridge)
        async with LoopWatch(bridge):
            await pass_time(0.5)
            loop.late(10.0)  # type: ignore[attr-defined]
            await pass_time(0.6)
        assert [fact for fact in facts if isinstance(fact, Suspended)] == []
        assert max(fact.lag_s for fact in facts if isinstance(fact, LoopLagged)) > 9.0
        assert b"queuebell_loop_lag_seconds_count 1.0" in bridge.metrics.render()


def test_two_clocks_are_read_as_one_moment_or_not_at_all() -> None:
    """A process that is stopped between the two readings would look like a machine that slept."""
    ticks = iter([0.0, 60.0, 60.0, 60.0])
    assert paired(lambda: next(ticks), lambda: 500.0)() == (60.0, 500.0)
    slow = iter(float(tick) for tick in range(100))
    assert paired(lambda: next(slow), lambda: 500.0)() is None


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32", "plan9"])
def test_the_pair_of_clocks_is_the_systems(platform: str) -> None:
    """Where there is none, a suspend goes unnoticed, and `check` says so."""
    names = {"linux": ("CLOCK_MONOTONIC", "CLOCK_BOOTTIME"), "darwin": ("CLOCK_UPTIME_RAW", "CLOCK_MONOTONIC")}
    has = platform in names and all(hasattr(time, name) for name in names[platform])
    assert (system_clocks(platform) is not None) == has


QUEUE_THREADS = "billing/orders"
EVENT = CloudQueueWorkDetected("billing", "orders")
ELSEWHERE = {
    "trigger": lambda bridge: bridge.trigger([EVENT], bus="here"),
    "trigger in a loop": lambda bridge: asyncio.run(MemoryBus(bridge).publish([EVENT])),
    "gap": lambda bridge: bridge.gap(),
    "put": lambda bridge: asyncio.run(bridge.store.put(QUEUE_THREADS, [NewMessage(b"x")])),
    "receive": lambda bridge: asyncio.run(bridge.store.receive(QUEUE_THREADS)),
}


@pytest.mark.parametrize("name", ELSEWHERE)
@pytest.mark.parametrize("kept", [False, True], ids=["memory", "file"])
async def test_a_bridge_belongs_to_its_thread(name: str, kept: bool, tmp_path: Path) -> None:
    """Nothing is done elsewhere; handed over as the error says, all works."""
    call: Callable[[Bridge], object] = ELSEWHERE[name]
    async with Bridge(tmp_path if kept else None) as bridge:
        with pytest.raises(WrongThread, match=r"asyncio\.run_coroutine_threadsafe"):
            await asyncio.to_thread(call, bridge)
        assert not bridge.scheduler.pending.find(QUEUE_THREADS)
        loop = asyncio.get_running_loop()

        def put() -> None:
            asyncio.run_coroutine_threadsafe(bridge.store.put(QUEUE_THREADS, [NewMessage(b"x")]), loop).result()

        await asyncio.to_thread(put)
        assert bridge.scheduler.pending.find(QUEUE_THREADS)


@asynccontextmanager
async def bridged(server: MemoryServer, sweep_s: float) -> AsyncIterator[Bridge]:
    """Run a bridge on the broker."""
    async with Bridge(settings=BridgeSettings(periods=Periods(sweep_s=sweep_s))) as bridge:
        bus = Attachment(
            bridge, server.broker, "bus", server.kind,
            prefix="queuebell", sessions=BrokeredSessions(bridge, "queuebell"), announcer=None, brokers=["bus"],
            republish=True,
        )  # fmt: skip
        await bus.start()
        while not bus.check()[0]:
            await asyncio.sleep(0.01)
        try:
            yield bridge
        finally:
            await bus.stop()


class Pair:
    """A store elsewhere, the broker that two bridges share, and when their listeners handled what."""

    def __init__(self) -> None:
        self.server, self.store = MemoryServer(), Store()
        self.handled: list[tuple[bytes, float]] = []

    async def handle(self, message: Message) -> None:
        self.handled.append((message.body, now()))

    async def put(self, *bodies: bytes) -> None:
        await self.store.fill(*bodies)
        self.ring()

    def ring(self) -> None:
        """Have both bridges told that there is work."""
        self.server.deliver(("queuebell", "trigger", "billing", "orders"), b"")


def now() -> float:
    return asyncio.get_running_loop().time()


@asynccontextmanager
async def pair(sweep_s: float, *listeners: str, **options: Any) -> AsyncIterator[Pair]:
    """Run both bridges, with a listener at each that is named or at both, past the looks that a queue's birth costs."""
    site = Pair()
    async with bridged(site.server, sweep_s) as one, bridged(site.server, sweep_s) as other, AsyncExitStack() as stack:
        for name in listeners or ("one", "other"):
            bridge = {"one": one, "other": other}[name]
            await stack.enter_async_context(listening(site.store, site.handle, bridge=bridge, **options))
        await pass_time(10)
        yield site
    await site.store.close()


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("sweep_s", [0.0, 600.0])
@simulated
async def test_the_lease_of_who_died_elsewhere_is_looked_for_at_its_end(sweep_s: float, others: int) -> None:
    """Whoever leased it is no session here any more, or never was one: the idle listener of the other bridge looks."""
    async with pair(sweep_s, "other") as site:
        await site.store.fill(b"held")
        await site.store.receive(QUEUE, 1, 6.0)
        began = now()
        site.ring()
        await pass_time(1)
        # Work of its own meanwhile, whose leases end later or sooner, hides nothing.
        for number in range(others):
            await site.put(b"%d" % number)
            await pass_time(1)
        await pass_time(20)
        (taken,) = [at for body, at in site.handled if body == b"held"]
        assert 6.0 <= taken - began < 7.0
        assert len(site.handled) == 1 + others


@pytest.mark.parametrize(("flush_s", "left_ms"), [(0.4, 1600), (1.1, None)])
async def test_a_lease_that_is_carried_counts_from_before_the_flush(
    flush_s: float, left_ms: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is told what is left; below half it is taken back, uncounted, and the wake asks for a receive."""
    ahead, now, committed = 0.0, Bridge.now, EmbeddedFeed.committed

    def later(feed: EmbeddedFeed, backlogs: list[Backlog], handed: list[GrantResult]) -> None:
        nonlocal ahead
        ahead += flush_s if handed else 0.0
        committed(feed, backlogs, handed)

    monkeypatch.setattr(Bridge, "now", lambda bridge: now(bridge) + ahead)
    monkeypatch.setattr(EmbeddedFeed, "committed", later)
    async with Bridge() as bridge:
        link = await LocalChannel(bridge).connect()
        link.send(Hello("a" * 32, "one", [Subscription(QUEUE, 1, own=True)], ["messages"]))
        assert isinstance(await link.receive(), Welcome)
        await bridge.store.put(QUEUE, [NewMessage(b"x")])
        while not isinstance(wake := await link.receive(), Wake):
            pass
        if left_ms is None:
            assert not wake.messages
            (message,) = (await bridge.store.receive(QUEUE)).messages
            assert message.dequeue_count == 1
        else:
            assert wake.messages is not None
            assert left_ms - 200 < wake.messages[0].visible_in_ms <= left_ms
        await link.close()
