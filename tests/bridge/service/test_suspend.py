"""B15 in the shell: clocks are compared before anything is answered, and lag is only counted."""

from __future__ import annotations

import asyncio
import time

import pytest

from bridge.contract.wire import (
    BridgeHeartbeat,
    Cover,
    Hello,
    ListenerHeartbeat,
    QueueBeat,
    Started,
    Subscription,
    Wake,
)
from bridge.observe.facts import Fact, LoopLagged, Suspended
from bridge.service.bridge import Bridge
from bridge.service.loop_watch import LoopWatch
from bridge.service.suspend_clocks import paired, system_clocks
from tests.support.ear import Ear
from tests.support.sim_loop import pass_time, simulated

QUEUE = "billing/orders"
HOUR = 3600.0


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
async def test_the_first_frame_after_a_suspend_is_answered_with_what_is_true_by_then() -> None:
    """No heartbeat says that the queue was covered a moment ago, and the queue is looked at."""
    machine, ear = Machine(), Ear()
    async with Bridge(boottime=machine.boottime) as bridge:
        facts = hear(bridge)
        session = bridge.connect(ear)
        session.feed(Hello("1" * 32, "one", [Subscription(QUEUE, 1)]))
        (wake,) = [frame for frame in ear.said if isinstance(frame, Wake)]
        session.feed(Started(QUEUE, bridge.boot, wake.gen))
        session.feed(Cover(QUEUE, bridge.boot, wake.gen, 0))
        ear.said.clear()
        machine.slept += HOUR
        session.feed(ListenerHeartbeat(1, {QUEUE: QueueBeat()}))
        (beat,) = [frame for frame in ear.said if isinstance(frame, BridgeHeartbeat)]
        age = beat.queues[QUEUE].covered_age_ms
        assert age is not None and age >= HOUR * 1000
        assert [frame.reason for frame in ear.said if isinstance(frame, Wake)] == ["resync"]
        assert [fact for fact in facts if isinstance(fact, Suspended)] == [Suspended(HOUR, 1)]


@simulated
async def test_a_session_that_was_lost_meanwhile_is_noticed_by_the_timers() -> None:
    """Nobody says anything: the bridge's own next look at its sessions finds it, and after a grace the dead."""
    machine, ear = Machine(), Ear()
    async with Bridge(boottime=machine.boottime) as bridge:
        facts = hear(bridge)
        bridge.connect(ear).feed(Hello("1" * 32, "one", [Subscription(QUEUE, 1)]))
        machine.slept += HOUR
        await pass_time(5.1)
        assert any(isinstance(fact, Suspended) for fact in facts)
        assert ear.closed is None
        await pass_time(7.5)
        assert ear.closed == "silent"


@simulated
async def test_a_watch_finds_a_suspend_that_nobody_follows_with_a_frame() -> None:
    """Within a second, without any session; and tells how late the loop is."""
    machine = Machine()
    async with Bridge(boottime=machine.boottime) as bridge:
        facts = hear(bridge)
        async with LoopWatch(bridge):
            await pass_time(3.5)
            assert [fact for fact in facts if isinstance(fact, Suspended)] == []
            machine.slept += 60.0
            await pass_time(1.0)
            assert [fact for fact in facts if isinstance(fact, Suspended)] == [Suspended(60.0, 0)]
        lags = [fact.lag_s for fact in facts if isinstance(fact, LoopLagged)]
        assert len(lags) == 4 and max(lags) < 0.001


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


def test_a_pair_that_is_further_apart_than_before_is_read_again() -> None:
    """Stopped for a minute between the two readings: the next try shows that nothing happened."""
    clock = [100.0]
    stops = [0.0]

    def still() -> float:
        return clock[0]

    def running() -> float:
        clock[0] += stops.pop() if stops else 0.0
        return clock[0] + 500.0

    read = paired(still, running)
    assert read() == (100.0, 600.0)
    stops.append(60.0)
    assert read() == (160.0, 660.0)


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32", "plan9"])
def test_the_pair_of_clocks_is_the_systems(platform: str) -> None:
    """Where there is none, a suspend goes unnoticed, and `check` says so."""
    names = {"linux": ("CLOCK_MONOTONIC", "CLOCK_BOOTTIME"), "darwin": ("CLOCK_UPTIME_RAW", "CLOCK_MONOTONIC")}
    has = platform in names and all(hasattr(time, name) for name in names[platform])
    assert (system_clocks(platform) is not None) == has


def test_the_systems_clocks_agree_while_it_is_awake() -> None:
    """Two readings of this machine's clocks are no gap."""
    clocks = system_clocks()
    if clocks is None:
        return
    first, second = clocks(), clocks()
    assert first is not None and second is not None
    assert abs((second[1] - second[0]) - (first[1] - first[0])) < 5.0
