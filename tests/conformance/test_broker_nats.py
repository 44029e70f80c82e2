"""NATS alone: its errors, its users, JetStream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import nats
import nkeys
import pytest
import pytest_asyncio
from nats.aio.client import Client

from queuebell.bridge.brokers.address import Host
from queuebell.bridge.brokers.base import ANY, Incoming
from queuebell.bridge.brokers.nats import broker as nats_broker
from queuebell.bridge.brokers.nats.broker import Durable, NatsBroker
from queuebell.bridge.contract.errors import BusUnavailable, ConfigurationError
from tests.conformance.broker import Recorder, publish_all
from tests.support.brokers import NatsServer
from tests.support.nats_jwt import new_key, operator_mode
from tests.support.tcp_proxy import TcpProxy

Make = Callable[..., NatsBroker]
SECRET = "hush-hush"


@pytest_asyncio.fixture
async def make() -> AsyncIterator[Make]:
    """Make brokers that are closed when the test ends."""
    made: list[NatsBroker] = []

    def broker(url: str, **options: Any) -> NatsBroker:
        made.append(NatsBroker(url, **options))
        return made[-1]

    yield broker
    for each in made:
        await each.close()


@pytest_asyncio.fixture
async def server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    async with NatsServer(tmp_path / "server") as server:
        yield server


@pytest_asyncio.fixture
async def bare(server: NatsServer) -> AsyncIterator[Client]:
    """A plain client, to make streams with."""
    client = await nats.connect(f"nats://127.0.0.1:{server.port}")
    yield client
    await client.close()


def at(port: int) -> str:
    return f"nats://127.0.0.1:{port}"


@pytest.mark.parametrize(
    "words",
    [
        b"-ERR 'User Authentication Expired'\r\n",
        b"-ERR 'Stale Connection'\r\n",
        b"-ERR 'Slow Consumer'\r\n",
        b"-ERR \r\n",  # the client library fails at this one itself
        b"NONSENSE\r\n",
        b"INFO {\r\n",
    ],
)
async def test_words_that_end_it(words: bytes, server: NatsServer, make: Make) -> None:
    """Whatever ends the client library's reading ends the connection (traps 3.6, 3.7)."""
    async with TcpProxy(server.port) as proxy:
        broker = make(at(proxy.port))
        await broker.connect()
        proxy.say(words)
        async with asyncio.timeout(10):
            assert await broker.broken()
        assert not broker.publish(("t",), b"")


async def test_words_that_do_not(server: NatsServer, make: Make) -> None:
    """A refused publish, news of the cluster and a ping leave the connection as it is."""
    async with TcpProxy(server.port) as proxy:
        broker = make(at(proxy.port))
        await broker.connect()
        proxy.say(b"-ERR 'Permissions Violation for Publish to x'\r\nPING\r\n+OK\r\n")
        proxy.say(b'INFO {"connect_urls":["h:1"]}\r\n')
        assert await broker.probe() < 2
        assert await broker.probe() < 2
        assert Host("h", 1) in [server.host for server in broker.servers.turns()]


