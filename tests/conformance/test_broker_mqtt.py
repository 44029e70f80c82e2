"""MQTT alone: last wills, persistent sessions, versions, limits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio
from paho.mqtt import publish
from paho.mqtt.enums import MQTTProtocolVersion

from queuebell.bridge.brokers.base import ANY, Incoming
from queuebell.bridge.brokers.mqtt.broker import MqttBroker
from queuebell.bridge.contract.errors import BusUnavailable, ConfigurationError
from tests.conformance.broker import Recorder
from tests.support.brokers import Mosquitto, NatsServer
from tests.support.processes import until
from tests.support.tcp_proxy import TcpProxy

Make = Callable[..., MqttBroker]


def confirm(incoming: Incoming) -> None:
    if incoming.acknowledge is not None:
        incoming.acknowledge()


async def publish_retained(port: int, topic: str, payload: bytes) -> None:
    """Have the broker retain a message of another client; it has it when this returns."""
    version = MQTTProtocolVersion.MQTTv311
    await asyncio.to_thread(
        publish.single, topic, payload, qos=1, retain=True, hostname="127.0.0.1", port=port, protocol=version
    )


SECRET = "hush-hush"
KINDS = ["nats", *(pytest.param(f"mosquitto-{version}", marks=pytest.mark.system) for version in ("5", "3.1.1"))]


@pytest_asyncio.fixture
async def make() -> AsyncIterator[Make]:
    """Make brokers that are closed when the test ends."""
    made: list[MqttBroker] = []

    def broker(port: int, userinfo: str = "", **options: Any) -> MqttBroker:
        made.append(MqttBroker(f"mqtt://{userinfo}127.0.0.1:{port}?{urlencode(options)}"))
        return made[-1]

    yield broker
    for each in made:
        await each.close()


@pytest_asyncio.fixture(params=KINDS)
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[int, dict[str, Any]]]:
    """A port that speaks MQTT, and the options to speak to it."""
    if request.param == "nats":
        async with NatsServer(tmp_path / "server", mqtt=True, ack_wait="1s") as nats:
            yield nats.mqtt_port, {}
    else:
        async with Mosquitto(tmp_path / "server") as mosquitto:
            yield mosquitto.port, {"version": request.param.partition("-")[2]}


@pytest_asyncio.fixture
async def mosquitto(tmp_path: Path) -> AsyncIterator[Mosquitto]:
    async with Mosquitto(tmp_path / "server") as server:
        yield server


async def test_will(served: tuple[int, dict[str, Any]], make: Make) -> None:
    """The broker publishes the will of a connection that was cut, and none of one that was closed."""
    port, options = served
    subscriber, recorder = make(port, **options), Recorder()
    await subscriber.connect()
    await subscriber.subscribe(("will", ANY), recorder)
    async with TcpProxy(port) as proxy:
        orderly, cut = make(proxy.port, **options), make(proxy.port, **options)
        await orderly.connect(will=(("will", "orderly"), b"gone"))
        await cut.connect(will=(("will", "cut"), b"gone"))
        await orderly.subscribe(("busy",), Recorder())
        for _ in range(200):  # what is on its way to it must not turn its end into a reset
            assert subscriber.publish(("busy",), bytes(500))
        await orderly.close()
        proxy.cut()
        heard = await recorder.has(1)
    await subscriber.barrier()
    assert [(each.topic, each.payload) for each in heard] == [(("will", "cut"), b"gone")]


async def test_redelivered(served: tuple[int, dict[str, Any]], make: Make) -> None:
    """A persistent session redelivers unacknowledged messages, marked as copies, and no others."""
    port, options = served
    options = {**options, "client_id": "the-bridge", "session": 60}

    def acknowledge(incoming: Incoming) -> None:
        assert incoming.acknowledge is not None
        if incoming.payload == b"done":
            incoming.acknowledge()

    publisher, first, recorder = make(port), make(port, **options), Recorder(acknowledge)
    await publisher.connect()
    await first.connect()
    await first.subscribe(("t", ANY), recorder, at_least_once=True)
    await publisher.request(("t", "x"), b"done")
    await publisher.request(("t", "x"), b"undone")
    assert not any(each.redelivered for each in await recorder.has(2))
    await first.close()
    await publisher.request(("t", "x"), b"meanwhile")

    second, again = make(port, **options), Recorder(confirm)
    await second.connect()
    await second.subscribe(("t", ANY), again, at_least_once=True)
    heard = await again.has(2)
    await second.barrier()
    assert {(each.payload, each.redelivered) for each in heard} == {(b"undone", True), (b"meanwhile", False)}


async def test_acknowledged_from_a_thread(served: tuple[int, dict[str, Any]], make: Make) -> None:
    """`acknowledge` may be called from any thread."""
    port, options = served
    options = {**options, "client_id": "threads", "session": 60}
    broker, recorder = make(port, **options), Recorder()
    await broker.connect()
    await broker.subscribe(("t", "x"), recorder, at_least_once=True)
    for number in range(15):  # brokers have 20 on their way at most
        await broker.request(("t", "x"), str(number).encode())
    for each in await recorder.has(15):
        assert each.acknowledge is not None
        await asyncio.to_thread(each.acknowledge)
    await broker.close()
    successor, nothing = make(port, **options), Recorder()
    await successor.connect()
    await successor.subscribe(("t", "x"), nothing, at_least_once=True)
    await successor.barrier()
    assert not nothing.received


async def test_same_id(served: tuple[int, dict[str, Any]], make: Make) -> None:
    """Of two clients with one identifier, the older connection ends."""
    port, options = served
    older, newer = make(port, client_id="one", **options), make(port, client_id="one", **options)
    await older.connect()
    await newer.connect()
    async with asyncio.timeout(20):
        assert await older.broken()
    assert await newer.probe() < 2


async def test_retained_is_not_delivered(served: tuple[int, dict[str, Any]], make: Make) -> None:
    port, options = served
    broker, recorder = make(port, **options), Recorder()
    await broker.connect()
    await publish_retained(port, "t/kept", b"old")
    await broker.subscribe(("t", ANY), recorder)
    assert broker.publish(("t", "kept"), b"new")
    await broker.barrier()
    assert recorder.payloads == [b"new"]


async def test_versions(tmp_path: Path, make: Make) -> None:
    """NATS's listener refuses MQTT 5: 3.1.1 is used instead, unless the address asks for 5."""
    async with NatsServer(tmp_path / "server", mqtt=True) as server:
        broker = make(server.mqtt_port)
        await broker.connect()
        assert await broker.probe() < 2
        with pytest.raises(BusUnavailable, match="132"):
            await make(server.mqtt_port, version="5").connect()


