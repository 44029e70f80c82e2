"""What one session hands to its queues and says in the log, with a bridge played by hand, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from queuebell.bridge.contract.errors import ChannelLost
from queuebell.bridge.contract.wire import (
    FRAME_BYTES_MAX,
    BridgeHeartbeat,
    Bye,
    Drain,
    EmptyReceive,
    ErrorFrame,
    Hello,
    LastEmptyReceive,
    ListenerHeartbeat,
    QueueBeat,
    Running,
    Subscription,
    Wake,
    Welcome,
    WelcomedQueue,
    decode_up,
    encode_frame,
)
from queuebell.listeners import Message
from queuebell.listeners.session.session import (
    FRAME_EXTRA_BYTES,
    REFUSED_CAP_S,
    STORE_MISMATCH,
    Session,
    fit_failures,
)
from queuebell.listeners.wake.timers import Periods
from tests.listeners.rig import QUEUE, Store, hanging, listening, settled
from tests.support.fake_bridge import FakeBridge, FakeLink
from tests.support.sim_loop import elapse, simulated

# Private: `_add_reports`: tested to the byte; a whole session would take hours.
# `_liveness`, `_patience`, `_tick`: two deadlines in one iteration of the loop.

ONE, TWO, UNKNOWN = "a/one", "a/two", "a/unknown"


class Port:
    """A queue that notes what it is told."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.told: list[tuple[Any, ...]] = []
        self.owes = 0
        self.longest: Running | None = None
        self.breaks = False

    def subscription(self) -> Subscription:
        return Subscription(self.queue, 1)

    def wake(self, frame: Wake) -> None:
        if self.breaks:
            raise ValueError("no date")
        self.told.append(("wake", frame.gen))

    def welcomed(self, boot: str, gen: int) -> None:
        self.told.append(("welcomed", boot, gen))

    def lost(self) -> None:
        self.told.append(("lost",))

    def on_empty_receive(self, at: float) -> None:
        self.told.append(("covered", at))

    def apply_periods(self, periods: Periods, sessions: int, latency_s: float) -> None:
        self.told.append(("apply_periods", periods, sessions, latency_s))

    def beat(self, now: float) -> QueueBeat:
        return QueueBeat()

    def report_bytes(self) -> int:
        return self.owes

    def report(self, stamp: int, beat: QueueBeat) -> QueueBeat:
        return msgspec.structs.replace(beat, free=17)

    def echoed(self, stamp: int, told: LastEmptyReceive) -> None:
        self.told.append(("echoed", told))

    def running(self, now: float) -> Running | None:
        return self.longest

    def receiving(self) -> bool:
        return False

    def leases(self, now: float, most: int) -> list[int]:
        return []

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [each[1:] for each in self.told if each[0] == kind]


class Bridge(FakeBridge):
    """Answers heartbeats after ``late_s``, tells of ``periods`` by queue, and refuses with ``refuses``."""

    def __init__(self, **periods: int) -> None:
        super().__init__()
        self.periods = periods
        self.late_s = 0.0
        self.sessions = 1
        self.refuses: ErrorFrame | None = None

    def heard(self, link: FakeLink, frame: Any) -> None:
        if self.silent:
            return
        if isinstance(frame, Hello):
            self.hellos.append(frame)
            if self.refuses is not None:
                link.down.put_nowait(self.refuses)
                link.down.put_nowait(None)
                return
            states = [WelcomedQueue(each, 7, True, None, **self.periods) for each in (UNKNOWN, ONE, TWO)]
            link.down.put_nowait(Welcome(self.boot, 5000, 60_000, self.sessions, states))
        elif isinstance(frame, ListenerHeartbeat):
            self.beats.append(frame)
            # A queue that this listener does not have comes first, and keeps nothing from the others.
            cover = {queue: LastEmptyReceive(7, 1000) for queue in (UNKNOWN, ONE, TWO)}
            answer = BridgeHeartbeat(self.boot, frame.stamp, 0, self.sessions, cover)
            asyncio.get_running_loop().call_later(self.late_s, link.down.put_nowait, answer)


def session_of(bridge: FakeBridge, *ports: Any, store: str = "its store") -> Session:
    """Return a session of these queues."""
    return Session(
        bridge, "i" * 32, "worker", {port.queue: port for port in ports},
        accepts=bool, welcomed=lambda boot: None, draw=lambda: 0.5, store=store,
    )  # fmt: skip


@contextlib.asynccontextmanager
async def standing(bridge: FakeBridge, *ports: Port, store: str = "its store") -> AsyncIterator[Session]:
    """Run a session."""
    session = session_of(bridge, *ports, store=store)
    running = asyncio.create_task(session.run(), name="session")
    try:
        await elapse(0.01)
        yield session
    finally:
        running.cancel()
        await asyncio.wait([running])
        await session.close()


