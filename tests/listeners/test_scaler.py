"""The scaler as a class, with a bridge of this process and workers that are only counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import pytest

from bridge import Bridge, StoreUnavailable
from bridge.contract.wire import Hello, Processes, UpFrame, Welcome, WelcomedQueue
from bridge.core.settings import Periods
from bridge.queues.base import Capabilities, Depth, NewMessage, QueueStore
from bridge.service.bridge import BridgeSettings
from bridge.service.status import workers
from listeners import Scaler
from listeners.core.scaled_queue import Proof
from listeners.scaling.actuators.base import Hears, StartFailed
from listeners.scaling.scaled import counts_of, proof_of, shortened
from tests.listeners.rig import Store
from tests.support.fake_bridge import FakeBridge, FakeLink
from tests.support.processes import PATIENCE_S
from tests.support.sim_loop import elapse, pass_time, simulated

QUEUE = "billing/orders"


class Counted:
    """An actuator that starts nothing; ``fails`` says how many starts do first, ``able`` how many it starts at once."""

    outlives = False
    unseen: str | None = None

    def __init__(self, fails: int = 0, able: int | None = None) -> None:
        self.fails = fails
        self.able = able
        self.starts: list[float] = []
        self.started: list[str] = []
        self.alive: list[str] = []
        self._hears: Hears | None = None
        self._news = asyncio.Event()

    async def open(self, hears: Hears) -> None:
        """Take who is told."""
        self._hears = hears

    async def start(self, count: int) -> list[str]:
        """Pretend, unless it is to fail."""
        self._news.set()
        self.starts.append(asyncio.get_running_loop().time())
        able = count if self.able is None else min(count, self.able)
        ids = [] if self.fails else [str(len(self.started) + step) for step in range(able)]
        self.started += ids
        self.alive += ids
        if self.fails:
            self.fails -= 1
            raise StartFailed("no quota")
        if able < count:
            raise StartFailed("out of memory", ids)
        return ids

    async def stop(self, ids: Sequence[str]) -> None:
        """End at once."""
        for number in [number for number in ids if number in self.alive]:
            self.alive.remove(number)
            assert self._hears is not None
            self._hears.ended(number, 0, "exit code 0")
        self._news.set()

    async def look(self) -> None:
        """See nothing new."""

    def running(self) -> list[str]:
        """Return those that live."""
        return list(self.alive)

    async def close(self) -> None:
        """End all."""
        await self.stop(list(self.alive))

    def ready(self) -> None:
        """Have all that live be ready and idle."""
        assert self._hears is not None
        for number in self.alive:
            self._hears.ready(number)
            self._hears.says(number, busy=False)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds of it."""
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                self._news.clear()
                await self._news.wait()


