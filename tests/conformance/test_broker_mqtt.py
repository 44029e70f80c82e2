"""What only MQTT has: last wills, kept sessions, versions, limits."""

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

from bridge.brokers.base import ANY, Incoming
from bridge.brokers.mqtt.broker import MqttBroker
from bridge.contract.errors import BusUnavailable, ConfigurationError
from tests.conformance.broker import Ear
from tests.support.brokers import Mosquitto, NatsServer
from tests.support.processes import until
from tests.support.tcp_proxy import TcpProxy

# Private: `_echo_topic`: the broker would keep this subscription.

Make = Callable[..., MqttBroker]


def confirm(incoming: Incoming) -> None:
    if incoming.acknowledge is not None:
        incoming.acknowledge()


async def publish_retained(port: int, topic: str, payload: bytes) -> None:
    """Have the broker keep a message, as a stranger to us; it has it when this returns."""
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
    hearing, ear = make(port, **options), Ear()
    await hearing.connect()
    await hearing.subscribe(("will", ANY), ear)
    async with TcpProxy(port) as proxy:
        orderly, cut = make(proxy.port, **options), make(proxy.port, **options)
        await orderly.connect(will=(("will", "orderly"), b"gone"))
        await cut.connect(will=(("will", "cut"), b"gone"))
        await orderly.subscribe(("busy",), Ear())
        for _ in range(200):  # what is on its way to it must not turn its end into a reset
            assert hearing.publish(("busy",), bytes(500))
        await orderly.close()
        proxy.cut()
        heard = await ear.has(1)
    await hearing.barrier()
    assert [(each.topic, each.payload) for each in heard] == [(("will", "cut"), b"gone")]


async def test_redelivered(served: tuple[int, dict[str, Any]], make: Make) -> None:
    """In a kept session, what was not acknowledged comes again, marked as a copy; what was acknowledged does not."""
    port, options = served
    options = {**options, "client_id": "the-bridge", "session": 60}

    def acknowledge(incoming: Incoming) -> None:
        assert incoming.acknowledge is not None
        if incoming.payload == b"done":
            incoming.acknowledge()

    speaking, first, ear = make(port), make(port, **options), Ear(acknowledge)
    await speaking.connect()
    await first.connect()
    await first.subscribe(("t", ANY), ear, at_least_once=True)
    await speaking.request(("t", "x"), b"done")
    await speaking.request(("t", "x"), b"undone")
    assert not any(each.redelivered for each in await ear.has(2))
    await first.close()
    await speaking.request(("t", "x"), b"meanwhile")

    second, again = make(port, **options), Ear(confirm)
    await second.connect()
    await second.subscribe(("t", ANY), again, at_least_once=True)
    heard = await again.has(2)
    await second.barrier()
    assert {(each.payload, each.redelivered) for each in heard} == {(b"undone", True), (b"meanwhile", False)}


async def test_acknowledged_from_a_thread(served: tuple[int, dict[str, Any]], make: Make) -> None:
    """`acknowledge` may be called from any thread; all 15 are taken by the broker."""
    port, options = served
    options = {**options, "client_id": "threads", "session": 60}
    broker, ear = make(port, **options), Ear()
    await broker.connect()
    await broker.subscribe(("t", "x"), ear, at_least_once=True)
    for number in range(15):  # brokers have 20 on their way at most
        await broker.request(("t", "x"), str(number).encode())
    for each in await ear.has(15):
        assert each.acknowledge is not None
        await asyncio.to_thread(each.acknowledge)
    await broker.close()
    successor, nothing = make(port, **options), Ear()
    await successor.connect()
    await successor.subscribe(("t", "x"), nothing, at_least_once=True)
    await successor.barrier()
    assert not nothing.heard


async def test_same_id(served: tuple[int, dict[str, Any]], make: Make) -> None:
    """Two clients that were given one id: the older is put out, and says so."""
    port, options = served
    older, newer = make(port, client_id="one", **options), make(port, client_id="one", **options)
    await older.connect()
    await newer.connect()
    async with asyncio.timeout(20):
        assert await older.broken()
    assert await newer.probe() < 2


async def test_retained_is_not_heard(served: tuple[int, dict[str, Any]], make: Make) -> None:
    """What the broker retains from earlier is no news."""
    port, options = served
    broker, ear = make(port, **options), Ear()
    await broker.connect()
    await publish_retained(port, "t/kept", b"old")
    await broker.subscribe(("t", ANY), ear)
    assert broker.publish(("t", "kept"), b"new")
    await broker.barrier()
    assert ear.payloads == [b"new"]


