"""Sessions over a broker, end to end in virtual time: a frame lost, repeated or late heals within its bound (S2)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from bridge.brokers import SCHEMES
from bridge.brokers.base import Topic
from bridge.contract.errors import ChannelLost
from bridge.contract.wire import Hello, Subscription, Welcome
from bridge.core.settings import Periods
from bridge.core.supervision import RETRY_CAP_S
from bridge.queues.base import NewMessage
from bridge.service.bridge import Bridge, BridgeSettings
from bridge.service.channels.brokered import BrokeredSessions
from bridge.triggers.attachment import Attachment
from listeners import Listener, Message
from listeners.core.liveness import WELCOME_WITHIN_S
from listeners.session.channels.base import Link
from listeners.session.channels.brokered import BrokeredChannel
from tests.listeners.rig import QUEUE, Store
from tests.support.memory_broker import SERVERS, MemoryServer, NamedBroker
from tests.support.sim_loop import pass_time, simulate, simulated

A, H, D = 2.0, 5.0, 15.0
SLACK = 0.6
"""What a broker and the listener's own doubt of its bridge (0.5 s) may add to a bound."""
_names = itertools.count()


@pytest.fixture(autouse=True)
def scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SCHEMES, "mem", ("tests.support.memory_broker", "NamedBroker"))


class Site:
    """One broker, bridges on it, and workers that reach nothing but the broker and their store."""

    def __init__(self, kind: str) -> None:
        self.server = MemoryServer(kind)
        self.url = f"mem://s{next(_names)}"
        SERVERS[self.url.partition("://")[2]] = self.server
        self.store = Store()
        self.handled: list[bytes] = []
        self.put_at: dict[bytes, float] = {}
        self._bridges: list[tuple[Bridge, Attachment]] = []
        self._workers: list[tuple[Listener, asyncio.Task[None]]] = []

    async def bridge(self, sweep_s: float = 0.0) -> Bridge:
        """Start a bridge; without a sweep, so that nothing heals but by the protocol."""
        bridge = Bridge(settings=BridgeSettings(periods=Periods(sweep_s=sweep_s)))
        await bridge.start()
        sessions = BrokeredSessions(bridge, "queuebell")
        bus = Attachment(
            bridge, self.server.broker, "bus", self.server.kind,
            prefix="queuebell", sessions=sessions, announcer=None, brokers=["bus"], republish=True,
        )  # fmt: skip
        await bus.start()
        self._bridges.append((bridge, bus))
        return bridge

    async def worker(self, **options: Any) -> Listener:
        listener = Listener(self.store, QUEUE, self._handle, bridge=self.url, handle_signals=False, **options)
        self._workers.append((listener, asyncio.create_task(listener.run(), name="worker")))
        return listener

    async def _handle(self, message: Message) -> None:
        self.handled.append(message.body)

    async def put(self) -> bytes:
        """Put a message and say so on the broker, as a producer does."""
        body = b"%d" % len(self.put_at)
        self.put_at[body] = asyncio.get_running_loop().time()
        await self.store.put(QUEUE, [NewMessage(body)])
        self.server.deliver(("queuebell", "trigger", "billing", "orders"), b"")
        return body

    async def until(self, holds: Callable[[], Any], within: float, what: str) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + within
        while not holds():
            assert loop.time() < end, f"not within {within:g} s: {what}"
            await asyncio.sleep(0.01)

    async def all_handled(self, within: float) -> None:
        await self.until(lambda: set(self.handled) >= set(self.put_at), within, "all is handled")

    async def clean(self, bridge: Bridge, within: float) -> None:
        await self.until(lambda: not getattr(bridge.describe(QUEUE), "dirty", False), within, "the queue is clean")

    async def kill_bridge(self, bridge: Bridge) -> None:
        """End a bridge without a word to anybody."""
        for entry in list(self._bridges):
            if entry[0] is bridge:
                self._bridges.remove(entry)
                for connection in self.server.connections:
                    connection.full = connection is entry[1]._broker
                await entry[1].stop()
                await bridge.stop()

    async def kill_worker(self) -> None:
        """Break the first worker's connection and let it find no way back."""
        listener, task = self._workers.pop(0)
        (own,) = (
            connection
            for connection in self.server.connections
            if any(listener.instance in pattern for pattern, _, _ in connection.subscriptions)
        )
        own.die()
        task.cancel()
        await asyncio.wait([task])

    async def close(self) -> None:
        for listener, task in self._workers:
            await listener.stop()
            await task
        for bridge, bus in self._bridges:
            await bus.stop()
            await bridge.stop()
        await self.store.close()