async def test_dropped_is_counted(server: NatsServer, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Messages beyond the library's buffer are counted and logged in one line, and cost nothing else (trap 3.9)."""
    subscriber, publisher, recorder = make(at(server.port), pending_max=10), make(at(server.port)), Recorder()
    await subscriber.connect()
    await publisher.connect()
    await subscriber.subscribe(("t", "many"), recorder)
    await publish_all(publisher, ("t", "many"), [b"x" * 10] * 5000)
    await publisher.barrier()
    await subscriber.barrier()
    assert subscriber.dropped > 0
    assert len(recorder.received) + subscriber.dropped == 5000
    assert len([each for each in caplog.records if each.name.startswith("queuebell")]) == 1


async def test_forbidden_subject(tmp_path: Path, make: Make) -> None:
    """A subscription that the server forbids is refused, not silently deaf (trap 3.13)."""
    users = 'authorization { users: [{user: u, password: p, permissions: {subscribe: ["_INBOX.>", "t.yes"]}}] }'
    async with NatsServer(tmp_path / "server", extra=users) as server:
        broker = make(f"nats://u:p@127.0.0.1:{server.port}")
        await broker.connect()
        await broker.subscribe(("t", "yes"), Recorder())
        with pytest.raises(BusUnavailable, match=r"t\.no"):
            await broker.subscribe(("t", "no"), Recorder())
        assert await broker.probe() < 2


async def test_users(tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """User and password come from the address; a wrong one is a wrong setting, and is never shown."""
    caplog.set_level(logging.DEBUG)
    users = f'authorization {{ users: [{{user: "a@b", password: "{SECRET}:/"}}] }}'
    async with NatsServer(tmp_path / "server", extra=users) as server:
        good = make(f"nats://a%40b:{SECRET}%3A%2F@127.0.0.1:{server.port}")
        await good.connect()
        assert good.address == at(server.port)
        for wrong in (make(f"nats://a%40b:{SECRET}@127.0.0.1:{server.port}"), make(at(server.port))):
            with pytest.raises(ConfigurationError) as caught:
                await wrong.connect()
            said = [str(caught.value), repr(caught.value.__dict__), wrong.address, repr(wrong), await wrong.broken()]
            assert not any(SECRET in words for words in [*said, caplog.text])


async def test_token(tmp_path: Path, make: Make) -> None:
    async with NatsServer(tmp_path / "server", extra=f'authorization {{ token: "{SECRET}" }}') as server:
        broker = make(f"nats://{SECRET}@127.0.0.1:{server.port}")
        await broker.connect()
        assert await broker.probe() < 2
        assert SECRET not in broker.address


async def test_nkey(tmp_path: Path, make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """An nkey signs the server's nonce; its seed stays in its file, with one warning if every user can read it."""
    seed, key = new_key(nkeys.PREFIX_BYTE_USER)
    file = tmp_path / "seed"
    file.write_text(seed + "\n")
    file.chmod(0o644)
    users = f"authorization {{ users: [{{nkey: {key.public_key.decode()}}}] }}"
    async with NatsServer(tmp_path / "server", extra=users) as server:
        broker = make(f"{at(server.port)}?nkey={file}")
        await broker.connect()
        assert await broker.probe() < 2
        await make(f"{at(server.port)}?nkey={file}").connect()
        told = [record.getMessage() for record in caplog.records if str(file) in record.getMessage()]
        assert told == [f"broker: nkey: every user of this machine can read it: chmod 600 {file}"]
        other = tmp_path / "other"
        other.write_text(new_key(nkeys.PREFIX_BYTE_USER)[0])
        with pytest.raises(ConfigurationError):
            await make(f"{at(server.port)}?nkey={other}").connect()
        other.write_text(SECRET)
        with pytest.raises(ConfigurationError) as caught:
            await make(f"{at(server.port)}?nkey={other}").connect()
        assert SECRET not in str(caught.value)


async def test_credentials(tmp_path: Path, make: Make) -> None:
    """A credentials file connects in operator mode; a missing or broken one is a wrong setting."""
    config, credentials = operator_mode()
    file = tmp_path / "user.creds"
    file.write_text(credentials)
    async with NatsServer(tmp_path / "server", extra=config, jetstream=False) as server:
        broker = make(f"{at(server.port)}?credentials={file}")
        await broker.connect()
        assert await broker.probe() < 2
        with pytest.raises(ConfigurationError, match="credentials"):
            await make(f"{at(server.port)}?credentials={tmp_path / 'none'}").connect()
        broken = tmp_path / "broken.creds"
        for text in ("", credentials.replace("BEGIN", "BEGUN"), credentials.replace("SU", "XX"), "\x00" * 100):
            broken.write_text(text)
            with pytest.raises(ConfigurationError, match="credentials"):
                await make(f"{at(server.port)}?credentials={broken}").connect()
        stranger = tmp_path / "stranger.creds"
        stranger.write_text(operator_mode()[1])
        with pytest.raises(ConfigurationError):
            await make(f"{at(server.port)}?credentials={stranger}").connect()


async def test_tls_is_never_left_out(make: Make) -> None:
    """`tls://` to a server without TLS sends no password (the client library would)."""
    heard = bytearray()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"auth_required":true}\r\n')
        while data := await reader.read(4096):
            heard.extend(data)
            if b"PING" in data:
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as listening:
        port = listening.sockets[0].getsockname()[1]
        for user in (f"u:{SECRET}@", f"{SECRET}@", ""):
            with pytest.raises(ConfigurationError, match="TLS"):
                await make(f"tls://{user}127.0.0.1:{port}").connect()
    assert SECRET.encode() not in heard


async def test_at_least_once_without_a_stream(server: NatsServer, make: Make) -> None:
    broker, recorder = make(at(server.port)), Recorder()
    await broker.connect()
    await broker.subscribe(("t", ANY), recorder, at_least_once=True)
    assert broker.publish(("t", "x"), b"1")
    assert (await recorder.has(1))[0].acknowledge is None


async def test_durable(server: NatsServer, bare: Client, make: Make) -> None:
    """A stream delivers earlier messages, and unacknowledged ones again, marked as copies."""
    await bare.jetstream().add_stream(name="triggers", subjects=["t.>"])
    url = f"{at(server.port)}?stream=triggers&ack_wait=1"
    await bare.publish("t.early", b"early")
    await bare.flush()

    def acknowledge(incoming: Incoming) -> None:
        if incoming.payload != b"2" or incoming.redelivered:
            assert incoming.acknowledge is not None
            incoming.acknowledge()

    broker, recorder = make(url), Recorder(acknowledge)
    await broker.connect()
    await broker.subscribe(("t", ANY), recorder, at_least_once=True)
    for number in range(5):
        assert broker.publish(("t", "now"), str(number).encode(), headers={"x": "y"})
    heard = await recorder.has(7)
    assert [each.payload for each in heard[:6]] == [b"early", b"0", b"1", b"2", b"3", b"4"]
    assert [each.redelivered for each in heard] == [False] * 6 + [True]
    assert (heard[6].payload, heard[6].topic, heard[6].headers) == (b"2", ("t", "now"), {"x": "y"})
    await broker.barrier()
    info = await bare.jetstream().consumer_info("triggers", "queuebell-bridge")
    assert (info.num_ack_pending, info.num_pending) == (0, 0)


async def test_durable_survives(server: NatsServer, bare: Client, make: Make) -> None:
    """More than a batch arrives; the next connection gets what a broken one left unacknowledged."""
    await bare.jetstream().add_stream(name="triggers", subjects=["t.>"])
    async with TcpProxy(server.port) as proxy:
        first, lost = make(f"{at(proxy.port)}?stream=triggers&ack_wait=1"), Recorder()
        await first.connect()
        await first.subscribe(("t", ANY), lost, at_least_once=True)
        await publish_all(first, ("t", "x"), [str(number).encode() for number in range(1500)])
        await lost.has(1500)
        assert lost.payloads == [str(number).encode() for number in range(1500)]
        proxy.half_open()

        def acknowledge(incoming: Incoming) -> None:
            assert incoming.acknowledge is not None
            incoming.acknowledge()

        second, recorder = make(f"{at(server.port)}?stream=triggers&ack_wait=1"), Recorder(acknowledge)
        await second.connect()
        await second.subscribe(("t", ANY), recorder, at_least_once=True)
        heard = await recorder.has(1500)
        assert {int(each.payload) for each in heard} == set(range(1500))
        assert all(each.redelivered for each in heard)
        first_closed = asyncio.get_running_loop().time()
        await first.close()
        assert asyncio.get_running_loop().time() - first_closed < 20


async def test_durable_without_stream_or_consumer(server: NatsServer, bare: Client, make: Make) -> None:
    """A stream that is not there is worth another try; a consumer that is deleted breaks the connection."""
    broker = make(f"{at(server.port)}?stream=triggers&durable=mine")
    await broker.connect()
    with pytest.raises(BusUnavailable, match="triggers"):
        await broker.subscribe(("t", ANY), Recorder(), at_least_once=True)
    await bare.jetstream().add_stream(name="triggers", subjects=["t.>"])
    await broker.subscribe(("t", ANY), Recorder(), at_least_once=True)
    async with asyncio.timeout(20):
        # Deleted before the first request arrives, it would be a deletion that the server does not report.
        while not (await bare.jsm().consumer_info("triggers", "mine")).num_waiting:
            pass
        await bare.jsm().delete_consumer("triggers", "mine")
        assert "mine" in await broker.broken()


async def test_a_consumer_that_is_deleted_between_two_requests_breaks_the_connection(
    server: NatsServer, bare: Client, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server does not report that deletion. A few failed requests are an election and end nothing."""
    asks: list[Durable] = []
    broker = make(f"{at(server.port)}?stream=triggers&durable=mine")
    await broker.connect()
    await bare.jetstream().add_stream(name="triggers", subjects=["t.>"])
    with monkeypatch.context() as before:
        before.setattr(Durable, "pull", lambda durable: asks.append(durable))
        await broker.subscribe(("t", ANY), Recorder(), at_least_once=True)
    await bare.jsm().delete_consumer("triggers", "mine")
    monkeypatch.setattr(nats_broker, "AGAIN_S", 0.001)
    pulls, pull = [0], Durable.pull

    def counted(durable: Durable) -> None:
        pulls[0] += 1
        pull(durable)

    monkeypatch.setattr(Durable, "pull", counted)
    asks[0].pull()
    assert "the consumer mine of stream triggers no longer answers" in await broker.broken()
    assert pulls == [nats_broker.UNANSWERED_MAX]
