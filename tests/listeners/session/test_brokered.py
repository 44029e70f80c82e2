"""Sessions over a broker, end to end in virtual time: a frame lost, repeated or late heals within its bound (S2)."""

from __future__ import annotations

import asyncio
import itertools
import pathlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from queuebell.bridge.access import access_file
from queuebell.bridge.access.access_watch import AccessWatch
from queuebell.bridge.access.keys import new_key, without
from queuebell.bridge.brokers import SCHEMES
from queuebell.bridge.brokers.base import Topic
from queuebell.bridge.contract.errors import ConfigurationError
from queuebell.bridge.contract.framing import instance_of
from queuebell.bridge.contract.wire import (
    ErrorFrame,
    Hello,
    Subscription,
    Welcome,
    encode_frame,
)
from queuebell.bridge.core.settings import Periods
from queuebell.bridge.queues.base import NewMessage
from queuebell.bridge.service.bridge import Bridge, BridgeSettings
from queuebell.bridge.service.channels.brokered import BrokeredSessions
from queuebell.bridge.triggers.attachment import Attachment
from queuebell.listeners import Listener, Message
from queuebell.listeners.session.brokered import BrokeredChannel
from tests.listeners.rig import QUEUE, Store
from tests.support.access import NOW, written
from tests.support.memory_broker import SERVERS, MemoryBroker, MemoryServer
from tests.support.sim_loop import pass_time, simulate, simulated

# Private: `_broker`: selects which of two connections is full.

INSTANCE = "1" * 32


DOWN = ("queuebell", "session", INSTANCE, "down")


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


class SiteBrokeredKey:
    """A broker, and the access file of the bridges on it."""

    def __init__(self, kind: str, path: pathlib.Path) -> None:
        self.server = MemoryServer(kind)
        self.url = f"mem://k{next(_names)}"
        SERVERS[self.url.partition("://")[2]] = self.server
        self.path = path

    @asynccontextmanager
    async def bridge(self) -> AsyncIterator[Bridge]:
        """Run a bridge that asks for keys."""
        async with Bridge() as bridge, AccessWatch(self.path) as watch:
            sessions = BrokeredSessions(bridge, "queuebell", access=watch)
            bus = Attachment(
                bridge, self.server.broker, "bus", self.server.kind,
                prefix="queuebell", sessions=sessions, announcer=None, brokers=["bus"], republish=True,
            )  # fmt: skip
            await bus.start()
            try:
                yield bridge
            finally:
                bridge.end_sessions()
                await bus.stop()
                await sessions.stop()

    @asynccontextmanager
    async def worker(self, api_key: str | Callable[[], str] | None) -> AsyncIterator[Listener]:
        """Run a listener with a store of its own."""

        async def handle(message: Message) -> None:
            pass

        listener = Listener(Store(), QUEUE, handle, bridge=self.url, api_key=api_key, handle_signals=False)
        running = asyncio.create_task(listener.run(), name="worker")
        try:
            yield listener
        finally:
            await listener.stop()
            await running

    async def until(self, holds: Callable[[], bool], within: float) -> None:
        """Wait, in virtual time."""
        async with asyncio.timeout(within):
            while not holds():
                await asyncio.sleep(0.05)