async def test_versions(tmp_path: Path, make: Make) -> None:
    """NATS's listener refuses MQTT 5: without a wish 3.1.1 is spoken, and a wish is kept to."""
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
    """A kept session outlives a restart of the broker that keeps its store, and not one that loses it."""
    options = {"client_id": "the-bridge", "session": 60}
    for keep, expected in ((True, [b"x"]), (False, [])):
        first = make(mosquitto.port, **options)
        await first.connect()
        await first.subscribe(("t", "x"), Ear(), at_least_once=True)
        await first.request(("t", "x"), b"x")
        await first.close()
        mosquitto.process.terminate()  # writes its store, other than a kill -9
        await mosquitto.process.wait()
        await mosquitto.restart(keep_store=keep)
        second, ear = (
            make(mosquitto.port, **options),
            Ear(confirm),
        )
        await second.connect()
        await second.subscribe(("t", "x"), ear, at_least_once=True)
        await second.barrier()
        assert ear.payloads == expected
        await second.close()


@pytest.mark.system
async def test_packet_limit(tmp_path: Path, make: Make) -> None:
    """What MQTT 5 brokers say they take is kept to; the connection lives on."""
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
    """A subscription that the broker refuses is refused here, and a request that it refuses too (MQTT 5)."""
    access = tmp_path / "access"
    access.write_text("topic readwrite queuebell/#\ntopic readwrite t/yes\n")
    async with Mosquitto(tmp_path / "server", extra=f"allow_anonymous true\nacl_file {access}") as server:
        broker, ear = make(server.port, version="5"), Ear()
        await broker.connect()
        await broker.subscribe(("t", "yes"), ear)
        await broker.request(("t", "yes"), b"x")
        await ear.has(1)
        with pytest.raises(BusUnavailable):
            await broker.request(("t", "no"), b"x")
        assert await broker.probe() < 2


async def proven(broker: MqttBroker) -> None:
    """Probe until a message came back, for a busy machine may take longer than a probe waits."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(BusUnavailable):
                await broker.probe()
                return


async def test_a_kept_session_lets_go_of_another_prefix(served: tuple[int, dict[str, Any]], make: Make) -> None:
    """What was subscribed under an old prefix is acknowledged, counted and unsubscribed: it must not fill the window.

    A broker has only so many messages of QoS 1 unacknowledged on their way. Full of what nobody hears, it would bring
    no trigger any more, while probes, of QoS 0, come back.
    """
    port, options = served
    options = {**options, "client_id": "the-bridge", "session": 60}
    speaking, before = make(port), make(port, **options)
    await speaking.connect()
    await before.connect()
    await before.subscribe(("old", "trigger", ANY, ANY), Ear(), at_least_once=True)
    await before.close()
    for number in range(150):
        await speaking.request(("old", "trigger", "a", "b"), str(number).encode())

    now, ear = make(port, **options), Ear(confirm)
    await now.connect()
    await now.subscribe(("new", "trigger", ANY, ANY), ear, at_least_once=True)
    await proven(now)
    await speaking.request(("new", "trigger", "a", "b"), b"heard")
    await ear.has(1)
    await until(lambda: now.dropped, "it is counted, so that the supervisor has every queue looked at")
    await now.barrier()
    await now.close()
    with contextlib.suppress(BusUnavailable):  # MQTT 5 reports that there is no subscriber
        await speaking.request(("old", "trigger", "a", "b"), b"not for us")

    again, ear = make(port, **options), Ear(confirm)
    await again.connect()
    await again.subscribe(("new", "trigger", ANY, ANY), ear, at_least_once=True)
    await proven(again)
    assert (again.dropped, ear.heard) == (0, []), "the session has no subscription to the old prefix"


def test_a_kept_session_has_one_topic_to_prove_itself_by() -> None:
    """A random one for each connection would leave a subscription in the broker each time."""
    kept = {MqttBroker("mqtt://h?client_id=c&session=60")._echo_topic for _ in range(3)}
    fresh = {MqttBroker("mqtt://h?client_id=c")._echo_topic for _ in range(3)}
    assert (len(kept), len(fresh)) == (1, 3)