class Counting(Store):
    """A store in memory that notes when it was counted."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: list[float] = []

    async def depth(self, queue: str) -> Depth | None:
        self.counted.append(asyncio.get_running_loop().time())
        return await super().depth(queue)


class SweepingBridge(FakeBridge):
    """A bridge whose queues have a sweep of their own, where it is not None."""

    def __init__(self, sweep_ms: int | None) -> None:
        super().__init__()
        self.sweep_ms = sweep_ms

    def heard(self, link: FakeLink, frame: UpFrame) -> None:
        super().heard(link, frame)
        if isinstance(frame, Hello):
            states = [WelcomedQueue(sub.queue, self.gen, True, None, sweep_ms=self.sweep_ms) for sub in frame.queues]
            link.down.get_nowait()
            link.down.put_nowait(Welcome(self.boot, 5000, 60_000, 1, states))


async def test_a_put_starts_and_idleness_ends() -> None:
    """As many as the depth is worth; all end with the scaler at the latest."""
    actuator = Counted()
    async with Bridge() as bridge:
        scaler = Scaler(bridge, QUEUE, actuator, bridge=bridge, max=3, per_process=2, idle=0.0)
        running = asyncio.create_task(scaler.run(), name="scaler")
        await bridge.store.put(QUEUE, ["a", "b", "c"])
        await actuator.until(lambda: len(actuator.started) == 2)
        state = scaler.state()
        assert state is not None
        assert (state.wanted, state.running) == (2, 2)
        await bridge.store.clear(QUEUE)
        actuator.ready()
        await actuator.until(lambda: not actuator.alive)
        await bridge.store.put(QUEUE, ["d"])
        await actuator.until(lambda: len(actuator.started) == 3)
        await scaler.stop()
        assert actuator.alive == []
        await running
        with pytest.raises(RuntimeError):
            await scaler.run()


async def test_a_start_that_fails_is_said_and_repeated(caplog: pytest.LogCaptureFixture) -> None:
    """After a second, with the reason in its state meanwhile."""
    actuator = Counted(fails=1)
    async with Bridge() as bridge:
        await bridge.store.put(QUEUE, ["a"])
        scaler = Scaler(bridge, QUEUE, actuator, bridge=bridge)
        running = asyncio.create_task(scaler.run(), name="scaler")
        await actuator.until(lambda: actuator.fails == 0)
        await actuator.until(lambda: actuator.alive != [])
        state = scaler.state()
        assert state is not None and state.failure == "no quota"
        assert "no worker could be started: no quota" in caplog.text
        await scaler.stop()
        await running


async def test_a_burst_while_the_first_starts_does_not_wait_for_it() -> None:
    """The bridge tells the scaler of each put, and it counts again: a worker may take half a minute (Z5)."""
    actuator = Counted()
    async with Bridge() as bridge:
        scaler = Scaler(bridge, QUEUE, actuator, bridge=bridge, max=4, per_process=1)
        running = asyncio.create_task(scaler.run(), name="scaler")
        await bridge.store.put(QUEUE, ["a"])
        await actuator.until(lambda: len(actuator.started) == 1)
        await bridge.store.put(QUEUE, ["b", "c"])
        await actuator.until(lambda: len(actuator.started) == 3)
        await bridge.store.put(QUEUE, ["d", "e", "f"])
        await actuator.until(lambda: len(actuator.started) == 4)
        await scaler.stop()
        await running


async def test_the_last_worker_waits_for_what_is_due_soon() -> None:
    """As heartbeats say: idle long enough, it would be missed before another is ready (Z2)."""
    actuator = Counted()
    async with Bridge(settings=BridgeSettings(periods=Periods(heartbeat_s=0.1))) as bridge:
        store = bridge.store
        scaler = Scaler(bridge, QUEUE, actuator, bridge=bridge, idle=0.3)
        running = asyncio.create_task(scaler.run(), name="scaler")
        await store.put(QUEUE, ["now"])
        await actuator.until(lambda: actuator.started == ["0"])
        await store.clear(QUEUE)
        await store.put(QUEUE, [NewMessage("later", visible_after_ms=2000)])
        actuator.ready()
        while not (await store.depth(QUEUE)).visible:
            await asyncio.sleep(0.02)
        assert actuator.alive == ["0"]
        await store.clear(QUEUE)
        await actuator.until(lambda: not actuator.alive)
        assert actuator.started == ["0"]
        await scaler.stop()
        await running


async def test_a_machine_with_room_for_some_runs_those(caplog: pytest.LogCaptureFixture) -> None:
    """S48: The others are tried again after a back-off, and nobody is ended for it."""
    actuator = Counted(able=2)
    async with Bridge() as bridge:
        await bridge.store.put(QUEUE, ["a", "b", "c"])
        scaler = Scaler(bridge, QUEUE, actuator, bridge=bridge, per_process=1)
        running = asyncio.create_task(scaler.run(), name="scaler")
        await actuator.until(lambda: len(actuator.started) == 2)
        actuator.ready()
        await actuator.until(lambda: len(actuator.started) == 3)
        assert actuator.starts[1] - actuator.starts[0] > 0.5
        assert actuator.alive == ["0", "1", "2"]
        assert "2 of 3 workers were started: out of memory. Nothing is lost" in caplog.text
        await scaler.stop()
        await running


async def test_workers_that_cannot_be_seen_are_said_at_the_bridge() -> None:
    """In the scaler's state, and in the words of its heartbeats at the bridge, as no worker's failure."""
    actuator = Counted()
    actuator.unseen = "deployments.apps is forbidden"
    async with Bridge() as bridge:
        await bridge.store.put(QUEUE, ["a"])
        scaler = Scaler(bridge, QUEUE, actuator, bridge=bridge)
        running = asyncio.create_task(scaler.run(), name="scaler")
        await actuator.until(lambda: actuator.alive != [])
        state = scaler.state()
        assert state is not None
        assert state.failure == "it cannot be seen which workers run: deployments.apps is forbidden"
        told = Processes(wanted=1, ready=1, starting=0, running=1, failure=state.failure)
        assert workers(told) == f"1 worker wanted, 1 ready, 0 starting; {state.failure}"
        assert workers(msgspec.structs.replace(told, failure="exit code 1")).endswith("; the last failed: exit code 1")
        await scaler.stop()
        await running


async def test_a_store_that_cannot_be_counted_is_said_and_one_is_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """S49: While there may be work: the worker sees to it."""
    actuator = Counted()
    async with Bridge() as bridge:
        store: QueueStore = bridge.store

        async def away(queue: str) -> None:
            raise StoreUnavailable("no answer from the store")

        await store.put(QUEUE, ["a"])
        monkeypatch.setattr(store, "depth", away)
        scaler = Scaler(store, QUEUE, actuator, bridge=bridge, per_process=1)
        running = asyncio.create_task(scaler.run(), name="scaler")
        await actuator.until(lambda: actuator.started == ["0"])
        assert "the store cannot be counted" in caplog.text
        state = scaler.state()
        assert state is not None and state.failure == "no answer from the store"
        await scaler.stop()
        await running


async def test_what_a_count_proves_is_known_once_the_store_has_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues of a bridge may be those of an engine that counts roughly: then a 0 has one worker look (Z7)."""
    actuator = Counted()
    async with Bridge() as bridge:
        store: QueueStore = bridge.store

        async def rough(queue: str) -> Depth:
            monkeypatch.setattr(store, "capabilities", msgspec.structs.replace(store.capabilities, exact_depth=False))
            return Depth(0, 0)

        monkeypatch.setattr(store, "depth", rough)
        running = asyncio.create_task((scaler := Scaler(store, QUEUE, actuator, bridge=bridge)).run(), name="scaler")
        await store.put(QUEUE, ["a"])
        await actuator.until(lambda: actuator.started == ["0"])
        await scaler.stop()
        await running


