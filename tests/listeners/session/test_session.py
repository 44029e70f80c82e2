"""What one session hands to its queues and says in the log, with a bridge played by hand, in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from bridge.contract.wire import (
    FRAME_BYTES_MAX,
    BridgeHeartbeat,
    Bye,
    Cover,
    CoverAge,
    Drain,
    ErrorFrame,
    Hello,
    ListenerHeartbeat,
    QueueBeat,
    Running,
    Subscription,
    Wake,
    Welcome,
    WelcomedQueue,
    encode_frame,
)
from listeners import Message
from listeners.core.periods import Periods
from listeners.session.session import (
    FRAME_EXTRA_BYTES,
    Session,
)
from tests.listeners.rig import QUEUE, Store, hanging, listening
from tests.support.fake_bridge import FakeBridge, FakeLink
from tests.support.sim_loop import elapse, simulated

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

    def covered_elsewhere(self, at: float) -> None:
        self.told.append(("covered", at))

    def fleet(self, periods: Periods, sessions: int, latency_s: float) -> None:
        self.told.append(("fleet", periods, sessions, latency_s))

    def beat(self, now: float) -> QueueBeat:
        return QueueBeat()

    def owes_report(self) -> int:
        return self.owes

    def report(self, stamp: int, beat: QueueBeat) -> QueueBeat:
        return msgspec.structs.replace(beat, free=17)

    def echoed(self, stamp: int, told: CoverAge) -> None:
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
            cover = {queue: CoverAge(7, 1000) for queue in (UNKNOWN, ONE, TWO)}
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
    """And the number of queues told is what is returned: the farewell counts by it."""
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
        await bridge.until(Cover)
        assert not bridge.of(Bye)
        assert bridge.connects == 1