@asynccontextmanager
async def site(kind: str = "nats") -> AsyncIterator[Site]:
    place = Site(kind)
    try:
        yield place
    finally:
        await place.close()


class Single:
    """Does something to the one session frame with this number, and to none else."""

    def __init__(self, number: int, copies: list[float]) -> None:
        self.number = number
        self.copies = copies
        self.count = 0
        self.met: str | None = None

    def __call__(self, topic: Topic, payload: bytes) -> list[float]:
        if topic[1] == "trigger":
            return [0.0]
        self.count += 1
        if self.count - 1 != self.number:
            return [0.0]
        self.met = f"{topic[-1]} {msgspec.json.decode(payload)['type']}"
        return self.copies


PROMPT = {"hello hello", "down welcome", "down wake", "up started", "up cover"}
"""What delays the next handler by A at most; the others say how much room there is, and heal with a heartbeat."""
FAULTS: dict[str, list[float]] = {
    "lost": [],
    "repeated": [0.0, 0.0],
    "repeated late": [0.0, 3.0],
    "late": [1.5],
    "very late": [7.0],
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", ["nats", "mqtt"])
def test_any_single_frame_lost_repeated_or_late_heals_within_its_bound(kind: str, fault: str) -> None:
    """S2: hello, welcome and wake within A, cover, more and room within H; and nothing is handled twice."""

    async def life(single: Single) -> float:
        longest = 0.0
        async with site(kind) as place:
            place.server.fault = single
            bridge = await place.bridge()
            worker = await place.worker()
            await place.until(lambda: worker.state().session, A + SLACK, "welcome")
            for _ in range(4):
                body = await place.put()
                await place.all_handled(H + SLACK)
                longest = max(longest, asyncio.get_running_loop().time() - place.put_at[body])
                await place.clean(bridge, H + SLACK)
            assert len(place.handled) == len(place.put_at)
            await pass_time(H)
            assert worker.state().session
        return longest

    undisturbed = Single(-1, [])
    assert simulate(life(undisturbed)) < 0.02
    assert undisturbed.count >= 14
    met: set[str | None] = set()
    for number in range(undisturbed.count):
        single = Single(number, FAULTS[fault])
        longest = simulate(life(single))
        assert longest < (A + SLACK if single.met in PROMPT else H + SLACK), single.met
        met.add(single.met)
    assert {"hello hello", "down welcome", "down wake", "up started", "up cover", "up heartbeat"} <= met


@pytest.mark.parametrize("seed", range(8))
@simulated
async def test_half_of_all_frames_lost_and_no_wake_lost(seed: int) -> None:
    """Every message is handled exactly once and the queue is clean in the end, whatever the broker does meanwhile."""
    draws = _draws(seed)

    def fault(topic: Topic, payload: bytes) -> list[float]:
        if topic[1] == "trigger":
            return [0.0]
        return [[], [0.0], [0.0, 4 * next(draws)], [3 * next(draws)]][int(4 * next(draws))]

    async with site() as place:
        place.server.fault = fault
        bridge = await place.bridge()
        for _ in range(3):
            await place.worker(concurrency=2, batch=1)
        for _ in range(40):
            await place.put()
            await pass_time(2 * next(draws))
        # While frames are lost, sessions are too: then polling takes over (L9), and its cap is 30 s.
        await place.all_handled(40)
        place.server.fault = lambda topic, payload: [0.0]
        await place.clean(bridge, D + H + A)
        assert sorted(map(int, place.handled)) == list(range(40))


def _draws(seed: int) -> Iterator[float]:
    import random

    chance = random.Random(seed)
    while True:
        yield chance.random()


@pytest.mark.parametrize("kind", ["nats", "mqtt"])
@simulated
async def test_a_killed_broker_changes_nothing_but_the_latency(kind: str) -> None:
    """Puts during the outage are found by the gap when the bridge is back, without any restart."""
    async with site(kind) as place:
        bridge = await place.bridge()
        worker = await place.worker()
        await place.until(lambda: worker.state().session, A, "welcome")
        for _ in range(5):
            await place.put()
            await place.all_handled(1)
            place.server.refusing = True
            place.server.kill()
            await place.put()
            await pass_time(1)
            place.server.refusing = False
            # At worst a hello goes unanswered, because the bridge comes back after it, and the next one waits its turn.
            await place.all_handled(WELCOME_WITHIN_S + RETRY_CAP_S + 1 + SLACK)
            await place.until(lambda: worker.state().session, 10, "welcome again")
            await place.clean(bridge, D + H)
        assert len(place.handled) == 10


@simulated
async def test_a_restarted_bridge_is_noticed_within_a_heartbeat() -> None:
    """S2: a new boot within H; it does not know the session, says so, and another hello follows."""
    async with site() as place:
        bridge = await place.bridge()
        worker = await place.worker()
        await place.until(lambda: worker.state().session, A, "welcome")
        await pass_time(3)
        await place.kill_bridge(bridge)
        again = await place.bridge()
        await place.put()
        await place.until(lambda: worker.state().boot == again.boot, H + SLACK, "a new boot")
        await place.all_handled(A)
        await place.clean(again, H)


@simulated
async def test_of_two_bridges_a_listener_has_one_and_changes_when_it_dies() -> None:
    """Both hear hello; the first to say welcome has it, the other leaves it alone, and nothing is woken twice."""
    async with site() as place:
        bridges = [await place.bridge(), await place.bridge()]
        worker = await place.worker()
        await place.until(lambda: worker.state().session, A, "welcome")
        await pass_time(60)
        assert sorted(len(bridge.listeners()) for bridge in bridges) == [0, 1]
        chosen = next(bridge for bridge in bridges if bridge.listeners())
        other = next(bridge for bridge in bridges if not bridge.listeners())
        assert worker.state().boot == chosen.boot
        await place.put()
        await place.all_handled(SLACK)
        await place.kill_bridge(chosen)
        await place.put()
        await place.until(lambda: worker.state().boot == other.boot, H + SLACK, "the other bridge")
        await place.all_handled(A)
        await pass_time(60)
        assert len(other.listeners()) == 1


def test_a_crashed_worker_is_known_at_once_by_its_last_will() -> None:
    """On MQTT; over NATS by silence within D. What it owned goes to the next."""

    async def life(kind: str, within: float) -> None:
        async with site(kind) as place:
            bridge = await place.bridge()
            await place.worker()
            await place.until(lambda: len(bridge.listeners()) == 1, A, "one")
            await place.worker()
            await place.until(lambda: len(bridge.listeners()) == 2, A, "two")
            await place.kill_worker()
            await place.until(lambda: len(bridge.listeners()) == 1, within, "the crash is known")
            await place.put()
            await place.all_handled(A + SLACK)

    simulate(life("mqtt", 0.1))
    simulate(life("nats", D + SLACK))


@simulated
async def test_a_worker_that_stops_says_bye_and_leaves_nothing_behind() -> None:
    """Confirmed, and without a last will after it."""
    async with site("mqtt") as place:
        bridge = await place.bridge()
        worker = await place.worker()
        await place.until(lambda: worker.state().session, A, "welcome")
        before = asyncio.get_running_loop().time()
        await worker.stop()
        assert asyncio.get_running_loop().time() - before < 0.1
        assert bridge.listeners() == []
        byes = [payload for topic, payload in place.server.log if b'"type":"bye"' in payload]
        assert len(byes) == 2


@simulated
async def test_started_before_broker_and_bridge_it_waits_and_polls_meanwhile() -> None:
    """L9: DEGRADED until there is a bridge, and back in PUSH with its welcome."""
    async with site() as place:
        place.server.refusing = True
        worker = await place.worker()
        await pass_time(20)
        await place.put()
        await place.all_handled(31)
        place.server.refusing = False
        await pass_time(60)
        assert not worker.state().session
        await place.bridge()
        await place.until(lambda: worker.state().session, 5 + 5 + A, "welcome")
        await place.put()
        await place.all_handled(SLACK)


@simulated
async def test_a_link_numbers_what_it_sends_and_repeats_hello_until_welcome() -> None:
    """Every A, with a new number each, and not after; numbers of the next connection are higher."""
    place = Site("nats")
    channel = BrokeredChannel(place.url, "1" * 32)
    hello = Hello("1" * 32, "one", [Subscription(QUEUE, 1)])
    link = await channel.connect()
    link.send(hello)
    await pass_time(2 * A + 0.1)
    bridge = await place.bridge()
    frame = await link.receive()
    assert isinstance(frame, Welcome)
    assert frame.boot == bridge.boot
    await pass_time(3 * A)
    await link.close()
    again = await channel.connect()
    again.send(hello)
    await again.receive()
    said = [msgspec.json.decode(payload) for topic, payload in place.server.log if topic[1] == "hello"]
    numbers = [hello["seq"] for hello in said]
    assert numbers == [1, 2, 3, 4, (1 << 32) + 1]
    assert [hello.get("to") for hello in said] == [None] * 5
    broker = place.server.connections[-1]
    assert isinstance(broker, NamedBroker)
    broker.die("reset")
    with pytest.raises(ChannelLost, match="reset"):
        await _receive_all(again)
    await again.close()
    await again.close()
    await channel.close()
    await place.close()


async def _receive_all(link: Link) -> None:
    while True:
        await link.receive()