@pytest.mark.parametrize(
    ("capable", "trust", "proof", "counts"),
    [
        (Capabilities(exact_depth=True), False, Proof.VISIBLE, "exact"),
        (Capabilities(exact_depth=False, zero_depth=True), False, Proof.ALL, "exact"),
        (Capabilities(exact_depth=False, zero_depth=False), False, Proof.NONE, "rough"),
        (Capabilities(exact_depth=False, zero_depth=False), True, Proof.VISIBLE, "trusted"),
    ],
)
def test_what_a_count_proves(capable: Capabilities, trust: bool, proof: Proof, counts: str) -> None:
    """By what the store can say, and whether somebody trusts it; the bridge is told, for `queuebell check` (Z7)."""
    assert proof_of(capable, trust=trust) is proof
    assert counts_of(capable, trust=trust) == counts


def test_a_long_failure_keeps_how_it_ended_and_what_it_said_last() -> None:
    """The middle of a long trace says least."""
    text = "exit code 1: " + "x" * 5000 + " the last words"
    short = shortened(text)
    assert len(short) == 900
    assert short.startswith("exit code 1: x") and short.endswith(" the last words") and " [...] " in short
    assert shortened("exit code 1") == "exit code 1"


class Lasting(Counted):
    """One whose workers go on without it."""

    outlives = True

    async def close(self) -> None:
        """Let go."""


async def test_who_outlives_the_scaler_is_not_told_to_end() -> None:
    """When it stops; and what an earlier one has left is there from its beginning."""
    actuator = Lasting()
    actuator.alive = ["before"]
    async with Bridge() as bridge:
        scaler = Scaler(bridge, QUEUE, actuator, bridge=bridge, min=2)
        running = asyncio.create_task(scaler.run(), name="scaler")
        await actuator.until(lambda: actuator.started != [])
        assert len(actuator.alive) == 2
        await scaler.stop()
        await running
    assert len(actuator.alive) == 2


@pytest.mark.parametrize("sweep_ms", [None, 20_000])
@simulated
async def test_a_scaler_looks_by_itself_at_the_bridge_s_own_pace(sweep_ms: int | None) -> None:
    """A queue with a shorter sweep than the bridge's others has a shorter dead-man timer, as its welcome says."""
    store, bridge, actuator = Counting(), SweepingBridge(sweep_ms), Counted()
    scaler = Scaler(store, QUEUE, actuator, bridge=bridge, draw=lambda: 0.5)
    running = asyncio.create_task(scaler.run(), name="scaler")
    await elapse(5.0)
    store.counted.clear()
    await elapse(200.0)
    first, second, *_ = store.counted
    # 1.1 T + S, and half of w.
    period_s = 1.1 * (60.0 if sweep_ms is None else sweep_ms / 1000) + 30.0 + 5.0
    assert second - first == pytest.approx(period_s, abs=1.0)
    await scaler.stop()
    await running


class Uneasy(Counted):
    """An actuator that raises what it should not, once a call, and a cancellation that nobody asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.errors: dict[str, list[BaseException]] = {
            "start": [RuntimeError("a driver"), asyncio.CancelledError()],
            "stop": [asyncio.CancelledError(), RuntimeError("a driver")],
        }

    async def start(self, count: int) -> list[str]:
        if self.errors["start"]:
            raise self.errors["start"].pop()
        return await super().start(count)

    async def stop(self, ids: Sequence[str]) -> None:
        if self.errors["stop"]:
            raise self.errors["stop"].pop()
        await super().stop(ids)


@simulated
async def test_an_actuator_that_raises_or_is_cancelled_from_within_is_asked_again() -> None:
    """To start, and to end: no worker is counted for ever that never began, and none that should have ended."""
    actuator = Uneasy()
    async with Bridge() as bridge:
        scaler = Scaler(bridge, QUEUE, actuator, bridge=bridge, idle=0.0)
        running = asyncio.create_task(scaler.run(), name="scaler")
        await bridge.store.put(QUEUE, ["a"])
        await pass_time(30)
        assert len(actuator.alive) == 1
        await bridge.store.clear(QUEUE)
        actuator.ready()
        await pass_time(120)
        assert (actuator.alive, actuator.errors) == ([], {"start": [], "stop": []})
        await scaler.stop()
        await running
