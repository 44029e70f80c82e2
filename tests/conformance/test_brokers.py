"""The promise of a broker, asked of each, plain and over TLS."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from queuebell.bridge.brokers import open_broker
from queuebell.bridge.brokers.base import Broker
from queuebell.bridge.brokers.mqtt.broker import MqttBroker
from queuebell.bridge.brokers.nats.broker import NatsBroker
from queuebell.bridge.contract.errors import ConfigurationError
from tests.conformance.broker import BrokerConformance, Opened, Recorder, publish_all
from tests.support.brokers import Mosquitto, NatsServer, RealBroker


class Kinds(BrokerConformance):
    """What the subclasses share: brokers of one class at one port, closed in the end."""

    make: Any
    query = ""

    @pytest.fixture
    def port(self, server: RealBroker) -> int:
        return server.port

    @pytest_asyncio.fixture
    async def opened(self, port: int) -> AsyncIterator[Opened]:
        brokers: list[Broker] = []
        scheme = self.make.kind

        async def make(at: int | None = None, *, connect: bool = True) -> Broker:
            broker: Broker = self.make(f"{scheme}://127.0.0.1:{at or port}{self.query}")
            brokers.append(broker)
            if connect:
                await broker.connect()
            return broker

        yield make
        for broker in brokers:
            await broker.close()


class TestNats(Kinds):
    make = NatsBroker

    @pytest_asyncio.fixture
    async def server(self, tmp_path: Path) -> AsyncIterator[RealBroker]:
        async with NatsServer(tmp_path) as server:
            yield server


class TestNatsByMqtt(Kinds):
    """The MQTT listener of nats-server, which speaks 3.1.1 only: the fallback is part of every test."""

    make = MqttBroker
    describes = False
    knows_nobody = False

    @pytest.fixture
    def port(self, server: RealBroker) -> int:
        assert isinstance(server, NatsServer)
        return server.mqtt_port

    @pytest_asyncio.fixture
    async def server(self, tmp_path: Path) -> AsyncIterator[RealBroker]:
        async with NatsServer(tmp_path, mqtt=True) as server:
            yield server


class _Mosquitto(Kinds):
    make = MqttBroker
    lossless = False

    @pytest_asyncio.fixture
    async def server(self, tmp_path: Path) -> AsyncIterator[RealBroker]:
        async with Mosquitto(tmp_path) as server:
            yield server


@pytest.mark.system
class TestMosquitto(_Mosquitto):
    query = "?version=5"


@pytest.mark.system
class TestMosquitto311(_Mosquitto):
    query = "?version=3.1.1"
    describes = False
    knows_nobody = False


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """Make a self-signed certificate for 127.0.0.1."""
    tool = shutil.which("openssl")
    assert tool
    cert, key = folder / f"{name}.pem", folder / f"{name}.key"
    made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test -addext"
    subprocess.run(
        [tool, *made.split(), "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
        timeout=200,
    )
    return cert, key


@pytest.fixture
def card(tmp_path: Path) -> tuple[Path, Path]:
    return certificate(tmp_path, "server")


@pytest_asyncio.fixture(params=["tls", "mqtts"])
async def url(request: pytest.FixtureRequest, tmp_path: Path, card: tuple[Path, Path]) -> AsyncIterator[str]:
    """The address of a broker that speaks TLS and asks for a certificate signed by its own."""
    cert, key = card
    server: RealBroker
    if request.param == "tls":
        tls = f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{cert}", verify: true }}'
        server = NatsServer(tmp_path / "server", extra=tls)
    else:
        tls = f"certfile {cert}\nkeyfile {key}\ncafile {cert}\nrequire_certificate true"
        server = Mosquitto(tmp_path / "server", extra=tls)
    async with server:
        yield f"{request.param}://127.0.0.1:{server.port}"


@pytest.mark.system
async def test_encrypted(url: str, card: tuple[Path, Path]) -> None:
    """Messages small and big pass, and the end comes in order."""
    broker, recorder = open_broker(f"{url}?tls_ca={card[0]}&tls_cert={card[0]}&tls_key={card[1]}"), Recorder()
    await broker.connect()
    await broker.subscribe(("t", "tls"), recorder)
    sent = [b"x" * 500_000, *(str(number).encode() for number in range(2000))]
    await publish_all(broker, ("t", "tls"), sent)
    await recorder.has(len(sent))
    assert recorder.payloads == sent
    assert await broker.probe() < 2
    await broker.close()
    assert await broker.broken() == "closed"


@pytest.mark.system
async def test_stranger(url: str, card: tuple[Path, Path], tmp_path: Path) -> None:
    """A broker whose certificate nobody vouches for is a wrong setting; there is no way to trust it blindly."""
    other = certificate(tmp_path, "other")[0]
    for options in ("", f"?tls_ca={other}"):
        broker = open_broker(url + options)
        with pytest.raises(ConfigurationError):
            await broker.connect()
        await broker.close()