@pytest.fixture
def many_files() -> Iterator[None]:
    """Have more than 1024 files open, as a bridge with many sessions has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096) if hard > 0 else 4096, hard))
    files: list[int] = []
    try:
        files.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(1100))
        yield
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_beyond_1024_files(served: tuple[int, dict[str, Any]], make: Make, many_files: None) -> None:
    """A connection whose descriptor is beyond what select() can wait for works like any other."""
    port, options = served
    broker = make(port, **options)
    with Path(os.devnull).open("rb") as newest:
        assert newest.fileno() > 1024, "as the next one will be"
    await broker.connect()
    assert await broker.probe() < 2


@pytest.mark.system
async def test_restarted_session(mosquitto: Mosquitto, make: Make) -> None:
    """A persistent session outlives a restart of the broker with its store, and not one without."""
    options = {"client_id": "the-bridge", "session": 60}
    for keep, expected in ((True, [b"x"]), (False, [])):
        first = make(mosquitto.port, **options)
        await first.connect()
        await first.subscribe(("t", "x"), Recorder(), at_least_once=True)
        await first.request(("t", "x"), b"x")
        await first.close()
        mosquitto.process.terminate()  # writes its store, other than a kill -9
        await mosquitto.process.wait()
        await mosquitto.restart(keep_store=keep)
        second, recorder = (
            make(mosquitto.port, **options),
            Recorder(confirm),
        )
        await second.connect()
        await second.subscribe(("t", "x"), recorder, at_least_once=True)
        await second.barrier()
        assert recorder.payloads == expected
        await second.close()


@pytest.mark.system
async def test_packet_limit(tmp_path: Path, make: Make) -> None:
    """Messages above the limit of an MQTT 5 broker are refused; the connection continues."""
    async with Mosquitto(tmp_path / "server", extra="max_packet_size 10000") as server:
        broker = make(server.port, version="5")
        await broker.connect()
        assert not broker.publish(("t",), bytes(10_000))
        assert broker.publish(("t",), bytes(9_000))
        assert await broker.probe() < 2


@pytest.mark.system
@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_users(tmp_path: Path, make: Make, version: str, caplog: pytest.LogCaptureFixture) -> None:
    """User and password come from the address; a wrong one is a wrong setting, and is never shown."""
    tool = shutil.which("mosquitto_passwd")
    assert tool
    passwords = tmp_path / "passwords"
    subprocess.run([tool, "-c", "-b", passwords, "u@v", f"{SECRET}:/"], check=True, timeout=100, capture_output=True)
    extra = f"allow_anonymous false\npassword_file {passwords}"
    async with Mosquitto(tmp_path / "server", extra=extra) as server:
        good = make(server.port, f"u%40v:{SECRET}%3A%2F@", version=version)
        await good.connect()
        for wrong in (make(server.port, f"u%40v:{SECRET}@", version=version), make(server.port, version=version)):
            with pytest.raises(ConfigurationError) as caught:
                await wrong.connect()
            said = [str(caught.value), wrong.address, good.address, repr(wrong), await wrong.broken(), caplog.text]
            assert not any(SECRET in words for words in said)


@pytest.mark.system
async def test_forbidden_topic(tmp_path: Path, make: Make) -> None:
    """A subscription or request (MQTT 5) that the broker refuses raises."""
    access = tmp_path / "access"
    access.write_text("topic readwrite queuebell/#\ntopic readwrite t/yes\n")
    async with Mosquitto(tmp_path / "server", extra=f"allow_anonymous true\nacl_file {access}") as server:
        broker, recorder = make(server.port, version="5"), Recorder()
        await broker.connect()
        await broker.subscribe(("t", "yes"), recorder)
        await broker.request(("t", "yes"), b"x")
        await recorder.has(1)
        with pytest.raises(BusUnavailable):
            await broker.request(("t", "no"), b"x")
        assert await broker.probe() < 2


async def proven(broker: MqttBroker) -> None:
    """Probe until a message comes back: a busy machine may take longer than one probe."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(BusUnavailable):
                await broker.probe()
                return


