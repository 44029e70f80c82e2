"""A listener's key over a broker: where it comes from, where it never goes, and what a refusal does to the listener."""

from __future__ import annotations

import asyncio
import itertools
import pathlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest

from bridge.brokers import SCHEMES
from bridge.contract.errors import BadInput, ConfigurationError
from bridge.contract.framing import instance_of
from bridge.core.keys import new_key, without
from bridge.service.access import access_file
from bridge.service.access.watch import AccessWatch
from bridge.service.bridge import Bridge
from bridge.service.channels.brokered import BrokeredSessions
from bridge.triggers.attachment import Attachment
from listeners import Listener, Message
from listeners.session.channels.brokered import BrokeredChannel
from tests.listeners.rig import QUEUE, Store
from tests.support.access import NOW, written
from tests.support.memory_broker import SERVERS, MemoryBroker, MemoryServer
from tests.support.sim_loop import pass_time, simulated

_names = itertools.count()


@pytest.fixture(autouse=True)
def scheme(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses of brokers in memory."""
    monkeypatch.setitem(SCHEMES, "mem", ("tests.support.memory_broker", "NamedBroker"))


class Site:
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


@pytest.mark.parametrize("kind", ["nats", "mqtt"])
@simulated
async def test_a_key_that_is_replaced_and_one_that_is_revoked(
    kind: str, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With the new one it comes back by itself; without any it is told so, asks seldom, and goes on polling."""
    secrets = written(tmp_path / "access.json", {"worker": {"take": [QUEUE]}})
    keys = [secrets["worker"]]
    place = Site(kind, tmp_path / "access.json")
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
    refusals = [record for record in caplog.records if "refuses us" in record.message]
    assert 1 <= len(refusals) <= 4
    assert "unauthenticated" in refusals[0].message
    assert not any(key in caplog.text for key in keys)


@simulated
async def test_a_bridge_that_restarts_and_knows_the_key_no_more(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The listener does not hang on to the session that it had, and is let in once the key is back."""
    secrets = written(tmp_path / "access.json", {"worker": {"take": [QUEUE]}})
    place = Site("nats", tmp_path / "access.json")
    async with place.worker(secrets["worker"]) as worker:
        async with place.bridge():
            await place.until(lambda: worker.state().session, 10)
            for connection in place.server.connections:
                # It ends without a word to anybody.
                connection.full = any(pattern[1] == "hello" for pattern, _, _ in connection.subscriptions)
        kept = access_file.read(place.path)
        access_file.change(place.path, lambda found: without(found, "worker")[0])
        async with place.bridge():
            await pass_time(60)
            assert sum("the bridge reports" in record.message for record in caplog.records) <= 2
            assert sum("the bridge refuses us" in record.message for record in caplog.records) == 1
            assert not worker.state().session
            access_file.change(place.path, lambda _: kept)
            await place.until(lambda: worker.state().session, 60)


@simulated
async def test_only_a_hello_has_the_key_and_every_frame_the_ticket(tmp_path: pathlib.Path) -> None:
    """The last will as well; the bridge never says either."""
    secrets = written(tmp_path / "access.json", {"worker": {"take": [QUEUE]}})
    place = Site("mqtt", tmp_path / "access.json")
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


@simulated
async def test_a_key_that_cannot_be_had(tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture) -> None:
    """The listener polls and asks again; what the program raised may hold the key, and is in no log."""
    secrets = written(tmp_path / "access.json", {"worker": {"take": [QUEUE]}})
    fails = True

    def key() -> str:
        if fails:
            raise OSError(f"vault: {secrets['worker']}")
        return secrets["worker"]

    place = Site("nats", tmp_path / "access.json")
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
    place = Site("nats", tmp_path / "access.json")
    async with place.bridge(), place.worker(secrets["worker"]) as worker:
        await pass_time(20)
        assert not worker.state().session
        assert place.server.attempts > 2
        assert all(secrets["worker"].encode() not in raw for _, raw in place.server.log)


CLEAR = ["nats://broker:4222", "mqtt://10.0.0.1", "nats://127.0.0.1,broker", "nats://broker?tls_ca=/dev/null"]
PRIVATE = ["nats://127.0.0.1", "tls://broker", "mqtts://broker", "mqtt://localhost", "nats://[::1]:4222"]


@pytest.mark.parametrize("url", CLEAR)
def test_a_key_never_goes_over_a_network_in_the_clear(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given or of the environment; without one, any address will do."""
    BrokeredChannel(url, "1" * 32)
    with pytest.raises(ConfigurationError, match="in the clear; use tls://") as refused:
        BrokeredChannel(url, "1" * 32, api_key="qb_secret")
    assert "qb_secret" not in str(refused.value)
    monkeypatch.setenv("QUEUEBELL_API_KEY", "qb_secret")
    with pytest.raises(ConfigurationError, match="in the clear"):
        BrokeredChannel(url, "1" * 32)


@pytest.mark.parametrize("url", PRIVATE)
def test_where_a_key_may_go(url: str) -> None:
    """By TLS, or within this machine."""
    assert "qb_secret" not in str(BrokeredChannel(url, "1" * 32, api_key="qb_secret"))


def test_a_key_for_nobody_at_an_address() -> None:
    """A bridge of this process asks nobody."""
    with pytest.raises(BadInput, match="api_key: is for a bridge at an address"):
        Listener("memory:x", QUEUE, lambda message: None, bridge=Bridge(), api_key="k")