@simulated
async def test_a_key_that_cannot_be_had(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """The listener polls and asks again; what the program raised may hold the key, and is in no log."""
    secrets = written(tmp_path / "access.json", {"worker": {"take": [QUEUE]}})
    fails = True

    def key() -> str:
        if fails:
            raise OSError(f"vault: {secrets['worker']}")
        return secrets["worker"]

    place = SiteBrokeredKey("nats", tmp_path / "access.json")
    async with place.bridge(), place.worker(key) as worker:
        await pass_time(20)
        assert not worker.state().session
        assert all(topic[1] != "hello" for topic, _ in place.server.log)
        fails = False
        await place.until(lambda: worker.state().session, 20)
    assert secrets["worker"] not in caplog.text


@simulated
async def test_a_server_that_another_one_told_of(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the connection that was made turns out to be readable by others, no hello leaves."""
    secrets = written(tmp_path / "access.json", {"worker": {"take": [QUEUE]}})
    monkeypatch.setattr(MemoryBroker, "private", property(lambda broker: broker not in broker.server.connections))
    place = SiteBrokeredKey("nats", tmp_path / "access.json")
    async with place.bridge(), place.worker(secrets["worker"]) as worker:
        await pass_time(20)
        assert not worker.state().session
        assert place.server.attempts > 2
        assert all(secrets["worker"].encode() not in raw for _, raw in place.server.log)


CLEAR = ["nats://broker:4222", "mqtt://10.0.0.1", "nats://127.0.0.1,broker", "nats://broker?tls_ca=/dev/null"]


@pytest.mark.parametrize("url", CLEAR)
def test_a_key_never_goes_over_a_network_in_the_clear(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given or of the environment; without one, any address will do."""
    BrokeredChannel(url, "1" * 32)
    with pytest.raises(ConfigurationError, match="unencrypted over a network; use tls://") as refused:
        BrokeredChannel(url, "1" * 32, api_key="qb_secret")
    assert "qb_secret" not in str(refused.value)
    monkeypatch.setenv("QUEUEBELL_API_KEY", "qb_secret")
    with pytest.raises(ConfigurationError, match="unencrypted"):
        BrokeredChannel(url, "1" * 32)


INSTANCE = "1" * 32
OLD, NEW = "a" * 32, "b" * 32


def down(frame: dict[str, object], boot: str, seq: int) -> bytes:
    return msgspec.json.encode({**frame, "instance": INSTANCE, "seq": seq, "boot": boot})


def welcome(boot: str, seq: int) -> bytes:
    frame = msgspec.json.decode(encode_frame(Welcome(boot, 5000, 60_000, 1, [])))
    return down({**frame, "version": 2}, boot, seq)


@simulated
async def test_a_bridge_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its welcome begins no session, and what the worker is told names the remedy."""
    monkeypatch.setitem(SCHEMES, "mem", ("tests.support.memory_broker", "NamedBroker"))
    server = SERVERS["older"] = MemoryServer()
    link = await BrokeredChannel("mem://older", INSTANCE).connect()
    link.send(Hello(INSTANCE, "one", [Subscription(QUEUE, 1)]))
    older = msgspec.json.decode(welcome(OLD, 1))
    del older["version"]
    server.deliver(DOWN, msgspec.json.encode(older))
    frame = await link.receive()
    assert isinstance(frame, ErrorFrame) and frame.code == "unsupported" and "upgrade it" in frame.message
    server.deliver(DOWN, welcome(NEW, 1))
    assert isinstance(await link.receive(), Welcome)
    await link.close()


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


@pytest.mark.parametrize("kind", ["nats", "mqtt"])
@simulated
async def test_a_key_that_is_replaced_and_one_that_is_revoked(
    kind: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the new one it comes back by itself; without any it is told so, asks seldom, and goes on polling."""
    secrets = written(tmp_path / "access.json", {"worker": {"take": [QUEUE]}})
    keys = [secrets["worker"]]
    place = SiteBrokeredKey(kind, tmp_path / "access.json")
    async with place.bridge(), place.worker(lambda: keys[-1]) as worker:
        await place.until(lambda: worker.state().session, 5)

        def rotate(found: object) -> object:
            made, secret = new_key(without(found, "worker")[0], "worker", {}, chance=b"\x05" * 32, now=NOW)
            keys.append(secret)
            return made

        access_file.change(place.path, rotate)
        await place.until(lambda: any(keys[-1].encode() in raw for _, raw in place.server.log), 10)
        await place.until(lambda: worker.state().session, 10)
        access_file.change(place.path, lambda found: without(found, "worker")[0])
        await place.until(lambda: not worker.state().session, 3)
        hellos = sum(topic[1] == "hello" for topic, _ in place.server.log)
        await pass_time(120)
        assert not worker.state().session
        asked = sum(topic[1] == "hello" for topic, _ in place.server.log) - hellos
        assert 3 <= asked <= 40, "it is asked again, and is no flood"
    refusals = [record for record in caplog.records if "rejects this worker" in record.message]
    assert 1 <= len(refusals) <= 4
    assert "unauthenticated" in refusals[0].message
    assert not any(key in caplog.text for key in keys)


@simulated
async def test_only_a_hello_has_the_key_and_every_frame_the_ticket(tmp_path: pathlib.Path) -> None:
    """The last will as well; the bridge never says either."""
    secrets = written(tmp_path / "access.json", {"worker": {"take": [QUEUE]}})
    place = SiteBrokeredKey("mqtt", tmp_path / "access.json")
    async with place.bridge():
        async with place.worker(secrets["worker"]) as worker:
            await place.until(lambda: worker.state().session, 10)
            await pass_time(12)
            connection = next(each for each in place.server.connections if each._will is not None)
            connection.die()
            await pass_time(0.1)
            await place.until(lambda: worker.state().session, 10)
    frames = [(topic, msgspec.json.decode(raw)) for topic, raw in place.server.log if topic[1] in ("hello", "session")]
    up = [frame for topic, frame in frames if topic[-1] != "down"]
    assert {frame["type"] for frame in up} >= {"hello", "heartbeat", "bye"}
    assert len({frame["ticket"] for frame in up}) == 1
    assert {instance_of(frame["ticket"]) for frame in up} == {frame["instance"] for frame in up}
    for frame in up:
        assert (frame.get("credential") == secrets["worker"]) is (frame["type"] == "hello")
    assert not any("ticket" in frame or "credential" in frame for topic, frame in frames if topic[-1] == "down")


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