async def test_a_persistent_session_drops_another_prefix(served: tuple[int, dict[str, Any]], make: Make) -> None:
    """Messages of an old prefix are acknowledged, counted and unsubscribed: they must not fill the window.

    A broker limits unacknowledged messages of QoS 1. Once that window is full of messages without a subscriber, no
    trigger arrives any more, while probes (QoS 0) come back.
    """
    port, options = served
    options = {**options, "client_id": "the-bridge", "session": 60}
    publisher, before = make(port), make(port, **options)
    await publisher.connect()
    await before.connect()
    await before.subscribe(("old", "trigger", ANY, ANY), Recorder(), at_least_once=True)
    await before.close()
    for number in range(150):
        await publisher.request(("old", "trigger", "a", "b"), str(number).encode())

    now, recorder = make(port, **options), Recorder(confirm)
    await now.connect()
    await now.subscribe(("new", "trigger", ANY, ANY), recorder, at_least_once=True)
    await proven(now)
    await publisher.request(("new", "trigger", "a", "b"), b"heard")
    await recorder.has(1)
    await until(lambda: now.dropped, "it is counted, so that the supervisor has every queue checked")
    await now.barrier()
    await now.close()
    with contextlib.suppress(BusUnavailable):  # MQTT 5 reports that there is no subscriber
        await publisher.request(("old", "trigger", "a", "b"), b"not for us")

    again, recorder = make(port, **options), Recorder(confirm)
    await again.connect()
    await again.subscribe(("new", "trigger", ANY, ANY), recorder, at_least_once=True)
    await proven(again)
    assert (again.dropped, recorder.received) == (0, []), "the session has no subscription to the old prefix"


def test_a_persistent_session_has_one_echo_topic() -> None:
    """A random one would leave a subscription in the broker with each connection."""
    kept = {MqttBroker("mqtt://h?client_id=c&session=60").echo_topic for _ in range(3)}
    fresh = {MqttBroker("mqtt://h?client_id=c").echo_topic for _ in range(3)}
    assert (len(kept), len(fresh)) == (1, 3)