@simulated
async def test_a_wake_that_cannot_be_read_costs_nothing_but_a_line(caplog: pytest.LogCaptureFixture) -> None:
    """It names the queue and the fault; the session goes on, for this queue too."""
    bridge, port, other = Bridge(), Port(ONE), Port(TWO)
    async with standing(bridge, port, other):
        port.breaks = True
        bridge.wake(ONE)
        bridge.wake(TWO)
        await elapse(0.01)
        (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert line.startswith(f"{ONE}: ") and line.endswith(": no date")
        assert other.of("wake") == [(2,)]
        port.breaks = False
        bridge.wake(ONE)
        await elapse(0.01)
        assert port.of("wake") == [(3,)] and bridge.connects == 1


@pytest.mark.parametrize("spare", [-1, 0, 1])
@simulated
async def test_a_report_that_just_fits_is_told(spare: int) -> None:
    one, two, three = ports = [Port(f"a/{number}") for number in range(3)]
    session = session_of(Bridge(), *ports)
    frame = ListenerHeartbeat(1, {port.queue: QueueBeat() for port in ports})
    room = FRAME_BYTES_MAX - FRAME_EXTRA_BYTES - len(encode_frame(frame))
    one.owes, two.owes, three.owes = room - spare, 0, 0
    assert session._add_reports(frame) == (1 if spare >= 0 else 0)
    one.owes = two.owes = three.owes = 10
    assert session._add_reports(frame) == 3
    one.owes, two.owes = room // 2 + 1, room // 2
    assert session._add_reports(frame) == 1
    assert session._add_reports(frame) >= 1


def drain(bridge: FakeBridge) -> None:
    """Say that the bridge stops."""
    assert bridge.link is not None
    bridge.link.down.put_nowait(Drain())


async def nothing(message: Message) -> None:
    """Handle a message."""


@simulated
async def test_a_worker_with_a_receive_in_flight_says_nothing() -> None:
    """Nobody knows what it brings: the bridge ends such a session, and looks when the lease must be over (B8)."""
    store, bridge = Store(), FakeBridge()
    async with listening(store, nothing, bridge=bridge):
        await bridge.until(ListenerHeartbeat)
        store.receiving.append(hanging(3.0))
        bridge.wake(QUEUE)
        drain(bridge)
        await bridge.until(EmptyReceive)
        assert not bridge.of(Bye)
        assert bridge.connects == 1


@pytest.mark.parametrize(
    ("code", "helps"), [(STORE_MISMATCH, "Here the store is redis://here"), ("too_many_sessions", None)]
)
@simulated
async def test_a_refusal_is_said_with_what_would_help(
    code: str, helps: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Once a minute at most, however often the bridge is asked; only of a store that differs is a store named."""
    bridge = Bridge()
    bridge.refuses = ErrorFrame(code, "not you", 2)
    async with standing(bridge, Port(ONE), store="redis://here"):
        await elapse(50.0)
        asked = bridge.connects
        # No sooner than the bridge asked for, and no later than promised.
        assert 50.0 / REFUSED_CAP_S < asked <= 1 + 50.0 / 2.0
        lines = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        assert len(lines) == 1 and "not you" in lines[0] and code in lines[0]
        assert ("the store is" in lines[0]) is (helps is not None)
        assert helps is None or helps in lines[0]
        bridge.refuses = None
        await elapse(REFUSED_CAP_S)
        assert "None" not in lines[0]


@simulated
async def test_every_heartbeat_tells_each_queue_of_its_periods_and_of_the_fleet() -> None:
    """A queue that is not ours is passed over; how long the echo took, and how many sessions there are, is as heard."""
    bridge = Bridge(sweep_ms=20_000, slack_ms=4_000)
    ports = Port(ONE), Port(TWO)
    async with standing(bridge, *ports) as session:
        bridge.late_s, bridge.sessions = 0.25, 40
        await elapse(6.0)
        wanted = Periods(sweep_s=20.0, slack_s=4.0)
        for port in ports:
            assert port.of("apply_periods")[0] == (wanted, 1, 0.0)
            assert port.of("welcomed") == [(bridge.boot, 7)]
            periods, sessions, latency_s = port.of("apply_periods")[-1]
            assert (periods, sessions) == (wanted, 40)
            assert latency_s == pytest.approx(0.25, abs=0.002)
            assert port.of("echoed")[-1] == (LastEmptyReceive(7, 1000),)
            # Covered a second before the heartbeat left that the bridge answers.
            assert port.of("covered")[-1][0] == pytest.approx(bridge.beats[-1].stamp / 1000 - 1.0, abs=0.002)
        assert session.sessions == 40


@simulated
async def test_the_log_says_that_a_bridge_is_gone_why_and_that_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """Once each: a session that is replaced at once is neither gone nor back."""
    bridge, port = Bridge(), Port(ONE)

    def said() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        caplog.clear()
        return lines

    async with standing(bridge, port) as session:
        bridge.cut()
        await elapse(2.0)
        assert session.is_open and said() == [] and port.of("lost") == []
        bridge.away = True
        bridge.cut()
        await elapse(60.0)
        (gone,) = said()
        assert "nobody is there" in gone and "worker: no bridge answers at" in gone
        assert port.of("lost") == [()] and session.degraded
        bridge.away = False
        await elapse(10.0)
        assert said() == ["worker: the bridge is back"] and not session.degraded
        bridge.silent = True
        await elapse(60.0)
        (gone,) = said()
        assert "it is silent" in gone or "did not answer the hello" in gone


@simulated
async def test_a_bridge_that_is_given_up_in_the_moment_that_its_welcome_is_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two deadlines in one turn of the loop: the queues hear that there is no bridge, and heartbeats go on."""
    bridge, port = Bridge(), Port(ONE)
    bridge.silent = True
    async with standing(bridge, port) as session:
        patience, loop = session._patience, asyncio.get_running_loop()
        assert patience is not None
        due = loop.time() + 1.0
        patience.reschedule(due)

        def tick() -> None:
            if not patience.expired():
                loop.call_soon(tick)  # its timer comes later in this turn, and its task in the next, after this
                return
            with monkeypatch.context() as given_up:
                dead, once = session._liveness.dead, iter([True])
                given_up.setattr(session._liveness, "dead", lambda now: next(once, False) or dead(now))
                session._tick()

        loop.call_at(due, tick)
        await elapse(1.001)
        assert port.of("lost") == [()]
        bridge.silent = False
        await elapse(120.0)
        assert session.is_open


@pytest.mark.parametrize(
    ("silent_s", "why"), [(None, "nobody is there"), (4.0, "nobody is there"), (100.0, "time-out")]
)
@simulated
async def test_why_there_is_no_bridge_is_what_was_heard_last(
    silent_s: float | None, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Be it what the channel says, or nothing at all within the time for it."""

    class Slow(Bridge):
        async def connect(self) -> FakeLink:
            if silent_s is not None:
                await elapse(silent_s)
            raise ChannelLost("nobody is there")

    caplog.set_level(logging.DEBUG, "queuebell.listener")
    async with standing(Slow(), Port(ONE)):
        await elapse(11.0)
    tries = [record.getMessage() for record in caplog.records if "no way to the bridge" in record.getMessage()]
    assert tries and all(line.endswith(f": {why}") for line in tries)


@pytest.mark.parametrize(("queues", "failing"), [(10, 0), (10, 3), (500, 500), (580, 580)])
@simulated
async def test_what_fails_is_told_as_far_as_it_fits(queues: int, failing: int) -> None:
    """A frame with room tells of all; one without tells of as many as fit, and is never too large."""
    names = [f"a/{'q' * 40}{number:04}" for number in range(queues)]
    times = [10**7 if number < failing else None for number in range(queues)]
    beats = {name: QueueBeat(10**6, 10**6, None, 30, failing_ms=ms) for name, ms in zip(names, times, strict=True)}
    frame = ListenerHeartbeat(1, beats)
    room = FRAME_BYTES_MAX - FRAME_EXTRA_BYTES
    fits = len(encode_frame(frame)) <= room
    assert fits is (queues < 580)
    fit_failures(frame)
    told = sum(each.failing_ms is not None for each in frame.queues.values())
    assert len(encode_frame(frame)) <= room
    assert decode_up(encode_frame(frame)) == frame
    assert told == failing if fits else 0 < told < failing


@simulated
async def test_a_worker_that_holds_a_message_names_its_lease() -> None:
    """The handler goes on; should the worker die before another bridge hears of it, the first has told the end."""
    store, bridge = Store(), FakeBridge()
    asked = asyncio.Event()

    async def handle(message: Message) -> None:
        asked.set()
        await hanging(20.0)()

    async with listening(store, handle, bridge=bridge, visibility_timeout=30.0) as listener:
        await bridge.until(ListenerHeartbeat)
        await store.fill(b"a")
        bridge.wake(QUEUE)
        await asked.wait()
        (told,) = (await bridge.until(ListenerHeartbeat, 2))[-1].leases[QUEUE]
        at = asyncio.get_running_loop().time()
        assert 20_000 <= told <= 31_000
        drain(bridge)
        (bye,) = await bridge.until(Bye)
        (end,) = bye.leases[QUEUE]
        assert abs(told - end - 1000 * (asyncio.get_running_loop().time() - at)) < 1000
        await settled(listener, 1)


@simulated
async def test_a_worker_with_nothing_to_do_says_so_and_is_at_another_bridge_at_once() -> None:
    """Also right after a look, and after what it read with the `drain` no receive begins under the old session."""
    store, bridge = Store(), FakeBridge()
    async with listening(store, nothing, bridge=bridge):
        await bridge.until(ListenerHeartbeat)
        bridge.wake(QUEUE)
        await bridge.until(EmptyReceive)
        drain(bridge)
        bridge.wake(QUEUE)
        assert await bridge.until(Bye) == [Bye()]
        await bridge.until(Hello, 2)
        assert (bridge.connects, store.receives) == (2, 1)
